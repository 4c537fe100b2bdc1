"""Text work beside searches: the same bytes and errors, in the same order."""

from __future__ import annotations

import io
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from nmt.config.decoding import DecodingConfig
from nmt.errors import DataError
from nmt.files.lines import has_input
from nmt.inference.engine import Engine
from nmt.inference.guard import Guard, GuardThresholds
from nmt.inference.line_format import LineFormat
from nmt.inference.stream import TranslationRun, line_translator, translate_stream
from nmt.inference.translator import Translator
from nmt.inference.turns import OverlappingTurns, Turns
from nmt.search.hypothesis import Constraints, Hypothesis
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS

PATIENCE_SECONDS = 60
STRICT = GuardThresholds(loop=0, repetition=0.1)
"""Lines that say a word twice are searched again."""


class Echo(Engine):
    """Says the source, in the thread that it remembers; a beam of 6 leaves the last token out."""

    def __init__(self) -> None:
        self.threads = set[int]()

    @override
    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: DecodingConfig,
        constraints: Sequence[Constraints] | None = None,
    ) -> list[list[Hypothesis]]:
        self.threads.add(threading.get_ident())
        short = options.beam_size > OPTIONS.beam_size
        return [[Hypothesis(tuple(ids[:-1] if short else ids), -1.0, -1.0)] for ids in sources]

    @override
    def search_all(self, tasks: Any, options: DecodingConfig) -> Any:
        for task in tasks:
            yield self.search(task.sources, options, task.constraints)


def run(
    translator: Translator, turns: Turns, text: bytes, style: LineFormat, at_once: int
) -> tuple[bytes, TranslationRun | str, list[int]]:
    """What is written, what comes of it, and the numbers that progress tells."""
    output, numbers = io.BytesIO(), list[int]()
    lines, source = line_translator(translator.with_turns(turns), style), io.BytesIO(text)
    found: TranslationRun | str
    try:
        found = translate_stream(
            lines, source, output, lines_at_once=at_once, progress=numbers.append, turns=turns
        )
    except DataError as error:
        found = f"{error.problem} {error.fix}"
    return output.getvalue(), found, numbers


LINES = [
    b"", b"Hund", b"der Hund und der Hund und der Hund", b"Kat\xffze", b" ",
    b"Haus \xe2\x80\xa8 Hund", b"x" * 400, b"\r",
    b'{"source": "Katze", "id": 3}', b'{"source": "Hund", "prefix": "Haus", "forbidden": ["Haus"]}',
    b'{"source": "Hund", "tag": "none"}', b'{"source": 3}',
]  # fmt: skip
STYLES = [LineFormat(), LineFormat("json"), LineFormat("json", reads_json=True)]
STYLES += [LineFormat(reads_json=True), LineFormat(tag="none")]


@given(
    lines=st.lists(st.sampled_from(LINES), max_size=12),
    style=st.sampled_from(STYLES),
    at_once=st.integers(1, 5),
)
def test_all_is_as_one_chunk_after_another(
    tokenizers: Tokenizers, lines: list[bytes], style: LineFormat, at_once: int
) -> None:
    echo, found = Echo(), list[tuple[Any, ...]]()
    guard = Guard(STRICT, tokenizers)
    translator = Translator(echo, tokenizers, OPTIONS, max_length=32, guard=guard)
    for turns in (Turns(), OverlappingTurns()):
        written, result, numbers = run(translator, turns, b"\n".join(lines), style, at_once)
        if isinstance(result, TranslationRun):
            counts = result.num_lines, result.num_failures, result.num_damaged
            guarded = result.guard.num_alarmed, result.guard.num_cleared, result.guard.signs
            first = result.first_failure and result.first_failure.problem
            found.append((written, counts, guarded, first, numbers))
        else:
            found.append((written, result, numbers))
    assert found[1] == found[0]
    assert echo.threads <= {threading.get_ident()}


class Watched(Echo):
    """Its first search ends when the next chunk is tokenized, its second when one is joined."""

    def __init__(self, seen: list[threading.Event]) -> None:
        super().__init__()
        self._seen = iter(seen)

    @override
    def search(self, *arguments: Any) -> list[list[Hypothesis]]:
        if (event := next(self._seen, None)) is not None:
            assert event.wait(PATIENCE_SECONDS), "no text work beside a search"
        return super().search(*arguments)


@contextmanager
def pipe_of(text: bytes) -> Iterator[IO[bytes]]:
    """What another program has written into a pipe."""
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        yield pipe


@pytest.mark.parametrize("comes_from", [io.BytesIO, pipe_of])
def test_text_is_worked_on_beside_a_search(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch, comes_from: Callable[[bytes], Any]
) -> None:
    """Of a file, and of a pipe."""
    tokenized, joined = threading.Event(), threading.Event()
    translator = Translator(Watched([tokenized, joined]), tokenizers, OPTIONS, max_length=32)
    encode, result = type(tokenizers.source).encode_batch, Translator._result

    def encode_batch(self: Any, lines: Sequence[str], *more: Any) -> Any:
        if "Katze" in lines:
            tokenized.set()
        return encode(self, lines, *more)

    def join(self: Any, source: str, *more: Any) -> Any:
        if source == "Hund":
            joined.set()
        return result(self, source, *more)

    monkeypatch.setattr(type(tokenizers.source), "encode_batch", encode_batch)
    monkeypatch.setattr(Translator, "_result", join)
    text, numbers, output = b"Hund\nHund\nKatze\nKatze\n", list[int](), io.BytesIO()
    turns = OverlappingTurns()
    lines = line_translator(translator.with_turns(turns), LineFormat())
    with comes_from(text) as source:
        translate_stream(
            lines, source, output, lines_at_once=2, progress=numbers.append, turns=turns
        )
    assert (output.getvalue(), numbers) == (text, [2, 4])


class Interrupting(Echo):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    @override
    def search(self, *arguments: Any) -> list[list[Hypothesis]]:
        if self.threads:
            raise self._error
        return super().search(*arguments)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_ends_a_search_ends_all(tokenizers: Tokenizers, error: type[BaseException]) -> None:
    """What was found before is written; no thread is left."""
    translator = Translator(Interrupting(error), tokenizers, OPTIONS, max_length=32)
    before, output, turns = threading.active_count(), io.BytesIO(), OverlappingTurns()
    lines = line_translator(translator.with_turns(turns), LineFormat())
    source = io.BytesIO(b"Hund\nHund\n" * 9)
    with pytest.raises(error):
        translate_stream(lines, source, output, lines_at_once=2, turns=turns)
    assert threading.active_count() == before
    # An interrupt stops at once; an error comes in its turn.
    assert output.getvalue() in ((b"", b"Hund\nHund\n")[error is RuntimeError :])


class GoneAway(io.BytesIO):
    @override
    def flush(self) -> None:
        raise BrokenPipeError


def test_a_reader_that_goes_away_ends_all(tokenizers: Tokenizers) -> None:
    before, turns = threading.active_count(), OverlappingTurns()
    translator = Translator(Echo(), tokenizers, OPTIONS, max_length=32).with_turns(turns)
    lines = line_translator(translator, LineFormat())
    with pytest.raises(BrokenPipeError):
        translate_stream(lines, io.BytesIO(b"a\n" * 99), GoneAway(), lines_at_once=2, turns=turns)
    assert threading.active_count() == before


def test_damaged_input_is_told_after_the_lines_before_it() -> None:
    turns, found = OverlappingTurns(), list[str]()

    def chunks() -> Iterator[tuple[str]]:
        yield ("a",)
        yield ("b",)
        raise DataError("cut off", fix="")

    with pytest.raises(DataError, match="cut off"):
        found.extend(turns.map(lambda text: turns.search(lambda: text * 2), chunks()))
    assert found == ["aa", "bb"]


def test_no_more_than_three_chunks_are_held() -> None:
    turns, most, begun = OverlappingTurns(), 0, 0

    def chunks() -> Iterator[tuple[int]]:
        nonlocal begun
        for begun in range(1, 20):
            yield (begun,)

    found = enumerate(turns.map(lambda n: turns.search(lambda: n), chunks()), 1)
    for done, _ in found:
        most = max(most, begun - done + 1)
    assert (begun, most) == (19, 3)


def test_lines_translated_alone_silence_no_others(
    tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    """The parts of a chunk with a bad line log nothing; the next chunk does."""
    good, long = b'{"source": "Hund"}\n', b'{"source": "' + b"Hund " * 99 + b'"}\n'
    bad = b'{"source": "Hund", "prefix": "Haus", "forbidden": ["Haus"]}\n'
    translator = Translator(Echo(), tokenizers, OPTIONS, max_length=32)
    with caplog.at_level(logging.WARNING):
        run(translator, OverlappingTurns(), (good + bad) * 6 + long + good, STYLES[2], 4)
    (message,) = (record.message for record in caplog.records)
    assert message.startswith("line 13:")


def test_files_are_ready_and_pipes_when_something_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    reader, writer = os.pipe()
    with (tmp_path / "file").open("rb") as file, os.fdopen(reader, "rb") as pipe:
        assert [has_input(x, 0.0) for x in (file, io.BytesIO(), pipe)] == [True, True, False]
        os.write(writer, b"a")
        assert has_input(pipe, 0.0)
        pipe.read1()
        assert not has_input(pipe, 0.0)
        os.close(writer)
        assert has_input(pipe, 0.0)


def test_what_is_not_ready_is_waited_for_only_when_all_else_is_answered() -> None:
    """The third chunk is ready once the second is answered, and the end once all are."""
    turns, answered, read = OverlappingTurns(), list[int](), list[int]()

    def chunks() -> Iterator[tuple[int]]:
        for number in range(1, 5):
            read.append(number)
            yield (number,)
        assert answered == [1, 2, 3, 4]

    def is_ready() -> bool:
        return len(read) < 2 or (len(answered) >= 2 and len(read) < 4)

    before = []
    for number in turns.map(lambda n: turns.search(lambda: n), chunks(), is_ready):
        before.append(list(read))
        answered.append(number)
    assert before == [[1, 2], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4]]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_conversation_is_answered_line_by_line(tokenizers: Tokenizers, at_once: int) -> None:
    """Whoever writes the next line only after the answer gets it."""
    turns, echo, answers = OverlappingTurns(), Echo(), list[int]()
    translator = Translator(echo, tokenizers, OPTIONS).with_turns(turns)
    lines, output = line_translator(translator, LineFormat()), io.BytesIO()
    reader, writer = os.pipe()
    os.write(writer, b"Hund\n")

    def answered(number: int) -> None:
        answers.append(number)
        if number < 3:
            os.write(writer, b"Hund\n")
        else:
            os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        translate_stream(lines, pipe, output, lines_at_once=at_once, progress=answered, turns=turns)
    assert (answers, output.getvalue()) == ([1, 2, 3], b"Hund\n" * 3)
