"""Lines in, lines out: translate a stream of bytes, in chunks, as it comes.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is split on LF only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeAlias

from nmt.errors import DataError
from nmt.files.line_streams import (
    MAX_CHUNK_LINES,
    MAX_NOTES,
    LineDecoder,
    is_standard,
    open_input,
    open_output,
    read_chunks,
)
from nmt.files.progress import progress_bar
from nmt.translation.requests import LineFormat, Request
from nmt.translation.result import GuardCount, TranslationResult
from nmt.translation.translator import Translator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a line has no translation: a `DataError` as a value that can go to another process."""

    problem: str
    """What is wrong, and where."""
    fix: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class TranslationRun:
    """What was written for some lines, and what came of them. Runs of consecutive lines add up."""

    output: bytes = b""
    """Whole lines."""
    num_lines: int = 0
    """Lines in ``output``, be it with an error."""
    guard: GuardCount = field(default_factory=GuardCount)
    """How many of them had alarms."""
    num_failures: int = 0
    """Lines written with an error."""
    first_failure: Failure | None = None
    """The error of the first of these."""
    num_damaged: int = 0
    """Lines that were not UTF-8, or were cut off."""
    end: Failure | None = None
    """Why nothing may be written after ``output``; None if it has all lines."""

    def __add__(self, later: TranslationRun) -> TranslationRun:
        if self.end is not None:
            return self
        return TranslationRun(
            self.output + later.output,
            self.num_lines + later.num_lines,
            self.guard + later.guard,
            self.num_failures + later.num_failures,
            self.first_failure or later.first_failure,
            self.num_damaged + later.num_damaged,
            later.end,
        )


@contextmanager
def errors_only() -> Iterator[None]:
    """Let nmt log nothing below errors for a while."""
    nmt_logger = logging.getLogger("nmt")
    level = nmt_logger.level
    nmt_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        nmt_logger.setLevel(level)


LineTranslator: TypeAlias = Callable[[Sequence[bytes], int], TranslationRun]
"""Translates some lines of the input; the number of the first is counted from 1."""


def line_translator(translator: Translator, style: LineFormat) -> LineTranslator:
    """Return what translates lines of bytes by ``style``.

    A line that has no translation gets ``{"error": ...}`` in JSON; text ends before it. Of many
    damaged lines the first few are logged.
    """
    decoder = LineDecoder()

    def translate_lines(lines: Sequence[bytes], first_number: int) -> TranslationRun:
        before = decoder.num_damaged
        texts = decoder.decode(lines, first_number)
        run = TranslationRun(num_damaged=decoder.num_damaged - before)
        output = bytearray()
        for request, result in _translate_all(translator, texts, first_number, style):
            if not isinstance(result, DataError):
                one = TranslationRun(num_lines=1, guard=GuardCount.of([result]))
                written = [*style.write(first_number - 1 + run.num_lines, request, result)]
            else:
                failure = Failure(result.problem, result.fix)
                if style.kind == "text":
                    return replace(run, output=bytes(output), end=failure)
                one = TranslationRun(num_lines=1, num_failures=1, first_failure=failure)
                written = [style.write_error(request, failure.problem)]
            run += one
            # A lone surrogate of a field that passes through becomes the escape of JSON again.
            output += b"".join(x.encode("utf-8", "backslashreplace") + b"\n" for x in written)
        return replace(run, output=bytes(output))

    return translate_lines


def _translate_all(
    translator: Translator,
    texts: Sequence[str],
    first_number: int,
    style: LineFormat,
    *,
    is_logged: bool = True,
) -> Iterator[tuple[Request, TranslationResult | DataError]]:
    """Yield the result of every line: all at once, or in halves down to the lines that fail."""
    requests = None
    try:
        requests = style.read(texts, first_number)
        with nullcontext() if is_logged else errors_only():
            results = translator.translate(
                [request.source for request in requests],
                prefixes=[request.prefix for request in requests],
                required=[request.required for request in requests],
                forbidden=[request.forbidden for request in requests],
                alignments=style.alignments,
                attention=style.attention,
                token_scores=style.token_scores,
                first_line=first_number,
            )
    except DataError as error:
        if len(texts) == 1:
            yield _readable(style, texts[0], first_number), error.with_traceback(None)
            return
    else:
        yield from zip(requests, results, strict=True)
        return
    is_logged = is_logged and requests is None  # otherwise its warnings have been logged
    middle = len(texts) // 2
    for part, number in ((texts[:middle], first_number), (texts[middle:], first_number + middle)):
        yield from _translate_all(translator, part, number, style, is_logged=is_logged)


def _readable(style: LineFormat, text: str, number: int) -> Request:
    """Return what a line that fails asks for, as far as it can be read."""
    try:
        return style.read([text], number)[0]
    except DataError:
        return Request("")


def translate_stream(
    translate: LineTranslator,
    source: IO[bytes],
    output: IO[bytes],
    *,
    lines_at_once: int = MAX_CHUNK_LINES,
    name: str = "standard input",
    progress: Callable[[int], object] | None = None,
) -> TranslationRun:
    """Write what ``translate`` returns for all lines of ``source``, flushed after every chunk.

    Args:
        translate: See `line_translator`.
        source: Bytes to read to the end.
        output: Where lines go.
        lines_at_once: Lines that are sorted and searched together; 1 answers each at once.
        name: What messages call ``source``.
        progress: Called with the number of lines of each chunk.

    Returns:
        The counts, without the output.

    Raises:
        DataError: The input is damaged, or a line ends the output.
    """
    total = TranslationRun()
    for lines in read_chunks(source, lines_at_once=lines_at_once, name=name):
        run = translate(lines, total.num_lines + 1)
        output.write(run.output)
        output.flush()
        if run.end is not None:
            raise DataError(run.end.problem, fix=run.end.fix)
        if progress is not None:
            progress(len(lines))
        total += replace(run, output=b"")
    if message := total.guard.message():
        logger.info(message)
    if total.num_damaged > MAX_NOTES:
        changed = f"{total.num_damaged:,}"
        logger.warning("%s lines were not UTF-8, or too long, and were changed", changed)
    return total


def translate_files(
    translate: LineTranslator,
    source: Path | None,
    output: Path | None,
    *,
    lines_at_once: int | None = None,
) -> TranslationRun:
    """Translate a file, or standard input, to a file, or standard output.

    An output file appears when it is complete: until then it has a temporary name beside it. For
    arguments and result see `translate_stream`.

    Raises:
        DataError: The input cannot be read or the output cannot be written, or a line has no
            translation: in JSON after all others are written.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(open_input(source))
        writer = stack.enter_context(open_output(output))
        bar = None
        if not is_standard(source):  # where it would mix with what is typed
            bar = stack.enter_context(progress_bar("translating", unit="lines"))
        run = translate_stream(
            translate,
            reader,
            writer,
            lines_at_once=lines_at_once or MAX_CHUNK_LINES,
            name="standard input" if is_standard(source) else str(source),
            progress=None if bar is None else bar.update,
        )
    if run.first_failure is not None:
        raise DataError(
            f"Lines answered with an error: {run.num_failures:,}. The first: "
            f"{run.first_failure.problem}",
            fix=run.first_failure.fix,
        )
    return run
