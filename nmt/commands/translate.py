"""A model and a stream of lines -> a stream of translations, line by line.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is read as bytes and split on LF only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from tqdm import tqdm

from nmt.commands.json_requests import Request, parse_requests
from nmt.commands.line_streams import (
    MOST_LINES,
    MOST_NOTES,
    decode_lines,
    first_few,
    open_input,
    open_output,
    read_chunks,
)
from nmt.errors import ConfigError, DataError
from nmt.translation.alignment import as_pharaoh
from nmt.translation.guard import GuardCount
from nmt.translation.result import TranslationResult
from nmt.translation.translator import Translator

_SURROGATES = re.compile("[\ud800-\udfff]")


def as_json(values: Mapping[str, Any]) -> str:
    """Return one line of JSON."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How lines are read and results written."""

    kind: Literal["text", "json"] = "text"
    """``text``: the translation, or with several, lines of ``number ||| text ||| score``.
    ``json``: one object a line."""
    n_best: int = 1
    """Translations of each line."""
    alignments: bool = False
    """Whether words that belong together are told: in text after `` ||| ``."""
    reads_json: bool = False
    """Whether the lines that come are objects, too; see `nmt.commands.json_requests`."""
    attention: bool = False
    """Whether it is told how much of each source word each word goes back to; in JSON only."""
    token_scores: bool = False
    """Whether every token is told with its log probability; in JSON only."""

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
                fix="Add --format json, which tells those of the best, or leave out --alignments.",
            )

    def lines(
        self, number: int, result: TranslationResult, others: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the output lines of input line ``number``, from 0; ``others`` only pass through."""
        if self.kind == "json":
            yield as_json({**others, **result.as_dict()})
        elif self.alignments:
            yield f"{result.text} ||| {as_pharaoh(result.alignment or ())}"
        elif self.n_best == 1:
            yield result.text
        else:
            alternatives = [(x.text, x.score) for x in result.alternatives]
            for text, score in alternatives or [(result.text, result.score)]:
                yield f"{number} ||| {text} ||| {score:.4f}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a line has no translation: a `DataError` as a value, which may go to another process."""

    problem: str
    """What is wrong, and where."""
    fix: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of some lines, in numbers. Tallies add up."""

    num_lines: int = 0
    """Lines answered, be it with an error."""
    guard: GuardCount = field(default_factory=GuardCount)
    """How often the guard was alarmed."""
    num_failures: int = 0
    """Lines answered with an error."""
    first_failure: Failure | None = None
    """What was wrong with the first of these."""
    num_odd: int = 0
    """Lines that a note was due for: not UTF-8, or cut off."""

    def plus(self, later: Tally) -> Tally:
        """Count the lines of ``later``, too."""
        mine, theirs = self.guard, later.guard
        return Tally(
            self.num_lines + later.num_lines,
            GuardCount(
                mine.lines + theirs.lines,
                mine.alarmed + theirs.alarmed,
                mine.mended + theirs.mended,
            ),
            self.num_failures + later.num_failures,
            self.first_failure or later.first_failure,
            self.num_odd + later.num_odd,
        )

    def notes(self) -> Iterator[str]:
        """Yield what is to be said at the end."""
        if told := self.guard.note():
            yield told
        if self.num_odd > MOST_NOTES:
            yield f"{self.num_odd:,} lines were not UTF-8, or too long, and were changed"

    def check(self) -> None:
        """Tell of the lines answered with an error.

        Raises:
            DataError: There are some.
        """
        if self.first_failure is not None:
            raise DataError(
                f"Lines answered with an error: {self.num_failures:,}. The first: "
                f"{self.first_failure.problem}",
                fix=self.first_failure.fix,
            )


@dataclass(frozen=True, slots=True)
class Answers:
    """What is written for some lines, and what came of them."""

    output: bytes = b""
    """Whole lines."""
    tally: Tally = Tally()
    """Of the lines that ``output`` answers."""
    end: Failure | None = None
    """Why nothing may be written after ``output``; None if that answers all lines."""


Answerer: TypeAlias = Callable[[Sequence[bytes], int], Answers]
"""Answers some lines of the input; the number of the first is counted from 1."""


def answer_lines(
    translator: Translator,
    style: OutputFormat,
    lines: Sequence[bytes],
    first_number: int,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> Answers:
    """Translate ``lines``: an `Answerer` by its last two arguments.

    A line that has no translation gets ``{"error": ...}`` in JSON; text ends before it.

    Args:
        translator: The model, with its decoding options.
        style: How they are read and written.
        lines: As they come.
        first_number: Of these in the whole input, from 1.
        note: Told about odd lines.
    """
    odd: list[str] = []
    texts = list(decode_lines(lines, first_number, odd.append))
    for told in odd:
        note(told)
    output, tally = bytearray(), Tally(num_odd=len(odd))
    for request, result in _answers(translator, texts, first_number, style):
        if isinstance(result, DataError):
            failure = Failure(result.problem, result.fix)
            if style.kind == "text":
                return Answers(bytes(output), tally, failure)
            written = [as_json({**request.others, "error": failure.problem})]
            one = Tally(1, num_failures=1, first_failure=failure)
        else:
            number = first_number - 1 + tally.num_lines
            written = [*style.lines(number, result, request.others)]
            one = Tally(1, GuardCount().plus([result]))
        # A lone surrogate, of a field that only passes through, becomes the escape of JSON again.
        output += b"".join(line.encode("utf-8", "backslashreplace") + b"\n" for line in written)
        tally = tally.plus(one)
    return Answers(bytes(output), tally)


def _answer_stream(
    answer: Answerer,
    source: IO[bytes],
    output: IO[bytes],
    *,
    lines_at_once: int,
    name: str,
    progress: Callable[[int], object],
    note: Callable[[str], None],
) -> Tally:
    """Write what ``answer`` makes of every line of ``source``, flushed after every chunk.

    Raises:
        DataError: The input is damaged, or a line ends the output.
    """
    tally = Tally()
    for lines in read_chunks(source, lines_at_once=lines_at_once, name=name):
        found = answer(lines, tally.num_lines + 1)
        output.write(found.output)
        output.flush()
        if found.end is not None:
            raise DataError(found.end.problem, fix=found.end.fix)
        progress(len(lines))
        tally = tally.plus(found.tally)
    for told in tally.notes():
        note(told)
    return tally


def translate(
    translator: Translator,
    source: IO[bytes],
    output: IO[bytes],
    style: OutputFormat,
    *,
    lines_at_once: int = MOST_LINES,
    note: Callable[[str], None] = lambda _: None,
) -> int:
    """Translate every line of ``source`` to ``output``; return how many there were.

    Args:
        translator: The model, with its decoding options.
        source: Bytes to read to the end.
        output: Where translations go, flushed after every chunk.
        style: How they are read and written.
        lines_at_once: Lines that are sorted and searched together; 1 answers each at once.
        note: Told about odd lines, and at the end what the guard found.

    Raises:
        DataError: The input is damaged, or there is a line that cannot be answered.
    """
    tally = _answer_stream(
        partial(answer_lines, translator, style, note=first_few(note)),
        source,
        output,
        lines_at_once=lines_at_once,
        name="standard input",
        progress=lambda _: None,
        note=note,
    )
    tally.check()
    return tally.num_lines


def _answers(
    translator: Translator, texts: Sequence[str], first_number: int, style: OutputFormat
) -> Iterator[tuple[Request, TranslationResult | DataError]]:
    """Yield the answer to every line: all at once, or in halves down to the lines that fail."""
    try:
        requests = _requests(texts, first_number, reads_json=style.reads_json)
    except DataError as error:
        failure, requests = error, [Request(texts[0])]
    else:
        answers = _translated(translator, requests, first_number, style)
        if not isinstance(answers, DataError):
            yield from zip(requests, answers, strict=True)
            return
        failure, translator = answers, translator.without_notes()  # they have been said
    if len(texts) == 1:
        yield requests[0], failure
    else:
        middle = len(texts) // 2
        yield from _answers(translator, texts[:middle], first_number, style)
        yield from _answers(translator, texts[middle:], first_number + middle, style)


def _translated(
    translator: Translator, requests: Sequence[Request], first_number: int, style: OutputFormat
) -> list[TranslationResult] | DataError:
    """Translate, or say which of them cannot be."""
    try:
        return translator.translate(
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
        return error.with_traceback(None)


def _requests(texts: Sequence[str], first_number: int, *, reads_json: bool) -> list[Request]:
    if reads_json:
        return [_as_text(request) for request in parse_requests(texts, first_number)]
    return [Request(text) for text in texts]


def _as_text(request: Request) -> Request:
    """Replace lone surrogates, which JSON may escape, as bytes that are not UTF-8 are."""

    def clean(text: str) -> str:
        return _SURROGATES.sub("\ufffd", text)

    return replace(
        request,
        source=clean(request.source),
        prefix=clean(request.prefix),
        required=tuple(map(clean, request.required)),
        forbidden=tuple(map(clean, request.forbidden)),
    )


def translate_files(
    translator: Translator,
    source: Path | None,
    output: Path | None,
    style: OutputFormat,
    *,
    note: Callable[[str], None],
    lines_at_once: int | None = None,
    show_progress: bool = False,
) -> int:
    """Translate a file, or standard input, to a file, or standard output; return the lines.

    An output file appears when it is complete: until then it has a temporary name beside it. A line
    that cannot be answered ends text output, and gets an object of its own in JSON.
    Other arguments are as of `translate`.

    Raises:
        DataError: The input cannot be read or the output cannot be written, or there was such a
            line.
    """
    return answer_files(
        partial(answer_lines, translator, style, note=first_few(note)),
        source,
        output,
        note=note,
        lines_at_once=lines_at_once or MOST_LINES,
        show_progress=show_progress,
    )


def answer_files(
    answer: Answerer,
    source: Path | None,
    output: Path | None,
    *,
    note: Callable[[str], None],
    lines_at_once: int,
    show_progress: bool,
) -> int:
    """Do what `translate_files` does, with whatever answers the lines."""
    with ExitStack() as stack:
        reader = stack.enter_context(open_input(source))
        writer = stack.enter_context(open_output(output))
        bar = stack.enter_context(
            tqdm(desc="translating", unit=" lines", disable=not show_progress)
        )
        tally = _answer_stream(
            answer,
            reader,
            writer,
            lines_at_once=lines_at_once,
            name="standard input" if source is None else str(source),
            progress=bar.update,
            note=note,
        )
    tally.check()
    return tally.num_lines
