"""Offsets at which the lines of two sides may belong together, before anybody knows a word.

Lines that translate each other are of like length (Gale and Church 1993). Where all lines are of
one length, what is left is that lines with rare words in common have translations that have some
in common.

Shapes: n lines of a corpus.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nmt.data.store import Lines, Rows

MOST_OFFSET = 100  # Lines by which a range may be shifted, up or down, to be found.
_WINDOW = 50
_HOP = 25
_FISHER_GAIN = 5.0  # Standard deviations by which an offset must agree better in lengths than none.
_LEAST_AGREEMENT = 0.3  # Of lengths: where it is less, they say nothing.
_LIKE_LINES = 1000
_LIKE_OFFSET = 50
# Standard deviations by which the likeness at an offset must lie above that at others.
_LIKE_GAIN = 6.0

Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]


def first_offsets(lines: Lines, low: int, high: int) -> Rows:
    """Return at which offset each line of a corpus may belong, without knowing a word. (n,).

    Args:
        lines: The lines of all corpora.
        low: First row of the corpus.
        high: Row behind its last.
    """
    offsets, agreement = likely_offsets(
        lines.source_lengths[low:high], lines.target_lengths[low:high]
    )
    is_unknown = (offsets == 0) & (agreement < _LEAST_AGREEMENT)
    if not is_unknown.any():
        return offsets
    return np.where(is_unknown, alike_offset(lines, low, high), offsets)


def likely_offsets(source_lengths: Lengths, target_lengths: Lengths) -> tuple[Rows, Values]:
    """Return the offset of each line that the lengths of the lines around it suggest. (n,).

    0 unless another agrees much better over some fifty lines. Beside it, how well the lengths of
    these lines agree at it: the correlation by Fisher's transformation, which is 0 +- 0.15 by
    chance. (n,).

    Args:
        source_lengths: Tokens of each source line. (n,).
        target_lengths: The same of the target. (n,).
    """
    num = len(source_lengths)
    if num < _WINDOW:
        return np.zeros(num, np.int64), np.ones(num)
    starts = np.arange(0, num - _WINDOW + 1, _HOP)
    source, target = np.log1p(source_lengths), np.log1p(target_lengths)
    (source_means, source_spreads), (target_means, target_spreads) = map(_moments, (source, target))

    def agreement_at(offset: int) -> Values:
        first, last = max(-offset, 0), num - max(offset, 0)  # source lines with one beside them
        found = np.zeros(len(starts))
        inside = (starts >= first) & (starts + _WINDOW <= last)
        own = starts[inside]
        products = source[first:last] * target[first + offset : last + offset]
        means = _window_means(products)[own - first]
        covariance = means - source_means[own] * target_means[own + offset]
        spread = source_spreads[own] * target_spreads[own + offset]
        correlation = covariance / np.sqrt(np.maximum(spread, 1e-12))
        found[inside] = np.where(spread > 1e-9, np.arctanh(correlation.clip(-0.999, 0.999)), 0.0)
        return found

    here = agreement_at(0)
    best, gain = np.zeros(len(starts), np.int64), np.full(len(starts), -np.inf)
    most = min(MOST_OFFSET, num - _WINDOW)
    for offset in range(-most, most + 1):
        there = agreement_at(offset) - here
        better = there > gain
        best[better], gain[better] = offset, there[better]
    is_better = gain >= _FISHER_GAIN / np.sqrt(_WINDOW - 3)
    windows = np.minimum(np.arange(num) // _HOP, len(best) - 1)
    offsets, agreement = np.where(is_better, best, 0), here + np.where(is_better, gain, 0.0)
    return offsets[windows], agreement[windows]


def _moments(values: Values) -> tuple[Values, Values]:
    """Return mean and variance of the window that begins at each value."""
    means = _window_means(values)
    return means, _window_means(values**2) - means**2


def _window_means(values: Values) -> Values:
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return (sums[_WINDOW:] - sums[:-_WINDOW]) / _WINDOW


def alike_offset(lines: Lines, low: int, high: int) -> int:
    """Return the offset, up to 50, at which the likeness of lines is that of those beside them.

    Source lines that have rare words in common should stand beside target lines that do (as
    Gretton et al. 2005 compare kernels): no length and no lexicon is needed. 0 unless another
    offset stands out. Looks at 1,000 lines from the middle.

    Args:
        lines: The lines of all corpora.
        low: First row of a corpus.
        high: Row behind its last.
    """
    num = min(_LIKE_LINES, high - low)
    if num <= 4 * _LIKE_OFFSET:
        return 0
    start = low + (high - low - num) // 2
    rows = np.arange(start, start + num)
    source, target = _likeness(*lines.source_ids(rows)), _likeness(*lines.target_ids(rows))
    offsets = np.arange(-_LIKE_OFFSET, _LIKE_OFFSET + 1)
    sums = np.empty(len(offsets))
    for place, offset in enumerate(offsets.tolist()):
        own = slice(max(-offset, 0), num - max(offset, 0))
        other = slice(max(offset, 0), num + min(offset, 0))
        sums[place] = (source[own, own] * target[other, other]).sum() / (num - abs(offset)) ** 2
    best = int(sums.argmax())
    others = np.delete(sums, best)
    return int(offsets[best]) if sums[best] > others.mean() + _LIKE_GAIN * others.std() else 0


def _likeness(ids: npt.NDArray[np.integer], offsets: Rows) -> npt.NDArray[np.float32]:
    """Return cosines of all lines with each other, by rare words; 0 of a line with itself."""
    _, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    num = len(offsets) - 1
    rows = np.repeat(np.arange(num), np.diff(offsets))
    is_rare = (counts > 1) & (counts < max(num // 20, 3))
    column = np.cumsum(is_rare) - 1
    used = is_rare[places]
    bags = np.zeros((num, int(is_rare.sum())), np.float32)
    bags[rows[used], column[places[used]]] = 1 / np.sqrt(counts[places[used]])
    bags /= np.maximum(np.sqrt((bags**2).sum(1, keepdims=True)), 1e-6)
    cosines: npt.NDArray[np.float32] = bags @ bags.T
    np.fill_diagonal(cosines, 0)
    return cosines
