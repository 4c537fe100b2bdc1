"""A loaded model in forked processes, and in threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nmt.inference.translator import Translator
from tests.inference.conftest import sentences
from tests.process import LIMIT

ENGINES = ("auto", "torch")  # `auto` is CTranslate2 where it is installed
LINES = sentences(24, seed=6)
FORK = """
import os, sys
import nmt

engine, run, first, lines = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
translator = nmt.Translator.load(run, engine=engine, threads=2, device="cpu")
for _ in range(first):
    translator.translate(lines[:1])
for number in range(3):
    sys.stdout.flush()
    process = os.fork()
    if process:
        assert os.waitpid(process, 0)[1] == 0
    else:
        if number:  # the first process does not translate
            print(*(result.text for result in translator.translate(lines)), sep="\\n")
        sys.exit()
print(*(result.text for result in translator.translate(lines)), sep="\\n")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on Windows")
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("engine", ["auto", pytest.param("torch", marks=pytest.mark.long)])
def test_forked_processes_translate_like_the_process_that_loaded_the_model(
    engine: str, used: int, runs: dict[str, Path]
) -> None:
    """Whether it had translated before or not. All of them end."""
    words = [engine, str(runs["plain"]), str(used), *LINES]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    texts = subprocess.run(
        [sys.executable, "-c", FORK, *words],
        capture_output=True, check=True, env=environment, text=True, timeout=LIMIT,
    ).stdout.splitlines()  # fmt: skip
    assert len(texts) == 3 * len(LINES)
    assert texts[: len(LINES)] == texts[len(LINES) : 2 * len(LINES)] == texts[2 * len(LINES) :]


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_share_a_translator(engine: str, runs: dict[str, Path]) -> None:
    translator = Translator.load(runs["plain"], engine=engine, threads=2, device="cpu")
    parts = [LINES[start::4] for start in range(4)]

    def texts(lines: list[str]) -> list[str]:
        return [result.text for result in translator.translate(lines)]

    with ThreadPoolExecutor(len(parts)) as pool:
        assert list(pool.map(texts, parts)) == [texts(part) for part in parts]
