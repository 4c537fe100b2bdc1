"""Text as lines: bytes split on LF only, whatever else the text holds.

U+2028, NEL, form feed and a lone CR stay inside their line; a CR before LF and a byte order mark
at the start of the file go. So line counts are those of ``wc -l``, and two aligned files stay
aligned. A corpus must be whole; the input of a filter may come slowly, never end, or hold bytes
that are no text, and a line goes out for each that comes in.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import logging
import lzma
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from nmt.errors import DataError, nearest_word

_BOM = b"\xef\xbb\xbf"
# How texts of other encodings than UTF-8 begin.
_WIDE_MARKS = re.compile(rb"(?P<UTF_32>\xff\xfe\0\0|\0\0\xfe\xff)|(?P<UTF_16>\xff\xfe|\xfe\xff)")
_BINARY_BYTES = 500  # Fewer do not tell a binary file, which has more than one NUL in so many.
_CHUNK_BYTES = 1 << 20
_READ_BYTES = 1 << 16  # Of a filter's input: most that is read at once.
_MAX_CHUNK_BYTES = 1 << 22
MAX_CHUNK_LINES = 2000
# Of a line to translate or score: 1 MiB. The rest of a longer one is not read, with a warning.
MAX_LINE_BYTES = 1 << 20
MAX_NOTES = 20  # Warnings about damaged lines that are given one by one.
_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 0.2

logger = logging.getLogger(__name__)


def _open_zstandard(file: Path | IO[bytes]) -> Any:
    # Not `zstandard`: it takes a file that is cut off for a whole one.
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            return importlib.import_module(name).open(file)
    shown = file if isinstance(file, Path) else "The input"
    problem = f"{shown} is compressed with Zstandard, and no library for it is installed."
    raise DataError(problem, fix="Run `pip install backports.zstd`, or decompress the file.")


# By suffix: how the file starts, and how to open it.
_COMPRESSIONS: dict[str, tuple[re.Pattern[bytes], Callable[..., Any]]] = {
    ".gz": (re.compile(rb"\x1f\x8b"), gzip.open),
    # More than the letters, which a text may begin with: the mark of the first block or of no more.
    ".bz2": (re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open),
    ".xz": (re.compile(rb"\xfd7zXZ\0"), lzma.open),
    ".zst": (re.compile(rb"\x28\xb5\x2f\xfd"), _open_zstandard),
}
STANDARD = "-"  # Name of standard input and output.
# Where a file is missing.
CHECK_PATH = "Check the path; relative paths start at the working directory."
_LONGEST_MARK = 10  # Bytes of a file that tell what it is.


def _opener(start: bytes) -> Callable[..., Any] | None:
    """Return what opens a file that begins so; None if it is not compressed."""
    return next((opener for mark, opener in _COMPRESSIONS.values() if mark.match(start)), None)


def open_binary(path: Path) -> IO[bytes]:
    """Open a file to read bytes, decompressing gzip, bzip2, xz and (with its library) Zstandard.

    The first bytes decide, not the suffix; what a pipe gives is taken as it is.

    Raises:
        DataError: The file is missing, a folder, unreadable, not what its suffix says, or needs a
            library that is missing.
    """
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder, not a text file.", fix="Pass a file inside it.")
        start = b""
        if path.is_file():  # the first bytes of a pipe can be read only once
            with path.open("rb") as file:
                start = file.read(_LONGEST_MARK)
        opener = _opener(start)
        if opener is None and start and path.suffix in _COMPRESSIONS:
            fix = "Download it again, or rename it if it is plain text."
            raise DataError(f"{path} is named {path.suffix}, but its contents are not.", fix=fix)
        opened: IO[bytes] = path.open("rb") if opener is None else opener(path)
        return opened
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.{near_file(path)}", fix=CHECK_PATH) from error
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}."
        raise DataError(problem, fix="Check its permissions.") from error


def near_file(path: Path) -> str:
    """Return a sentence, after a space, that names the file most like a missing one, if any is."""
    near = nearest_word(path.name, [each.name for each in path.parent.glob("*")])
    return f" Did you mean {path.with_name(near)}?" if near else ""


def is_standard(path: Path | None) -> bool:
    """Whether a path stands for standard input or output: none is given, or ``-``.

    >>> is_standard(Path("-"))
    True
    """
    return path is None or str(path) == STANDARD


@contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or standard input (None or ``-``), as `open_binary` opens a file.

    Standard input is waited for. Compressed, it comes in blocks; plain, as it is written.

    Raises:
        DataError: There is nothing to read, or it needs a library that is missing.
    """
    if path is not None and not is_standard(path):
        with open_binary(path) as stream:
            yield stream
        return
    if sys.stdin is None:  # closed by whoever started the process
        raise DataError("Standard input is closed.", fix="Pass a file: `input`.")
    stream = sys.stdin.buffer
    peek = getattr(stream, "peek", bytes)  # a buffer in a test may have none
    try:
        opener = _opener(peek(_LONGEST_MARK))
    except OSError as error:
        problem = f"standard input cannot be read: {error.strerror or error}."
        raise DataError(problem, fix="Pass a file: `input`.") from error
    yield stream if opener is None else opener(stream)


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
        problem = f"{name} is damaged or cut off: {error}"
        raise DataError(problem, fix="Download or compress it again.") from error


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


def decode_line(line: bytes, name: str, number: int) -> str:
    """Decode UTF-8.

    Raises:
        DataError: It is not UTF-8; names the file, the line (``number``, from 1) and the byte.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1:
            _refuse_no_text(line, name)
        place = f"{name}, line {number:,}, byte {error.start + 1}"
        fix = "Convert the file to UTF-8 (iconv), or set filters.on_bad_utf8: skip."
        raise DataError(f"{place}: 0x{line[error.start]:02x} is not UTF-8.", fix=fix) from error


def _refuse_no_text(start: bytes, name: str) -> None:
    """Raise a DataError if a text starts as UTF-16, UTF-32 or a binary file does."""
    if mark := _WIDE_MARKS.match(start):
        encoding = str(mark.lastgroup).replace("_", "-")
        fix = f"Convert it: iconv -f {encoding} -t UTF-8"
        raise DataError(f"{name} is {encoding}, not UTF-8.", fix=fix)
    # A line of text may hold a NUL, or bad bytes: a program, an image or weights have many of both.
    has_nulls = start.count(0) * _BINARY_BYTES > len(start) >= _BINARY_BYTES
    if has_nulls and start.decode("utf-8", "replace").count("\ufffd") > 1:  # one may be cut off
        problem = f"{name} is a binary file: it has NUL bytes, and others that are not UTF-8."
        raise DataError(problem, fix="Pass a text file in UTF-8.")


def decoded_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a stream.

    Raises:
        DataError: The stream is damaged, or not UTF-8.
    """
    for number, line in enumerate(split_lines(stream, name), start=1):
        yield decode_line(line or b"", name, number)


def read_lines(path: Path) -> list[str]:
    """Read a whole text file, for example a test set, as lines.

    Raises:
        DataError: Missing, damaged, or not UTF-8.
    """
    with open_binary(path) as stream:
        return list(decoded_lines(stream, str(path)))


def count_lines(path: Path) -> int:
    """Return how many lines a file has; one without an LF at the end counts.

    Raises:
        DataError: Missing or damaged.
    """
    count, last = 0, b"\n"
    with open_binary(path) as stream:
        for piece in read_pieces(stream, str(path), _CHUNK_BYTES):
            count, last = count + piece.count(b"\n"), piece[-1:]
    return count + (last != b"\n")


def read_chunks(
    stream: IO[bytes],
    *,
    lines_at_once: int = MAX_CHUNK_LINES,
    max_bytes: int = MAX_LINE_BYTES,
    name: str = "standard input",
) -> Iterator[list[bytes]]:
    """Yield lines, without LF, in chunks: full ones from a file, small ones from a slow writer.

    A chunk ends when it is full, when the writer pauses, or a moment after its first line: so
    lines that come one at a time are answered one at a time, and nothing waits for the end of the
    input. A pause within a line ends a chunk too, which is then empty. Memory is bounded by the
    sizes of a chunk and of a line.

    Args:
        stream: Bytes to read to the end.
        lines_at_once: Most lines of a chunk.
        max_bytes: Of a longer line comes the start, one byte more than this.
        name: What messages call ``stream``.

    Raises:
        DataError: The input is damaged, for example a gzip file cut off, or is UTF-16, UTF-32 or
            binary.
    """
    pieces = read_pieces(stream, name, _READ_BYTES, at_once=True)
    if not (first := next(pieces, b"")):
        return
    _refuse_no_text(first, name)
    chunk: list[bytes] = []
    size, since = 0, 0.0
    for lines in split_pieces(chain([first], pieces), max_bytes):
        for line in lines:
            since = since if chunk else time.monotonic()
            chunk.append(line)
            size += len(line)
            if len(chunk) >= lines_at_once or size >= _MAX_CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        is_old = bool(chunk) and time.monotonic() - since > _PATIENCE_SECONDS
        if (chunk or not lines) and (is_old or not has_input(stream)):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def has_input(stream: IO[bytes], seconds: float = _PAUSE_SECONDS) -> bool:
    """Whether the writer has written more, or ended, within a moment; always so of a file."""
    try:
        return bool(select.select([stream.fileno()], [], [], seconds)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in a test
        return True


class LineDecoder:
    """Decodes UTF-8 without losing a line: bad bytes are replaced, and too long lines cut.

    Logs a warning for each of the first `MAX_NOTES` lines that it changes.

    Args:
        max_bytes: Longer lines are cut off there.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self.num_damaged = 0  # Lines changed so far.
        self._max_bytes = max_bytes

    def decode(self, lines: Sequence[bytes], first_number: int, name: str = "") -> list[str]:
        """Decode lines; messages begin with ``name``, and count from ``first_number``."""
        return [self._decode(x, f"{name}line {n:,}") for n, x in enumerate(lines, first_number)]

    def _decode(self, line: bytes, shown: str) -> str:
        if len(line) > self._max_bytes:
            self._warn(f"{shown} is longer than {self._max_bytes:,} bytes; the rest is cut off")
            return line[: self._max_bytes].decode("utf-8", "ignore")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            bad = f"byte {error.start + 1}: 0x{line[error.start]:02x}"
            self._warn(f"{shown}, {bad} is not UTF-8; replaced by U+FFFD")
            return line.decode("utf-8", "replace")

    def _warn(self, message: str) -> None:
        self.num_damaged += 1
        if self.num_damaged <= MAX_NOTES:
            logger.warning(message)
        elif self.num_damaged == MAX_NOTES + 1:
            logger.warning("more lines are not UTF-8, or too long; they are not named")
