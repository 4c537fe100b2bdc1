"""Reading text files and standard input line by line.

Lines end at LF only. U+2028, NEL, form feed and a lone CR stay inside their line. A CR before LF is
removed, and so is a byte order mark at the start of a file. Line counts therefore equal ``wc -l``,
and aligned files stay aligned.

A corpus file must be complete and valid UTF-8. `read_chunks` and `LineDecoder` read the input of
`nmt translate`, which may arrive slowly, never end, or contain bytes that are not UTF-8. Every
input line gives exactly one line.
"""

from __future__ import annotations

import logging
import re
import select
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO

from nmt.errors import DataError, join_words, nearest_word
from nmt.files.archive import (
    is_archive,
    is_archive_file,
    open_member,
    open_single_member,
    place_in_archive,
)
from nmt.files.compression import COMPRESSIONS, LONGEST_MARK, opener_of
from nmt.installation import shipped_file

_BOM = b"\xef\xbb\xbf"
# Byte order marks of UTF-16 and UTF-32.
_WIDE_MARKS = re.compile(rb"(?P<UTF_32>\xff\xfe\0\0|\0\0\xfe\xff)|(?P<UTF_16>\xff\xfe|\xfe\xff)")
# Of compressed files and archives.
_SUFFIXES = re.compile(r"((\.tar)?\.(gz|bz2|xz|zst)|\.(tar|tgz|tbz2?|txz|tzst|zip))$")
_LFS_POINTER = (
    b"version https://git-lfs."  # The first bytes of a file that Git LFS has not fetched.
)
_BINARY_BYTES = 500  # Minimum size of a binary file, which has more than one NUL per 500 bytes.
_CHUNK_BYTES = 1 << 20
_READ_BYTES = 1 << 16  # Maximum bytes per read of `read_chunks`.
_MAX_CHUNK_BYTES = 1 << 22
MAX_CHUNK_LINES = 2000
# Maximum length of a line to translate or score: 1 MiB. Longer lines are cut, with a warning.
MAX_LINE_BYTES = 1 << 20
MAX_NOTES = 20  # Number of damaged lines that get a warning each; one warning covers the rest.
_PAUSE_SECONDS = 0.02  # A writer that is silent for so long pauses.
_PATIENCE_SECONDS = 0.2  # Maximum age of a chunk.

logger = logging.getLogger(__name__)


STANDARD = "-"  # Name of standard input and output.
STANDARD_INPUT = "standard input"  # Its name in messages.
CHECK_PATH = "Check the path; relative paths start at the working directory."


def open_binary(path: Path) -> IO[bytes]:
    """Open a file to read bytes, decompressing gzip, bzip2, xz and Zstandard.

    The first bytes decide, not the suffix. A named pipe is not decompressed. A missing
    ``configs/NAME`` is read from the files that come with nmt. A path may lead into an archive
    (``Corpus.zip/Corpus.de``); an archive with a single text is that text.

    Raises:
        DataError: The file is missing, is a folder, is unreadable, or does not match its suffix;
            the Zstandard library is not installed; or an archive has several texts, lacks the one
            in the path, or is hostile.
    """
    try:
        path = shipped_file(path)
        if path.is_dir():
            fix = f"Pass a text file, or in a configuration a pattern, such as {path / '*.de'}."
            raise DataError(f"{path} is a folder, not a text file.", fix=fix)
        place = place_in_archive(path)
        if place is not None:
            return open_member(*place)
        start = b""
        if path.is_file():  # the first bytes of a pipe cannot be read twice
            with path.open("rb") as file:
                start = file.read(len(_LFS_POINTER))
            if start == _LFS_POINTER:
                raise DataError(
                    f"{path} is a pointer of Git LFS, not the file itself.",
                    fix="Install Git LFS, and run `git lfs pull` in the folder of the file.",
                )
            if is_archive_file(path):
                return open_single_member(path)
        opener = opener_of(start)
        if opener is None:
            if start and path.suffix in COMPRESSIONS:  # a compressed file may be empty
                raise DataError(
                    f"{path} is not a {path.suffix} file.",
                    fix="Download the file again; if it is plain text, rename it.",
                )
            return path.open("rb")
        opened: IO[bytes] = opener(path)
        return opened
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.{near_file(path)}", fix=CHECK_PATH) from error
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}.",
            fix="Check the permissions of the file.",
        ) from error


def plain_name(path: Path) -> str:
    """Return the name of a file without the suffix of its compression or archive.

    >>> [plain_name(Path(name)) for name in ("data/x.de.gz", "x.de", "x.de.tgz", "de-en.tar.xz")]
    ['x.de', 'x.de', 'x.de', 'de-en']
    """
    return _SUFFIXES.sub("", path.name)


def near_file(path: Path) -> str:
    """Return " Did you mean PATH?" with the most similar name in the folder, or an empty string."""
    similar_name = nearest_word(path.name, [file.name for file in path.parent.glob("*")])
    if not similar_name:
        return ""
    return f" Did you mean {path.with_name(similar_name)}?"


def is_standard(path: Path | None) -> bool:
    """Whether a path means standard input or output: None or ``-``.

    >>> is_standard(Path("-"))
    True
    """
    return path is None or str(path) == STANDARD


@contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file as `open_binary` does, or standard input (None or ``-``).

    Standard input may be compressed; this call waits for its first bytes.

    Raises:
        DataError: The file or standard input cannot be read, or the Zstandard library is not
            installed.
    """
    if path is not None and not is_standard(path):
        with open_binary(path) as stream:
            yield stream
        return
    if sys.stdin is None:  # closed by the parent process
        raise DataError("Standard input is closed.", fix="Pass a file as `input`.")
    stream = sys.stdin.buffer
    # A buffer in a test may lack `peek`. `bytes` returns zeros, with which no compression begins.
    peek = getattr(stream, "peek", bytes)
    try:
        opener = opener_of(peek(LONGEST_MARK))
    except OSError as error:
        raise DataError(
            f"Standard input cannot be read: {error.strerror or error}.",
            fix="Pass a file as `input`.",
        ) from error
    if opener is not None:
        stream = opener(stream)
    yield stream


def read_pieces(
    stream: IO[bytes], name: str, size: int, *, at_once: bool = False
) -> Iterator[bytes]:
    """Yield the bytes of a stream in pieces.

    Args:
        stream: Read to its end.
        name: Name of the stream in error messages.
        size: Maximum bytes per piece.
        at_once: Yield available bytes without waiting for a full piece.

    Raises:
        DataError: The stream is damaged, for example a truncated gzip file.
    """
    read = stream.read
    if at_once:
        read = getattr(stream, "read1", read)  # if the stream has this method
    try:
        while piece := read(size):
            yield piece
    except DataError:
        raise
    except Exception as error:  # each compression library raises its own errors
        raise DataError(
            f"{name} is damaged or truncated: {error}", fix="Download or compress it again."
        ) from error


def split_pieces(pieces: Iterable[bytes], max_bytes: int | None = None) -> Iterator[list[bytes]]:
    """Split pieces of bytes on LF; yield the list of lines that end in each piece.

    A line may begin in one piece and end in a later one. What follows the last LF is a line of its
    own, in the last list, if it is not empty. LF, CR LF, and a byte order mark at the start of the
    first line are removed.

    Args:
        pieces: The pieces of a file, in order.
        max_bytes: Longer lines are cut to ``max_bytes + 1`` bytes, which bounds memory. None for no
            limit.
    """
    cut_size = sys.maxsize - 1  # Bytes of a line that is cut.
    if max_bytes is not None:
        cut_size = max_bytes + 1

    def cut(line: bytes) -> bytes:
        if len(line) > cut_size:
            return line[:cut_size]
        return line.removesuffix(b"\r")

    mark = _BOM  # Removed from the first line; empty after it.
    # The line that has not ended yet. One byte more than its cut size is kept, so that `cut` knows
    # that it is longer.
    unfinished = bytearray()
    for piece in pieces:
        continuation, *later_lines = piece.split(b"\n")
        unfinished += continuation[: cut_size + 1 - len(unfinished)]
        lines = []
        if later_lines:  # the piece has an LF, which ends the unfinished line
            lines.append(cut(bytes(unfinished)).removeprefix(mark))
            lines += map(cut, later_lines[:-1])  # the last one has not ended
            unfinished = bytearray(later_lines[-1][: cut_size + 1])
            mark = b""
        yield lines
    if unfinished and unfinished != mark:
        yield [cut(bytes(unfinished)).removeprefix(mark)]


def split_lines(
    stream: IO[bytes], name: str, *, max_bytes: int | None = None
) -> Iterator[bytes | None]:
    """Yield each line of a stream without its LF; None for a line longer than ``max_bytes``.

    Raises:
        DataError: The stream is damaged, for example a truncated gzip file.
    """
    for lines in split_pieces(read_pieces(stream, name, _CHUNK_BYTES), max_bytes):
        for line in lines:
            is_too_long = max_bytes is not None and len(line) > max_bytes
            yield None if is_too_long else line


def decode_line(line: bytes, name: str, line_number: int) -> str:
    """Decode UTF-8.

    Args:
        line: The bytes.
        name: Name of the file in messages.
        line_number: Number of the line in the file, from 1.

    Raises:
        DataError: The line is not UTF-8. The message names the file, the line and the byte.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        if line_number == 1:
            _reject_other_encodings(line, name)
        place = f"{name}, line {line_number:,}, byte {error.start + 1}"
        raise DataError(
            f"{place}: 0x{line[error.start]:02x} is not UTF-8.",
            fix="Convert the file to UTF-8 (iconv).",
        ) from error


def _reject_other_encodings(start: bytes, name: str) -> None:
    """Raise a DataError if ``start``, the first bytes, looks like UTF-16, UTF-32 or binary."""
    wide_mark = _WIDE_MARKS.match(start)
    if wide_mark:
        encoding = str(wide_mark.lastgroup).replace("_", "-")  # name of the group, such as UTF_16
        shown_file = "FILE"
        if Path(name).is_file():
            shown_file = join_words([name])
        raise DataError(
            f"{name} is {encoding}, not UTF-8.",
            fix=f"Convert the file: iconv -f {encoding} -t UTF-8 {shown_file} > NEW",
        )
    # A line of text may contain a NUL or a few bad bytes. Programs, images and weights have many.
    is_long = len(start) >= _BINARY_BYTES
    if is_long and is_archive(start):
        raise DataError(
            f"{name} is an archive, not text.", fix="Pass the name of the archive, or unpack it."
        )
    has_many_nulls = is_long and start.count(0) * _BINARY_BYTES > len(start)
    # One bad character may be the last one, which is cut.
    if has_many_nulls and start.decode("utf-8", "replace").count("\ufffd") > 1:
        raise DataError(
            f"{name} is a binary file: it has NUL bytes and bytes that are not UTF-8.",
            fix="Pass a text file in UTF-8.",
        )


def decoded_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 stream.

    Raises:
        DataError: The stream is damaged, or a line is not UTF-8.
    """
    for line_number, line in enumerate(split_lines(stream, name), start=1):
        yield decode_line(line or b"", name, line_number)  # never None: lines have no limit


def read_lines(path: Path) -> list[str]:
    """Read all lines of a text file into memory.

    Raises:
        DataError: The file is missing, damaged, or not UTF-8.
    """
    with open_binary(path) as stream:
        return list(decoded_lines(stream, str(path)))


def first_bytes(path: Path, size: int) -> bytes:
    """Return up to ``size`` bytes from the start of a file, decompressed.

    Raises:
        DataError: The file is missing or damaged.
    """
    with open_binary(path) as stream:
        return next(read_pieces(stream, str(path), size), b"")


def count_lines(path: Path) -> int:
    """Return the number of lines of a file, including a last line without LF.

    Raises:
        DataError: The file is missing or damaged.
    """
    num_lines = 0
    last_byte = b"\n"  # an empty file has no line
    with open_binary(path) as stream:
        for piece in read_pieces(stream, str(path), _CHUNK_BYTES):
            num_lines += piece.count(b"\n")
            last_byte = piece[-1:]
    if last_byte != b"\n":
        num_lines += 1
    return num_lines


def read_chunks(
    stream: IO[bytes],
    *,
    lines_at_once: int = MAX_CHUNK_LINES,
    max_bytes: int = MAX_LINE_BYTES,
    name: str = "standard input",
) -> Iterator[list[bytes]]:
    """Yield lines, without LF, in chunks: large from a file, small from a slow writer.

    A chunk ends when it is full, when the writer pauses, or 0.2 seconds after its first line. So
    lines that arrive one at a time are yielded one at a time. A pause within a line yields an empty
    chunk. Memory is bounded by the maximum sizes of a chunk and of a line.

    Args:
        stream: Read to its end.
        lines_at_once: Maximum lines per chunk.
        max_bytes: Longer lines are cut to ``max_bytes + 1`` bytes.
        name: Name of the stream in error messages.

    Raises:
        DataError: The input is damaged (for example a truncated gzip file), is UTF-16 or UTF-32, or
            is binary.
    """
    pieces = read_pieces(stream, name, _READ_BYTES, at_once=True)
    first_piece = next(pieces, b"")
    if not first_piece:
        return
    _reject_other_encodings(first_piece, name)
    chunk: list[bytes] = []
    num_bytes = 0  # of the chunk
    start_time = 0.0  # of the chunk, in seconds
    for lines in split_pieces(chain([first_piece], pieces), max_bytes):  # of each piece
        for line in lines:
            if not chunk:
                start_time = time.monotonic()
            chunk.append(line)
            num_bytes += len(line)
            if len(chunk) >= lines_at_once or num_bytes >= _MAX_CHUNK_BYTES:
                yield chunk
                chunk = []
                num_bytes = 0
        # The next read may wait, so yield the lines first if they are old, or if it would wait.
        # If no line has ended in this piece, the chunk may be empty: a pause within a line.
        if chunk or not lines:
            is_old = bool(chunk) and time.monotonic() - start_time > _PATIENCE_SECONDS
            if is_old or not has_input(stream):
                yield chunk
                chunk = []
                num_bytes = 0
    if chunk:
        yield chunk


def has_input(stream: IO[bytes], seconds: float = _PAUSE_SECONDS) -> bool:
    """Whether more bytes, or the end, arrive within ``seconds``. Always true for a file."""
    try:
        return bool(select.select([stream.fileno()], [], [], seconds)[0])
    except (OSError, ValueError):  # a buffer in a test, or Windows, which waits only for sockets
        return stream.seekable()  # a pipe is not: assume that its writer pauses


class LineDecoder:
    """Decodes UTF-8 without dropping lines: replaces bad bytes by U+FFFD and cuts long lines.

    Logs a warning for each of the first `MAX_NOTES` changed lines.

    Args:
        max_bytes: Maximum length of a line.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self.num_damaged = 0  # Lines changed so far.
        self._max_bytes = max_bytes

    def decode(self, lines: Sequence[bytes], first_number: int, name: str = "") -> list[str]:
        """Decode lines. ``name`` and ``first_number`` locate a line in warnings.

        Args:
            lines: Consecutive lines, without LF.
            first_number: Number of the first of them in the file, from 1.
            name: Text in front of "line", for example ``train.de, ``.
        """
        numbered = enumerate(lines, first_number)
        return [self._decode(line, f"{name}line {number:,}") for number, line in numbered]

    def _decode(self, line: bytes, place: str) -> str:
        """Decode a line. ``place`` begins the warnings, such as ``line 5``."""
        if len(line) > self._max_bytes:
            self._warn(f"{place} is longer than {self._max_bytes:,} bytes; the rest is cut off")
            return line[: self._max_bytes].decode("utf-8", "ignore")
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            bad = f"byte {error.start + 1}: 0x{line[error.start]:02x}"
            self._warn(f"{place}, {bad} is not UTF-8; replaced by U+FFFD")
            return line.decode("utf-8", "replace")

    def _warn(self, message: str) -> None:
        """Count a changed line, and log the warning if there were not too many."""
        self.num_damaged += 1
        if self.num_damaged <= MAX_NOTES:
            logger.warning(message)
        elif self.num_damaged == MAX_NOTES + 1:
            logger.warning("more lines are too long or not UTF-8; no further warnings follow")
