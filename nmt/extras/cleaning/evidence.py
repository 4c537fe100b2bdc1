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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Cooccurrences, Lexicon, Pairs, batches, cells_of
from nmt.data.store import Lines, Rows
from nmt.data.workers import HERE, Workers
from nmt.text.flat import FlatIds, Ids

MOST_AGAINST = 4.0
# Limits for the evidence of one line, in nats: from its words, against and for; from its length.
_MOST_FOR, _MOST_OF_LENGTH = 8.0, 2.0
# Scores of translations must be this many standard deviations above those of random pairs.
_LEAST_POWER = 2.0
_LEAST_SHARE = 0.1
# Lengths give no evidence if their spread is more than this share of that of random pairs.
_NO_POWER = 0.8
_USUALLY_ABOVE = 0.95  # Share of translations that score above random pairs.
_ROBUST = 1.4826  # Ratio of standard deviation to median deviation of a normal distribution.
Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
_FLOOR = 0.1  # Weight of a token's overall frequency in its translation probability (smoothing).
_PRIOR = 0.5  # Pseudo-count of co-occurrences with unseen words.


@dataclass(frozen=True, slots=True)
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
            The sum over the tokens of both sides, in nats. (P,). 0 if a side is blank.
        """
        lines = self.lexicon.lines
        parts = ((batch, self._has_taught(batch)) for batch in batches(lines, pairs))
        found = self.workers.map(partial(_scores, self.lexicon), parts)
        totals = np.concatenate([np.zeros(0), *found])
        lengths = lines.source_lengths[pairs.sources], lines.target_lengths[pairs.targets]
        return np.where(np.minimum(*lengths) == 0, 0.0, totals)

    def score_all(self, sources: Rows, targets: Rows) -> npt.NDArray[np.float32]:
        """Return the score of every combination of source and target lines, without leave-one-out.

        Args:
            sources: Rows of a few hundred source lines. (S,).
            targets: Rows of target lines. (T,).

        Returns:
            Scores in nats. (S, T). Ignore the values of blank lines.
        """
        lexicon, lines = self.lexicon, self.lexicon.lines
        sides = [_bags(lines.source_ids(sources)), _bags(lines.target_ids(targets))]
        keys = sides[0][1][:, None].astype(np.int64) * lexicon.sizes[1] + sides[1][1]
        assert lexicon.table is not None
        links = lexicon.table.cells[cells_of(keys)]
        result = np.zeros((len(sources), len(targets)), np.float32)
        for side, ((bags, words), (other_bags, other_words)) in enumerate((sides, sides[::-1])):
            scale = 1 / (lexicon.table.totals[side][words] + _PRIOR)
            table = (links.T if side else links) * scale[:, None].astype(np.float32)
            table /= lexicon.frequencies[1 - side][other_words].astype(np.float32)
            mean = bags / np.maximum(bags.sum(1, keepdims=True), 1)
            scores = np.log(_FLOOR + (1 - _FLOOR) * (mean @ table)) @ other_bags.T
            result += scores.T if side else scores
        return result

    def _has_taught(self, pairs: Pairs) -> Mask:
        if not len(self.learned.sources):
            return np.zeros(len(pairs.sources), np.bool_)
        places = np.searchsorted(self.learned.sources, pairs.sources)
        places = places.clip(max=len(self.learned.sources) - 1)
        same = [rows[places] == asked for rows, asked in zip(self.learned, pairs, strict=True)]
        return same[0] & same[1]


def _scores(lexicon: Lexicon, batch: tuple[Pairs, Mask]) -> Values:
    """Score a batch as `PairScorer.score` does. (P,).

    Args:
        lexicon: The lexicon.
        batch: Pairs, and a mask of the pairs that the lexicon learned from. The counts that these
            pairs have added are subtracted.
    """
    assert lexicon.table is not None
    pairs, was_learned = batch
    joint = Cooccurrences(lexicon.lines, pairs, lexicon.sizes[1])
    total = np.zeros(len(was_learned))
    # Counts that each pair has added: 0 for unseen pairs, more for words that a line repeats.
    learned = lexicon.posterior(joint, lexicon.before)
    learned *= was_learned[joint.sides[0].sentences][joint.places[0]]
    repeats = [_repeats(flat.sentences, flat.ids) for flat in joint.sides]
    again = repeats[0][joint.places[0]] * repeats[1][joint.places[1]]
    links = np.maximum(lexicon.table.cells[cells_of(joint.keys)] - learned * again, 0)
    for side, flat in enumerate(joint.sides):
        known = lexicon.table.totals[side][flat.ids] - joint.sums(side, learned) * repeats[side]
        lengths = flat.lengths[flat.sentences]
        scale = 1 / ((np.maximum(known, 0) + _PRIOR) * lengths)
        likely = links * scale.astype(np.float32)[joint.places[side]]
        other = joint.sides[1 - side]
        ratio = joint.sums(1 - side, likely) / lexicon.frequencies[1 - side][other.ids]
        logs = np.log(_FLOOR + (1 - _FLOOR) * ratio)
        total += np.bincount(other.sentences, logs, len(total))
    return total


def _repeats(pairs: Rows, ids: Ids) -> npt.NDArray[np.float32]:
    """Return for each token how often the same token occurs in the same line."""
    keys = pairs * (int(ids.max(initial=0)) + 1) + ids
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[places].astype(np.float32)


def _bags(flat: FlatIds) -> tuple[npt.NDArray[np.float32], Ids]:
    """Return the word counts of each line, (lines, words), and the ids of the words, (words,)."""
    words, places = np.unique(flat.ids, return_inverse=True)
    size = len(flat.lengths) * len(words)
    cells = flat.sentences * len(words) + places
    bags = np.bincount(cells, minlength=size).astype(np.float32)
    return bags.reshape(-1, len(words)), words


class Measured(NamedTuple):
    """The measurements of pairs of lines from which `Evidence` is computed."""

    scores: Values  # Score of the lexicon divided by sqrt(tokens), comparable across lengths.
    ratios: Values  # Log of target length / source length.
    tokens: npt.NDArray[np.integer]  # Tokens of both lines joint; 0 if one is blank.

    @classmethod
    def of(cls, totals: Values, sources: Lengths, targets: Lengths) -> Measured:
        """Compute the measurements from the scores in nats and the lengths in tokens."""
        tokens = np.where((sources > 0) & (targets > 0), sources + targets, 0)
        ratios = np.log1p(targets) - np.log1p(sources)
        return cls(totals / np.sqrt(np.maximum(tokens, 1)), ratios, tokens)

    @classmethod
    def of_pairs(cls, totals: Values, lines: Lines, pairs: Pairs) -> Measured:
        """Compute the measurements of ``pairs`` of ``lines`` from the scores in nats. (P,)."""
        lengths = lines.source_lengths[pairs.sources], lines.target_lengths[pairs.targets]
        return cls.of(totals, *lengths)

    def part(self, rows: npt.NDArray[np.bool_]) -> Measured:
        """Return the measurements of the selected pairs."""
        return Measured(self.scores[rows], self.ratios[rows], self.tokens[rows])


@dataclass(frozen=True, slots=True)
class Evidence:
    """Converts the score and the lengths of a pair to a log-likelihood ratio, in nats."""

    middle: float  # Score at which translations and random pairs are equally likely.
    # Nats of evidence per unit of score; 0 if the lexicon cannot tell both kinds apart.
    slope: float
    ratio: float  # Median log length ratio, target to source.
    # Standard deviations of the log length ratio: of translations, and of random pairs.
    spreads: tuple[float, float]

    @classmethod
    def of(cls, pairs: Measured, at_random: Measured) -> Evidence:
        """Estimate the parameters from pairs of a corpus and from random pairs of its lines.

        Scores and log length ratios are assumed to be normally distributed. Some of the pairs may
        be misaligned. Pass only pairs from which the lexicon has not learned.
        """
        low, spread = float(at_random.scores.mean()), max(float(at_random.scores.std()), 1e-3)
        above = pairs.scores[pairs.scores > low + _LEAST_POWER * spread]
        share = share_above(pairs.scores, at_random.scores)
        high = float(above.mean()) if share > _LEAST_SHARE else low
        usual = float(np.median(pairs.ratios))
        own, other = (
            max(_ROBUST * float(np.median(np.abs(kind.ratios - usual))), 0.05)
            for kind in (pairs, at_random)
        )
        return cls((low + high) / 2, (high - low) / spread**2, usual, (min(own, other), other))

    def is_missing(self) -> bool:
        """Whether neither words nor lengths distinguish translations from random pairs."""
        return not self.slope and self.spreads[0] > _NO_POWER * self.spreads[1]

    def __call__(self, measured: Measured) -> Values:
        """Return nats: positive for translations, negative for unrelated, 0 for blank lines."""
        scores = (self.slope * (measured.scores - self.middle)).clip(-MOST_AGAINST, _MOST_FOR)
        own, other = self.spreads
        squares = (measured.ratios - self.ratio) ** 2 / 2
        lengths = np.log(other / own) - squares / own**2 + squares / other**2
        nats = scores + lengths.clip(-_MOST_OF_LENGTH, _MOST_OF_LENGTH)
        return np.where(measured.tokens > 0, nats, 0.0)


def share_above(scores: Values, at_random: Values) -> float:
    """Estimate the share of translations, which score clearly above random pairs."""
    limit = at_random.mean() + _LEAST_POWER * max(float(at_random.std()), 1e-3)
    return float((scores > limit).mean() - (at_random > limit).mean())


def usual_scores(scores: Values, share_right: float) -> tuple[float, float]:
    """Return the typical score of translations, and its standard deviation.

    Both are computed from the best-scoring pairs (median, scaled median deviation), so misaligned
    pairs have little influence.

    Args:
        scores: Scores of the pairs of a corpus. (P,).
        share_right: `share_above` of pairs that the lexicon has not learned from.
    """
    num = max(round(min(share_right / _USUALLY_ABOVE, 1.0) * len(scores)), 1)
    best = np.sort(scores)[len(scores) - num :]
    usual = float(np.median(best))
    return usual, max(_ROBUST * float(np.median(np.abs(best - usual))), 1e-3)
