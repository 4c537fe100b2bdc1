"""Scores of all pairs at once, against sacrebleu's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.metrics import ngrams
from nmt.metrics.ngrams import pairwise_bleu, pairwise_chrf
from nmt.metrics.sacrebleu import bleu_words

ODD = [
    "", " ", "a", "A", "a a a a a a a", "aaaaaaa", "a\u2028b", "\U0001f415 \U0001f415", "e\u0301é",
    "The dog, e.g. the one of 3.5%, isn't here.", "The dog isn't here .", "漢字 漢", "x\ty\u3000z",
]  # fmt: skip
WORDS = st.sampled_from(["the", "dog", "dogs", "cat,", "cat.", "ran", "(now)", "$3.50", *ODD])


@given(st.lists(st.lists(WORDS, max_size=9).map(" ".join), min_size=1, max_size=6), st.booleans())
def test_every_pair_has_sacrebleus_sentence_score(texts: list[str], is_held_in_parts: bool) -> None:
    """Whether the table of n-grams is held whole or in parts."""
    chrf, bleu = CHRF(), BLEU(effective_order=True)
    with pytest.MonkeyPatch.context() as patch:
        if is_held_in_parts:
            patch.setattr(ngrams, "_MOST_CELLS", 50)
        found_chrf, found_bleu = pairwise_chrf(texts), pairwise_bleu(texts, bleu_words("en"))
    for i, hypothesis in enumerate(texts):
        for j, reference in enumerate(texts):
            expected = chrf.sentence_score(hypothesis, [reference]).score
            assert found_chrf[i, j] == pytest.approx(expected, abs=1e-9)
            expected = bleu.sentence_score(hypothesis, [reference]).score
            assert found_bleu[i, j] == pytest.approx(expected, abs=1e-9)


def test_words_are_those_of_bleu_in_the_language() -> None:
    assert bleu_words("de")("Hund, 3.5%") == ["Hund", ",", "3.5", "%"]
    assert bleu_words("zh")("狗在家") == ["狗", "在", "家"]
