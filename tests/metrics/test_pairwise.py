"""Scores of all pairs at once, against sacrebleu's own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from nmt.metrics import pairwise
from nmt.metrics.pairwise import pairwise_bleu, pairwise_chrf
from nmt.metrics.sacrebleu import bleu_words

ODD = [
    "", " ", "a", "A", "a a a a a a a", "aaaaaaa", "a\u2028b", "\U0001f415 \U0001f415", "e\u0301é",
    "The dog, e.g. the one of 3.5%, isn't here.", "The dog isn't here .", "漢字 漢", "x\ty\u3000z",
]  # fmt: skip


def drawn(count: int, seed: int) -> list[str]:
    """Sentences that share words, with repeats."""
    generator = random.Random(seed)
    words = [
        "the", "a", "dog", "dogs", "cat,", "cat.", "runs", "ran", "running", "quickly", "in", "on",
        "house-boat", "(now)", "$3.50",
    ]  # fmt: skip
    return [" ".join(generator.choices(words, k=generator.randint(0, 14))) for _ in range(count)]


def equals_sacrebleu(texts: list[str]) -> None:
    chrf, bleu = CHRF(), BLEU(effective_order=True)
    found_chrf, found_bleu = pairwise_chrf(texts), pairwise_bleu(texts, bleu_words("en"))
    for i, hypothesis in enumerate(texts):
        for j, reference in enumerate(texts):
            expected = chrf.sentence_score(hypothesis, [reference]).score
            assert found_chrf[i, j] == pytest.approx(expected, abs=1e-9)
            expected = bleu.sentence_score(hypothesis, [reference]).score
            assert found_bleu[i, j] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("most_cells", [1 << 22, 100])
def test_every_pair_has_sacrebleus_sentence_score(
    most_cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the table of n-grams is held whole or in parts."""
    monkeypatch.setattr(pairwise, "_MOST_CELLS", most_cells)
    equals_sacrebleu(ODD)
    for seed in range(4):
        equals_sacrebleu(drawn(12, seed))


@given(st.lists(st.text(st.sampled_from("ab c."), max_size=12), min_size=1, max_size=4))
def test_any_texts_have_sacrebleus_scores(texts: list[str]) -> None:
    equals_sacrebleu(texts)


def test_words_are_those_of_bleu_in_the_language() -> None:
    assert bleu_words("de")("Hund, 3.5%") == ["Hund", ",", "3.5", "%"]
    assert bleu_words("zh")("狗在家") == ["狗", "在", "家"]
