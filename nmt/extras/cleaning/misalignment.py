"""Ranges of a corpus whose lines stand beside lines that do not translate them.

A missing or additional line on one side shifts all after it. Lengths of lines say where a shift may
be, as lines that translate each other are of like length (Gale and Church 1993): that is enough to
learn a lexicon from lines that do belong together. Its scores then decide, line by line, by the
best path through the offsets (Viterbi 1967), so that borders are found to the line.

Shapes: n lines of a corpus, L lines of a region, O offsets, from the most negative to the most
positive: those within `MOST_OFFSET` of 0 and of each far offset of the region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lines import Lines, Rows
from nmt.extras.cleaning.lexicon import Lexicon, held_out
from nmt.extras.cleaning.offsets import MOST_OFFSET
from nmt.extras.cleaning.ranges import UNRELATED, Range, best_path, path_ranges

_NEAR = 20
_MARGIN = 100
_AT_ONCE = 128
_MOST_FOR, _MOST_AGAINST, _MOST_OF_LENGTH = 8.0, 4.0, 2.0
"""Evidence of one line, in nats: of its words for and against, and of its length."""
_SAMPLE = 4000
_SMALLEST = 100
_LEAST_POWER = 2.0
"""Standard deviations that scores of translations must lie above those at random."""
_LEAST_SHARE = 0.1
_NO_POWER = 0.8
"""Of a lexicon that knows nothing, and lengths that vary as much as this share of those at random,
no evidence can come."""
_FEWEST_OF_ALL = 1000
_FEWEST_SCORED = 200
"""Lines that tell what is usual."""
_FEWEST_UNSEEN = 30
_DOUBTFUL = -3.5
"""Standard deviations below what is usual: such lines do not teach again."""
_USUALLY_ABOVE = 0.95
"""Share of translations that score better than lines at random."""
_MOST_CENTERS = 8
_REACH = 150
"""Lines from where on a far offset is tried that lengths have suggested."""
_ROBUST = 1.4826  # median deviation to standard deviation, of a normal distribution

Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Evidence:
    """How likely scores and lengths are of a translation, compared with lines at random."""

    middle: float
    """Score that both are as likely to have."""
    slope: float
    """Nats of evidence for each unit of the score; 0 if the lexicon cannot tell them apart."""
    ratio: float
    """Usual log ratio of the lengths, target to source."""
    spreads: tuple[float, float]
    """Standard deviation of the log ratio, of translations and at random."""

    @classmethod
    def of(cls, pairs: Measured, at_random: Measured) -> Evidence:
        """Compare the pairs of a corpus with lines at random.

        Scores and log ratios of both kinds are taken to be normal; a part of the pairs may be
        misaligned. No lexicon may have learned from either kind.
        """
        low, spread = float(at_random.scores.mean()), max(float(at_random.scores.std()), 1e-3)
        above = pairs.scores[pairs.scores > low + _LEAST_POWER * spread]
        share = _share_above(pairs.scores, at_random.scores)
        high = float(above.mean()) if share > _LEAST_SHARE else low
        usual = float(np.median(pairs.ratios))
        deviations = (
            _ROBUST * float(np.median(np.abs(each.ratios - usual))) for each in (pairs, at_random)
        )
        own, other = (max(each, 0.05) for each in deviations)
        return cls((low + high) / 2, (high - low) / spread**2, usual, (min(own, other), other))

    def __call__(self, measured: Measured) -> Values:
        """Return nats for or against a translation; 0 for blank lines."""
        scores = (self.slope * (measured.scores - self.middle)).clip(-_MOST_AGAINST, _MOST_FOR)
        own, other = self.spreads
        squares = (measured.ratios - self.ratio) ** 2 / 2
        lengths = np.log(other / own) - squares / own**2 + squares / other**2
        found = scores + lengths.clip(-_MOST_OF_LENGTH, _MOST_OF_LENGTH)
        return np.where(measured.tokens > 0, found, 0.0)


class Measured(NamedTuple):
    """What evidence is made of, for any number of pairs of lines."""

    scores: Values
    """Of the lexicon, on a scale on which pairs of all lengths are alike."""
    ratios: Values
    """Log ratio of the lengths, target to source."""
    tokens: npt.NDArray[np.integer]
    """Of both lines; 0 where one is blank."""

    @classmethod
    def of(cls, totals: Values, sources: Lengths, targets: Lengths) -> Measured:
        """Return what pairs of such lengths and such totals of the lexicon are measured by."""
        tokens = np.where((sources > 0) & (targets > 0), sources + targets, 0)
        return cls(
            totals / np.sqrt(np.maximum(tokens, 1)),
            np.log1p(targets) - np.log1p(sources),
            tokens,
        )

    def of_rows(self, rows: npt.NDArray[np.bool_]) -> Measured:
        """Return some of them."""
        return Measured(self.scores[rows], self.ratios[rows], self.tokens[rows])


class Judged(NamedTuple):
    """What a lexicon says of the lines of a corpus."""

    ranges: list[Range]
    """None below 100 lines, only shifts below 1,000; none where a lexicon knows too little to tell
    translations from lines at random."""
    z_scores: Values
    """Standard deviations by which the scores of the lines as they stand lie above what is usual of
    translations; not a number where a side is blank or the lexicon knows too little. (n,)."""
    is_doubtful: npt.NDArray[np.bool_]
    """Lines that should not teach a lexicon at the offset at which they have taught this one:
    what a pair has taught makes it score better, right or wrong. (n,)."""


def find_ranges(
    lexicon: Lexicon,
    lines: Lines,
    low: int,
    high: int,
    taught: npt.NDArray[np.integer],
    standing: Values,
) -> Judged:
    """Judge the lines of the corpus whose lines are the rows from ``low`` to ``high``.

    Args:
        lexicon: What words mean.
        lines: The lines of all corpora.
        low: First row.
        high: Row behind the last.
        taught: Offset at which each line has taught the lexicon. (n,).
        standing: What the lexicon scores the lines as they stand. (n,).
    """
    num = high - low
    unknown, sure = np.full(num, np.nan), np.zeros(num, np.bool_)
    if num < _SMALLEST:
        return Judged([], unknown, sure)
    rows = np.arange(low, high)
    taught_rows = (rows + taught).clip(low, high - 1)

    def measured(totals: Values, sources: Rows, targets: Rows) -> Measured:
        lengths = lines.source_lengths[sources], lines.target_lengths[targets]
        return Measured.of(totals, *lengths)

    others = [low + each for each in _random_pairs(num)]
    at_random = measured(lexicon.score(*others), *others)
    totals, moved = standing.copy(), rows[taught_rows != rows]
    totals[moved - low] = lexicon.score(moved, taught_rows[moved - low])
    as_taught = measured(totals, rows, taught_rows)
    unseen = held_out(rows) & (as_taught.tokens > 0)
    if unseen.sum() < _FEWEST_UNSEEN:
        unseen = as_taught.tokens > 0
    evidence = Evidence.of(as_taught.of_rows(unseen), at_random)
    if not evidence.slope and evidence.spreads[0] > _NO_POWER * evidence.spreads[1]:
        return Judged([Range(1, num, None)] if num >= _FEWEST_OF_ALL else [], unknown, sure)
    known = evidence(as_taught)
    as_it_stands = measured(standing, rows, rows)
    here = np.where(taught == 0, known, evidence(as_it_stands))
    found = list(_search(lexicon, lines, evidence, (low, high), taught, known, here))
    if num < _FEWEST_OF_ALL:  # so few do not say that lines are unrelated
        found = [each for each in found if each.offset is not None]
    if num < _FEWEST_SCORED or not evidence.slope:
        return Judged(found, unknown, sure)
    # What a pair has taught makes it score better, so only unseen ones say how many are right.
    share = min(_share_above(as_taught.scores[unseen], at_random.scores) / _USUALLY_ABOVE, 1.0)
    usual, spread = usual_scores(as_taught.scores[as_taught.tokens > 0], share)
    is_low = as_taught.scores < usual + _DOUBTFUL * spread
    is_doubtful = (as_taught.tokens > 0) & (_is_odd(known) | is_low) & (num >= _FEWEST_OF_ALL)
    own = (as_it_stands.scores - usual) / spread
    return Judged(found, np.where(as_it_stands.tokens > 0, own, np.nan), is_doubtful)


def _search(
    lexicon: Lexicon,
    lines: Lines,
    evidence: Evidence,
    corpus: tuple[int, int],
    taught: npt.NDArray[np.integer],
    known: Values,
    here: Values,
) -> Iterator[Range]:
    """Yield the ranges of a corpus that are shifted or unrelated.

    Args:
        lexicon: What words mean.
        lines: The lines of all corpora.
        evidence: What scores and lengths say.
        corpus: First row of the corpus, and the row behind its last.
        taught: Offset at which each line has taught the lexicon. (n,).
        known: Evidence for each line at that offset, which leaves out what it has taught. (n,).
        here: Evidence for each line as it stands. (n,).
    """
    for start, stop in _regions(here):
        own = taught[start:stop]
        offsets, table = _evidence_table(lexicon, lines, evidence, corpus, start, own)
        columns = np.searchsorted(offsets, own).clip(max=len(offsets) - 1)
        places = np.flatnonzero(offsets[columns] == own)
        table[places, columns[places]] = known[start:stop][places]
        path = best_path(table, int(np.searchsorted(offsets, 0)))
        yield from path_ranges(np.append(offsets, UNRELATED)[path], start)


def usual_scores(scores: Values, share: float) -> tuple[float, float]:
    """Return the middle of the scores of translations, and their standard deviation.

    Median and median deviation of the best ones, so that others change little.

    Args:
        scores: Of the pairs of a corpus, each at its offset. (n,).
        share: Of the pairs that translate each other.
    """
    best = np.sort(scores)[len(scores) - max(round(share * len(scores)), 1) :]
    usual = float(np.median(best))
    return usual, max(_ROBUST * float(np.median(np.abs(best - usual))), 1e-3)


def _share_above(scores: Values, at_random: Values) -> float:
    """Return the share of scores above nearly all at random, less the share of those above."""
    limit = at_random.mean() + _LEAST_POWER * max(float(at_random.std()), 1e-3)
    return float((scores > limit).mean() - (at_random > limit).mean())


def _random_pairs(num: int) -> tuple[Rows, Rows]:
    """Return lines and others far from them: the same ones each time."""
    generator = np.random.default_rng(num)
    sources = generator.integers(0, num, min(_SAMPLE, num))
    far = min(4 * MOST_OFFSET, num // 3)
    return sources, (sources + generator.integers(far, num - far, len(sources))) % num


def _is_odd(evidence: Values) -> npt.NDArray[np.bool_]:
    """Return which lines have neighbours that agree less than is usual. (n,)."""
    sums = np.concatenate(([0.0], np.cumsum(evidence)))
    places = np.arange(len(evidence))
    first, last = (places - _NEAR // 2).clip(0), (places + _NEAR // 2).clip(max=len(evidence))
    means = (sums[last] - sums[first]) / (last - first)
    return means < 0.5 * max(float(np.quantile(means, 0.9)), 0.0)


def _regions(evidence: Values) -> Iterator[tuple[int, int]]:
    """Yield where lines are odd, and some lines around."""
    odd = np.flatnonzero(_is_odd(evidence))
    if len(odd):
        for part in np.split(odd, np.flatnonzero(np.diff(odd) > 2 * _MARGIN) + 1):
            yield max(int(part[0]) - _MARGIN, 0), min(int(part[-1]) + _MARGIN, len(evidence))


def _evidence_table(
    lexicon: Lexicon,
    lines: Lines,
    evidence: Evidence,
    corpus: tuple[int, int],
    start: int,
    taught: npt.NDArray[np.integer],
) -> tuple[Rows, npt.NDArray[np.float32]]:
    """Return the offsets (O,) and the evidence for each line of a region at each. (L, O).

    Offsets are near 0, and near the far ones that lines of the region were taught at.

    Args:
        lexicon: What words mean.
        lines: The lines of all corpora.
        evidence: What scores and lengths say.
        corpus: First row of the corpus, and the row behind its last.
        start: First line of the region.
        taught: Offset at which each line of the region has taught the lexicon. (L,).
    """
    low, high = corpus
    centers = np.where(np.abs(taught) > MOST_OFFSET, taught, 0)
    far, counts = np.unique(centers, return_counts=True)
    far = np.append(far[np.argsort(-counts, kind="stable")][:_MOST_CENTERS], 0)
    span = np.arange(-MOST_OFFSET, MOST_OFFSET + 1)
    offsets = np.unique(far[:, None] + span)
    table = np.full((len(taught), len(offsets)), -_MOST_AGAINST, np.float32)
    for first in range(0, len(taught), _AT_ONCE):
        sources = low + start + np.arange(first, min(first + _AT_ONCE, len(taught)))
        near = centers[max(first - _REACH, 0) : first + _AT_ONCE + _REACH]
        for center in np.unique(np.append(near[np.isin(near, far)], 0)).tolist():
            ends = sources[0] + center - MOST_OFFSET, sources[-1] + center + MOST_OFFSET + 1
            targets = np.arange(max(ends[0], low), min(ends[1], high))
            if not len(targets):
                continue
            lengths = lines.source_lengths[sources][:, None], lines.target_lengths[targets]
            found = evidence(Measured.of(lexicon.band(sources, targets), *lengths))
            own = targets - sources[:, None]
            row, column = np.nonzero(np.abs(own - center) <= MOST_OFFSET)
            places = np.searchsorted(offsets, own[row, column])
            table[first + row, places] = found[row, column]
    return offsets, table
