"""Computes from words and lengths how likely a source line and a target line are translations.

A lexicon learned from the same corpus scores how well the words agree. The counts that a pair
itself has added to the lexicon are subtracted first (leave-one-out); otherwise two rare words that
occur only in this pair would count as translations. `Evidence` then compares the score and the
lengths with those of random pairs of lines.

Shapes: P pairs of lines, S source and T target lines, n co-occurrences of a source token and a
target token in a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Cooccurrences, Lexicon, Pairs, batches, cells_of
from nmt.data.store import Lines, Mask, Rows
from nmt.data.workers import HERE, Workers
from nmt.text.flat import FlatIds, Ids

MOST_AGAINST = 4.0
# Limits for the evidence of one line, in nats: from its words, against and for; from its length.
_MOST_FOR = 8.0
_MOST_OF_LENGTH = 2.0
# Scores of translations must be this many standard deviations above those of random pairs.
_LEAST_POWER = 2.0
_LEAST_SHARE = 0.1
# Lengths give no evidence if their spread is more than this share of that of random pairs.
_NO_POWER = 0.8
_USUALLY_ABOVE = 0.95  # Share of translations that score above random pairs.
_ROBUST = 1.4826  # Ratio of standard deviation to median deviation of a normal distribution.
Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float32]
_FLOOR = 0.1  # Weight of a token's overall frequency in its translation probability (smoothing).
_PRIOR = 0.5  # Pseudo-count of co-occurrences with unseen words.


@dataclass(frozen=True)
class PairScorer:
    """Scores how well the words of two lines translate each other."""

    lexicon: Lexicon
    learned: Pairs  # Pairs that the lexicon was learned from.
    workers: Workers = HERE  # Processes for batches of pairs.

    def score(self, pairs: Pairs) -> Values:
        """Return the log-likelihood ratio of each pair: translations against unrelated lines.

        For each token, the ratio is the probability of the token as a translation of the other
        line, divided by the overall frequency of the token. Counts that the pair itself has added
        to the lexicon are subtracted.

        Returns:
            The sum over the tokens of both sides, in nats. (P,). Ignore the values of blank lines.
        """
        lexicon = self.lexicon
        parts = ((batch, self._has_taught(batch)) for batch in batches(lexicon.lines, pairs))
        score = partial(_scores, lexicon)
        scores = self.workers.map(score, parts)
        return np.concatenate([np.zeros(0), *scores])

    def score_all(self, sources: Rows, targets: Rows) -> Floats:
        """Return the score of every combination of source and target lines, without leave-one-out.

        Args:
            sources: Rows of a few hundred source lines. (S,).
            targets: Rows of target lines. (T,).

        Returns:
            Scores in nats. (S, T). Ignore the values of blank lines.
        """
        lexicon = self.lexicon
        lines = lexicon.lines
        source = _Bags.of(lines.source.ids(sources))
        target = _Bags.of(lines.target.ids(targets))
        _, num_targets = lexicon.sizes
        rows = source.words.astype(np.int64) * num_targets
        keys = rows[:, None] + target.words
        assert lexicon.table is not None
        cells = cells_of(keys)
        links = lexicon.table.cells[cells]  # (source words, target words)
        backward = self._scores_given(0, source, target, links)
        forward = self._scores_given(1, target, source, links.T)
        return backward + forward.T

    def _scores_given(self, side: int, given: _Bags, other: _Bags, links: Floats) -> Floats:
        """Return the scores of lines as translations of the lines of a side.

        Args:
            side: 0 if the source is given, 1 if the target is given.
            given: Words of the given lines.
            other: Words of the lines to score.
            links: Counts of links between the words. (given words, other words).

        Returns:
            Scores in nats. (given lines, other lines).
        """
        lexicon = self.lexicon
        assert lexicon.table is not None
        totals = lexicon.table.totals[side]
        frequencies = lexicon.frequencies[1 - side]
        given_totals = totals[given.words] + _PRIOR
        scale = (1 / given_totals).astype(np.float32)
        table = links * scale[:, None]
        table /= frequencies[other.words].astype(np.float32)
        sizes = given.counts.sum(1, keepdims=True)
        mean = given.counts / np.maximum(sizes, 1)
        ratios = mean @ table
        logs = _smoothed_log(ratios)
        scores: Floats = logs @ other.counts.T
        return scores

    def _has_taught(self, pairs: Pairs) -> Mask:
        learned = self.learned
        sources, targets = pairs
        num_learned = len(learned.sources)
        if num_learned == 0:
            return np.zeros(len(sources), bool)
        places = np.searchsorted(learned.sources, sources)
        places = places.clip(max=num_learned - 1)
        is_same_source = learned.sources[places] == sources
        is_same_target = learned.targets[places] == targets
        return is_same_source & is_same_target


def _scores(lexicon: Lexicon, batch: tuple[Pairs, Mask]) -> Values:
    """Score a batch as `PairScorer.score` does. (P,).

    Args:
        lexicon: The lexicon.
        batch: Pairs, and a mask of the pairs that the lexicon learned from. The counts that these
            pairs have added are subtracted.
    """
    assert lexicon.table is not None
    table = lexicon.table
    pairs, was_learned = batch
    joint = Cooccurrences(lexicon.lines, pairs, lexicon.sizes[1])
    source, target = joint.sides
    source_places, target_places = joint.token_indices
    # Counts that each pair has added: 0 for unseen pairs, more for words that a line repeats.
    learned = lexicon.posterior(joint, lexicon.previous_table)
    pair_of = source.sentences[source_places]
    learned *= was_learned[pair_of]
    source_repeats = _repeats(source)
    target_repeats = _repeats(target)
    repeats = source_repeats, target_repeats
    again = source_repeats[source_places]
    again = again * target_repeats[target_places]
    cells = cells_of(joint.keys)
    counts = table.cells[cells] - learned * again
    links = np.maximum(counts, 0)
    total = np.zeros(len(was_learned))
    for side, given in enumerate(joint.sides):
        other_side = 1 - side
        other = joint.sides[other_side]
        added = joint.sums(side, learned) * repeats[side]
        totals = table.totals[side]
        known = totals[given.ids] - added
        known = np.maximum(known, 0)
        lengths = given.lengths[given.sentences]
        scale = 1 / ((known + _PRIOR) * lengths)
        scale = scale.astype(np.float32)
        places = joint.token_indices[side]
        likely = joint.sums(other_side, links * scale[places])
        frequencies = lexicon.frequencies[other_side]
        ratio = likely / frequencies[other.ids]
        logs = _smoothed_log(ratio)
        total += np.bincount(other.sentences, logs, len(total))
    return total


def _smoothed_log(ratios: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.log(_FLOOR + (1 - _FLOOR) * ratios)


def _repeats(lines: FlatIds) -> Floats:
    """Return for each token how often the same token occurs in the same line."""
    largest = int(lines.ids.max(initial=0))
    width = largest + 1
    keys = lines.sentences * width + lines.ids
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[places].astype(np.float32)


class _Bags(NamedTuple):
    """How often lines contain words."""

    counts: Floats  # (lines, words).
    words: Ids  # Ids of the words, in rising order. (words,).

    @classmethod
    def of(cls, lines: FlatIds) -> _Bags:
        """Count the words of each line."""
        words, places = np.unique(lines.ids, return_inverse=True)
        width = len(words)
        size = len(lines.lengths) * width
        cells = lines.sentences * width + places
        counts = np.bincount(cells, minlength=size)
        counts = counts.reshape(-1, width)
        return cls(counts.astype(np.float32), words)


class PairMeasures(NamedTuple):
    """The measurements of pairs of lines from which `Evidence` is computed."""

    # Score of the lexicon divided by sqrt(tokens), comparable across lengths; 0 for blank lines.
    scores: Values
    ratios: Values  # Log of target length / source length.
    tokens: npt.NDArray[np.integer]  # Tokens of both lines joint; 0 if one is blank.

    @classmethod
    def of(cls, totals: Values, sources: Lengths, targets: Lengths) -> PairMeasures:
        """Compute the measurements from the scores in nats and the lengths in tokens."""
        is_blank = np.minimum(sources, targets) == 0
        tokens = np.where(is_blank, 0, sources + targets)
        ratios = np.log1p(targets) - np.log1p(sources)
        roots = np.sqrt(np.maximum(tokens, 1))
        scores = np.where(is_blank, 0.0, totals / roots)
        return cls(scores, ratios, tokens)

    @classmethod
    def of_pairs(cls, totals: Values, lines: Lines, pairs: Pairs) -> PairMeasures:
        """Compute the measurements of ``pairs`` of ``lines`` from the scores in nats. (P,)."""
        sources, targets = pairs
        source_lengths = lines.source.lengths[sources]
        target_lengths = lines.target.lengths[targets]
        return cls.of(totals, source_lengths, target_lengths)

    def part(self, rows: Mask) -> PairMeasures:
        """Return the measurements of the selected pairs."""
        scores, ratios, tokens = self
        return PairMeasures(scores[rows], ratios[rows], tokens[rows])


@dataclass(frozen=True)
class Evidence:
    """Converts the score and the lengths of a pair to a log-likelihood ratio, in nats."""

    middle: float  # Score at which translations and random pairs are equally likely.
    # Nats of evidence per unit of score; 0 if the lexicon cannot tell both kinds apart.
    slope: float
    ratio: float  # Median log length ratio, target to source.
    # Standard deviations of the log length ratio: of translations, and of random pairs.
    spreads: tuple[float, float]

    @classmethod
    def of(cls, pairs: PairMeasures, at_random: PairMeasures) -> Evidence:
        """Estimate the parameters from pairs of a corpus and from random pairs of its lines.

        Scores and log length ratios are assumed to be normally distributed. Some of the pairs may
        be misaligned. Pass only pairs from which the lexicon has not learned.
        """
        low = float(at_random.scores.mean())
        spread = _spread(at_random.scores)
        high = low
        share = share_above(pairs.scores, at_random.scores)
        if share > _LEAST_SHARE:
            is_above = pairs.scores > low + _LEAST_POWER * spread
            above = pairs.scores[is_above]
            high = float(above.mean())
        ratios = pairs.ratios
        usual = float(np.median(ratios))
        own = _median_deviation(ratios, usual)
        own = max(own, 0.05)
        other = _median_deviation(at_random.ratios, usual)
        other = max(other, 0.05)
        middle = (low + high) / 2
        slope = (high - low) / spread**2
        spreads = min(own, other), other
        return cls(middle, slope, usual, spreads)

    def is_missing(self) -> bool:
        """Whether neither words nor lengths distinguish translations from random pairs."""
        own, other = self.spreads
        return not self.slope and own > _NO_POWER * other

    def __call__(self, measured: PairMeasures) -> Values:
        """Return nats: positive for translations, negative for unrelated, 0 for blank lines."""
        distances = measured.scores - self.middle
        of_words = self.slope * distances
        own, other = self.spreads
        deviations = measured.ratios - self.ratio
        squares = deviations**2 / 2
        of_lengths = np.log(other / own) - squares / own**2 + squares / other**2
        of_words = of_words.clip(-MOST_AGAINST, _MOST_FOR)
        of_lengths = of_lengths.clip(-_MOST_OF_LENGTH, _MOST_OF_LENGTH)
        nats = of_words + of_lengths
        return np.where(measured.tokens > 0, nats, 0.0)


def share_above(scores: Values, at_random: Values) -> float:
    """Estimate the share of translations, which score clearly above random pairs."""
    spread = _spread(at_random)
    limit = at_random.mean() + _LEAST_POWER * spread
    share = np.mean(scores > limit)
    share_at_random = np.mean(at_random > limit)
    return float(share - share_at_random)


def _spread(values: Values) -> float:
    spread = float(values.std())
    return max(spread, 1e-3)


def _median_deviation(values: Values, middle: float) -> float:
    """Return the median distance from the middle, scaled to a standard deviation."""
    deviations = abs(values - middle)
    return _ROBUST * float(np.median(deviations))


def usual_scores(scores: Values, share_right: float) -> tuple[float, float]:
    """Return the typical score of translations, and its standard deviation.

    Both are computed from the best-scoring pairs (median, scaled median deviation), so misaligned
    pairs have little influence.

    Args:
        scores: Scores of the pairs of a corpus. (P,).
        share_right: `share_above` of pairs that the lexicon has not learned from.
    """
    share = min(share_right / _USUALLY_ABOVE, 1.0)
    num = round(share * len(scores))
    num = max(num, 1)
    best = np.sort(scores)[-num:]
    usual = float(np.median(best))
    spread = _median_deviation(best, usual)
    return usual, max(spread, 1e-3)
