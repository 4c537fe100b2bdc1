"""How likely scores and lengths are of translations, compared with lines at random.

Shapes: P pairs of lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Pairs
from nmt.data.store import Lines

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
