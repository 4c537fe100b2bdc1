"""Lines in, lines out: translate a stream of bytes, in chunks, as it comes.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is split on LF only. Lines are plain text or JSON, before and after translation.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from nmt.errors import ConfigError, DataError
from nmt.files.atomic import open_output
from nmt.files.json_file import parse_json
from nmt.files.lines import (
    MAX_CHUNK_LINES,
    MAX_NOTES,
    LineDecoder,
    is_standard,
    open_input,
    read_chunks,
)
from nmt.files.progress import progress_bar
from nmt.translation.result import RESULT_FIELDS, GuardCount, TranslationResult, as_pharaoh
from nmt.translation.translator import Translator

logger = logging.getLogger(__name__)

_KNOWN = ("source", "prefix", "required", "forbidden")
_ERROR = "error"
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Request:
    """What one line asks for."""

    source: str
    """The text to translate."""
    prefix: str = ""
    """Text that the translation begins with."""
    required: tuple[str, ...] = ()
    """Phrases that it contains."""
    forbidden: tuple[str, ...] = ()
    """Phrases that it does not contain."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields that pass through to the output. None has the name of a field of results."""


def parse_requests(lines: Iterable[str], first_number: int) -> Iterator[Request]:
    """Read JSON objects, one a line: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text. Lone surrogates, which JSON may escape, become U+FFFD in text.

    Raises:
        DataError: A line is something else; names it.
    """
    for number, line in enumerate(lines, start=first_number):
        yield _parse(line, number) if line.strip() else Request("")


def _parse(line: str, number: int) -> Request:
    try:
        values = parse_json(line, finite=True)
    except json.JSONDecodeError as error:
        where = f"{error.msg}, at column {error.colno}"
        raise _not_understood(number, f"is not JSON ({where})") from error
    except ValueError as error:  # a number too long, brackets too deep
        raise _not_understood(number, f"cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise _not_understood(number, "holds no JSON object")
    for name in ("source", "prefix"):
        if not isinstance(values.get(name, ""), str) or (name == "source" and name not in values):
            raise _not_understood(number, f"has no text in {name}")
    for name in ("required", "forbidden"):
        phrases = values.get(name, [])
        if not (isinstance(phrases, list) and all(isinstance(each, str) for each in phrases)):
            raise _not_understood(number, f"has no list of texts in {name}")
    reserved = {*_KNOWN, *RESULT_FIELDS, _ERROR}
    return Request(
        # A line break would make two lines of one; other separators of Unicode are text.
        re.sub(r"[\r\n]+", " ", _clean(values["source"]).strip("\r\n")),
        _clean(values.get("prefix", "")),
        tuple(map(_clean, values.get("required", ()))),
        tuple(map(_clean, values.get("forbidden", ()))),
        {name: value for name, value in values.items() if name not in reserved},
    )


def _clean(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def _not_understood(number: int, what: str) -> DataError:
    return DataError(
        f"Line {number:,} {what}.",
        fix='Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.',
    )


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How lines are read and results written."""

    kind: Literal["text", "json"] = "text"
    """``text``: the translation; several as ``number ||| text ||| score``. ``json``: one object a
    line."""
    n_best: int = 1
    """Translations of each line."""
    alignments: bool = False
    """Write word alignments: in text after `` ||| ``."""
    reads_json: bool = False
    """Read each line as a `Request` in JSON."""
    attention: bool = False
    """Write the attention of each word; in JSON only."""
    token_scores: bool = False
    """Write every token with its log probability; in JSON only."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is asked for besides texts and scores."""
        names = ("alignments", "attention", "token_scores")
        return tuple(name for name in names if getattr(self, name))

    def __post_init__(self) -> None:
        asked = {"--attention": self.attention, "--token-scores": self.token_scores}
        if self.kind == "text" and any(asked.values()):
            flags = " and ".join(flag for flag, is_on in asked.items() if is_on)
            raise ConfigError(
                f"Text output has no place for {flags}.",
                fix="Add --format json, or leave that out.",
            )
        if self.kind == "text" and self.alignments and self.n_best > 1:
            raise ConfigError(
                f"Text output has no place for the alignments of {self.n_best} translations.",
                fix="Add --format json, which has those of the best, or leave out --alignments.",
            )

    def read(self, lines: Iterable[str], first_number: int) -> list[Request]:
        """Return what each line asks for.

        Raises:
            DataError: A line is not a request; names it.
        """
        if self.reads_json:
            return list(parse_requests(lines, first_number))
        return [Request(text) for text in lines]

    def write(self, number: int, request: Request, result: TranslationResult) -> Iterator[str]:
        """Yield the output lines for the input line ``number``, from 0."""
        if self.kind == "json":
            yield _as_json({**request.others, **result.as_dict()})
        elif self.alignments:
            yield f"{result.text} ||| {as_pharaoh(result.alignment or ())}"
        elif self.n_best == 1:
            yield result.text
        else:
            alternatives = [(x.text, x.score) for x in result.alternatives]
            for text, score in alternatives or [(result.text, result.score)]:
                yield f"{number} ||| {text} ||| {score:.4f}"

    def write_error(self, request: Request, problem: str) -> str:
        """Return the JSON output line for a line that has no translation."""
        return _as_json({**request.others, _ERROR: problem})


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


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
        is_file = not is_standard(source)
        bar = stack.enter_context(progress_bar("translating", unit="lines", shown=is_file))
        run = translate_stream(
            translate,
            reader,
            writer,
            lines_at_once=lines_at_once or MAX_CHUNK_LINES,
            name=str(source) if is_file else "standard input",
            progress=bar.update,
        )
    if run.first_failure is not None:
        raise DataError(
            f"Lines answered with an error: {run.num_failures:,}. The first: "
            f"{run.first_failure.problem}",
            fix=run.first_failure.fix,
        )
    return run
