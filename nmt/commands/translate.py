"""A model and a stream of lines -> a stream of translations, line by line.

The filter's contract: N lines in, N lines out, in order, blank to blank, written as soon as they
are ready. Input is read as bytes and split on LF only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tqdm import tqdm

from nmt.commands.json_requests import Request, parse_requests
from nmt.commands.line_streams import (
    MOST_LINES,
    decode_lines,
    open_input,
    open_output,
    read_chunks,
)
from nmt.errors import ConfigError, DataError
from nmt.translation.alignment import as_pharaoh
from nmt.translation.guard import GuardCount
from nmt.translation.result import TranslationResult
from nmt.translation.translator import Translator


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


def _raise(error: DataError) -> None:
    raise error


def translate(  # noqa: PLR0913 - two streams, and who is told what
    translator: Translator,
    source: IO[bytes],
    output: IO[bytes],
    style: OutputFormat,
    *,
    lines_at_once: int = MOST_LINES,
    name: str = "standard input",
    progress: Callable[[int], object] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
    fail: Callable[[DataError], None] = _raise,
) -> int:
    """Translate every line of ``source`` to ``output``; return how many there were.

    Args:
        translator: The model, with its decoding options.
        source: Bytes to read to the end.
        output: Where translations go, flushed after every chunk.
        style: How they are read and written.
        lines_at_once: Lines that are sorted and searched together; 1 answers each at once.
        name: What messages call ``source``.
        progress: Told the lines of each finished chunk.
        note: Told about odd lines, and at the end what the guard found.
        fail: Told why a line has no translation. If it lets that pass, the line is answered with
            ``{"error": ...}``.
    """
    number, count = 0, GuardCount()
    for chunk in read_chunks(source, lines_at_once=lines_at_once, name=name):
        texts = list(decode_lines(chunk, number + 1, note))
        for request, result in _answers(translator, texts, number + 1, style):
            if isinstance(result, DataError):
                output.flush()  # what was asked before is answered
                fail(result)
                lines = [as_json({**request.others, "error": result.problem})]
            else:
                count = count.plus([result])
                lines = [*style.lines(number, result, request.others)]
            output.writelines(line.encode("utf-8", "replace") + b"\n" for line in lines)
            number += 1
        output.flush()
        progress(len(chunk))
    if found := count.note():
        note(found)
    return number


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
        return list(parse_requests(texts, first_number))
    return [Request(text) for text in texts]


class _Failures:
    """Counts the lines that were not answered, and keeps what was wrong with the first."""

    def __init__(self) -> None:
        self.count = 0
        self._first = ("", "")

    def __call__(self, error: DataError) -> None:
        self.count += 1
        if self.count == 1:
            self._first = error.problem, error.fix

    def check(self) -> None:
        """Tell of them.

        Raises:
            DataError: There were some.
        """
        if self.count:
            problem, fix = self._first
            raise DataError(
                f"Lines answered with an error: {self.count:,}. The first: {problem}", fix=fix
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
    failures = _Failures()
    with ExitStack() as stack:
        reader = stack.enter_context(open_input(source))
        writer = stack.enter_context(open_output(output))
        bar = stack.enter_context(
            tqdm(desc="translating", unit=" lines", disable=not show_progress)
        )
        number = translate(
            translator,
            reader,
            writer,
            style,
            lines_at_once=lines_at_once or MOST_LINES,
            name="standard input" if source is None else str(source),
            progress=bar.update,
            note=note,
            fail=failures if style.kind == "json" else _raise,
        )
    failures.check()
    return number
