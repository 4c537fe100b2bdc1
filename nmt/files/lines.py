"""Text files as lines: bytes split on LF only, whatever else the text holds.

U+2028, NEL, form feed and a lone CR stay inside their line; a CR before LF and a byte order mark
at the start of the file go. So line counts are those of ``wc -l``, and two aligned files stay
aligned.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import IO, TypeAlias, cast

from nmt.errors import DataError

_BOM = b"\xef\xbb\xbf"
_WIDE_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",  # before UTF-16, whose mark it begins with
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks of other encodings than UTF-8."""
_CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
"""Of a line to translate or score: 1 MiB. The rest of a longer one is not read, with a warning."""

_Opener: TypeAlias = Callable[[Path | IO[bytes]], IO[bytes]]


def open_binary(path: Path) -> IO[bytes]:
    """Open a file to read bytes, decompressing gzip, bzip2, xz and (with its library) Zstandard.

    The first bytes decide, not the suffix; what a pipe gives is taken as it is.

    Raises:
        DataError: The file is missing, a folder, unreadable, not what its suffix says, or needs a
            library that is missing.
    """
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder, not a text file.", fix="Name the file inside it.")
        start = b""
        if path.is_file():  # the first bytes of a pipe can be read only once
            with path.open("rb") as file:
                start = file.read(_LONGEST_MARK)
        opener = _opener(start)
        if opener is None and start and path.suffix in _COMPRESSIONS:
            raise DataError(
                f"{path} is named {path.suffix}, but its contents are not.",
                fix="Download it again, or rename it if it is plain text.",
            )
        return path.open("rb") if opener is None else opener(path)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist.",
            fix="Check the path; relative paths start at the working directory.",
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}.", fix="Check its permissions."
        ) from error


def decompressed(stream: IO[bytes], name: str) -> IO[bytes]:
    """Return what reads a stream as `open_binary` reads a file; waits for its first bytes.

    A stream without ``peek`` is taken as it is.

    Raises:
        DataError: It cannot be read, or needs a library that is missing.
    """
    peek = getattr(stream, "peek", None)
    try:
        opener = _opener(peek(_LONGEST_MARK)) if peek else None
    except OSError as error:
        raise DataError(
            f"{name} cannot be read: {error.strerror or error}.", fix="Name an input file."
        ) from error
    return stream if opener is None else opener(stream)


def _opener(start: bytes) -> _Opener | None:
    """Return what opens a file that begins so; None if it is not compressed."""
    return next((opener for mark, opener in _COMPRESSIONS.values() if mark.match(start)), None)


def _open_zstandard(file: Path | IO[bytes]) -> IO[bytes]:
    # Not `zstandard`: it takes a file that is cut off for a whole one.
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return _open(importlib.import_module(name), file)
        except ImportError:
            continue
    shown = file if isinstance(file, Path) else "The input"
    raise DataError(
        f"{shown} is compressed with Zstandard, and no library for it is installed.",
        fix="Run `pip install backports.zstd`, or decompress the file.",
    )


def _open(library: ModuleType, file: Path | IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], library.open(file, "rb"))


_COMPRESSIONS: dict[str, tuple[re.Pattern[bytes], _Opener]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), partial(_open, gzip)),
    # More than the letters, which a text may begin with: the mark of the first block or of no more.
    ".bz2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), partial(_open, bz2)),
    ".xz": (re.compile(rb"\xfd7zXZ\0"), lzma.LZMAFile),
    ".zst": (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstandard),
}
"""By suffix: how the file starts, and how to open it."""
_LONGEST_MARK = 10
"""Bytes of a file that tell what it is."""


def split_pieces(pieces: Iterable[bytes], max_bytes: int | None = None) -> Iterator[list[bytes]]:
    """Split bytes that come in pieces on LF: yield the lines that end in each, and the last one.

    The LF or CR LF goes, and a byte order mark at the start of the first line.

    Args:
        pieces: The bytes.
        max_bytes: Of a longer line only the first ``max_bytes + 1`` bytes are held and given out.
            None for no limit.
    """
    most = sys.maxsize - 1 if max_bytes is None else max_bytes + 1

    def cut(line: bytes) -> bytes:
        return line[:most] if len(line) > most else line.removesuffix(b"\r")

    held, mark = bytearray(), _BOM
    for piece in pieces:
        start, *others = piece.split(b"\n")
        held += start[: most + 1 - len(held)]
        lines = []
        if others:
            lines = [cut(bytes(held)).removeprefix(mark), *map(cut, others[:-1])]
            held, mark = bytearray(others[-1][: most + 1]), b""
        yield lines
    if held and held != mark:
        yield [cut(bytes(held)).removeprefix(mark)]


def split_lines(
    stream: IO[bytes], name: str, *, max_bytes: int | None = None
) -> Iterator[bytes | None]:
    """Yield each line of a stream as `split_pieces` does; one above ``max_bytes`` as None.

    Raises:
        DataError: The stream is damaged, for example a truncated gzip file.
    """
    for lines in split_pieces(read_pieces(stream, name, _CHUNK_BYTES), max_bytes):
        for line in lines:
            yield None if max_bytes is not None and len(line) > max_bytes else line


def read_pieces(
    stream: IO[bytes], name: str, size: int, *, at_once: bool = False
) -> Iterator[bytes]:
    """Yield the bytes of a stream.

    Args:
        stream: What to read to the end.
        name: What messages call it.
        size: Most bytes of a piece.
        at_once: Yield what is there, waiting only if nothing is.

    Raises:
        DataError: The stream is damaged, for example a gzip file cut off.
    """
    read = getattr(stream, "read1", stream.read) if at_once else stream.read
    try:
        while piece := read(size):
            yield piece
    except Exception as error:  # every library of a compression has errors of its own
        raise DataError(
            f"{name} is damaged or cut off: {error}", fix="Download or compress it again."
        ) from error


def decode_line(line: bytes, name: str, number: int) -> str:
    """Decode UTF-8.

    Raises:
        DataError: It is not UTF-8; names the file, the line (``number``, from 1) and the byte.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1:
            refuse_wide(line, name)
        raise DataError(
            f"{name}, line {number:,}, byte {error.start + 1}: 0x{line[error.start]:02x} is not "
            "UTF-8.",
            fix="Convert the file to UTF-8 (iconv), or set filters.on_bad_utf8: skip.",
        ) from error


def refuse_wide(start: bytes, name: str) -> None:
    """Raise a DataError if a text starts with the byte order mark of UTF-16 or UTF-32."""
    for mark, encoding in _WIDE_MARKS.items():
        if start.startswith(mark):
            raise DataError(
                f"{name} is {encoding}, not UTF-8.",
                fix=f"Convert it: iconv -f {encoding} -t UTF-8",
            )


def read_lines(path: Path) -> list[str]:
    """Read a whole text file, for example a test set, as lines.

    Raises:
        DataError: Missing, damaged, or not UTF-8.
    """
    with open_binary(path) as stream:
        return [
            decode_line(line or b"", str(path), number)
            for number, line in enumerate(split_lines(stream, str(path)), start=1)
        ]
