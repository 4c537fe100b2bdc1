"""nmt on Windows and macOS, as far as Linux shows it; `tests.windows` says what it hides."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY_PAIRS
from tests.process import LIMIT, started

ROOT = Path(__file__).parents[2]
POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CONFIG = """
name: small
source_language: de
target_language: en
data:
  train: [{source: pairs.de, target: pairs.en}]
  valid: {source: pairs.de, target: pairs.en}
  test: {tiny: {source: pairs.de, target: pairs.en}}
tokenizer: {vocab_size: 90, byte_fallback: false}
filters: {near_duplicate: report, misaligned: report}
model: {model_dim: 16, ff_dim: 32, num_heads: 2, encoder_layers: 1, decoder_layers: 1}
training:
  {max_steps: 10, save_every: 5, validate_every: 5, keep_last: 2, average_last: 2, threads: 1,
  schedule: {shape: constant}}
"""


class Windows:
    """Runs nmt in a folder, in a Python that resembles Windows with an old code page."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder = folder
        (place / "sitecustomize.py").write_text("import tests.windows\ntests.windows.imitate()\n")
        # The C locale, which Python must not replace by UTF-8.
        legacy = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "LANG": ""}
        paths = os.pathsep.join([str(place), str(ROOT)])
        self.env = os.environ | legacy | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *words: str, **options: Any) -> AbstractContextManager[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "nmt", *words]
        pipe = subprocess.PIPE
        streams: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
        return started(command, cwd=self.folder, env=self.env, **streams)

    def __call__(self, *words: str, text: str = "") -> str:
        """Return what a command wrote to standard output; nothing of Linux may have failed."""
        with self.start(*words) as process:
            out, err = process.communicate(text.encode(), timeout=LIMIT)
        assert process.returncode == 0, err.decode()
        assert b"on Windows" not in err, err.decode()
        assert b"\r" not in out + err
        return out.decode("utf-8")


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    folder, place = tmp_path / "my models", tmp_path / "site"
    for each in (folder, place):
        each.mkdir()
    for code, side in (("de", 0), ("en", 1)):
        lines = "".join(f"{pair[side]}\r\n" for pair in TINY_PAIRS * 3)
        (folder / f"pairs.{code}").write_bytes(lines.encode())
    (folder / "pairs.yaml").write_text(CONFIG, encoding="utf-8")
    return Windows(folder, place)


@pytest.mark.long
def test_every_step_works_without_posix_and_with_an_old_code_page(windows: Windows) -> None:
    assert "Train, evaluate and serve" in windows("--help")
    prepared = json.loads(windows("prepare", "pairs.yaml", "--workers", "2", "--json"))
    assert prepared["counts"]["pairs.de"]["kept"] == 60
    for steps in (10, 20):  # the second one resumes, and deletes the checkpoint that it read
        windows("train", "pairs.yaml", "--set", f"training.max_steps={steps}")
    run = windows.folder / "runs" / "small"
    assert not (run / "checkpoints" / "step-00000010").exists()
    assert (run / "checkpoints" / "step-00000020").is_dir()
    text = "Zwei Männer gehen.\r\n\r\nDie Tür.\r\n"
    assert windows("translate", "runs/small", text=text).count("\n") == 3
    scores = json.loads(windows("evaluate", "runs/small", "--json", "--quiet"))
    assert scores["test_sets"]
    written = [path for path in windows.folder.rglob("*") if path.is_file()]
    texts = {".json", ".jsonl", ".yaml", ".html", ".txt"}
    with_cr = {x.name for x in written if x.suffix in texts and b"\r" in x.read_bytes()}
    assert with_cr <= {"config.json", "shared_vocabulary.json"}  # by CTranslate2 itself
    assert [x for x in written if ".tmp-" in str(x) or ".work" in str(x)] == []
    one_by_one(windows)
    served(windows)


def one_by_one(windows: Windows) -> None:
    """FAULT 43: a line is translated before the next one arrives."""
    with windows.start("translate", "runs/small", stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in ("Zwei Männer gehen.", "Die Tür."):
            process.stdin.write(f"{line}\r\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")
        process.stdin.close()
    assert process.returncode == 0


def served(windows: Windows) -> None:
    with windows.start("serve", "runs/small", "--port", "0") as process:
        assert process.stderr is not None
        assert b"nmt: ready\n" in iter(process.stderr.readline, b"")
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def is_text(call: ast.Call, name: str) -> bool:
    """Whether a call opens a file for text, or starts a program whose output is text."""
    if name in ("read_text", "write_text"):  # those of nmt are functions, or take a path
        return isinstance(call.func, ast.Attribute) and len(call.args) == (name == "write_text")
    if name == "open":
        is_function = isinstance(call.func, ast.Name)
        modes = [x.value for x in call.args[is_function:][:1] if isinstance(x, ast.Constant)]
        return "b" not in str(*modes) if modes else not call.args
    return bool({"text", "universal_newlines"} & {x.arg for x in call.keywords})


def test_nmt_imports_no_module_of_posix_and_names_the_encoding_of_every_text() -> None:
    found = []
    for path in sorted((ROOT / "nmt").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        found += [f"{path}: {name}" for name in imported(tree) if name in POSIX_ONLY]
        for call in (x for x in ast.walk(tree) if isinstance(x, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name in ("open", "read_text", "write_text", "run", "Popen") and is_text(call, name):
                words = {x.arg for x in call.keywords}
                if "encoding" not in words and "utf-8" not in ast.unparse(call):
                    found.append(f"{path}:{call.lineno}: {ast.unparse(call)}")
    assert found == []
