"""Lines of whole files, and the two ends of a filter."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import random
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.errors import ConfigError, DataError
from nmt.files import lines
from nmt.files.atomic import check_output, open_output
from nmt.files.lines import (
    LineDecoder,
    open_binary,
    open_input,
    read_chunks,
    read_lines,
    split_lines,
)  # fmt: skip
from tests.process import LIMIT


def written(folder: Path, content: bytes, name: str = "text.de") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@given(
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xff"])).map(b"".join),
    st.none() | st.integers(0, 6),
    st.integers(1, 5),
)
@example(data=b"aa\r\na\r\naa\r", limit=2, size=5)  # without its CR, a line is not over the limit
def test_lines_do_not_depend_on_chunks(data: bytes, limit: int | None, size: int) -> None:
    """FAULTS 37: a line over the limit is dropped, in how many chunks it may come."""
    expected = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    if data.endswith(b"\n") or not data:
        del expected[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_CHUNK_BYTES", size)
        found = list(split_lines(io.BytesIO(data), "text", max_bytes=limit))
    assert found == [None if limit is not None and len(x) > limit else x for x in expected]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("one\u2028same\x85same\x0csame\rsame\0\ntwo\n".encode(),
         ["one\u2028same\x85same\x0csame\rsame\0", "two"]),
        (b"\xef\xbb\xbfone\r\n\r\ntwo\r", ["one", "", "two"]),
        (b"BZh1 is a name\n", ["BZh1 is a name"]),
        (bz2.compress(b""), []),
    ],
)  # fmt: skip
def test_only_line_feeds_end_a_line(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    """FAULTS 35: a byte order mark and the CR of CR LF go; all else stays."""
    assert read_lines(written(tmp_path, content)) == lines


def test_a_missing_zstandard_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    path = written(tmp_path, b"\x28\xb5\x2f\xfd1234", "text.zst")
    with pytest.raises(DataError, match=r"text\.zst is compressed with Zstandard"):
        open_binary(path)


def test_zstandard_is_read_and_its_damage_found(tmp_path: Path) -> None:
    """FAULTS 33, where the library is there."""
    try:
        zstd = importlib.import_module("compression.zstd")
    except ImportError:
        zstd = pytest.importorskip("backports.zstd")
    content = zstd.compress(b"eins\n" * 1000) + zstd.compress(b"zwei\n")
    assert len(read_lines(written(tmp_path, content, "whole.zst"))) == 1001
    with pytest.raises(DataError, match=r"cut\.zst is damaged or truncated"):
        read_lines(written(tmp_path, content[:-5], "cut.zst"))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_truncated_file_is_named(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    """FAULTS 33."""
    path = written(tmp_path, compress(b"eins\n" * 1000)[:-9], "cut")
    with pytest.raises(DataError, match="cut is damaged or truncated"):
        read_lines(path)


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 33."""
    path = written(tmp_path, b"<html>not found</html>", "train.de.gz")
    start = b"version https://git-lfs.github.com/spec/v1\n"
    pointer = written(tmp_path, start + b"oid sha256:0\nsize 9\n", "dev.de.gz")
    for wrong, problem in (
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path, r"is a folder(.|\n)*a pattern, such as .*\*\.de"),
        (path, r"train\.de\.gz is not a \.gz file"),  # a saved error page
        (pointer, r"pointer of Git LFS(.|\n)*git lfs pull"),
    ):
        with pytest.raises(DataError, match=problem):
            read_lines(wrong)
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match=r"train\.de\.gz cannot be read: Permission denied"):
        read_lines(path)


def test_a_missing_file_is_named_with_a_similar_one_beside_it(tmp_path: Path) -> None:
    there = written(tmp_path, b"text\n", "train.de")
    with pytest.raises(DataError) as caught:
        read_lines(tmp_path / "trian.de")
    assert f"{there}?" in caught.value.problem
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        read_lines(tmp_path / "empty" / "train.de")
    assert "?" not in caught.value.problem


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    """FAULTS 34."""
    path = written(tmp_path, b"gut\nsch\xf6n\n")
    with pytest.raises(DataError, match=r"text\.de, line 2, byte 4: 0xf6 is not UTF-8") as raised:
        read_lines(path)
    assert raised.value.exit_code == 3
    assert "iconv" in raised.value.fix


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], int]]:
    """What is read, and the descriptor to write to; a reader that waits too long gets an end."""
    reading, writing = os.pipe()
    end = threading.Timer(LIMIT, os.close, [writing])
    end.daemon = True
    end.start()
    with os.fdopen(reading, "rb") as stream:
        yield stream, writing
    end.cancel()


MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff", b"\xef\xbb\xbf")


@given(st.binary(max_size=300).filter(lambda x: not x.startswith(MARKS)), st.integers(1, 4))
def test_lines_are_those_between_line_feeds(data: bytes, lines_at_once: int) -> None:
    """Fault 42: as `wc -l` counts, and one more for an end without an LF."""
    chunks = list(read_chunks(io.BytesIO(data), lines_at_once=lines_at_once))
    expected = data.split(b"\n") if data and not data.endswith(b"\n") else data.split(b"\n")[:-1]
    assert [line for chunk in chunks for line in chunk] == [x.removesuffix(b"\r") for x in expected]
    assert all(1 <= len(chunk) <= lines_at_once for chunk in chunks)


def test_a_chunk_of_long_lines_has_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: a chunk ends with the line that reaches the limit, here of 10 bytes."""
    monkeypatch.setattr(lines, "_MAX_CHUNK_BYTES", 10)
    chunks = list(read_chunks(io.BytesIO(b"12345\n" * 4 + b"123456789\n" + b"1\n" * 3)))
    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 2]


def test_pauses_delay_no_line(pipe: tuple[IO[bytes], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 43: no line is kept back, be it for the look at the first bytes, and none is broken.

    Whoever reads ahead gets an empty chunk for half a line, and can answer the lines before.
    """
    stream, writing = pipe
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
    os.write(writing, b"1\n")
    with open_input(None) as reading:
        chunks = read_chunks(reading)
        assert next(chunks) == [b"1"]
        parts = {b"one\ntwo\nth": [b"one", b"two"], b"r": [], b"ee\n": [b"three"]}
        for data, expected in parts.items():
            os.write(writing, data)
            assert next(chunks) == expected
        os.write(writing, b"four")
        os.close(writing)
        assert list(chunks) == [[b"four"]]


def test_a_writer_that_never_pauses_is_answered_all_the_same(
    pipe: tuple[IO[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 43: a line every moment, each before the last pause is over."""
    monkeypatch.setattr(lines, "_PAUSE_SECONDS", 60)
    stream, writing = pipe
    enough = threading.Event()
    end = time.monotonic() + LIMIT

    def write() -> None:
        while not enough.is_set() and time.monotonic() < end:
            os.write(writing, b"line\n")
            time.sleep(0.001)
        os.close(writing)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    chunk = next(read_chunks(stream, lines_at_once=10**9))
    assert time.monotonic() < end
    enough.set()
    writer.join(LIMIT)
    assert set(chunk) == {b"line"}


class _Endless(io.RawIOBase):
    """Zeros without an end of line: 256 MiB."""

    left = 1 << 28

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        size = min(size, self.left)
        self.left -= size
        return bytes(size)


def test_a_line_without_an_end_is_cut_and_not_held(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 45."""
    tracemalloc.start()
    chunks = list(read_chunks(_Endless(), max_bytes=1 << 16))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(line) for chunk in chunks for line in chunk] == [(1 << 16) + 1]
    assert peak < 1 << 21
    (text,) = LineDecoder(1 << 16).decode(chunks[0], 7)
    assert len(text) == 1 << 16
    assert caplog.messages == ["line 7 is longer than 65,536 bytes; the rest is cut off"]
    # A cut does not split a character, and the next line is whole.
    decoder, data = LineDecoder(5), "ä".encode() * 10 + b"\nnext\n"
    (chunk,) = read_chunks(io.BytesIO(data), max_bytes=5)
    assert (decoder.decode(chunk, 1), decoder.num_damaged) == (["ää", "next"], 1)


def test_bad_bytes_are_replaced_and_a_bom_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 45."""
    mark = b"\xef\xbb\xbf"
    (chunk,) = read_chunks(io.BytesIO(mark + b"a\n" + mark + b"b\nc\xff"))
    assert LineDecoder().decode(chunk, 1) == ["a", "\ufeffb", "c\ufffd"]
    assert caplog.messages == ["line 3, byte 2: 0xff is not UTF-8; replaced by U+FFFD"]


def test_warnings_about_damaged_lines_end_and_their_number_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    decoder = LineDecoder()
    decoder.decode([b"\xff", b"whole"] * (lines.MAX_NOTES + 5), 1, name="in.txt, ")
    assert decoder.num_damaged == lines.MAX_NOTES + 5
    assert len(caplog.messages) == lines.MAX_NOTES + 1
    assert caplog.messages[lines.MAX_NOTES - 1].startswith("in.txt, line 39,")
    assert "line" not in caplog.messages[-1].partition("lines")[0]  # of none alone


@pytest.mark.parametrize(
    ("name", "decompress"),
    [("a.gz", gzip.decompress), ("a.bz2", bz2.decompress), ("a.xz", lzma.decompress), ("a", bytes)],
)
def test_output_is_compressed_by_suffix_and_input_decompressed_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, decompress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / name
    for _ in range(2):
        with open_output(path) as stream:
            stream.write(b"one\n")
            stream.flush()
            stream.write(b"two\n")
        assert decompress(path.read_bytes()) == b"one\ntwo\n"
    path = path.rename(tmp_path / "b")
    assert read_lines(path) == ["one", "two"]
    piped = io.BufferedReader(io.BytesIO(path.read_bytes()))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=piped))
    for source in (path, None):
        with open_input(source) as reading:
            assert list(read_chunks(reading)) == [[b"one", b"two"]]


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_the_bytes_of_an_output_depend_on_its_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    found = set[bytes]()
    for name, now in (("one", 1e9), ("one", 1.1e9), ("two", 1e9)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        path = tmp_path / f"{name}{suffix}"
        with open_output(path) as stream:
            stream.write(b"text\n")
        found.add(path.read_bytes())
    assert len(found) == 1


def test_an_output_in_a_folder_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    """And not when all the work is done."""
    with pytest.raises(ConfigError) as caught:
        check_output(tmp_path / "none" / "out.txt")
    assert str(tmp_path / "none" / "out.txt") in caught.value.problem
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_an_input_is_refused(tmp_path: Path) -> None:
    """Finding 1."""
    source, hard, soft = (tmp_path / name for name in ("source.txt", "hard.txt", "soft.txt"))
    source.write_text("text\n")
    hard.hardlink_to(source)
    soft.symlink_to(source)
    (tmp_path / "sub").mkdir()
    for output in (source, tmp_path / "sub" / ".." / "source.txt", hard, soft):
        with pytest.raises(ConfigError, match="is also an input file"):
            check_output(output, None, source)
    check_output(tmp_path / "new.txt", source, None)


def test_an_output_inside_an_input_folder_is_refused(tmp_path: Path) -> None:
    """Finding 1: a model's own files; translations may lie beside them."""
    run_dir = tmp_path / "run"
    weights = run_dir / "checkpoints" / "step-00000010" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_text("weights")
    (run_dir / "old.txt").write_text("translations")
    (tmp_path / "link.safetensors").hardlink_to(weights)
    for output in (weights, tmp_path / "link.safetensors"):
        with pytest.raises(ConfigError, match=r"is a file of the input folder .*run"):
            check_output(output, run_dir)
    check_output(run_dir / "old.txt", run_dir)
    check_output(run_dir / "new.json", run_dir)


def test_a_device_may_be_input_and_output_and_unknown_compressions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"out\.zst: .* \.zst") as raised:
        check_output(Path("out.zst"))
    assert ".gz, .bz2, .xz" in raised.value.fix
    null = Path(os.devnull)
    check_output(null, null)
    check_output(None, null, None)
    check_output(Path("-"), Path("-"), null)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_utf16_and_utf32_are_refused(tmp_path: Path, encoding: str) -> None:
    data = "\ufeffeins\n".encode(encoding)
    with pytest.raises(DataError, match=rf"it is UTF-{encoding[4:6]}, not UTF-8"):
        next(read_chunks(io.BytesIO(data), name="it"))
    path = written(tmp_path, data)  # of a corpus, with the command that converts it
    with pytest.raises(DataError, match=rf"text\.de is UTF-{encoding[4:6]}") as caught:
        read_lines(path)
    assert f"iconv -f UTF-{encoding[4:6]} -t UTF-8 {path} >" in caught.value.fix


@pytest.mark.parametrize(
    ("data", "is_binary"),
    [
        (b"\x7fELF\2\1" + bytes(900) + b"\xd0a\xff" * 9, True),
        (random.Random(1).randbytes(70_000), True),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 3, True),
        (b"\0\xff\xfe" * 100, False),  # too little to tell
        (b"one NUL \0 and bad bytes \xff\xfe\n" + b"line\n" * 200, False),
        (("sch\u00f6\u00f6n\0\n" * 9000).encode(), False),
        (bytes(1 << 16), False),
    ],
)
def test_only_a_binary_file_is_refused(data: bytes, is_binary: bool) -> None:
    refused = pytest.raises(DataError, match="it is a binary file: it has NUL bytes")
    with refused if is_binary else nullcontext():
        assert sum(map(len, read_chunks(io.BytesIO(data), name="it"))) > 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    for path in (Path("/dev/full"), tmp_path, tmp_path / "none" / "out"):
        message = f"{path} cannot be written: "
        with pytest.raises(DataError, match=message), open_output(path) as stream:
            stream.write(b"text\n")


def test_a_hyphen_is_the_standard_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 1: no file of that name is made."""
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"in\n")))
    with open_input(Path("-")) as reading, open_output(Path("-")) as writing:
        writing.write(reading.read())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(DataError, match="input is closed"), open_input(None):
        pass
    with pytest.raises(DataError, match="output is closed"), open_output(None):
        pass
