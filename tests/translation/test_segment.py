"""Lines to segments that fit the model."""

from __future__ import annotations

import pytest

from nmt.errors import CheckpointError, DataError
from nmt.search.constraints import NONE, Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.text.tokenizer import Tokenizers
from nmt.translation.segment import Segment, check_outputs, constrain, cut_lines, make_task
from tests.translation.conftest import sentences


def test_nothing_of_a_long_line_is_dropped(tokenizers: Tokenizers) -> None:
    """Fault 45: also where a few characters are many subwords."""
    for text in (" ".join(sentences(40)), "🐕" * 500, "漢" * 333 + "。" + "字" * 100):
        notes: list[str] = []
        segments = cut_lines([text], tokenizers.source, 32, notes.append)
        assert len(segments) > 1
        assert f"cut into {len(segments)} parts" in notes[0]
        assert all(1 <= len(segment.ids) <= 32 for segment in segments)
        joined = "".join(tokenizers.source.decode(segment.ids) for segment in segments)
        assert joined.replace(" ", "") == text.replace(" ", "")


def test_segments_know_their_lines_and_blank_lines_have_none(tokenizers: Tokenizers) -> None:
    lines = ["Hund", "", " ".join(sentences(12)), "\u200b", "Katze"]
    found = [segment.line for segment in cut_lines(lines, tokenizers.source, 32)]
    assert sorted(found) == found
    assert set(found) == {0, 2, 4}
    assert (found.count(0), found.count(4)) == (1, 1)


def test_only_the_first_segment_of_a_line_gets_more_than_what_is_forbidden() -> None:
    wish = Constraints(prefix=(5,), required=((6,),), forbidden=((7,),))
    segments = [Segment(0, [5]), Segment(1, [5]), Segment(1, [6])]
    found = constrain(segments, [NONE, wish], no_repeat_ngram_size=0, most_tokens=2)
    later = Constraints(forbidden=((7,),))
    assert [segment.constraints for segment in found] == [NONE, wish, later]
    assert make_task(found).constraints == [NONE, wish, later]
    assert make_task(found[:1]).constraints is None
    with pytest.raises(DataError, match="Line 2: its prefix and required phrases have 2 subwords"):
        constrain(segments, [NONE, wish], no_repeat_ngram_size=0, most_tokens=1)


def test_a_segment_without_an_output_is_blamed_on_its_wishes_or_the_weights() -> None:
    best = [Hypothesis((5,), -1.0, -1.0)]
    free, bound = Segment(0, [5]), Segment(3, [5], Constraints(prefix=(5,)))
    check_outputs([free, bound], [best, best])
    with pytest.raises(DataError, match="Line 13: no output"):
        check_outputs([free, bound], [best, []], first_line=10)
    with pytest.raises(CheckpointError, match="not numbers"):
        check_outputs([free, bound], [[], best])


def test_a_note_says_which_line_was_cut(tokenizers: Tokenizers) -> None:
    notes: list[str] = []
    lines = ["Hund", " ".join(sentences(40))]
    cut_lines(lines, tokenizers.source, 32, notes.append, first_line=1999)

    assert notes[0].startswith(f"line 2,000: a line of {len(lines[1]):,} characters cut into ")
