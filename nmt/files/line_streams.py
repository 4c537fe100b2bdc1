"""The two ends of a filter: bytes to chunks of lines as they come, and a file that appears whole.

Input is split on LF only. Unlike a corpus, it may come slowly, never end, or hold bytes that are
no text: a line goes out for each that comes in, whatever it holds.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, cast

from nmt.errors import ConfigError, DataError
from nmt.files.lines import decompressed, open_binary, refuse_wide

MOST_LINES = 2000
LONGEST_LINE = 1 << 24
MOST_NOTES = 20
"""Notes about odd lines, after which no more are said one by one."""
_MOST_BYTES = 1 << 22
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


class _Chunk:
    """Lines that wait to be given out, and a line whose end has not come."""

    def __init__(self, longest_line: int) -> None:
        self._longest_line = longest_line
        self._lines: list[bytes] = []
        self._parts: list[bytes] = []
        self._held = self._size = 0
        self._since = 0.0

    def hold(self, part: bytes) -> None:
        """Take in a part of a line. What is beyond the longest line but one byte is dropped."""
        part = part[: self._longest_line + 1 - self._held]
        if part:
            self._parts.append(part)
            self._held += len(part)

    def end_line(self) -> None:
        """The line ends here."""
        if not self._lines:
            self._since = time.monotonic()
        self._lines.append(b"".join(self._parts).removesuffix(b"\r"))
        self._size += self._held
        self._parts, self._held = [], 0

    def is_full(self, most_lines: int) -> bool:
        return len(self._lines) >= most_lines or self._size >= _MOST_BYTES

    def is_old(self) -> bool:
        return time.monotonic() - self._since > _PATIENCE_SECONDS

    def has_lines(self) -> bool:
        return bool(self._lines)

    def has_open_line(self) -> bool:
        return bool(self._parts)

    def take(self) -> list[bytes]:
        lines, self._lines, self._size = self._lines, [], 0
        return lines


def read_chunks(
    stream: IO[bytes],
    *,
    lines_at_once: int = MOST_LINES,
    longest_line: int = LONGEST_LINE,
    name: str = "standard input",
) -> Iterator[list[bytes]]:
    """Yield lines, without LF, in chunks: full ones from a file, small ones from a slow writer.

    A chunk ends when it is full, when the writer pauses, or a moment after its first line: so
    lines that come one at a time are answered one at a time, and nothing waits for the end of the
    input. Memory is bounded by the sizes of a chunk and of a line.

    Args:
        stream: Bytes to read to the end.
        lines_at_once: Most lines of a chunk.
        longest_line: Of a longer line comes the start, one byte more than this.
        name: What messages call ``stream``.

    Raises:
        DataError: The input is damaged, for example a gzip file cut off, or is UTF-16 or UTF-32.
    """
    chunk = _Chunk(longest_line)
    is_start = True
    while data := _read_some(stream, name):
        if is_start:
            refuse_wide(data, name)
            is_start = False
        first, *others = data.split(b"\n")
        chunk.hold(first)
        for part in others:
            chunk.end_line()
            if chunk.is_full(lines_at_once):
                yield chunk.take()
            chunk.hold(part)
        if chunk.has_lines() and (chunk.is_old() or not _more_is_waiting(stream)):
            yield chunk.take()
    if chunk.has_open_line():
        chunk.end_line()
    if chunk.has_lines():
        yield chunk.take()


def _read_some(stream: IO[bytes], name: str) -> bytes:
    """Return what is there, waiting only if nothing is."""
    read = getattr(stream, "read1", stream.read)
    try:
        return bytes(read(_READ_BYTES))
    except Exception as error:  # every library of a compression has errors of its own
        raise DataError(
            f"{name} is damaged or cut off: {error}", fix="Download or compress it again."
        ) from error


def _more_is_waiting(stream: IO[bytes]) -> bool:
    """Whether the writer has written more, or ended, within a moment."""
    try:
        return bool(select.select([stream.fileno()], [], [], _PAUSE_SECONDS)[0])
    except (OSError, ValueError):  # no file descriptor: a buffer in a test
        return True


def decode_lines(
    lines: Sequence[bytes],
    first_number: int,
    note: Callable[[str], None],
    *,
    longest_line: int = LONGEST_LINE,
) -> Iterator[str]:
    """Decode UTF-8; a byte order mark goes.

    What is not UTF-8 is replaced and the end of a line beyond ``longest_line`` bytes is cut off,
    both with a note, so that no line is lost.
    """
    for number, line in enumerate(lines, start=first_number):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if len(line) > longest_line:
            note(f"line {number:,} is longer than {longest_line:,} bytes; the rest is cut off")
            yield line[:longest_line].decode("utf-8", "ignore")
            continue
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            note(
                f"line {number:,}, byte {error.start + 1}: 0x{line[error.start]:02x} is not UTF-8; "
                "replaced by U+FFFD"
            )
            yield line.decode("utf-8", "replace")


def first_few(note: Callable[[str], None]) -> Callable[[str], None]:
    """Return what passes the first `MOST_NOTES` notes on, and then says that it says no more."""
    count = 0

    def say(text: str) -> None:
        nonlocal count
        count += 1
        if count <= MOST_NOTES:
            note(text)
        elif count == MOST_NOTES + 1:
            note("more lines are not UTF-8, or too long; they are not named")

    return say


@contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or standard input, and decompress what begins as gzip, bzip2 or xz do.

    Standard input is waited for. Compressed, it comes in blocks; plain, as it is written.

    Raises:
        DataError: There is nothing to read.
    """
    if path is not None:
        with open_binary(path) as stream:
            yield stream
    elif sys.stdin is None:  # closed by whoever started the process
        raise DataError("Standard input is closed.", fix="Name an input file with -i.")
    else:
        yield decompressed(sys.stdin.buffer, "standard input")


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Check the name of an output file, before there is any work to lose.

    Raises:
        ConfigError: It asks for a compression that there is not, or is that of an input.
    """
    if output is None:
        return
    if output.suffix in _UNKNOWN_COMPRESSIONS:
        raise ConfigError(
            f"{output}: there is no way to write {output.suffix}.",
            fix=f"Name it {', '.join(_COMPRESSORS)}, or leave {output.suffix} out for plain text.",
        )
    for path in inputs:
        if path is not None and _is_same_file(path, output):
            raise ConfigError(
                f"{output} is both input and output.", fix="Name another output file with -o."
            )


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return other.is_file() and one.samefile(other)  # a device may be both
    except OSError:  # whoever opens it says what is wrong
        return False


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or standard output.

    A file appears when it is complete: until then it has a temporary name beside it. It has the
    permissions of the file that it replaces. One named .gz, .bz2 or .xz is compressed.

    Raises:
        DataError: It cannot be written: also when that shows late, as with a full disk.
    """
    with _told(path or "standard output"):
        if path is None:
            if sys.stdout is None:
                raise DataError("Standard output is closed.", fix="Name an output file with -o.")
            yield sys.stdout.buffer
        elif path.exists() and not path.is_file():  # a device or a pipe must not be replaced
            with path.open("wb") as stream:
                yield stream
        else:
            place = path.resolve()  # a link goes on pointing at the same file
            temporary = place.with_name(f".{place.name}.tmp-{os.getpid()}")
            compress = _COMPRESSORS.get(path.suffix, nullcontext)
            with _ended_in_order():
                try:
                    with _open_like(place, temporary) as raw, compress(raw) as stream:
                        yield cast(IO[bytes], stream)
                    temporary.replace(place)
                finally:
                    with suppress(OSError):
                        temporary.unlink(missing_ok=True)


def _open_like(place: Path, temporary: Path) -> IO[bytes]:
    """Open a file with the permissions of the one at ``place``, if there is one."""
    if not place.exists():
        return temporary.open("wb")
    mode = stat.S_IMODE(place.stat().st_mode)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)  # less the umask
    temporary.chmod(mode)
    return os.fdopen(descriptor, "wb")


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM be an exception, as SIGINT is, so that no temporary file is left."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _told(shown: Path | str) -> Iterator[None]:
    """Turn the errors of the operating system into one message."""
    try:
        yield
    except BrokenPipeError:  # no failure: the reader has what it wanted
        raise
    except OSError as error:
        raise DataError(
            f"{shown} cannot be written: {error.strerror or error}.",
            fix="Name an output file in a folder you can write to, on a disk with room.",
        ) from error
