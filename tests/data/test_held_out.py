"""Sentences of held-out sets in training text, counted word for word."""

from __future__ import annotations

from nmt.data.checks import Overlap
from nmt.data.pairs import SentencePair


def test_sentences_of_both_sides_are_counted() -> None:
    """FAULTS 39."""
    overlap = Overlap({
        "valid": [SentencePair("eins", "one", 1), SentencePair("zwei", "two", 2)],
        "test": [SentencePair("eins", "a", 1), SentencePair("vier", "four", 3)],
    })  # fmt: skip

    first, last = SentencePair("eins ", "one", 8), SentencePair("zwei", "deux", 9)
    for pairs in ([first, last], [SentencePair("fünf", "four", 10)]):
        overlap.see(pairs)

    assert overlap.counts({"test": 3}) == {
        "valid": {"pairs": 2, "sources_in_train": 2, "near_sources_in_train": 0,
                  "targets_in_train": 1, "pairs_in_train": 1},
        "test": {"pairs": 2, "sources_in_train": 1, "near_sources_in_train": 3,
                 "targets_in_train": 1, "pairs_in_train": 0},
    }  # fmt: skip
