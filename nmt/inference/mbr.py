"""Minimum Bayes risk decoding: chooses the candidate that is most similar to all candidates.

The expected utility of a translation is its mean similarity to other likely translations (Kumar and
Byrne 2004, over an n-best list; Eikema and Aziz 2020, over samples). The same candidates serve as
hypotheses and as references.

MBR raises its utility metric more than any other metric, so scores by that metric are optimistic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from nmt.config.loader import change_options
from nmt.config.model import DecodingConfig
from nmt.metrics.metric import Floats, MetricOptions, split_argument
from nmt.metrics.ngrams import pairwise_bleu, pairwise_chrf
from nmt.metrics.sacrebleu import bleu_words
from nmt.registry import Registry
from nmt.search.hypothesis import Hypothesis

CandidateKind = Literal["samples", "beam"]
# Takes n texts; returns the score of each text (row) with each text (column) as reference. (n, n)
Utility = Callable[[Sequence[str]], Floats]
TextOf = Callable[[Sequence[int]], str]  # Decodes token ids.
# Takes a source; returns the utility of its translations.
UtilityOf = Callable[[str], Utility]


def _bleu(options: MetricOptions) -> UtilityOf:
    words = bleu_words(options.target_language)
    return lambda _source: lambda texts: pairwise_bleu(texts, words)


# Metrics that can compare candidates. Each entry makes the `UtilityOf` for the options of a metric.
UTILITIES = Registry[Callable[[MetricOptions], UtilityOf]]("utility of MBR decoding", suggest=False)
UTILITIES.register("chrf", lambda _options: lambda _source: pairwise_chrf)
UTILITIES.register("bleu", _bleu)
# Epsilon cutoff if the options do not configure sampling (Freitag et al. 2023). Without a cutoff,
# improbable tokens spoil many candidates.
EPSILON = 0.02


def expected_utilities(texts: Sequence[str], utility: Utility) -> dict[str, float]:
    """Return the mean utility of each distinct text over all texts, itself included.

    Keys are in order of first occurrence. A text that occurs twice counts twice as a reference.

    >>> expected_utilities(["a", "b", "a"], lambda texts: 90 * np.eye(len(texts)))
    {'a': 60.0, 'b': 30.0}
    """
    if not texts:
        return {}
    counts = Counter(texts)  # n distinct texts
    weights = np.array(list(counts.values()))  # (n,)
    utilities = utility(list(counts))  # (n, n)
    means = utilities @ weights / len(texts)  # (n,)
    return dict(zip(counts, means.tolist(), strict=True))


@dataclass(frozen=True)
class Mbr:
    """Settings of MBR decoding: how candidates are generated and compared."""

    utility: str  # The metric that compares candidates, for example ``chrf`` or ``comet:MODEL``.
    num_candidates: int = 32  # For each sentence. Duplicates count as often as they occur.
    kind: CandidateKind = "samples"  # Samples, or the n-best list of a beam of this size.
    compare: UtilityOf = lambda _: pairwise_chrf  # Implementation of ``utility``; see `loaded`.

    def loaded(self, language: str | None, device: str = "auto") -> Mbr:
        """Return a copy of the settings with the utility metric loaded.

        Args:
            language: Language code of the translations.
            device: Device of a neural metric.

        Raises:
            ConfigError: The utility is unknown, or its tokenizer, package or model is missing.
        """
        make_utility = UTILITIES[self.utility.partition(":")[0]]  # without its argument
        _, argument = split_argument(self.utility)
        options = MetricOptions(target_language=language, argument=argument, device=device)
        return replace(self, compare=make_utility(options))

    def search_options(self, options: DecodingConfig) -> DecodingConfig:
        """Return ``options``, changed to generate the candidates."""
        changes: dict[str, Any] = {"n_best": self.num_candidates}
        if self.kind == "beam":
            changes["beam_size"] = max(options.beam_size, self.num_candidates)
        elif not options.sampling:
            changes |= {"sampling": True, "epsilon_cutoff": EPSILON}
        return change_options(options, changes)

    def choose(
        self, candidates: Sequence[Hypothesis], text_of: TextOf, count: int, source: str = ""
    ) -> list[Hypothesis]:
        """Return the ``count`` candidates of highest expected utility, best first.

        Texts are distinct: among candidates with the same text, the one with the highest model
        score is returned. Scores are not changed.

        Args:
            candidates: All candidates of one sentence.
            text_of: Decodes token ids to text.
            count: Maximum number of candidates to return.
            source: Text of the source, for utilities that read it.
        """
        # Sorts are stable: candidates of equal utility stay in the order of their scores.
        ranked = sorted(candidates, key=lambda candidate: -candidate.score)
        texts = [text_of(candidate.ids) for candidate in ranked]
        utilities = expected_utilities(texts, self.compare(source))
        best_texts = sorted(utilities, key=lambda text: -utilities[text])[:count]
        # `index` finds the first of equal texts, which has the highest score.
        return [ranked[texts.index(text)] for text in best_texts]
