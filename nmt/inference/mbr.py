"""Minimum Bayes risk decoding: of many candidates, the one most like all the others.

The expected utility of a translation is its mean similarity to what the model might say instead
(Kumar and Byrne 2004, over an n-best list; Eikema and Aziz 2020, over samples). The candidates
stand for the references, too.

It raises the metric it is run with more than any other, so a score by that metric is optimistic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from nmt.config.loader import change_options
from nmt.config.model import DecodingConfig
from nmt.metrics.metric import Floats
from nmt.metrics.ngrams import pairwise_bleu, pairwise_chrf
from nmt.metrics.sacrebleu import bleu_words
from nmt.search.hypothesis import Hypothesis

UtilityName = Literal["chrf", "bleu"]
CandidateKind = Literal["samples", "beam"]
# n texts -> how good each one (row) is if another one (column) is right. (n, n)
Utility = Callable[[Sequence[str]], Floats]

# Cut-off of sampling where the options say nothing about sampling (Freitag et al. 2023): without
# one, improbable tokens spoil many candidates.
EPSILON = 0.02


def expected_utilities(texts: Sequence[str], utility: Utility) -> dict[str, float]:
    """Return the mean utility of each different text over all texts, itself included.

    In the order in which they come. A text that was drawn twice counts twice, and is compared once.

    >>> expected_utilities(["a", "b", "a"], lambda texts: 90 * np.eye(len(texts)))
    {'a': 60.0, 'b': 30.0}
    """
    if not texts:
        return {}
    counts = Counter(texts)
    values = utility(list(counts)) @ np.array(list(counts.values())) / len(texts)
    return dict(zip(counts, values.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Mbr:
    """Which candidates are found, and how one is chosen."""

    utility: UtilityName  # The metric that compares candidates.
    # Found for each sentence; equal ones count as often as they are found.
    num_candidates: int = 32
    kind: CandidateKind = "samples"  # Sampled, or the n best of a beam as wide.
    compare: Utility = pairwise_chrf  # The utility of texts; see `of_language`.

    def of_language(self, language: str | None) -> Mbr:
        """Return one for texts of this language, which chooses BLEU's tokenizer.

        Raises:
            ConfigError: The language's tokenizer is not installed.
        """
        if self.utility == "chrf":
            return self
        words = bleu_words(language)
        return replace(self, compare=lambda texts: pairwise_bleu(texts, words))

    def search_options(self, options: DecodingConfig) -> DecodingConfig:
        """Return the options that find the candidates, with everything else as in ``options``."""
        changes: dict[str, Any] = {"n_best": self.num_candidates}
        if self.kind == "beam":
            changes["beam_size"] = max(options.beam_size, self.num_candidates)
        elif not options.sampling:
            changes |= {"sampling": True, "epsilon_cutoff": EPSILON}
        return change_options(options, changes)

    def choose(
        self, candidates: Sequence[Hypothesis], text_of: Callable[[Sequence[int]], str], count: int
    ) -> list[Hypothesis]:
        """Return the best ``count`` of different texts; the score of each stays the model's.

        Of candidates with the same text, the one with the highest score stands for them.
        """
        # Sorts are stable: of equal utilities the one of the highest score comes first.
        ranked = sorted(candidates, key=lambda candidate: -candidate.score)
        texts = [text_of(candidate.ids) for candidate in ranked]
        values = expected_utilities(texts, self.compare)
        best = sorted(values, key=lambda text: -values[text])[:count]
        return [ranked[texts.index(text)] for text in best]
