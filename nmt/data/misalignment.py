"""Ranges of a corpus whose lines stand beside lines that do not translate them.

A missing or additional line on one side shifts all after it. Lengths of lines say where a shift may
be, as lines that translate each other are of like length (Gale and Church 1993): that is enough to
learn a lexicon from lines that do belong together. Its scores then decide, line by line, by the
best path through the offsets (Viterbi 1967), so that borders are found to the line.

Shapes: n lines of a corpus, L lines of a region, O = 2 * `MOST_OFFSET` + 1 offsets, from the most
negative to the most positive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.lexicon import Lexicon, held_out
from nmt.data.lines import Lines

MOST_OFFSET = 50
"""Lines by which a range may be shifted, up or down."""

_WINDOW = 50
_HOP = 25
_FISHER_GAIN = 5.0
"""Standard deviations by which an offset must agree better in lengths than none, at first."""
_NEAR = 20
_MARGIN = 100
_AT_ONCE = 128
_MOST_FOR, _MOST_AGAINST, _MOST_OF_LENGTH = 8.0, 4.0, 2.0
"""Evidence of one line, in nats: of its words for and against, and of its length."""
_CHANGE = 14.0
"""What a change of the offset costs, in nats: less evidence than that is chance."""
_FEWEST_LINES = 10
_FEWEST_UNRELATED = 20
_SAMPLE = 4000
_SMALLEST = 200
_LEAST_POWER = 2.0
"""Standard deviations that scores of translations must lie above those at random."""
_LEAST_SHARE = 0.1
_NO_POWER = 0.8
"""Of a lexicon that knows nothing, and lengths that vary as much as this share of those at random,
no evidence can come."""
_FEWEST_OF_ALL = 1000
_ROBUST = 1.4826  # median deviation to standard deviation, of a normal distribution

Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Range:
    """Lines of a corpus that do not belong together as they stand."""

    start: int
    """First source line, from 1."""
    end: int
    """Last source line."""
    offset: int | None
    """What to add to a source line to find the target line of it; None where no line is near."""

    def moved(self, lines: int) -> Range:
        """Return the same range of a corpus with more lines in front."""
        return Range(self.start + lines, self.end + lines, self.offset)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, those that go on where another ends as one."""
    found: list[Range] = []
    for each in ranges:
        last = found[-1] if found else None
        if last and (last.end + 1, last.offset) == (each.start, each.offset):
            found[-1] = Range(last.start, each.end, each.offset)
        else:
            found.append(each)
    return found


def likely_offsets(source_lengths: Lengths, target_lengths: Lengths) -> npt.NDArray[np.int64]:
    """Return the offset of each line that the lengths of the lines around it suggest. (n,).

    0 unless another agrees much better over some fifty lines.

    Args:
        source_lengths: Tokens of each source line. (n,).
        target_lengths: The same of the target. (n,).
    """
    source, target = np.log1p(source_lengths), np.log1p(target_lengths)
    offsets, num = np.arange(-MOST_OFFSET, MOST_OFFSET + 1), len(source)
    starts = np.arange(0, max(num - _WINDOW, 0) + 1, _HOP)
    if num < _WINDOW:
        return np.zeros(num, np.int64)
    best, gain = np.zeros(len(starts), np.int64), np.full(len(starts), -np.inf)
    here = np.arctanh(_correlations(source, target, 0, starts).clip(-0.999, 0.999))
    for offset in offsets.tolist():
        there = np.arctanh(_correlations(source, target, offset, starts).clip(-0.999, 0.999))
        better = there - here > gain
        best[better], gain[better] = offset, (there - here)[better]
    best[gain < _FISHER_GAIN / np.sqrt(_WINDOW - 3)] = 0
    return best[np.minimum(np.arange(num) // _HOP, len(best) - 1)]


def _correlations(source: Values, target: Values, offset: int, starts: Rows) -> Values:
    """Return the correlation of windows with those ``offset`` lines later in the target."""
    rows = np.arange(len(source))
    beside = rows + offset
    inside = (beside >= 0) & (beside < len(source))
    left = np.where(inside, source, 0.0)
    right = np.where(inside, target[beside.clip(0, len(source) - 1)], 0.0)

    def means(values: Values) -> Values:
        sums = np.concatenate(([0.0], np.cumsum(values)))
        return (sums[starts + _WINDOW] - sums[starts]) / _WINDOW

    count = np.maximum(means(inside.astype(float)), 1 / _WINDOW)
    x, y = means(left) / count, means(right) / count
    covariance = means(left * right) / count - x * y
    spread = (means(left**2) / count - x**2) * (means(right**2) / count - y**2)
    found: Values = covariance / np.sqrt(np.maximum(spread, 1e-12))
    return np.where((spread > 1e-9) & (count > 0.5), found, 0.0)


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
        more = len(above) / max(len(pairs.scores), 1)
        more -= float((at_random.scores > low + _LEAST_POWER * spread).mean())
        high = float(above.mean()) if more > _LEAST_SHARE else low
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


def find_ranges(
    lexicon: Lexicon,
    lines: Lines,
    low: int,
    high: int,
    taught: npt.NDArray[np.int8],
    standing: Values,
) -> tuple[list[Range], Values]:
    """Return the ranges of the corpus whose lines are the rows from ``low`` to ``high``.

    None for corpora of fewer than 200 lines, and where the lexicon knows too little to tell
    translations from lines at random.

    Beside them the `z_scores` of the lines as they stand; not a number where a side is blank or the
    lexicon knows too little. (n,).

    Args:
        lexicon: What words mean.
        lines: The lines of all corpora.
        low: First row.
        high: Row behind the last.
        taught: Offset at which each line has taught the lexicon. (n,).
        standing: What the lexicon scores the lines as they stand. (n,).
    """
    unknown = np.full(high - low, np.nan)
    if high - low < _SMALLEST:
        return [], unknown
    rows = np.arange(low, high)
    taught_rows = (rows + taught).clip(low, high - 1)

    def measured(totals: Values, sources: Rows, targets: Rows) -> Measured:
        lengths = lines.source_lengths[sources], lines.target_lengths[targets]
        return Measured.of(totals, *lengths)

    others = [low + each for each in _random_pairs(high - low)]
    at_random = measured(lexicon.score(*others), *others)
    totals, moved = standing.copy(), rows[taught_rows != rows]
    totals[moved - low] = lexicon.score(moved, taught_rows[moved - low])
    as_taught = measured(totals, rows, taught_rows)
    unseen = held_out(rows) & (as_taught.tokens > 0)
    evidence = Evidence.of(as_taught.of_rows(unseen), at_random)
    if not evidence.slope and evidence.spreads[0] > _NO_POWER * evidence.spreads[1]:
        return ([Range(1, high - low, None)] if high - low >= _FEWEST_OF_ALL else []), unknown
    known = evidence(as_taught)
    as_it_stands = measured(standing, rows, rows)
    here = np.where(taught == 0, known, evidence(as_it_stands))
    found: list[Range] = []
    for start, stop in _regions(here):
        table = _evidence_table(lexicon, lines, evidence, (low, high), (start, stop))
        table[np.arange(stop - start), taught[start:stop].astype(np.int64) + MOST_OFFSET] = known[
            start:stop
        ]
        found += _ranges(best_path(table), start)
    if evidence.slope:
        unknown = np.where(
            as_it_stands.tokens > 0, z_scores(as_it_stands.scores, at_random.scores), np.nan
        )
    return found, unknown


def z_scores(scores: Values, at_random: Values) -> Values:
    """Return how many standard deviations scores lie above what is usual of translations.

    Median and median deviation of the scores that no lines at random have, so that a third of
    pairs that are no translations changes little.

    Args:
        scores: Of the pairs of a corpus. (n,).
        at_random: Of lines at random. (m,).
    """
    above = scores[scores > at_random.mean() + _LEAST_POWER * at_random.std()]
    if not len(above):
        return np.full(len(scores), np.nan)
    usual = float(np.median(above))
    return (scores - usual) / max(_ROBUST * float(np.median(np.abs(above - usual))), 1e-3)


def _random_pairs(num: int) -> tuple[Rows, Rows]:
    """Return lines and others far from them: the same ones each time."""
    generator = np.random.default_rng(num)
    sources = generator.integers(0, num, min(_SAMPLE, num))
    far = min(4 * MOST_OFFSET, num // 3)
    return sources, (sources + generator.integers(far, num - far, len(sources))) % num


def _regions(evidence: Values) -> Iterator[tuple[int, int]]:
    """Yield where lines of a neighbourhood agree less than is usual, and some lines around."""
    sums = np.concatenate(([0.0], np.cumsum(evidence)))
    places = np.arange(len(evidence))
    first, last = (places - _NEAR // 2).clip(0), (places + _NEAR // 2).clip(max=len(evidence))
    means = (sums[last] - sums[first]) / (last - first)
    odd = np.flatnonzero(means < 0.5 * max(float(np.quantile(means, 0.9)), 0.0))
    if len(odd):
        for part in np.split(odd, np.flatnonzero(np.diff(odd) > 2 * _MARGIN) + 1):
            yield max(int(part[0]) - _MARGIN, 0), min(int(part[-1]) + _MARGIN, len(evidence))


def _evidence_table(
    lexicon: Lexicon,
    lines: Lines,
    evidence: Evidence,
    corpus: tuple[int, int],
    region: tuple[int, int],
) -> npt.NDArray[np.float32]:
    """Return the evidence that each line of a region translates the one at each offset. (L, O)."""
    (low, high), (start, stop) = corpus, region
    table = np.full((stop - start, 2 * MOST_OFFSET + 1), -_MOST_AGAINST, np.float32)
    for first in range(start, stop, _AT_ONCE):
        sources = low + np.arange(first, min(first + _AT_ONCE, stop))
        targets = np.arange(
            max(sources[0] - MOST_OFFSET, low), min(sources[-1] + MOST_OFFSET + 1, high)
        )
        lengths = lines.source_lengths[sources][:, None], lines.target_lengths[targets]
        found = evidence(Measured.of(lexicon.band(sources, targets), *lengths))
        offsets = targets - sources[:, None]
        rows = np.broadcast_to(np.arange(len(sources))[:, None], offsets.shape)
        near = np.abs(offsets) <= MOST_OFFSET
        table[sources[rows[near]] - low - start, offsets[near] + MOST_OFFSET] = found[near]
    return table


def best_path(evidence: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return the column of the best path through each line; as many as columns if none fits.

    Changing the column costs `_CHANGE`, half of that for beginning or ending in another than the
    one of offset 0; to fit none is worth 0 a line.

    Args:
        evidence: How likely each offset is, for each line, in nats. (L, O).
    """
    num, width = evidence.shape
    best = np.full(width + 1, -_CHANGE / 2)
    best[width // 2] = 0.0
    stays, origins = np.empty((num, width + 1), np.bool_), np.empty(num, np.int64)
    for line, own in enumerate(evidence):
        origins[line] = origin = int(best.argmax())
        changed = best[origin] - _CHANGE
        stays[line] = best >= changed
        np.maximum(best, changed, out=best)
        best[:-1] += own
    best[width // 2] += _CHANGE / 2
    path = np.empty(num, np.int64)
    state = int(best.argmax())
    for line in range(num - 1, -1, -1):
        path[line] = state
        if not stays[line, state]:
            state = int(origins[line])
    return path


def _ranges(path: npt.NDArray[np.int64], start: int) -> Iterator[Range]:
    """Yield the stretches of a path that are long enough to be no accident.

    Some lines that fit nowhere do not end a shift that goes on behind them. Where the offset
    changes every few lines, the lines are unrelated.
    """
    none, unrelated = MOST_OFFSET, 2 * MOST_OFFSET + 1
    stretches: list[tuple[int, int, int]] = []

    def add(state: int, first: int, last: int, gap: int) -> None:
        if stretches and stretches[-1][0] == state and first - stretches[-1][2] <= gap:
            first = stretches.pop()[1]
        stretches.append((state, first, last))

    cuts = np.concatenate(([0], np.flatnonzero(np.diff(path)) + 1, [len(path)]))
    for first, last in pairwise(cuts.tolist()):
        is_short = last - first < _FEWEST_LINES and path[first] != none
        add(unrelated if is_short else int(path[first]), first, last, 0)
    found, stretches = stretches, []
    for state, first, last in found:
        if last - first >= (_FEWEST_UNRELATED if state == unrelated else _FEWEST_LINES):
            add(state, first, last, _FEWEST_UNRELATED)
    for state, first, last in stretches:
        if state != none:
            offset = None if state == unrelated else state - none
            yield Range(start + first + 1, start + last, offset)
