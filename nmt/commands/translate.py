"""A model and a stream of lines -> a stream of translations, line by line.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is read as bytes and split on LF only.
"""

from __future__ import annotations

import json
import lzma
import os
import select
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from tqdm import tqdm

from nmt.errors import DataError
from nmt.text.lines import open_binary
from nmt.translation.translator import TranslationResult, Translator

_MOST_LINES = 2000
_MOST_BYTES = 1 << 22
_READ_BYTES = 1 << 16
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How results are written."""

    kind: Literal["text", "json"] = "text"
    """``text``: the translation, or with several, lines of ``number ||| text ||| score``.
    ``json``: one object a line."""
    n_best: int = 1
    """Translations of each line."""

    def lines(self, number: int, result: TranslationResult) -> Iterator[str]:
        """Yield the output lines of input line ``number``, from 0."""
        if self.kind == "json":
            yield json.dumps(result.as_dict(), ensure_ascii=False)
        elif self.n_best == 1:
            yield result.text
        else:
            alternatives = [(x.text, x.score) for x in result.alternatives]
            for text, score in alternatives or [(result.text, result.score)]:
                yield f"{number} ||| {text} ||| {score:.4f}"


def read_chunks(
    stream: IO[bytes], *, lines_at_once: int = _MOST_LINES, name: str = "standard input"
) -> Iterator[list[bytes]]:
    """Yield lines, without LF, in chunks: full ones from a file, small ones from a slow writer.

    A chunk ends when it is full, or when the writer pauses: so lines that come one at a time are
    answered one at a time, and nothing waits for the end of the input.

    Raises:
        DataError: The input, called ``name``, is damaged: for example a gzip file cut off.
    """
    rest: list[bytes] = []  # pieces of a line whose end has not come
    lines: list[bytes] = []
    size = 0
    while data := _read_some(stream, name):
        *whole, last = data.split(b"\n")
        for line in whole:
            lines.append(b"".join([*rest, line]).removesuffix(b"\r"))
            size += len(lines[-1])
            rest = []
            if len(lines) >= lines_at_once or size >= _MOST_BYTES:
                yield lines
                lines, size = [], 0
        if last:
            rest.append(last)
        if lines and not _more_is_waiting(stream):
            yield lines
            lines, size = [], 0
    if rest:
        lines.append(b"".join(rest).removesuffix(b"\r"))
    if lines:
        yield lines


def _read_some(stream: IO[bytes], name: str) -> bytes:
    """Return what is there, waiting only if nothing is."""
    read = getattr(stream, "read1", stream.read)
    try:
        return bytes(read(_READ_BYTES))
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(
            f"{name} is damaged or cut off: {error}", fix="Download or compress it again."
        ) from error


def _more_is_waiting(stream: IO[bytes]) -> bool:
    """Whether the writer has written more, or ended, within a moment."""
    try:
        return bool(select.select([stream.fileno()], [], [], _PAUSE_SECONDS)[0])
    except (OSError, ValueError):  # no file descriptor: a compressed file or a buffer
        return True


def decode_lines(
    lines: Sequence[bytes], first_number: int, note: Callable[[str], None]
) -> Iterator[str]:
    """Decode UTF-8; what is not UTF-8 is replaced, with a note, so that no line is lost."""
    for number, line in enumerate(lines, start=first_number):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            note(
                f"line {number:,}, byte {error.start + 1}: 0x{line[error.start]:02x} is not UTF-8; "
                "replaced by U+FFFD"
            )
            yield line.decode("utf-8", "replace")


def stderr_note(text: str) -> None:
    """Write a note for the user."""
    sys.stderr.write(f"note: {text}\n")


def translate(
    translator: Translator,
    source: IO[bytes],
    output: IO[bytes],
    style: OutputFormat,
    *,
    lines_at_once: int = _MOST_LINES,
    name: str = "standard input",
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """Translate every line of ``source`` to ``output``; return how many there were.

    Args:
        translator: The model, with its decoding options.
        source: Bytes to read to the end.
        output: Where translations go, flushed after every chunk.
        style: How they are written.
        lines_at_once: Lines that are sorted and searched together; 1 answers each at once.
        name: What messages call ``source``.
        progress: Told the lines of each finished chunk.
    """
    number = 0
    for chunk in read_chunks(source, lines_at_once=lines_at_once, name=name):
        texts = list(decode_lines(chunk, number + 1, stderr_note))
        for offset, result in enumerate(translator.translate(texts)):
            for line in style.lines(number + offset, result):
                output.write(line.encode("utf-8", "replace") + b"\n")
        output.flush()
        number += len(chunk)
        progress(len(chunk))
    return number


def translate_files(
    translator: Translator,
    source: Path | None,
    output: Path | None,
    style: OutputFormat,
    *,
    lines_at_once: int | None = None,
    show_progress: bool = False,
) -> int:
    """Translate a file, or standard input, to a file, or standard output; return the lines.

    An output file appears when it is complete: until then it has a temporary name beside it.

    Raises:
        DataError: The input cannot be read or the output cannot be written.
    """
    with ExitStack() as stack:
        reader = sys.stdin.buffer if source is None else stack.enter_context(open_binary(source))
        writer = stack.enter_context(_open_output(output))
        bar = stack.enter_context(
            tqdm(desc="translating", unit=" lines", disable=not show_progress)
        )
        return translate(
            translator,
            reader,
            writer,
            style,
            lines_at_once=lines_at_once or _MOST_LINES,
            name="standard input" if source is None else str(source),
            progress=bar.update,
        )


@contextmanager
def _open_output(output: Path | None) -> Iterator[IO[bytes]]:
    if output is None:
        yield sys.stdout.buffer
        return
    if output.exists() and not output.is_file():  # a device or a pipe must not be replaced
        with _create(output, output) as stream:
            yield stream
        return
    place = output.resolve()  # a link goes on pointing at the same file
    temporary = place.with_name(f".{place.name}.tmp-{os.getpid()}")
    try:
        with _create(temporary, output) as stream:
            yield stream
        temporary.replace(place)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _create(path: Path, shown: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise DataError(
            f"{shown} cannot be written: {error.strerror}.",
            fix="Name an output file in a folder you can write to.",
        ) from error
