"""Lines in, lines out: translate a stream of bytes, in chunks, as it comes.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is split on LF only. Lines are plain text or JSON, before and after translation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias

from nmt.device import local_rank
from nmt.errors import DataError
from nmt.files.atomic import open_output
from nmt.files.lines import (
    MAX_CHUNK_LINES,
    MAX_NOTES,
    LineDecoder,
    has_input,
    is_standard,
    open_input,
    read_chunks,
)
from nmt.inference.line_format import (
    ERROR,
    LineFormat,
    Request,
    RequestError,
    json_line,
    meant_field,
)
from nmt.inference.result import GuardCounts, TranslationResult
from nmt.inference.translator import Translator
from nmt.inference.turns import Turns

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TranslationRun:
    """What was written for some lines, and what came of them. Runs of consecutive lines add up."""

    output: bytes = b""
    """Whole lines."""
    num_lines: int = 0
    """Lines in ``output``, be it with an error."""
    guard: GuardCounts = field(default_factory=GuardCounts)
    """What the guard saw in them."""
    num_failures: int = 0
    """Lines written with an error."""
    num_damaged: int = 0
    """Lines that were not UTF-8, or were cut off."""
    first_failure: DataError | None = None
    """The error of the first line written with one."""
    end: DataError | None = None
    """Why nothing may be written after ``output``; None if it has all lines."""

    def __add__(self, later: TranslationRun) -> TranslationRun:
        if self.end is not None:
            return self
        return TranslationRun(
            self.output + later.output,
            self.num_lines + later.num_lines,
            self.guard + later.guard,
            self.num_failures + later.num_failures,
            self.num_damaged + later.num_damaged,
            self.first_failure or later.first_failure,
            later.end,
        )


@contextmanager
def errors_only(name: str = "nmt") -> Iterator[None]:
    """Let nmt, or a part of it, log nothing below errors for a while."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


LineTranslator: TypeAlias = Callable[[Sequence[bytes], int], TranslationRun]
"""Translates some lines of the input; the number of the first is counted from 1."""


def line_translator(translator: Translator, style: LineFormat) -> LineTranslator:
    """Return what translates lines of bytes by ``style``.

    A line that has no translation gets ``{"error": ...}`` in JSON; text ends before it. Of many
    damaged lines the first few are logged.
    """
    return _StyledTranslator(translator, style)


class _StyledTranslator:
    """What `line_translator` returns: remembers what it has logged and timed."""

    def __init__(self, translator: Translator, style: LineFormat) -> None:
        self._translator, self._style, self._decoder = translator, style, LineDecoder()
        self._told_seconds, self._last_end = 0.0, 0.0
        self._named = set[str]()
        self._most_named = 0 if local_rank() else MAX_NOTES  # of several processes one names them

    def __call__(self, lines: Sequence[bytes], first_number: int) -> TranslationRun:
        before, begin = self._decoder.num_damaged, time.perf_counter()
        texts = self._decoder.decode(lines, first_number)
        num_damaged = self._decoder.num_damaged - before
        output, failures, end = bytearray(), [], None
        results = dict[int, TranslationResult]()
        found = _translate_all(self._translator, texts, first_number, self._style)
        for number, (request, result) in enumerate(found, first_number - 1):
            self._name_passed_fields(request, number + 1)
            if not isinstance(result, DataError):
                results[number + 1] = result
                written = list(self._style.write(number, request, result))
            elif self._style.kind == "text":
                fix = f"{result.fix} With --format json the other lines are answered all the same."
                end = DataError(result.problem, fix=fix)
                break
            else:
                failures.append(result)
                written = [json_line({**request.others, ERROR: result.problem})]
            # A lone surrogate of a field that passes through becomes the escape of JSON again.
            output += b"".join(x.encode("utf-8", "backslashreplace") + b"\n" for x in written)
        return TranslationRun(
            bytes(output),
            len(results) + len(failures),
            self._count(results, begin),
            len(failures),
            num_damaged,
            next(iter(failures), None),
            end,
        )

    def _count(self, results: Mapping[int, TranslationResult], begin: float) -> GuardCounts:
        # Other lines may have been translated meanwhile: no time counts twice.
        begin, self._last_end = max(begin, self._last_end), time.perf_counter()
        before, self._told_seconds = self._told_seconds, self._translator.retry_seconds
        retries, seconds = self._told_seconds - before, self._last_end - begin
        return GuardCounts.of(results, retry_seconds=retries, seconds=seconds)

    def _name_passed_fields(self, request: Request, number: int) -> None:
        """Warn of the first fields that look like those of a request."""
        if len(self._named) >= self._most_named:
            return
        for name in request.others.keys() - self._named - {"source"}:
            if meant := meant_field(name):
                self._named.add(name)
                text = "line %s: field %r is passed through, not followed (did you mean %r?)"
                logger.warning(text, f"{number:,}", name, meant)


def _translate_all(
    translator: Translator, texts: Sequence[str], first_number: int, style: LineFormat
) -> Iterator[tuple[Request, TranslationResult | DataError]]:
    """Yield the result of every line: all at once, or in halves down to the lines that fail."""
    requests = []
    try:
        requests = style.read(texts, first_number)
        results = translator.translate(
            [request.source for request in requests],
            prefixes=[request.prefix for request in requests],
            required=[request.required for request in requests],
            forbidden=[request.forbidden for request in requests],
            tag=[request.tag or style.tag for request in requests],
            first_line=first_number,
            **dict.fromkeys(style.outputs, True),
        )
        yield from zip(requests, results, strict=True)
    except DataError as error:
        if len(texts) == 1:
            others = error.others if isinstance(error, RequestError) else {}
            request = requests[0] if requests else Request("", others=others)
            yield request, error.with_traceback(None)
            return
        middle = len(texts) // 2
        parts = (first_number, texts[:middle]), (first_number + middle, texts[middle:])

        def translate_parts() -> list[tuple[Request, TranslationResult | DataError]]:
            found = []
            with errors_only() if requests else nullcontext():  # its warnings have been logged
                for number, own in parts:
                    for pair in _translate_all(translator, own, number, style):
                        found.append(pair)
                        if style.kind == "text" and isinstance(pair[1], DataError):
                            return found
            return found

        yield from translator.alone(translate_parts)


def translate_stream(
    translate: LineTranslator,
    source: IO[bytes],
    output: IO[bytes],
    *,
    lines_at_once: int = MAX_CHUNK_LINES,
    name: str = "standard input",
    progress: Callable[[int], object] = lambda _: None,
    turns: Turns | None = None,
) -> TranslationRun:
    """Write what ``translate`` returns for all lines of ``source``, flushed after every chunk.

    Args:
        translate: See `line_translator`.
        source: Bytes to read to the end.
        output: Where lines go.
        lines_at_once: Lines that are sorted and searched together; 1 answers each at once.
        name: What messages call ``source``.
        progress: Called with the number of lines so far after each chunk.
        turns: Those of the translator: one chunk after another if None.

    Returns:
        The counts, without the output.

    Raises:
        DataError: The input is damaged, or a line ends the output.
    """
    total = TranslationRun()
    turns = turns or Turns()
    chunks = _numbered(read_chunks(source, lines_at_once=lines_at_once, name=name))
    is_ready = partial(has_input, source, 0.0)
    with closing(turns.map(translate, chunks, is_ready)) as runs:
        for run in runs:
            output.write(run.output)
            output.flush()
            if run.end is not None:
                raise run.end
            total += replace(run, output=b"")
            progress(total.num_lines)
    if message := total.guard.message(total.num_lines - total.num_failures):
        logger.info(message)
    if total.num_damaged > MAX_NOTES:
        text = "%s lines were not UTF-8, or too long, and were changed; if the text is Latin-1, "
        convert = "convert it first: iconv -f LATIN1 -t UTF-8 FILE"
        logger.warning(text + convert, f"{total.num_damaged:,}")
    return total


def _numbered(chunks: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], int]]:
    """Yield chunks with the numbers of their first lines."""
    number = 1
    for lines in chunks:
        yield lines, number
        number += len(lines)


def translate_files(
    translate: LineTranslator,
    source: Path | None,
    output: Path | None,
    *,
    lines_at_once: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
    turns: Turns | None = None,
) -> TranslationRun:
    """Translate a file, or standard input, to a file, or standard output.

    An output file appears when it is complete: until then it has a temporary name beside it. For
    arguments and result see `translate_stream`.

    Raises:
        DataError: The input cannot be read or the output cannot be written, or a line has no
            translation: in JSON after all others are written.
    """
    with open_input(source) as reader, open_output(output) as writer:
        run = translate_stream(
            translate,
            reader,
            writer,
            lines_at_once=lines_at_once or MAX_CHUNK_LINES,
            name="standard input" if is_standard(source) else str(source),
            progress=progress,
            turns=turns,
        )
    if run.first_failure is not None:
        raise DataError(
            f"Lines answered with an error: {run.num_failures:,}. The first: "
            f"{run.first_failure.problem}",
            fix=run.first_failure.fix,
        )
    return run
