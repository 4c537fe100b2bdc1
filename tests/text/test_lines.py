"""Lines are what `wc -l` counts, whatever else the bytes hold."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import DataError
from nmt.text import lines as lines_module
from nmt.text.lines import decode_line, open_binary, read_lines, split_lines

PIECES = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", "\u2028".encode(), "\x85".encode()]),
    max_size=40,
)


@given(pieces=PIECES, chunk=st.integers(1, 7))
def test_only_line_feeds_end_lines_however_the_bytes_arrive(
    pieces: list[bytes], chunk: int
) -> None:
    """FAULTS 35: a lone CR, U+2028 and NEL stay inside; a CR before LF goes."""
    text = b"".join(pieces)
    expected = [line.removesuffix(b"\r") for line in text.split(b"\n")]
    if text.endswith(b"\n") or not text:
        expected.pop()
    before = lines_module._CHUNK_BYTES
    lines_module._CHUNK_BYTES = chunk
    try:
        assert list(split_lines(io.BytesIO(text), "x")) == expected
    finally:
        lines_module._CHUNK_BYTES = before


def test_a_byte_order_mark_and_a_missing_last_line_feed_do_not_matter() -> None:
    """FAULTS 35."""
    found = list(split_lines(io.BytesIO(b"\xef\xbb\xbfa\x00\x0cb\r\nc"), "x"))

    assert found == [b"a\x00\x0cb", b"c"]


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8), limit=st.integers(1, 20))
def test_over_long_lines_come_out_as_none_in_their_place(lengths: list[int], limit: int) -> None:
    """FAULTS 37."""
    text = b"".join(b"x" * length + b"\n" for length in lengths)
    before = lines_module._CHUNK_BYTES
    lines_module._CHUNK_BYTES = 3
    try:
        found = list(split_lines(io.BytesIO(text), "x", max_bytes=limit))
    finally:
        lines_module._CHUNK_BYTES = before

    assert [None if line is None else len(line) for line in found] == [
        None if length > limit else length for length in lengths
    ]


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files_are_read_like_plain_ones(
    tmp_path: Path, suffix: str, compress: object
) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(compress("Grüße\nzwei\n".encode()))  # type: ignore[operator]

    assert read_lines(path) == ["Grüße", "zwei"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """FAULTS 33: missing, a folder, a truncated gzip file."""
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"text\n" * 1000)[:-9])
    for path, what in (
        (tmp_path / "gone", "does not exist"),
        (tmp_path, "is a folder"),
        (broken, "damaged or cut off"),
    ):
        with pytest.raises(DataError, match=f"{path}.*{what}") as caught:
            read_lines(path)
        assert caught.value.exit_code == 3


def test_bytes_that_are_not_utf_8_are_named_by_file_line_and_byte() -> None:
    """FAULTS 34."""
    with pytest.raises(DataError, match=r"a\.txt, line 7, byte 3: 0xff"):
        decode_line(b"ab\xffc", "a.txt", 7)


def test_a_missing_zstandard_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> object:
        raise ImportError(name)

    (tmp_path / "text.zst").touch()
    monkeypatch.setattr(lines_module.importlib, "import_module", refuse)
    with pytest.raises(DataError, match=r"pip install zstandard"):
        open_binary(tmp_path / "text.zst")
