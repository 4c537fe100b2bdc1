"""Words and lengths of two lines -> evidence that they translate each other.

A lexicon that was learned from the corpus itself scores how well the words agree. The score of a
pair leaves out what the pair has taught the lexicon (leave-one-out), or else rare words would vouch
for each other. Scores and lengths are then compared with those of lines at random.

Shapes: P pairs, S source and T target lines, n meetings of a source and a target token of one pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Lexicon, Meetings, Pairs, batches, cells_of
from nmt.data.store import Ids, Lines, Rows
from nmt.data.workers import HERE, Workers

MOST_AGAINST = 4.0
# Evidence of one line, in nats: of its words for and against, and of its length.
_MOST_FOR, _MOST_OF_LENGTH = 8.0, 2.0
# Standard deviations that scores of translations must lie above those at random.
_LEAST_POWER = 2.0
_LEAST_SHARE = 0.1
# Of a lexicon that knows nothing, and lengths that vary as much as this share of those at random,
# no evidence can come.
_NO_POWER = 0.8
_USUALLY_ABOVE = 0.95  # Share of translations that score better than lines at random.
_ROBUST = 1.4826  # median deviation to standard deviation, of a normal distribution
Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
_FLOOR = 0.1  # Share of a token's general frequency in its probability in a translation.
_PRIOR = 0.5  # Meetings that a word is taken to have had with words never seen beside it.


@dataclass(frozen=True, slots=True)
class PairScorer:
    """Scores pairs of lines by a lexicon."""

    lexicon: Lexicon
    taught: Pairs  # Those that the lexicon was learned from.
    workers: Workers = HERE  # Has something done with batches, perhaps by other processes.

    def score(self, pairs: Pairs) -> Values:
        """Return how much more probable each pair's tokens are as translations than anywhere.

        Of each token, the natural log of the ratio; a pair that was learned from counts without
        what it has taught.

        Returns:
            The sum over the tokens of both sides, in nats. (P,). 0 where a side is blank.
        """
        lines = self.lexicon.lines
        parts = ((batch, self._has_taught(batch)) for batch in batches(lines, pairs))
        found = self.workers.map(partial(_scores, self.lexicon), parts)
        totals = np.concatenate([np.zeros(0), *found])
        lengths = lines.source_lengths[pairs.sources], lines.target_lengths[pairs.targets]
        return np.where(np.minimum(*lengths) == 0, 0.0, totals)

    def score_all(self, sources: Rows, targets: Rows) -> npt.NDArray[np.float32]:
        """Return the sums of `score` of each of some sources with each of some targets.

        Nothing is left out of what pairs have taught.

        Args:
            sources: Rows, some hundred. (S,).
            targets: Rows. (T,).

        Returns:
            (S, T), nats; of blank lines without meaning.
        """
        lexicon, lines = self.lexicon, self.lexicon.lines
        sides = [_bags(*lines.source_ids(sources)), _bags(*lines.target_ids(targets))]
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
        if not len(self.taught.sources):
            return np.zeros(len(pairs.sources), np.bool_)
        places = np.searchsorted(self.taught.sources, pairs.sources)
        places = places.clip(max=len(self.taught.sources) - 1)
        same = [rows[places] == asked for rows, asked in zip(self.taught, pairs, strict=True)]
        return same[0] & same[1]


def _scores(lexicon: Lexicon, batch: tuple[Pairs, Mask]) -> Values:
    """Return the sums of `PairScorer.score` of a batch. (P,)."""
    assert lexicon.table is not None
    pairs, has_taught = batch
    meetings = Meetings(lexicon.lines, pairs, lexicon.sizes[1])
    total = np.zeros(len(has_taught))
    # Zero where the pair taught nothing. Words that a line repeats have taught it as often.
    taught = lexicon.posterior(meetings, lexicon.before)
    taught *= has_taught[meetings.pairs[0]][meetings.places[0]]
    sides = zip(meetings.pairs, meetings.ids, strict=True)
    repeats = [_repeats(*side) for side in sides]
    again = repeats[0][meetings.places[0]] * repeats[1][meetings.places[1]]
    links = np.maximum(lexicon.table.cells[cells_of(meetings.keys)] - taught * again, 0)
    for side, ids in enumerate(meetings.ids):
        known = lexicon.table.totals[side][ids] - meetings.sums(side, taught) * repeats[side]
        lengths = meetings.lengths[side][meetings.pairs[side]]
        scale = 1 / ((np.maximum(known, 0) + _PRIOR) * lengths)
        likely = links * scale.astype(np.float32)[meetings.places[side]]
        ratio = (
            meetings.sums(1 - side, likely) / lexicon.frequencies[1 - side][meetings.ids[1 - side]]
        )
        logs = np.log(_FLOOR + (1 - _FLOOR) * ratio)
        total += np.bincount(meetings.pairs[1 - side], logs, len(total))
    return total


def _repeats(pairs: Rows, ids: Ids) -> npt.NDArray[np.float32]:
    """Return how often the line of each token has its word."""
    keys = pairs * (int(ids.max(initial=0)) + 1) + ids
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[places].astype(np.float32)


def _bags(ids: Ids, offsets: Rows) -> tuple[npt.NDArray[np.float32], Ids]:
    """Return how often each line has each of the words (lines, words), and the words (words,)."""
    words, places = np.unique(ids, return_inverse=True)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    size = (len(offsets) - 1) * len(words)
    bags = np.bincount(rows * len(words) + places, minlength=size).astype(np.float32)
    return bags.reshape(-1, len(words)), words


class Measured(NamedTuple):
    """What evidence is made of, for any number of pairs of lines."""

    scores: Values  # Of the lexicon, on a scale on which pairs of all lengths are alike.
    ratios: Values  # Log ratio of the lengths, target to source.
    tokens: npt.NDArray[np.integer]  # Of both lines; 0 where one is blank.

    @classmethod
    def of(cls, totals: Values, sources: Lengths, targets: Lengths) -> Measured:
        """Return what pairs of such lengths and such totals of the lexicon are measured by."""
        tokens = np.where((sources > 0) & (targets > 0), sources + targets, 0)
        ratios = np.log1p(targets) - np.log1p(sources)
        return cls(totals / np.sqrt(np.maximum(tokens, 1)), ratios, tokens)

    @classmethod
    def of_pairs(cls, totals: Values, lines: Lines, pairs: Pairs) -> Measured:
        """Return the same of pairs of lines. (P,)."""
        lengths = lines.source_lengths[pairs.sources], lines.target_lengths[pairs.targets]
        return cls.of(totals, *lengths)

    def part(self, rows: npt.NDArray[np.bool_]) -> Measured:
        """Return some of them."""
        return Measured(self.scores[rows], self.ratios[rows], self.tokens[rows])


@dataclass(frozen=True, slots=True)
class Evidence:
    """What scores and lengths say about a pair."""

    middle: float  # Score that translations and lines at random are as likely to have.
    # Nats of evidence for each unit of the score; 0 if the lexicon cannot tell them apart.
    slope: float
    ratio: float  # Usual log ratio of the lengths, target to source.
    # Standard deviation of the log ratio, of translations and at random.
    spreads: tuple[float, float]

    @classmethod
    def of(cls, pairs: Measured, at_random: Measured) -> Evidence:
        """Compare the pairs of a corpus with lines at random.

        Scores and log ratios of both kinds are taken to be normal; a part of the pairs may be
        misaligned. No lexicon may have learned from either kind.
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
        """Whether neither words nor lengths can tell translations from lines at random."""
        return not self.slope and self.spreads[0] > _NO_POWER * self.spreads[1]

    def __call__(self, measured: Measured) -> Values:
        """Return nats for or against a translation; 0 for blank lines."""
        scores = (self.slope * (measured.scores - self.middle)).clip(-MOST_AGAINST, _MOST_FOR)
        own, other = self.spreads
        squares = (measured.ratios - self.ratio) ** 2 / 2
        lengths = np.log(other / own) - squares / own**2 + squares / other**2
        nats = scores + lengths.clip(-_MOST_OF_LENGTH, _MOST_OF_LENGTH)
        return np.where(measured.tokens > 0, nats, 0.0)


def share_above(scores: Values, at_random: Values) -> float:
    """Return the share of scores above nearly all at random, less the share of those above."""
    limit = at_random.mean() + _LEAST_POWER * max(float(at_random.std()), 1e-3)
    return float((scores > limit).mean() - (at_random > limit).mean())


def usual_scores(scores: Values, share_right: float) -> tuple[float, float]:
    """Return the middle of the scores of translations, and their standard deviation.

    Median and median deviation of the best ones, so that others change little.

    Args:
        scores: Of the pairs of a corpus. (P,).
        share_right: `share_above` of pairs that taught the lexicon nothing.
    """
    num = max(round(min(share_right / _USUALLY_ABOVE, 1.0) * len(scores)), 1)
    best = np.sort(scores)[len(scores) - num :]
    usual = float(np.median(best))
    return usual, max(_ROBUST * float(np.median(np.abs(best - usual))), 1e-3)
