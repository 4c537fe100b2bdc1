from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.files import lines
from nmt.files.lines import open_binary, read_lines, split_lines


def written(folder: Path, content: bytes, name: str = "text.de") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@given(
    st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xff"])).map(b"".join),
    st.none() | st.integers(0, 6),
    st.integers(1, 5),
)
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


def test_what_zstandard_needs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(DataError, match=r"cut\.zst is damaged or cut off"):
        read_lines(written(tmp_path, content[:-5], "cut.zst"))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_truncated_file_is_named(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    """FAULTS 33."""
    path = written(tmp_path, compress(b"eins\n" * 1000)[:-9], "cut")
    with pytest.raises(DataError, match="cut is damaged or cut off"):
        read_lines(path)


def test_unreadable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 33."""
    path = written(tmp_path, b"<html>not found</html>", "train.de.gz")
    for wrong, problem in (
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path, "is a folder"),
        (path, r"train\.de\.gz is named \.gz, but its contents are not"),  # a saved error page
    ):
        with pytest.raises(DataError, match=problem):
            read_lines(wrong)
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(DataError, match=r"train\.de\.gz cannot be read: Permission denied"):
        read_lines(path)


def test_invalid_utf8_names_file_line_and_byte(tmp_path: Path) -> None:
    """FAULTS 34."""
    path = written(tmp_path, b"gut\nsch\xf6n\n")
    with pytest.raises(DataError, match=r"text\.de, line 2, byte 4: 0xf6 is not UTF-8") as raised:
        read_lines(path)
    assert raised.value.exit_code == 3
    assert "on_bad_utf8" in raised.value.fix
