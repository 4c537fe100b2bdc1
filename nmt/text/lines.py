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
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from nmt.errors import DataError

_BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 20
_DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error)


def open_binary(path: Path) -> IO[bytes]:
    """Open a file to read bytes, decompressing .gz, .bz2, .xz and (with its library) .zst.

    Raises:
        DataError: The file is missing, a folder, unreadable, or needs a library that is missing.
    """
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder, not a text file.", fix="Name the file inside it.")
        match path.suffix:
            case ".gz":
                return cast(IO[bytes], gzip.open(path, "rb"))
            case ".bz2":
                return bz2.open(path, "rb")
            case ".xz":
                return lzma.open(path, "rb")
            case ".zst":
                return _open_zstandard(path)
        return path.open("rb")
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist.",
            fix="Check the path; relative paths start at the working directory.",
        ) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}.", fix="Check its permissions."
        ) from error


def _open_zstandard(path: Path) -> IO[bytes]:
    for name in ("compression.zstd", "zstandard"):
        try:
            return cast(IO[bytes], importlib.import_module(name).open(path, "rb"))
        except ImportError:
            continue
    raise DataError(
        f"{path} is compressed with Zstandard, and no library for it is installed.",
        fix="Run `pip install zstandard`, or decompress the file.",
    )


def split_lines(
    stream: IO[bytes], name: str, *, max_bytes: int | None = None
) -> Iterator[bytes | None]:
    """Yield each line without its LF (or CR LF), the byte order mark removed.

    Args:
        stream: Bytes to read to the end.
        name: Name of the file in messages.
        max_bytes: Longer lines come out as None, and are never held in memory.

    Raises:
        DataError: The stream is damaged, for example a truncated gzip file.
    """
    rest, too_long, is_first = b"", False, True
    while True:
        try:
            chunk = stream.read(_CHUNK_BYTES)
        except _DAMAGE as error:
            raise DataError(
                f"{name} is damaged or cut off: {error}", fix="Download or compress it again."
            ) from error
        if is_first:
            chunk, is_first = chunk.removeprefix(_BOM), False
        if not chunk:
            break
        *lines, last = chunk.split(b"\n")
        for line in lines:
            whole = rest + line if rest else line
            rest = b""
            if too_long or (max_bytes is not None and len(whole) > max_bytes):
                yield None
            else:
                yield whole.removesuffix(b"\r")
            too_long = False
        if too_long:
            continue
        rest += last
        if max_bytes is not None and len(rest) > max_bytes:
            rest, too_long = b"", True
    if too_long:
        yield None
    elif rest:
        yield rest.removesuffix(b"\r")


def decode_line(line: bytes, name: str, number: int) -> str:
    """Decode UTF-8.

    Args:
        line: The bytes of the line.
        name: Name of the file in the message.
        number: Line number in the message, from 1.

    Raises:
        DataError: Names file, line and byte of what is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number:,}, byte {error.start + 1}: 0x{line[error.start]:02x} is not "
            "UTF-8.",
            fix="Convert the file to UTF-8 (iconv), or set filters.on_bad_utf8: skip.",
        ) from error


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
