"""The two ends of a filter: bytes to chunks of lines as they come, and a file that appears whole.

Input is split on LF only. Unlike a corpus, it may come slowly, never end, or hold bytes that are
no text: a line goes out for each that comes in, whatever it holds.
"""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, cast

from nmt.errors import ConfigError, DataError
from nmt.files.atomic import atomic_file, write_errors
from nmt.files.lines import (
    MAX_LINE_BYTES,
    decompressed,
    open_binary,
    read_pieces,
    refuse_wide,
    split_pieces,
)

MAX_CHUNK_LINES = 2000
MAX_NOTES = 20
"""Warnings about damaged lines that are given one by one."""
_MAX_CHUNK_BYTES = 1 << 22
_READ_BYTES = 1 << 16
_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 0.2
_COMPRESSORS: dict[str, Callable[[IO[bytes]], AbstractContextManager[object]]] = {
    # Without the temporary name and the time: equal text, equal bytes.
    ".gz": lambda raw: gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0),
    ".bz2": lambda raw: bz2.BZ2File(raw, "wb"),
    ".xz": lambda raw: lzma.LZMAFile(raw, "wb"),  # noqa: SIM115 - the caller closes it
}
_UNKNOWN_COMPRESSIONS = (".zst", ".lz4", ".zip", ".7z")
_PART_SUFFIXES = (".safetensors", ".json", ".jsonl", ".yaml", ".model", ".bin", ".html")
"""Of the files in run, model and data folders."""

logger = logging.getLogger(__name__)


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
    input. Memory is bounded by the sizes of a chunk and of a line.

    Args:
        stream: Bytes to read to the end.
        lines_at_once: Most lines of a chunk.
        max_bytes: Of a longer line comes the start, one byte more than this.
        name: What messages call ``stream``.

    Raises:
        DataError: The input is damaged, for example a gzip file cut off, or is UTF-16 or UTF-32.
    """
    chunk: list[bytes] = []
    size, since = 0, 0.0
    pieces = _no_wide(read_pieces(stream, name, _READ_BYTES, at_once=True), name)
    for lines in split_pieces(pieces, max_bytes):
        for line in lines:
            since = since if chunk else time.monotonic()
            chunk.append(line)
            size += len(line)
            if len(chunk) >= lines_at_once or size >= _MAX_CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
        is_old = time.monotonic() - since > _PATIENCE_SECONDS
        if chunk and (is_old or not _more_is_waiting(stream)):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _no_wide(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    for first in pieces:
        refuse_wide(first, name)
        yield first
        yield from pieces


def _more_is_waiting(stream: IO[bytes]) -> bool:
    """Whether the writer has written more, or ended, within a moment."""
    try:
        return bool(select.select([stream.fileno()], [], [], _PAUSE_SECONDS)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in a test
        return True


class LineDecoder:
    """Decodes UTF-8 without losing a line: bad bytes are replaced, and too long lines cut.

    Logs a warning for each of the first `MAX_NOTES` lines that it changes.

    Args:
        max_bytes: What is beyond this in a line is cut off.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self.num_damaged = 0
        """Lines changed so far."""
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


@contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or standard input (None or ``-``), decompressing gzip, bzip2 and xz.

    Standard input is waited for. Compressed, it comes in blocks; plain, as it is written.

    Raises:
        DataError: There is nothing to read.
    """
    if path is not None and not is_standard(path):
        with open_binary(path) as stream:
            yield stream
    elif sys.stdin is None:  # closed by whoever started the process
        raise DataError("Standard input is closed.", fix="Name an input file with -i.")
    else:
        yield decompressed(sys.stdin.buffer, "standard input")


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Check the name of an output file, before there is any work to lose.

    No command writes over one of its inputs: not under another name (a hard or symbolic link),
    and not over a part of a model or data folder that it reads.

    Args:
        output: The file to write; None or ``-`` for standard output.
        inputs: Files and folders that are read; None and ``-`` for standard input.

    Raises:
        ConfigError: It asks for a compression that there is not, or is one of the inputs.
    """
    if output is None or is_standard(output):
        return
    if output.suffix in _UNKNOWN_COMPRESSIONS:
        raise ConfigError(
            f"{output}: there is no way to write {output.suffix}.",
            fix=f"Name it {', '.join(_COMPRESSORS)}, or leave {output.suffix} out for plain text.",
        )
    for path in inputs:
        if path is not None and _would_overwrite(output, path):
            raise ConfigError(
                f"{output} is both input and output."
                if not path.is_dir()
                else f"{output} is a part of {path}, which is read.",
                fix="Name another output file.",
            )


def is_standard(path: Path | None) -> bool:
    """Whether a path stands for standard input or output: none is given, or ``-``.

    >>> is_standard(Path("-"))
    True
    """
    return path is None or str(path) == "-"


def _would_overwrite(output: Path, path: Path) -> bool:
    try:
        if not output.is_file():  # a device may be both
            return False
        if not path.is_dir():
            return path.samefile(output)
        if output.resolve().suffix not in _PART_SUFFIXES:  # translations may lie in the run folder
            return False
        return any(part.is_file() and part.samefile(output) for part in path.rglob("*.*"))
    except OSError:  # whoever opens it says what is wrong
        return False


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or standard output when there is none or it is ``-``.

    A file appears when it is complete, as `atomic_file` says. One named .gz, .bz2 or .xz is
    compressed.

    Raises:
        DataError: It cannot be written: also when that shows late, as with a full disk.
    """
    if path is not None and is_standard(path):
        path = None
    with write_errors(
        path or "standard output",
        DataError,
        fix="Name an output file in a folder you can write to, on a disk with room.",
    ):
        if path is None:
            if sys.stdout is None:
                raise DataError("Standard output is closed.", fix="Name an output file with -o.")
            yield sys.stdout.buffer
        elif path.exists() and not path.is_file():  # a device or a pipe must not be replaced
            with path.open("wb") as stream:
                yield stream
        else:
            compress = _COMPRESSORS.get(path.suffix, nullcontext)
            with atomic_file(path) as raw, compress(raw) as stream:
                yield cast(IO[bytes], stream)
