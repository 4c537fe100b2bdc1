"""``nmt translate`` under torchrun: two processes that behave as one."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from nmt.checkpoint.files import checkpoint_dir
from nmt.device.distributed import Processes
from nmt.errors import DataError
from nmt.inference.distributed import ahead, part_of, translated
from nmt.inference.engine import Engine
from nmt.inference.request import Request, Result
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from tests.cli.commands import FLAGS, call
from tests.inference.conftest import sentences, translator_of

LINES = [line.encode() for line in sentences(9, seed=4, longest=8)]
PATIENCE_SECONDS = 120


@pytest.fixture
def run_dir(runs: dict[str, Path]) -> Path:
    call("translate", runs["plain"], text="Hund\n")  # converts the model for CTranslate2
    return runs["plain"]


def together(
    run: Path, *arguments: object, text: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run it in two processes; if they do not end, the test fails."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [sys.executable, *launcher, "-m", "nmt", "translate", run, *FLAGS, *arguments]
    return subprocess.run(
        [str(word) for word in command],
        input=text,
        capture_output=True,
        # Without GPUs: there may be one, and then two processes are refused.
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def messages(stderr: str) -> list[str]:
    """What the command itself has said, in an order of its own: processes speak when they can."""
    timeless = re.sub(r"took [\d.]+ of [\d.]+ s", "took some time", stderr)
    return sorted(x for x in timeless.splitlines() if x.startswith(("nmt:", "error:", "  fix:")))


def rounded(output: bytes) -> str:
    """Scores to 3 places: a process has other batches, which changes the last digits."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.3f}", output.decode())


@pytest.mark.long
def test_output_is_that_of_one_process(run_dir: Path, tmp_path: Path) -> None:
    """With blank, bad and odd lines in both parts, and a line that has to be cut.

    And with a damaged checkpoint, which all find but only the first logs.
    """
    run = tmp_path / "run"
    shutil.copytree(run_dir, run)
    shutil.copytree(checkpoint_dir(run, 1), checkpoint_dir(run, 2))
    good = [json.dumps({"source": x.decode(), "id": i}).encode() for i, x in enumerate(LINES)]
    long, odd = json.dumps({"source": b" ".join(LINES).decode()}), b'{"source": "Kat\xffze"}'
    bad = b'{"sourc": "x"}'
    lines = [b"\xef\xbb\xbf", odd, *good, bad, b"", b" ", long.encode(), odd, *good, bad, good[0]]
    text = b"\n".join(lines)
    flags = ("--input-format", "json", "--format", "json", "--n-best", 2)
    expected = call("translate", run, *flags, text=text)
    assert expected.exit_code == 3
    found = together(run, *flags, text=text)
    assert found.returncode != 0
    assert rounded(found.stdout) == rounded(expected.stdout_bytes)
    assert messages(found.stderr.decode()) == messages(expected.stderr)
    assert "nmt: warning: damaged checkpoint skipped" in expected.stderr
    assert "nmt: warning: line 16, byte 16: 0xff" in expected.stderr
    assert "2 lines could not be translated. The first: Line 12 needs" in expected.stderr


@pytest.mark.long
def test_damaged_input_ends_all_processes_with_one_message(run_dir: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.de.gz", tmp_path / "out.en"
    content = gzip.compress(os.urandom(1 << 10).hex().encode())
    source.write_bytes(content[: len(content) // 2])
    found = together(run_dir, "-i", source, "-o", output)
    assert found.returncode != 0
    problem, fix = messages(found.stderr.decode())[::-1]
    assert "damaged or truncated" in problem + fix
    names = {path.name for path in tmp_path.iterdir()}
    assert names <= {"in.de.gz", "out.en.part", "out.en.part.json"}  # what is translated so far


class First(Processes):
    """The first of two processes: notes all collective calls."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    @override
    def share(self, value: Any) -> Any:
        self.calls.append(("share", value))
        return value

    @override
    def gather(self, value: Any) -> Any:
        self.calls.append(("gather", value))
        return [value]


class Second(Processes):
    """The second: its collective calls must be those of the first, in the same order."""

    rank, size = 1, 2

    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        self.calls = iter(calls)

    @override
    def share(self, value: Any) -> Any:
        name, common = next(self.calls)
        assert name == "share"
        return common

    @override
    def gather(self, value: Any) -> Any:
        name, others = next(self.calls)
        assert name == "gather"
        return [others, value]


class OnGpu(Engine):
    """Says the source again."""

    on_gpu = True

    @override
    def search(self, sources: Any, *_: Any, **__: Any) -> Any:
        return [[Hypothesis(tuple(ids), -1.0, -1.0)] for ids in sources]


def test_the_first_process_decides_when_the_next_chunk_is_read(
    tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    """The others would wait for ever for a call that does not come."""
    translator = translator_of(OnGpu(), tokenizers, max_length=10)
    lines = [Request(line) for line in sentences(12, seed=4, longest=3)]
    lines[1] = lines[7] = Request("und " * 12)  # in both parts of a chunk of its own
    chunks = [(11, lines[:5]), (16, lines[5:7]), (18, lines[7:8]), (19, lines[8:])]
    ready = iter([True, False, True, True, False, True] * 3)
    first = First()
    for _ in translated(translator, iter(chunks), first, lambda: next(ready)):
        pass
    second = translated(translator, iter(()), Second(first.calls), lambda: False)
    found = list(second)
    assert [chunk for chunk, _ in found] == chunks
    results = [result for _, own in found for result in own]
    assert [own.text for own in results if isinstance(own, Result)] == [
        x.text.strip() for x in lines
    ]
    cut = sorted(text.split(":")[0] for text in caplog.messages)
    assert cut == ["line 12", "line 18"]


@given(st.lists(st.binary(max_size=1), max_size=30), st.integers(1, 9))
def test_the_parts_of_a_chunk_are_the_chunk(lines: list[bytes], size: int) -> None:
    parts: list[Sequence[bytes]] = []
    for rank in range(size):
        begin, part = part_of(lines, rank, size)
        assert begin == sum(map(len, parts))
        parts.append(part)
    assert [line for part in parts for line in part] == lines
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_chunk_is_prepared_ahead_and_no_more() -> None:
    begun, most = 0, 0

    def chunks() -> Iterator[int]:
        nonlocal begun
        while begun < 19:
            begun += 1
            yield begun

    for done, _ in enumerate(ahead(chunks(), int, lambda: True), 1):
        most = max(most, begun - done)
    assert (begun, most) == (19, 1)


def test_pending_results_come_before_waiting_for_input() -> None:
    """The third chunk is ready once the second is answered, and the end once all are."""
    answered, read = list[int](), list[int]()

    def chunks() -> Iterator[int]:
        for number in range(1, 5):
            read.append(number)
            yield number
        assert answered == [1, 2, 3, 4]

    before = []
    is_ready = lambda: len(read) < 2 or (len(answered) >= 2 and len(read) < 4)  # noqa: E731
    for number in ahead(chunks(), int, is_ready):
        before.append(list(read))
        answered.append(number)
    assert before == [[1, 2], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4]]


def test_an_error_is_raised_after_earlier_lines_and_leaves_no_thread() -> None:
    """Be it in preparing, or that the input is damaged."""

    def damaged() -> Iterator[int]:
        yield from (2, 1)
        raise DataError("cut off", fix="")

    before = threading.active_count()
    for chunks, error in ((iter([2, 1, 0, 3]), ZeroDivisionError), (damaged(), DataError)):
        found = list[int]()
        with pytest.raises(error):
            found.extend(ahead(chunks, lambda n: 1 // n, lambda: True))
        assert (found, threading.active_count()) == ([0, 1], before)
