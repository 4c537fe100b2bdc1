"""Sentences joined are the text, whatever it holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.text.sentences import LONGEST_SENTENCE, split_sentences, split_text

SIGNS = " \n\r\t.!?\"'“”()。\ud800\u2028\x85\xa0\u202f\u3000aAB1"
TEXTS = st.one_of(st.text(), st.text(st.sampled_from(SIGNS)))
LANGUAGES = st.sampled_from(["en", "de", "fr", "ja", "pt_BR", "xx", ""])


@given(TEXTS, LANGUAGES)
def test_sentences_joined_are_the_text(text: str, language: str) -> None:
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    assert all(sentences)


@given(TEXTS, LANGUAGES, st.sampled_from([None, 1, 2]))
def test_sentences_and_gaps_are_the_text(
    text: str, language: str, max_sentences: int | None
) -> None:
    split = split_text(text, language, max_sentences)
    assert "".join(map("".join, zip(split.gaps, (*split.sentences, ""), strict=True))) == text
    assert not any(each != each.strip() or "\n" in each for each in split.sentences)
    assert len(split.gaps_for("")) == len(split.gaps)


@pytest.mark.parametrize("space", ["\xa0", "\u202f", "\u3000", "\u2003", "\u2028"])
def test_a_space_of_several_bytes_before_a_full_stop_is_a_space(space: str) -> None:
    """Sentencex 1.0.32 panics at it, which no `except Exception` catches."""
    first, second = f"C'est le plan B{space}. ", "Il est bon."
    assert split_sentences(first + second, "fr") == [first + second]
    assert split_sentences(f"Il vient{space}. {second}", "fr") == [f"Il vient{space}. ", second]


@pytest.mark.parametrize("unit", ["a", "ab ", "“a. ", ". ", "\n", "A. ", "Go on. "])
def test_a_long_text_gives_sentences_of_bounded_length(unit: str) -> None:
    text = unit * 20_000
    sentences = split_sentences(text, "en")
    assert "".join(sentences) == text
    assert max(map(len, sentences)) <= LONGEST_SENTENCE


def test_a_sentence_that_is_too_long_is_cut_between_words() -> None:
    """5000 characters are 454 words of 11 characters and a part of the next word."""
    parts = split_sentences("everything " * 1_000, "en")
    assert len(parts[0]) == 454 * 11
    assert {word for part in parts for word in part.split()} == {"everything"}


def test_sentences_are_whole_over_the_border_of_what_is_seen_at_once_and_in_regions() -> None:
    sentence, text = "A dog ran over there. ", "Am 1. Mai kommt er. Gut."
    assert set(split_sentences(sentence * 1_000, "en")) == {sentence}
    assert split_sentences(text, "de-AT") == split_sentences(text, "de") == [text[:20], text[20:]]


def test_a_long_line_of_several_sentences_is_split_whatever_their_number() -> None:
    """A line of exactly the limit is not longer; each line of a text is judged alone."""
    line = "A dog ran. It fell."
    for max_characters, count in ((None, 1), (len(line), 1), (len(line) - 1, 2)):
        assert len(split_text(line, "en", 2, max_characters).sentences) == count
    assert len(split_text(line, "en", None, 1).sentences) == 1
    assert split_text(f"{line}\nYes. No.\n", "en", 2, 12).sentences[2:] == ("Yes. No.",)
    assert split_text("A dog ran over there.", "en", 2, 5).sentences == ("A dog ran over there.",)


def test_spaces_between_sentences_are_those_of_the_target_language() -> None:
    assert split_text("好的。再见。\n", "zh").gaps_for(" ") == ["", " ", "\n"]
    assert split_text("Yes. No.\tWhy?", "en").gaps_for("") == ["", "", "\t", ""]
