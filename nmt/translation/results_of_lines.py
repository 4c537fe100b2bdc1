"""Lines of the input -> what is written for them, and what came of them: values that add up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from nmt.errors import DataError
from nmt.files.line_streams import MAX_NOTES, decode_lines
from nmt.translation.guard import GuardCount
from nmt.translation.output_format import OutputFormat, as_json
from nmt.translation.requests import Request, parse_requests
from nmt.translation.result import TranslationResult
from nmt.translation.translator import Translator

_SURROGATES = re.compile("[\ud800-\udfff]")


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
        return Tally(
            self.num_lines + later.num_lines,
            self.guard.joined(later.guard),
            self.num_failures + later.num_failures,
            self.first_failure or later.first_failure,
            self.num_odd + later.num_odd,
        )

    def notes(self) -> Iterator[str]:
        """Yield what is to be said at the end."""
        if told := self.guard.note():
            yield told
        if self.num_odd > MAX_NOTES:
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
