"""Offsets at which the lines of two sides may belong together, before anybody knows a word.

Lines that translate each other are of like length (Gale and Church 1993). Where all lines are of
one length, what is left is that lines with rare words in common have translations that have some
in common.

Shapes: n lines of a corpus.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nmt.data.lines import Lines, Rows

MOST_OFFSET = 50
"""Lines by which a range is shifted, up or down, if it is sought everywhere."""
_FAR = 10_000
"""Lines by which it may be shifted where it belongs to nothing that is near."""
_WINDOW = 50
_HOP = 25
_FISHER_GAIN = 5.0
"""Standard deviations by which an offset must agree better in lengths than none, at first."""
_LEAST_AGREEMENT = 0.3
"""Of lengths: where it is less, lines are sought further away."""
_FAR_WINDOW = 100
_FAR_GAIN = 6.0
_MOST_SEARCHES = 400
_LIKE_LINES = 1000
_LIKE_GAIN = 6.0
"""Standard deviations by which the likeness at an offset must lie above that at others."""

Values = npt.NDArray[np.floating]
Lengths = npt.NDArray[np.integer]


def first_offsets(lines: Lines, low: int, high: int) -> Rows:
    """Return at which offset each line of a corpus may belong, without knowing a word. (n,).

    Args:
        lines: The lines of all corpora.
        low: First row of the corpus.
        high: Row behind its last.
    """
    lengths = lines.source_lengths[low:high], lines.target_lengths[low:high]
    found, agreement = likely_offsets(*lengths)
    odd = np.flatnonzero(agreement < _LEAST_AGREEMENT)
    for part in np.split(odd, np.flatnonzero(np.diff(odd) > _FAR_WINDOW) + 1) if len(odd) else ():
        start, stop = int(part[0]), int(part[-1]) + 1
        far = far_offsets(*lengths, start, stop)
        found[start:stop] = np.where(far == 0, found[start:stop], far)
    is_unknown = (found == 0) & (agreement < _LEAST_AGREEMENT)
    if not is_unknown.any():
        return found
    return np.where(is_unknown, alike_offset(lines, low, high), found)


def likely_offsets(source_lengths: Lengths, target_lengths: Lengths) -> tuple[Rows, Values]:
    """Return the offset of each line that the lengths of the lines around it suggest. (n,).

    0 unless another agrees much better over some fifty lines. Beside it, how well the lengths of
    these lines agree at it: the correlation by Fisher's transformation, which is 0 +- 0.15 by
    chance. (n,).

    Args:
        source_lengths: Tokens of each source line. (n,).
        target_lengths: The same of the target. (n,).
    """
    source, target = np.log1p(source_lengths), np.log1p(target_lengths)
    offsets, num = np.arange(-MOST_OFFSET, MOST_OFFSET + 1), len(source)
    starts = np.arange(0, max(num - _WINDOW, 0) + 1, _HOP)
    if num < _WINDOW:
        return np.zeros(num, np.int64), np.ones(num)
    best, gain = np.zeros(len(starts), np.int64), np.full(len(starts), -np.inf)
    here = np.arctanh(_correlations(source, target, 0, starts).clip(-0.999, 0.999))
    for offset in offsets.tolist():
        there = np.arctanh(_correlations(source, target, offset, starts).clip(-0.999, 0.999))
        better = there - here > gain
        best[better], gain[better] = offset, (there - here)[better]
    is_better = gain >= _FISHER_GAIN / np.sqrt(_WINDOW - 3)
    windows = np.minimum(np.arange(num) // _HOP, len(best) - 1)
    found, agreement = np.where(is_better, best, 0), here + np.where(is_better, gain, 0.0)
    return found[windows], agreement[windows]


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


def far_offsets(source_lengths: Lengths, target_lengths: Lengths, start: int, stop: int) -> Rows:
    """Return the offset, up to 10,000, that lengths suggest for each line from start to stop.

    Lines that say nothing get that of those before them, or else behind; all 0 if no line says
    anything. (stop - start,).

    Args:
        source_lengths: Tokens of each source line. (n,).
        target_lengths: The same of the target. (n,).
        start: First of the lines to look at.
        stop: Line behind the last.
    """
    source, target = np.log1p(source_lengths), np.log1p(target_lengths)
    hop = max(_FAR_WINDOW // 2, (stop - start) // _MOST_SEARCHES)
    places, offsets = [], []
    for first in range(start, stop - _FAR_WINDOW + 1, hop):
        low = max(first - _FAR, 0)
        beside = target[low : first + _FAR + _FAR_WINDOW]
        found = _sliding_correlations(source[first : first + _FAR_WINDOW], beside)
        best = int(found.argmax()) if len(found) else 0
        if len(found) and found[best] > np.tanh(_FAR_GAIN / np.sqrt(_FAR_WINDOW - 3)):
            places.append(first - start)
            offsets.append(low + best - first)
    if not places:
        return np.zeros(stop - start, np.int64)
    before = np.searchsorted(places, np.arange(stop - start), side="right") - 1
    return np.array(offsets)[before.clip(min=0)]


def _sliding_correlations(window: Values, values: Values) -> Values:
    """Return the correlation of a window with each stretch of its length of some values."""
    width, num = len(window), len(values) - len(window) + 1
    if num < 1:
        return np.zeros(0)
    own = window - window.mean()
    size = 1 << (len(values) + width).bit_length()
    products = np.fft.irfft(np.fft.rfft(values, size) * np.fft.rfft(own, size).conj(), size)[:num]
    sums, squares = (np.concatenate(([0.0], np.cumsum(values**power))) for power in (1, 2))
    means = (sums[width:] - sums[:-width]) / width
    spread = (squares[width:] - squares[:-width]) / width - means**2
    scale = np.sqrt(np.maximum(spread, 1e-12) * max(float((own**2).mean()), 1e-12)) * width
    return np.where((spread > 1e-6) & ((own**2).mean() > 1e-6), products / scale, 0.0)


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
    start = low + (high - low - num) // 2
    rows = np.arange(start, start + num)
    source = _likeness(*lines.source_ids(rows))
    target = _likeness(*lines.target_ids(rows))
    offsets = np.arange(-MOST_OFFSET, MOST_OFFSET + 1)
    if num <= 4 * MOST_OFFSET:
        return 0
    sums = np.array([
        (source[max(-k, 0) : num - max(k, 0), max(-k, 0) : num - max(k, 0)]
         * target[max(k, 0) : num + min(k, 0), max(k, 0) : num + min(k, 0)]).sum()
        / (num - abs(k)) ** 2
        for k in offsets.tolist()
    ])  # fmt: skip
    best = int(sums.argmax())
    others = np.delete(sums, best)
    return int(offsets[best]) if sums[best] > others.mean() + _LIKE_GAIN * others.std() else 0


def _likeness(ids: npt.NDArray[np.integer], offsets: Rows) -> npt.NDArray[np.float32]:
    """Return cosines of all lines with each other, by rare words; 0 of a line with itself."""
    _, places, counts = np.unique(ids, return_inverse=True, return_counts=True)
    num = len(offsets) - 1
    rows = np.repeat(np.arange(num), np.diff(offsets))
    is_rare = (counts > 1) & (counts < max(num // 20, 3))
    kept = np.cumsum(is_rare) - 1
    used = is_rare[places]
    bags = np.zeros((num, int(is_rare.sum())), np.float32)
    bags[rows[used], kept[places[used]]] = 1 / np.sqrt(counts[places[used]])
    bags /= np.maximum(np.sqrt((bags**2).sum(1, keepdims=True)), 1e-6)
    found: npt.NDArray[np.float32] = bags @ bags.T
    np.fill_diagonal(found, 0)
    return found
