"""Lines in, lines out: translate a stream of bytes, in chunks, as it comes.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is split on LF only. Lines are plain text or JSON, before and after translation.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from nmt.config.keys import nearest_word
from nmt.engine import local_rank
from nmt.errors import ConfigError, DataError
from nmt.files.atomic import open_output
from nmt.files.json_file import parse_json
from nmt.files.lines import (
    MAX_CHUNK_LINES,
    MAX_NOTES,
    LineDecoder,
    has_input,
    is_standard,
    open_input,
    read_chunks,
)
from nmt.translation.result import (
    RESULT_FIELDS,
    GuardCounts,
    TranslationResult,
    as_pharaoh,
)
from nmt.translation.translator import Translator
from nmt.translation.turns import Turns

logger = logging.getLogger(__name__)

LOW_CONFIDENCE = " ||| low confidence"
"""Behind lines that are marked in text."""

_ERROR = "error"
_RESERVED = {"low_confidence", "prefix", "required", "forbidden", "tag", _ERROR, *RESULT_FIELDS}
_REQUESTS = {"source": "source", "prefix": "prefix", "required": "required", "tag": "tag"}
_REQUESTS |= {"forbidden": "forbidden", "forced": "required", "constraints": "required"}
_REQUESTS |= {"forced_prefix": "prefix", "target_prefix": "prefix"}
"""What somebody means who writes such a field, or one spelt like it."""
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
    tag: str | None = None
    """Language or domain that it asks for."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields that pass through to the output. None has the name of a field of results."""


class RequestError(DataError):
    """A line in JSON that asks for nothing that can be done."""

    def __init__(self, problem: str, others: Mapping[str, Any]) -> None:
        fix = 'Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.'
        super().__init__(problem, fix=fix)
        self.others = others
        """Its fields that pass through; of a line that is no object, its number."""

    def __reduce__(self) -> tuple[Any, ...]:  # processes of a translation exchange it
        return type(self), (self.problem, self.others)


def parse_request(line: str, number: int) -> Request:
    """Read a JSON object: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text. Lone surrogates, which JSON may escape, become U+FFFD in text.

    Raises:
        RequestError: The line is something else; has its number.
    """
    others: dict[str, Any] = {"line": number}

    def refused(what: str) -> RequestError:
        return RequestError(f"Line {number:,} {what}.", others)

    if not line.strip():
        return Request("")
    try:
        values = parse_json(line, finite=True)
    except json.JSONDecodeError as error:
        raise refused(f"is not JSON ({error.msg}, at column {error.colno})") from error
    except ValueError as error:  # a number too long, brackets too deep
        raise refused(f"cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise refused("holds no JSON object")
    others = {name: value for name, value in values.items() if name not in _RESERVED}
    texts, phrases = {"source": None, "prefix": "", "tag": "", **values}, []
    for name in ("source", "prefix", "tag"):
        if not isinstance(texts[name], str):
            raise refused(f"has no text in {name}")
        texts[name] = _SURROGATES.sub("\ufffd", texts[name])
    for name in ("required", "forbidden"):
        given = values.get(name, [])
        if not (isinstance(given, list) and all(isinstance(each, str) for each in given)):
            raise refused(f"has no list of texts in {name}")
        phrases.append(tuple(_SURROGATES.sub("\ufffd", each) for each in given))
    # A line break would make two lines of one; other separators of Unicode are text.
    source = re.sub(r"[\r\n]+", " ", texts["source"].strip("\r\n"))
    return Request(source, texts["prefix"], phrases[0], phrases[1], texts["tag"] or None, others)


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
    tag: str | None = None
    """Language or domain that lines ask for which name none."""
    min_confidence: float | None = None
    """Mark lines whose confidence is below: in text by `LOW_CONFIDENCE` behind them, in JSON by the
    field ``low_confidence``."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is asked for besides texts and scores."""
        names = ("alignments", "attention", "token_scores")
        return tuple(name for name in names if getattr(self, name))

    def __post_init__(self) -> None:
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 100:
            raise ConfigError(
                f"--min-confidence is {self.min_confidence:g}.",
                fix="Give an expected chrF, from 0 to 100.",
            )
        if self.kind == "json":
            return
        if self.min_confidence is not None and (self.alignments or self.n_best > 1):
            raise ConfigError(
                "Text output has no place for --min-confidence beside alignments or several "
                "translations.",
                fix="Add --format json, or leave one of them out.",
            )
        if flags := [f"--{x.replace('_', '-')}" for x in self.outputs if x != "alignments"]:
            raise ConfigError(
                f"Text output has no place for {' and '.join(flags)}.",
                fix="Add --format json, or leave that out.",
            )
        if self.alignments and self.n_best > 1:
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
            return [parse_request(line, number) for number, line in enumerate(lines, first_number)]
        return [Request(text) for text in lines]

    def write(self, number: int, request: Request, result: TranslationResult) -> Iterator[str]:
        """Yield the output lines for the input line ``number``, from 0."""
        if self.kind == "json":
            yield _as_json({**request.others, **result.as_dict(), **self._mark(result)})
        elif self.alignments:
            yield f"{result.text} ||| {as_pharaoh(result.alignment or ())}"
        elif self.n_best == 1:
            yield result.text + LOW_CONFIDENCE * self._mark(result).get("low_confidence", False)
        else:
            for each in result.alternatives or [result]:
                yield f"{number} ||| {each.text} ||| {each.score:.4f}"

    def _mark(self, result: TranslationResult) -> dict[str, bool]:
        """Return whether the line is marked, if marks are asked for; a blank one never is."""
        if self.min_confidence is None:
            return {}
        known = result.confidence
        return {"low_confidence": known is not None and known < self.min_confidence}


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


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
    decoder, named, told_seconds, last_end = LineDecoder(), set[str](), 0.0, 0.0
    most_named = 0 if local_rank() else MAX_NOTES  # of several processes one names them

    def translate_lines(lines: Sequence[bytes], first_number: int) -> TranslationRun:
        nonlocal told_seconds, last_end
        before, begin = decoder.num_damaged, time.perf_counter()
        texts = decoder.decode(lines, first_number)
        num_damaged = decoder.num_damaged - before
        output, results, failures, end = bytearray(), [], [], None
        found = _translate_all(translator, texts, first_number, style)
        for number, (request, result) in enumerate(found, first_number - 1):
            for name in request.others.keys() - named if len(named) < most_named else ():
                if meant := _meant(name):
                    named.add(name)
                    text = "line %s: field %r is passed through, not followed (did you mean %r?)"
                    logger.warning(text, f"{number + 1:,}", name, meant)
            if not isinstance(result, DataError):
                results.append(result)
                written = list(style.write(number, request, result))
            elif style.kind == "text":
                end = result
                break
            else:
                failures.append(result)
                written = [_as_json({**request.others, _ERROR: result.problem})]
            # A lone surrogate of a field that passes through becomes the escape of JSON again.
            output += b"".join(x.encode("utf-8", "backslashreplace") + b"\n" for x in written)
        # Other lines may have been translated meanwhile: no time counts twice.
        begin, last_end = max(begin, last_end), time.perf_counter()
        before_retry, told_seconds = told_seconds, translator.retry_seconds
        return TranslationRun(
            bytes(output),
            len(results) + len(failures),
            GuardCounts.of(
                results,
                retry_seconds=told_seconds - before_retry,
                seconds=last_end - begin,
            ),
            len(failures),
            num_damaged,
            next(iter(failures), None),
            end,
        )

    return translate_lines


@lru_cache(256)
def _meant(name: str) -> str | None:
    """Return the field of a request that a field looks like."""
    near = nearest_word(name, list(_REQUESTS))
    return near and _REQUESTS[near]


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
        changed = f"{total.num_damaged:,}"
        logger.warning("%s lines were not UTF-8, or too long, and were changed", changed)
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
