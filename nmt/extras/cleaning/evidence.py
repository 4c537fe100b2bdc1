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

from nmt.data.lexicon import IN_CACHE, Cooccurrences, Lexicon, Pairs, batches
from nmt.data.store import IntArray, Lines, Mask, Rows
from nmt.data.workers import HERE, Workers
from nmt.text.flat import FlatIds, Ids

# Limits of the evidence of one pair, in nats. The words may count at most this much against a
# translation and for a translation; the lengths may count at most this much in either direction.
MAX_NATS_AGAINST = 4.0
_MAX_NATS_FOR = 8.0
_MAX_LENGTH_NATS = 2.0
# A pair scores clearly above random pairs if its score exceeds their mean by this many of their
# standard deviations.
_CLEAR_DEVIATIONS = 2.0
# The words give evidence only if more than this share of the pairs scores clearly above random
# pairs.
_MIN_SHARE_ABOVE = 0.1
# The lengths give no evidence if the length ratios of the pairs spread nearly as much as those of
# random pairs: more than this share of the spread of random pairs.
_UNINFORMATIVE_SPREAD = 0.8
_MIN_RATIO_SPREAD = 0.05  # Of log length ratios. Avoids a division by zero.
_MIN_SCORE_SPREAD = 1e-3  # The same for scores.
_USUALLY_ABOVE = 0.95  # Share of all translations that score clearly above random pairs.
# Ratio of standard deviation to median absolute deviation of a normal distribution.
_NORMAL_RATIO = 1.4826
Values = npt.NDArray[np.floating]
Floats = npt.NDArray[np.float32]
_FLOOR = 0.1  # Weight of a token's overall frequency in its translation probability (smoothing).
_PRIOR = 0.5  # Pseudo-count of co-occurrences with unseen words.


@dataclass(frozen=True)
class PairScorer:
    """Scores how well the words of two lines translate each other."""

    lexicon: Lexicon
    # Pairs that the lexicon was learned from. A source line occurs at most once among them.
    learned: Pairs
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
        pair_batches = batches(lexicon.lines, pairs, IN_CACHE)
        masked_batches = ((batch, self._was_learned(batch)) for batch in pair_batches)
        score = partial(_score_batch, lexicon)
        scores = self.workers.map(score, masked_batches)
        # The empty array is needed if there are no pairs, because then there is no batch.
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
        # `Lexicon.cells_of` takes source id * number of target words + target id.
        first_keys = source.words.astype(np.int64) * num_targets
        keys = first_keys[:, None] + target.words
        assert lexicon.table is not None
        cells = lexicon.cells_of(keys)
        links = lexicon.table.cells[cells]  # (source words, target words)
        target_scores = self._translation_scores(0, source, target, links)
        source_scores = self._translation_scores(1, target, source, links.T)
        return target_scores + source_scores.T

    def _translation_scores(
        self, origin_side: int, origins: _Bags, translations: _Bags, links: Floats
    ) -> Floats:
        """Score the lines of one side as translations of every line of the other side, the origins.

        As in IBM model 1, the probability of a token in the translation of an origin line is its
        mean translation probability over all tokens of the origin line.

        Args:
            origin_side: 0 if the origins are source lines, 1 if they are target lines.
            origins: Words of the origin lines.
            translations: Words of the lines to score.
            links: Expected counts of links between words. (origin words, translation words).

        Returns:
            Scores in nats. (origin lines, translation lines).
        """
        lexicon = self.lexicon
        assert lexicon.table is not None
        totals = lexicon.table.totals[origin_side]
        frequencies = lexicon.frequencies[1 - origin_side]
        origin_totals = totals[origins.words] + _PRIOR
        scale = (1 / origin_totals).astype(np.float32)
        # Probability of a word as a translation of an origin word, divided by its frequency.
        word_ratios = links * scale[:, None]
        word_ratios /= frequencies[translations.words].astype(np.float32)
        lengths = origins.counts.sum(1, keepdims=True)
        shares = origins.counts / np.maximum(lengths, 1)
        line_ratios = shares @ word_ratios  # (origin lines, translation words)
        logs = _smoothed_log(line_ratios)
        scores: Floats = logs @ translations.counts.T
        return scores

    def _was_learned(self, pairs: Pairs) -> Mask:
        """Return a mask of the pairs that the lexicon was learned from. (P,)."""
        learned = self.learned
        sources, targets = pairs
        num_learned = len(learned.sources)
        if num_learned == 0:
            return np.zeros(len(sources), bool)
        # Index of each source line in the learned pairs, if it is there. A line after the last
        # learned line gets the last index; the comparison below rejects it.
        indices = np.searchsorted(learned.sources, sources)
        indices = indices.clip(max=num_learned - 1)
        is_same_source = learned.sources[indices] == sources
        is_same_target = learned.targets[indices] == targets
        return is_same_source & is_same_target


def _score_batch(lexicon: Lexicon, batch: tuple[Pairs, Mask]) -> Values:
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
    # For each co-occurrence, the index of its source token and of its target token. (n,) and (n,).
    source_indices, target_indices = joint.token_indices
    # Count that each co-occurrence has added to the table: the probability of a link that the last
    # iteration computed from the previous table; 0 in pairs that the lexicon has not learned from.
    added_links = np.zeros(len(joint.keys), np.float32)
    if was_learned.any():
        added_links = lexicon.posterior(joint, lexicon.previous_table)
        pair_indices = source.sentences[source_indices]
        added_links *= was_learned[pair_indices]
    source_counts = _counts_in_line(source)
    target_counts = _counts_in_line(target)
    counts_in_line = source_counts, target_counts
    # If a line repeats a word, several co-occurrences have added the same count to one cell.
    num_equal = source_counts[source_indices] * target_counts[target_indices]
    cells = lexicon.cells_of(joint.keys)
    links = table.cells[cells] - added_links * num_equal
    links = np.maximum(links, 0)
    scores = np.zeros(len(was_learned))
    # Score the target as a translation of the source (the origin), then the other way round.
    for origin_side, origin in enumerate(joint.sides):
        translation_side = 1 - origin_side
        translation = joint.sides[translation_side]
        # Links of each origin word in the whole corpus, without those of the pair itself.
        added = joint.sums(origin_side, added_links) * counts_in_line[origin_side]
        totals = table.totals[origin_side]
        origin_totals = totals[origin.ids] - added
        origin_totals = np.maximum(origin_totals, 0)
        lengths = origin.lengths[origin.sentences]
        scale = 1 / ((origin_totals + _PRIOR) * lengths)
        scale = scale.astype(np.float32)
        origin_indices = joint.token_indices[origin_side]
        # Mean translation probability over all origin tokens. One value per translation token.
        probabilities = joint.sums(translation_side, links * scale[origin_indices])
        frequencies = lexicon.frequencies[translation_side]
        ratios = probabilities / frequencies[translation.ids]
        logs = _smoothed_log(ratios)
        scores += np.bincount(translation.sentences, logs, len(scores))
    return scores


def _smoothed_log(ratios: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the log of the ratios of a translation probability to an overall frequency.

    Mixing the probability with the frequency makes the ratio at least `_FLOOR`, so a word without
    any translation costs at most log(1 / `_FLOOR`) nats.
    """
    return np.log(_FLOOR + (1 - _FLOOR) * ratios)


def _counts_in_line(lines: FlatIds) -> Floats:
    """Return for each token how often the same token occurs in the same line. One per token."""
    largest_id = int(lines.ids.max(initial=0))
    num_ids = largest_id + 1
    # The same number for two tokens only if both their lines and their ids are equal.
    keys = lines.sentences * num_ids + lines.ids
    _, key_indices, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[key_indices].astype(np.float32)


class _Bags(NamedTuple):
    """How often each line contains each word. The words are those of all lines together."""

    counts: Floats  # (lines, words).
    words: Ids  # Ids of the words, in rising order. (words,).

    @classmethod
    def of(cls, lines: FlatIds) -> _Bags:
        """Count the words of each line."""
        words, columns = np.unique(lines.ids, return_inverse=True)
        num_words = len(words)
        size = len(lines.lengths) * num_words
        # Index of each token's count in the flattened matrix (lines, words).
        flat_indices = lines.sentences * num_words + columns
        counts = np.bincount(flat_indices, minlength=size)
        counts = counts.reshape(-1, num_words)
        return cls(counts.astype(np.float32), words)


class PairMeasures(NamedTuple):
    """The measurements of pairs of lines from which `Evidence` is computed."""

    # Score of the lexicon divided by sqrt(tokens), comparable across lengths; 0 for blank lines.
    scores: Values
    log_ratios: Values  # Log of target length / source length.
    num_tokens: npt.NDArray[np.integer]  # Tokens of both lines together; 0 if one is blank.

    @classmethod
    def of(cls, nats: Values, source_lengths: IntArray, target_lengths: IntArray) -> PairMeasures:
        """Compute the measurements from the scores in nats and the lengths in tokens.

        The arrays may have any shapes that broadcast: (P,) for pairs; (S, T), (S, 1) and (T,) for
        all combinations of lines.
        """
        is_blank = np.minimum(source_lengths, target_lengths) == 0
        num_tokens = np.where(is_blank, 0, source_lengths + target_lengths)
        log_ratios = np.log1p(target_lengths) - np.log1p(source_lengths)
        roots = np.sqrt(np.maximum(num_tokens, 1))
        scores = np.where(is_blank, 0.0, nats / roots)
        return cls(scores, log_ratios, num_tokens)

    @classmethod
    def of_pairs(cls, nats: Values, lines: Lines, pairs: Pairs) -> PairMeasures:
        """Compute the measurements of ``pairs`` of ``lines`` from the scores in nats. (P,)."""
        sources, targets = pairs
        source_lengths = lines.source.lengths[sources]
        target_lengths = lines.target.lengths[targets]
        return cls.of(nats, source_lengths, target_lengths)

    def select(self, mask: Mask) -> PairMeasures:
        """Return the measurements of the pairs that a mask selects."""
        scores, log_ratios, num_tokens = self
        return PairMeasures(scores[mask], log_ratios[mask], num_tokens[mask])


@dataclass(frozen=True)
class Evidence:
    """Converts the score and the lengths of a pair to a log-likelihood ratio, in nats.

    Scores are assumed to be normally distributed among translations and among random pairs, with
    different means but the same spread. Log length ratios are assumed to be normally distributed
    with the same mean but different spreads. A spread is a standard deviation.
    """

    neutral_score: float  # Score at which translations and random pairs are equally likely.
    # Nats of evidence per unit of score; 0 if the lexicon cannot tell both kinds apart.
    slope: float
    median_log_ratio: float  # Of log(target length / source length).
    translation_spread: float  # Of the log length ratios of translations.
    random_spread: float  # Of the log length ratios of random pairs.

    @classmethod
    def of(cls, pairs: PairMeasures, at_random: PairMeasures) -> Evidence:
        """Estimate the parameters from pairs of a corpus and from random pairs of its lines.

        Some of the pairs may be misaligned. Pass only pairs from which the lexicon has not learned.
        """
        random_mean = float(at_random.scores.mean())
        score_spread = _spread(at_random.scores)
        translation_mean = random_mean  # Unless words can tell translations from random pairs.
        share = share_above(pairs.scores, at_random.scores)
        if share > _MIN_SHARE_ABOVE:
            is_clear = pairs.scores > random_mean + _CLEAR_DEVIATIONS * score_spread
            clear_scores = pairs.scores[is_clear]
            translation_mean = float(clear_scores.mean())
        median = float(np.median(pairs.log_ratios))
        spread = _robust_spread(pairs.log_ratios, median, _MIN_RATIO_SPREAD)
        random_spread = _robust_spread(at_random.log_ratios, median, _MIN_RATIO_SPREAD)
        # The log of the ratio of two normal densities with the same spread is a linear function: 0
        # halfway between both means, with this slope.
        neutral_score = (random_mean + translation_mean) / 2
        slope = (translation_mean - random_mean) / score_spread**2
        # Translations are never less alike in length than random pairs, except by chance.
        translation_spread = min(spread, random_spread)
        return cls(neutral_score, slope, median, translation_spread, random_spread)

    def is_missing(self) -> bool:
        """Whether neither words nor lengths distinguish translations from random pairs."""
        max_spread = _UNINFORMATIVE_SPREAD * self.random_spread
        return self.slope == 0 and self.translation_spread > max_spread

    def __call__(self, measures: PairMeasures) -> Values:
        """Return nats: positive for translations, negative for unrelated, 0 for blank lines."""
        distances = measures.scores - self.neutral_score
        word_nats = self.slope * distances
        translation_spread = self.translation_spread
        random_spread = self.random_spread
        deviations = measures.log_ratios - self.median_log_ratio
        squares = deviations**2 / 2
        # The log of the ratio of two normal densities with the same mean.
        length_nats = np.log(random_spread / translation_spread)
        length_nats = length_nats - squares / translation_spread**2 + squares / random_spread**2
        word_nats = word_nats.clip(-MAX_NATS_AGAINST, _MAX_NATS_FOR)
        length_nats = length_nats.clip(-_MAX_LENGTH_NATS, _MAX_LENGTH_NATS)
        nats = word_nats + length_nats
        return np.where(measures.num_tokens > 0, nats, 0.0)


def share_above(scores: Values, at_random: Values) -> float:
    """Estimate the share of pairs that are translations, by how many score clearly above chance.

    The share of random pairs above the same limit is subtracted. The estimate can be negative.

    Args:
        scores: Scores of the pairs of a corpus. (P,).
        at_random: Scores of random pairs.
    """
    limit = at_random.mean() + _CLEAR_DEVIATIONS * _spread(at_random)
    share = np.mean(scores > limit)
    random_share = np.mean(at_random > limit)
    return float(share - random_share)


def _spread(scores: Values) -> float:
    """Return the standard deviation of scores, or a small number if it is smaller."""
    spread = float(scores.std())
    return max(spread, _MIN_SCORE_SPREAD)


def _robust_spread(values: Values, center: float, min_spread: float) -> float:
    """Estimate a standard deviation from the median distance from the center.

    A few values far away have little influence. The result is at least ``min_spread``.
    """
    distances = abs(values - center)
    spread = _NORMAL_RATIO * float(np.median(distances))
    return max(spread, min_spread)


def usual_scores(scores: Values, share_above_random: float) -> tuple[float, float]:
    """Return the typical score of translations, and its standard deviation.

    Both are computed from the best-scoring pairs (median, scaled median deviation), so misaligned
    pairs have little influence.

    Args:
        scores: Scores of the pairs of a corpus. (P,).
        share_above_random: `share_above` of pairs that the lexicon has not learned from.
    """
    share_right = min(share_above_random / _USUALLY_ABOVE, 1.0)
    num_right = round(share_right * len(scores))
    num_right = max(num_right, 1)
    best_scores = np.sort(scores)[-num_right:]
    median = float(np.median(best_scores))
    return median, _robust_spread(best_scores, median, _MIN_SCORE_SPREAD)
