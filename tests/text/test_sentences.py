"""Sentences joined are the text, whatever it holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.text.sentences import LONGEST_SENTENCE, split_sentences

TEXTS = st.one_of(st.text(), st.text(st.sampled_from(" \n\r\t.!?\"'“”()。\ud800\u2028\x85aB1")))


@given(TEXTS, st.sampled_from(["en", "de", "ja", "pt_BR", "xx", ""]))
def test_sentences_joined_are_the_text(text: str, language: str) -> None:
    sentences = split_sentences(text, language)
    assert "".join(sentences) == text
    assert all(sentences)


@pytest.mark.parametrize("unit", ["a", "ab ", "“a. ", ". ", "\n", "A. ", "Go on. "])
def test_a_long_text_gives_sentences_of_bounded_length(unit: str) -> None:
    text = unit * 20_000
    sentences = split_sentences(text, "en")
    assert "".join(sentences) == text
    assert max(map(len, sentences)) <= LONGEST_SENTENCE


def test_a_region_keeps_the_abbreviations_of_its_language() -> None:
    text = "Am 1. Mai kommt er. Gut."
    assert split_sentences(text, "de-AT") == split_sentences(text, "de") == [text[:20], text[20:]]


def test_a_sentence_over_the_border_of_what_the_library_sees_at_once_is_whole() -> None:
    sentences = split_sentences("A dog ran over there. " * 1_000, "en")
    assert set(sentences) == {"A dog ran over there. "}
