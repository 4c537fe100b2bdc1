"""Lines to segments that fit the model, and segments to batches."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.inference import segment as module
from nmt.inference.request import Request
from nmt.inference.segment import Segment, cut_text, segment
from nmt.text.tokenizer import Tokenizers
from tests.inference.conftest import OPTIONS, sentences


def segments_of(lines: list[str], tokenizers: Tokenizers, first_line: int = 1) -> list[Segment]:
    requests = [Request(line) for line in lines]
    found = segment(requests, tokenizers, OPTIONS, 32, first_line=first_line)
    assert not found.failures
    return list(found.segments)


def test_the_first_long_lines_are_reported(
    tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture
) -> None:
    assert {part.sentence for part in segments_of(["𐐷" * 99] * 9, tokenizers)} == {*range(9)}
    assert [text[:7] for text in caplog.messages[:-1]] == [f"line {n}:" for n in range(1, 6)]
    assert caplog.messages[-1] == "4 more lines were cut into segments"


def test_no_piece_of_text_is_lost(tokenizers: Tokenizers, caplog: pytest.LogCaptureFixture) -> None:
    """Fault 45: also where a few characters are many subwords."""
    for text in (" ".join(sentences(40)), "𐐷" * 500, "漢" * 333 + "。" + "字" * 100):
        caplog.clear()
        segments = segments_of([text], tokenizers, 2000)
        assert len(segments) > 1
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage() == (
            f"line 2,000: {len(text):,} characters cut into {len(segments):,} segments: the model "
            "reads at most 32 subwords"
        )
        assert all(1 <= len(segment.ids) <= 32 for segment in segments)
        joined = "".join(tokenizers.source.decode(segment.ids) for segment in segments)
        assert joined.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("max_length", [1, 2, 3, 5])
def test_a_character_of_more_bytes_than_fit_is_read_in_several_parts(
    tokenizers: Tokenizers, max_length: int
) -> None:
    """Nothing of it is lost: a Deseret letter has 4 bytes, and is not in a German vocabulary."""
    text = "Hund \U00010437\U00010438"
    found = segment([Request(text)], tokenizers, OPTIONS, max_length=max_length).segments
    assert all(1 <= len(each.ids) <= max_length for each in found)
    ids = [index for each in found for index in each.ids]
    read = [tokenizers.source.piece(index) for index in ids]
    assert [piece for piece in read if piece.startswith("<0x")] == [
        f"<0x{byte:02X}>" for byte in text[5:].encode()
    ]


def test_a_line_beyond_the_limit_is_truncated_with_a_warning(
    tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 37: the time for one line is bounded, whatever it holds."""
    monkeypatch.setattr(module, "LONGEST_LINE", 10)
    segments = segments_of(["a" * 10, " " * 30 + "b" * 5, "c" * 10 + "d"], tokenizers, 7)
    texts = [tokenizers.source.decode(segment.ids) for segment in segments]
    assert texts == ["a" * 10, "b" * 5, "c" * 10]
    assert caplog.messages == [
        "line 8 has 35 characters; only the first 10 are translated",
        "line 9 has 11 characters; only the first 10 are translated",
    ]


def test_segments_know_their_lines_and_blank_lines_have_none(tokenizers: Tokenizers) -> None:
    lines = ["Hund", "", " ".join(sentences(12)), "\u200b", "Katze"]
    found = [segment.sentence for segment in segments_of(lines, tokenizers)]
    assert sorted(found) == found
    assert set(found) == {0, 2, 4}
    assert (found.count(0), found.count(4)) == (1, 1)


def words(text: str) -> int:
    return len(text.split())


WEATHER, WALK = "今天天气很好\u3002", "我们去公园\u3002"


@pytest.mark.parametrize(
    ("text", "size", "limit", "expected"),
    [
        ("One two. Three four, five six seven. Eight nine ten.", words, 4,
         ["One two. Three four,", "five six seven.", "Eight nine ten."]),
        ("a b c d e f g h i", words, 4, ["a b c d", "e f g h", "i"]),
        (WEATHER + WALK, len, 8, [WEATHER, WALK]),  # without spaces: at their own marks
        (f"今天\uff0c{WEATHER}好\u3002{WALK}", len, 8,
         ["今天\uff0c", WEATHER, f"好\u3002{WALK}"]),
        ("x" * 40, len, 10, ["x" * 10] * 4),
        ("  One.  Two. ", len, 20, ["One.  Two."]),  # what fits is left alone
        (" \t ", len, 5, []),
    ],
)  # fmt: skip
def test_sentences_come_before_clauses_and_clauses_before_words(
    text: str, size: Callable[[str], int], limit: int, expected: list[str]
) -> None:
    assert cut_text(text, size, limit) == expected


@given(st.text("ab c.,。\n\u00a0", max_size=200), st.integers(8, 40))
def test_split_text_loses_nothing_and_all_parts_fit(text: str, limit: int) -> None:
    """By words, as white space between joined pieces does not count in the sum of sizes."""

    def size_of(piece: str) -> int:
        return len("".join(piece.split()))

    pieces = cut_text(text, size_of, limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < size_of(piece) <= limit for piece in pieces)
    assert all(piece == piece.strip() for piece in pieces)


def test_the_work_is_linear_in_the_text() -> None:
    """Fault 45."""

    def read_for(count: int) -> int:
        read = 0

        def size_of(piece: str) -> int:
            nonlocal read
            read += len(piece) if len(piece) <= 2000 else 0
            return words(piece) if len(piece) <= 2000 else 10**9

        assert len(cut_text("zwei, drei. " * count, size_of, 100)) == 2 * count / 100
        return read

    assert read_for(50_000) < 4 * len("zwei, drei. ") * 50_000
