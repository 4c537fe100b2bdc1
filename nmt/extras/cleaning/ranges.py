"""Finds misaligned ranges: source lines whose target line is not a translation.

A missing or additional line on one side shifts all later lines. With a lexicon, the evidence for
each line at each offset is computed, and the best path through the offsets (Viterbi 1967) gives the
exact first and last line of a range.

Before there is a lexicon, the offsets are guessed from sentence lengths, because translations have
similar lengths (Gale and Church 1993). If all lines have about the same length, rare words are used
instead: source lines that share rare words should have target lines that share rare words.

Shapes: n lines of a corpus, L lines of a region, O = 2 * MOST_OFFSET + 1 offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nmt.data.store import Lines, Mask, Rows
from nmt.extras.cleaning.evidence import (
    MOST_AGAINST,
    Evidence,
    Floats,
    Lengths,
    PairMeasures,
    PairScorer,
    Values,
)
from nmt.text.flat import FlatIds

MOST_OFFSET = 100  # Maximum shift, in lines up or down, that is found.
_WINDOW = 50
_HOP = 25
_FISHER_GAIN = 5.0  # Minimum gain of an offset over no offset, in standard deviations.
_LEAST_AGREEMENT = 0.3  # Below this agreement, lengths give no evidence.
_LIKE_LINES = 1000
_LIKE_OFFSET = 50
# Minimum lead of the best offset over the others by shared rare words, in standard deviations.
_LIKE_GAIN = 6.0
_NEAR = 20
_MARGIN = 100
_AT_ONCE = 128
_CHANGE = 14.0  # Cost of changing the offset along a path, in nats.
_FEWEST_LINES = 10
_FEWEST_UNRELATED = 20
_UNRELATED = 2 * MOST_OFFSET + 1  # Index of the state in which no offset fits.
Offsets = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Range:
    """A misaligned range of lines of a corpus."""

    start: int  # First source line, counted from 1.
    end: int  # Last source line.
    # The translation of source line i is target line i + offset; None if no offset fits.
    offset: int | None

    def moved(self, count: int) -> Range:
        """Return the range in a corpus with ``count`` more lines in front."""
        return Range(self.start + count, self.end + count, self.offset)


def joined(ranges: Iterable[Range], most_between: int = 0) -> list[Range]:
    """Merge neighbours with the same offset and at most this many lines between them."""
    joint = list[Range]()
    for part in ranges:
        start = part.start
        if joint and joint[-1].offset == part.offset:
            before = joint[-1]
            if start - before.end - 1 <= most_between:
                start = before.start
                joint.pop()
        joint.append(Range(start, part.end, part.offset))
    return joint


def find_ranges(
    scorer: PairScorer,
    evidence: Evidence,
    rows: Rows,
    learned: Offsets,
    here: Values,
    there: Values,
) -> Iterator[Range]:
    """Yield the ranges of a corpus that are shifted or unrelated.

    Args:
        scorer: Scores pairs of lines with a lexicon.
        evidence: Turns scores and lengths into evidence.
        rows: All rows of the corpus. (n,).
        learned: Offset of the target line from which the lexicon has learned. (n,).
        here: Evidence that each source line translates the target line of the same row. (n,).
        there: The same for the target line at offset ``learned``. The counts of the pair are
            subtracted from the lexicon. (n,).
    """
    odd = np.flatnonzero(is_odd(here))
    if not len(odd):
        return
    is_far = np.diff(odd) > 2 * _MARGIN
    for part in np.split(odd, np.flatnonzero(is_far) + 1):
        first, last = part[[0, -1]].tolist()
        start = max(first - _MARGIN, 0)
        stop = min(last + _MARGIN, len(rows))
        table = _evidence_table(scorer, evidence, rows, start, stop)
        lines = np.arange(stop - start)
        columns = learned[start:stop] + MOST_OFFSET
        table[lines, columns] = there[start:stop]
        yield from path_ranges(best_path(table), start)


def is_odd(nats: Values) -> Mask:
    """Return a mask of the lines around which evidence is low, compared with most lines. (n,)."""
    num = len(nats)
    sums = _prefix_sums(nats)
    places = np.arange(num)
    reach = _NEAR // 2
    first = (places - reach).clip(0)
    last = (places + reach).clip(max=num)
    totals = sums[last] - sums[first]
    means = totals / (last - first)
    usual = float(np.quantile(means, 0.9))
    limit = 0.5 * max(usual, 0.0)
    return means < limit


def _evidence_table(
    scorer: PairScorer, evidence: Evidence, rows: Rows, start: int, stop: int
) -> Floats:
    """Return the evidence for each line of a region at each offset, in nats. (L, O)."""
    lines = scorer.lexicon.lines
    shape = stop - start, 2 * MOST_OFFSET + 1
    table = np.full(shape, -MOST_AGAINST, np.float32)
    for first in range(start, stop, _AT_ONCE):
        last = min(first + _AT_ONCE, stop)
        sources = rows[first:last]
        targets = rows[max(first - MOST_OFFSET, 0) : last + MOST_OFFSET]
        scores = scorer.score_all(sources, targets)
        source_lengths = lines.source.lengths[sources]
        target_lengths = lines.target.lengths[targets]
        measures = PairMeasures.of(scores, source_lengths[:, None], target_lengths)
        nats = evidence(measures)
        columns = targets - sources[:, None] + MOST_OFFSET
        is_inside = abs(columns - MOST_OFFSET) <= MOST_OFFSET
        line, _ = np.nonzero(is_inside)
        line += first - start
        column = columns[is_inside]
        table[line, column] = nats[is_inside]
    return table


def best_path(evidence: Floats) -> npt.NDArray[np.int64]:
    """Return the most likely column (offset) of each line, or O if no offset fits. (L,).

    A change of the column costs `_CHANGE`. A start or end outside the middle column (offset 0)
    costs half as much. A line without a fitting offset has evidence 0.

    Args:
        evidence: Evidence for each offset of each line, in nats. (L, O).
    """
    num, width = evidence.shape
    best = np.full(width + 1, -_CHANGE / 2)
    best[width // 2] = 0.0
    shape = num, width + 1
    stays = np.empty(shape, bool)
    origins = np.empty(num, np.int64)
    for line, nats in enumerate(evidence):
        origin = best.argmax()
        origins[line] = origin
        changed = best[origin] - _CHANGE
        stays[line] = best >= changed
        np.maximum(best, changed, out=best)
        best[:-1] += nats
    best[width // 2] += _CHANGE / 2
    path = np.empty(num, np.int64)
    state = best.argmax()
    for line in range(num - 1, -1, -1):
        path[line] = state
        if not stays[line, state]:
            state = origins[line]
    return path


def path_ranges(path: npt.NDArray[np.int64], start: int) -> list[Range]:
    """Turn a path into misaligned ranges, and ignore ranges that are too short.

    A few lines without a fitting offset do not interrupt a shifted range. Lines whose offset
    changes every few lines count as unrelated.

    Args:
        path: Chosen column (target offset) of each source line. (L,).
        start: Number of lines of the corpus before the first line of the path.
    """
    steps = np.diff(path)
    changes = np.flatnonzero(steps) + 1
    cuts = [0, *changes.tolist(), len(path)]
    ranges = []
    for first, last in pairwise(cuts):
        state = int(path[first])
        offset: int | None = state - MOST_OFFSET
        is_short = last - first < _FEWEST_LINES
        if state == _UNRELATED or (is_short and offset):
            offset = None
        ranges.append(Range(start + first + 1, start + last, offset))
    long = []
    for part in joined(ranges):
        fewest = _FEWEST_LINES
        if part.offset is None:
            fewest = _FEWEST_UNRELATED
        num_lines = part.end - part.start + 1
        if num_lines >= fewest:
            long.append(part)
    return [part for part in joined(long, _FEWEST_UNRELATED) if part.offset != 0]


def first_offsets(lines: Lines, low: int, high: int) -> Rows:
    """Guess the offset of each line without a lexicon, from lengths or rare words. (n,).

    Args:
        lines: The lines of all corpora.
        low: First row of the corpus.
        high: Row after its last row.
    """
    source_lengths = lines.source.lengths[low:high]
    target_lengths = lines.target.lengths[low:high]
    offsets, agreement = likely_offsets(source_lengths, target_lengths)
    is_unknown = agreement < _LEAST_AGREEMENT
    is_unknown &= offsets == 0
    if not is_unknown.any():
        return offsets
    offset = alike_offset(lines, low, high)
    return np.where(is_unknown, offset, offsets)


def likely_offsets(source_lengths: Lengths, target_lengths: Lengths) -> tuple[Rows, Values]:
    """Guess the offset of each line from the lengths of the 50 lines around it.

    Args:
        source_lengths: Tokens of each source line. (n,).
        target_lengths: Tokens of each target line. (n,).

    Returns:
        The offset of each line, 0 unless a different offset agrees much better (n,), and the
        agreement of the lengths at this offset: the correlation after Fisher's transformation,
        with a standard deviation of 0.15 for unrelated lines (n,).
    """
    num = len(source_lengths)
    if num < _WINDOW:
        offsets = np.zeros(num, np.int64)
        return offsets, np.ones(num)
    starts = np.arange(0, num - _WINDOW + 1, _HOP)
    source = np.log1p(source_lengths)
    target = np.log1p(target_lengths)
    source_means, source_variances = _moments(source)
    target_means, target_variances = _moments(target)

    def agreement_at(offset: int) -> Values:
        first = max(-offset, 0)  # lines with a target
        last = num - max(offset, 0)
        agreement = np.zeros(len(starts))
        is_inside = starts >= first
        is_inside &= starts + _WINDOW <= last
        own = starts[is_inside]
        other = own + offset
        shifted = target[first + offset : last + offset]
        products = source[first:last] * shifted
        means = _window_means(products)[own - first]
        covariance = means - source_means[own] * target_means[other]
        spread = source_variances[own] * target_variances[other]
        squared = np.maximum(spread, 1e-12)
        correlation = covariance / np.sqrt(squared)
        clipped = correlation.clip(-0.999, 0.999)
        fisher = np.arctanh(clipped)
        fisher[spread <= 1e-9] = 0.0
        agreement[is_inside] = fisher
        return agreement

    here = agreement_at(0)
    best = np.zeros_like(starts)
    gain = np.full_like(here, -np.inf)
    most = min(MOST_OFFSET, num - _WINDOW)
    for offset in range(-most, most + 1):
        gain_at = agreement_at(offset) - here
        is_better = gain_at > gain
        best[is_better] = offset
        gain[is_better] = gain_at[is_better]
    is_clear = gain >= _FISHER_GAIN / np.sqrt(_WINDOW - 3)
    offsets = np.where(is_clear, best, 0)
    agreement = here + np.where(is_clear, gain, 0.0)
    windows = np.arange(num) // _HOP
    windows = windows.clip(max=len(best) - 1)
    return offsets[windows], agreement[windows]


def _moments(values: Values) -> tuple[Values, Values]:
    """Return mean and variance of the `_WINDOW` values from each position."""
    means = _window_means(values)
    mean_squares = _window_means(values**2)
    return means, mean_squares - means**2


def _window_means(values: Values) -> Values:
    sums = _prefix_sums(values)
    differences = sums[_WINDOW:] - sums[:-_WINDOW]
    return differences / _WINDOW


def _prefix_sums(values: Values) -> Values:
    return np.concatenate(([0.0], np.cumsum(values)))


def alike_offset(lines: Lines, low: int, high: int) -> int:
    """Guess the offset of the whole corpus: source line i belongs to target line i + offset.

    The offset is at most 50 lines, and 0 if none is clearly best.
    Source lines that share rare words should have target lines that share rare words. The two
    similarity matrices are compared at each offset (as in Gretton et al. 2005), for 1,000 lines
    from the middle of the corpus. Neither lengths nor a lexicon are needed.

    Args:
        lines: The lines of all corpora.
        low: First row of the corpus.
        high: Row after its last row.
    """
    num = min(_LIKE_LINES, high - low)
    if num <= 4 * _LIKE_OFFSET:
        return 0
    start = low + (high - low - num) // 2  # of `num` lines in the middle
    rows = np.arange(start, start + num)
    source = _likeness(lines.source.ids(rows))
    target = _likeness(lines.target.ids(rows))
    offsets = np.arange(-_LIKE_OFFSET, _LIKE_OFFSET + 1)
    means = np.empty(len(offsets))
    for index, offset in enumerate(offsets.tolist()):
        # Source lines whose target line is among the `num` lines, too.
        first = max(-offset, 0)
        stop = num - max(offset, 0)
        of_source = slice(first, stop)
        of_target = slice(first + offset, stop + offset)
        products = source[of_source, of_source] * target[of_target, of_target]
        means[index] = products.sum() / (stop - first) ** 2
    best = means.argmax()
    others = np.delete(means, best)
    threshold = others.mean() + _LIKE_GAIN * others.std()
    if means[best] <= threshold:
        return 0
    return int(offsets[best])


def _likeness(flat: FlatIds) -> Floats:
    """Return the cosine similarity of the rare words of every two lines; the diagonal is 0."""
    _, places, counts = np.unique(flat.ids, return_inverse=True, return_counts=True)
    num = len(flat.lengths)
    most = max(num // 20, 3)
    is_rare = counts > 1
    is_rare &= counts < most
    column = np.cumsum(is_rare) - 1
    is_used = is_rare[places]
    rows = flat.sentences[is_used]
    words = places[is_used]
    shape = num, np.count_nonzero(is_rare)
    bags = np.zeros(shape, np.float32)
    bags[rows, column[words]] = 1 / np.sqrt(counts[words])
    norms = np.sqrt((bags**2).sum(1, keepdims=True))
    bags /= np.maximum(norms, 1e-6)
    cosines: Floats = bags @ bags.T
    np.fill_diagonal(cosines, 0)
    return cosines
