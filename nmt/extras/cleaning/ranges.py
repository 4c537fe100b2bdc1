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

from nmt.data.store import IntArray, Lines, Mask, Rows
from nmt.extras.cleaning.evidence import (
    MAX_NATS_AGAINST,
    Evidence,
    Floats,
    PairMeasures,
    PairScorer,
    Values,
)
from nmt.text.flat import FlatIds

MOST_OFFSET = 100  # Maximum shift, in lines up or down, that is found.
# IntArray are compared in windows of this many lines; a window starts after every `_HOP` lines.
_WINDOW = 50
_HOP = 25
_FISHER_GAIN = 5.0  # Minimum gain of an offset over no offset, in standard deviations.
_MIN_AGREEMENT = 0.3  # Below this agreement, lengths give no evidence.
# Rare words are compared in this many lines, at offsets up to `_MAX_WORD_OFFSET`.
_WORD_LINES = 1000
_MAX_WORD_OFFSET = 50
# Minimum lead of the best offset over the others by shared rare words, in standard deviations.
_WORD_GAIN = 6.0
_SMOOTHED_LINES = 20  # Evidence is averaged over this many lines around a line.
_MARGIN = 100  # Lines that are searched before and after lines with weak evidence.
_AT_ONCE = 128  # Source lines that are scored at once.
_CHANGE = 14.0  # Cost of changing the offset along a path, in nats.
_FEWEST_LINES = 10  # Minimum lines of a range with an offset.
_FEWEST_UNRELATED = 20  # Minimum lines of a range without a fitting offset.
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


def joined(ranges: Iterable[Range], max_between: int = 0) -> list[Range]:
    """Merge neighbours with the same offset and at most ``max_between`` lines between them.

    The ranges must be in the order of their lines.
    """
    merged = list[Range]()
    for line_range in ranges:
        start = line_range.start
        if merged and merged[-1].offset == line_range.offset:
            previous = merged[-1]
            num_between = start - previous.end - 1
            if num_between <= max_between:
                start = previous.start
                merged.pop()
        merged.append(Range(start, line_range.end, line_range.offset))
    return merged


def find_ranges(
    scorer: PairScorer,
    evidence: Evidence,
    rows: Rows,
    learned_offsets: Offsets,
    unshifted_nats: Values,
    learned_nats: Values,
) -> Iterator[Range]:
    """Yield the ranges of a corpus that are shifted or unrelated.

    Args:
        scorer: Scores pairs of lines with a lexicon.
        evidence: Turns scores and lengths into evidence.
        rows: All rows of the corpus, which are consecutive numbers. (n,).
        learned_offsets: Offset of the target line from which the lexicon has learned, for each
            source line. (n,).
        unshifted_nats: Evidence that each source line translates the target line of the same
            row. (n,).
        learned_nats: The same for the target line at the learned offset. The counts of the pair
            are subtracted from the lexicon. (n,).
    """
    is_weak = weak_mask(unshifted_nats)
    weak_lines = np.flatnonzero(is_weak)
    if not len(weak_lines):
        return
    # Each group of weak lines is searched with a margin; groups whose margins touch are one.
    is_far = np.diff(weak_lines) > 2 * _MARGIN
    cuts = np.flatnonzero(is_far) + 1
    for group in np.split(weak_lines, cuts):
        first, last = group[[0, -1]].tolist()
        start = max(first - _MARGIN, 0)
        stop = min(last + _MARGIN, len(rows))
        table = _evidence_table(scorer, evidence, rows, start, stop)
        # The table does not subtract what the lexicon has learned from a pair, so the learned pairs
        # look better than they are. Replace their evidence, which is one column in each line.
        lines = np.arange(stop - start)
        columns = learned_offsets[start:stop] + MOST_OFFSET
        table[lines, columns] = learned_nats[start:stop]
        yield from path_ranges(best_path(table), start)


def weak_mask(nats: Values) -> Mask:
    """Return a mask of the lines around which evidence is weak, compared with good lines. (n,).

    Args:
        nats: Evidence that each line is a translation. (n,).
    """
    num_lines = len(nats)
    sums = _prefix_sums(nats)
    lines = np.arange(num_lines)
    reach = _SMOOTHED_LINES // 2
    # Lines that are averaged for each line: from `first` to `end`, exclusive.
    first = (lines - reach).clip(0)
    end = (lines + reach).clip(max=num_lines)
    totals = sums[end] - sums[first]
    means = totals / (end - first)
    # A high quantile describes good lines, even if most of the corpus is misaligned.
    usual = float(np.quantile(means, 0.9))
    limit = 0.5 * max(usual, 0.0)
    return means < limit


def _evidence_table(
    scorer: PairScorer, evidence: Evidence, rows: Rows, start: int, stop: int
) -> Floats:
    """Return the evidence for each line of a region at each offset, in nats. (L, O).

    Offsets at which the target line is outside of the corpus have the lowest evidence.

    Args:
        scorer: Scores pairs of lines with a lexicon.
        evidence: Turns scores and lengths into evidence.
        rows: All rows of the corpus. (n,).
        start: Index of the first line of the region in ``rows``.
        stop: Index after its last line.
    """
    lines = scorer.lexicon.lines
    shape = stop - start, 2 * MOST_OFFSET + 1
    table = np.full(shape, -MAX_NATS_AGAINST, np.float32)
    for block_start in range(start, stop, _AT_ONCE):
        block_stop = min(block_start + _AT_ONCE, stop)
        sources = rows[block_start:block_stop]
        # All target lines within reach of any source line of the block.
        targets = rows[max(block_start - MOST_OFFSET, 0) : block_stop + MOST_OFFSET]
        scores = scorer.score_all(sources, targets)
        source_lengths = lines.source.lengths[sources]
        target_lengths = lines.target.lengths[targets]
        measures = PairMeasures.of(scores, source_lengths[:, None], target_lengths)
        nats = evidence(measures)  # (sources, targets)
        offsets = targets - sources[:, None]
        is_inside = abs(offsets) <= MOST_OFFSET
        table_lines, _ = np.nonzero(is_inside)
        table_lines += block_start - start  # The table counts lines from the start of the region.
        columns = offsets[is_inside] + MOST_OFFSET
        table[table_lines, columns] = nats[is_inside]
    return table


def best_path(evidence: Floats) -> npt.NDArray[np.int64]:
    """Return the most likely column (offset) of each line, or O if no offset fits. (L,).

    A change of the column costs `_CHANGE`. A start or end outside the middle column (offset 0)
    costs half as much. A line without a fitting offset has evidence 0.

    Args:
        evidence: Evidence for each offset of each line, in nats. (L, O).
    """
    num_lines, num_offsets = evidence.shape
    middle = num_offsets // 2
    # A state is a column, or the number after the last column: no offset fits.
    num_states = num_offsets + 1
    # Evidence minus costs of the best path that ends in each state, up to the current line.
    totals = np.full(num_states, -_CHANGE / 2)
    totals[middle] = 0.0
    # To follow the best path back: whether the best path to a state at a line stays in this state,
    # and, if not, the state from which it comes, which is the same for all states.
    shape = num_lines, num_states
    stays = np.empty(shape, bool)
    origins = np.empty(num_lines, np.int64)
    for line, nats in enumerate(evidence):
        origin = totals.argmax()
        origins[line] = origin
        changed_total = totals[origin] - _CHANGE
        stays[line] = totals >= changed_total
        np.maximum(totals, changed_total, out=totals)
        totals[:-1] += nats
    # Only differences matter: a bonus for an end in the middle is a cost for all other ends.
    totals[middle] += _CHANGE / 2
    path = np.empty(num_lines, np.int64)
    state = totals.argmax()
    for line in range(num_lines - 1, -1, -1):
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
    for first, end in pairwise(cuts):  # The state is the same from `first` to `end`, exclusive.
        state = int(path[first])
        offset: int | None = state - MOST_OFFSET
        is_short = end - first < _FEWEST_LINES
        if state == _UNRELATED or (is_short and offset):
            offset = None
        # A range counts lines from 1 and includes its last line.
        ranges.append(Range(start + first + 1, start + end, offset))
    long_ranges = []
    for line_range in joined(ranges):
        fewest = _FEWEST_LINES
        if line_range.offset is None:
            fewest = _FEWEST_UNRELATED
        num_lines = line_range.end - line_range.start + 1
        if num_lines >= fewest:
            long_ranges.append(line_range)
    # Aligned ranges (offset 0) are dropped last, because they keep the shifted ranges before and
    # after them from being merged.
    merged = joined(long_ranges, _FEWEST_UNRELATED)
    return [line_range for line_range in merged if line_range.offset != 0]


def first_offsets(lines: Lines, first_row: int, end_row: int) -> Rows:
    """Guess the offset of each line without a lexicon, from lengths or rare words. (n,).

    Args:
        lines: The lines of all corpora.
        first_row: First row of the corpus.
        end_row: Row after its last row.
    """
    source_lengths = lines.source.lengths[first_row:end_row]
    target_lengths = lines.target.lengths[first_row:end_row]
    offsets, agreement = likely_offsets(source_lengths, target_lengths)
    is_unknown = agreement < _MIN_AGREEMENT
    is_unknown &= offsets == 0
    if not is_unknown.any():
        return offsets
    corpus_offset = alike_offset(lines, first_row, end_row)
    return np.where(is_unknown, corpus_offset, offsets)


def likely_offsets(source_lengths: IntArray, target_lengths: IntArray) -> tuple[Rows, Values]:
    """Guess the offset of each line from the lengths of the 50 lines around it.

    Args:
        source_lengths: Tokens of each source line. (n,).
        target_lengths: Tokens of each target line. (n,).

    Returns:
        The offset of each line, 0 unless a different offset agrees much better (n,), and the
        agreement of the lengths at this offset: the correlation after Fisher's transformation,
        with a standard deviation of 0.15 for unrelated lines (n,).
    """
    num_lines = len(source_lengths)
    if num_lines < _WINDOW:
        offsets = np.zeros(num_lines, np.int64)
        return offsets, np.ones(num_lines)
    starts = np.arange(0, num_lines - _WINDOW + 1, _HOP)  # First source line of each window.
    source = np.log1p(source_lengths)
    target = np.log1p(target_lengths)
    # By the first line of a window, which may be any line.
    source_means, source_variances = _moments(source)
    target_means, target_variances = _moments(target)

    def agreement_at(offset: int) -> Values:
        """Return the agreement of each window with the target lines at an offset. (windows,).

        It is 0 if the corpus does not have these target lines, or if all lengths are equal.
        """
        # Only source lines from `first` to `end` (exclusive) have a target line at this offset.
        first = max(-offset, 0)
        end = num_lines - max(offset, 0)
        agreement = np.zeros(len(starts))
        is_inside = starts >= first
        is_inside &= starts + _WINDOW <= end
        source_starts = starts[is_inside]
        target_starts = source_starts + offset
        shifted_target = target[first + offset : end + offset]
        products = source[first:end] * shifted_target
        # The products begin at line `first`, so their windows are counted from there.
        means = _window_means(products)[source_starts - first]
        covariances = means - source_means[source_starts] * target_means[target_starts]
        variance_products = source_variances[source_starts] * target_variances[target_starts]
        positive = np.maximum(variance_products, 1e-12)
        correlations = covariances / np.sqrt(positive)
        clipped = correlations.clip(-0.999, 0.999)  # arctanh(1) is infinite.
        fisher = np.arctanh(clipped)
        fisher[variance_products <= 1e-9] = 0.0
        agreement[is_inside] = fisher
        return agreement

    unshifted = agreement_at(0)
    best_offsets = np.zeros_like(starts)
    best_gains = np.full_like(unshifted, -np.inf)
    max_offset = min(MOST_OFFSET, num_lines - _WINDOW)
    for offset in range(-max_offset, max_offset + 1):
        gains = agreement_at(offset) - unshifted
        is_better = gains > best_gains
        best_offsets[is_better] = offset
        best_gains[is_better] = gains[is_better]
    # Fisher's transformation of a correlation of N values has a standard deviation of 1/sqrt(N-3).
    is_clear = best_gains >= _FISHER_GAIN / np.sqrt(_WINDOW - 3)
    offsets = np.where(is_clear, best_offsets, 0)
    agreement = unshifted + np.where(is_clear, best_gains, 0.0)
    # Each line gets the offset of the last window that starts at the line or before it.
    windows = np.arange(num_lines) // _HOP
    windows = windows.clip(max=len(starts) - 1)
    return offsets[windows], agreement[windows]


def _moments(values: Values) -> tuple[Values, Values]:
    """Return mean and variance of the `_WINDOW` values from each position."""
    means = _window_means(values)
    mean_squares = _window_means(values**2)
    return means, mean_squares - means**2


def _window_means(values: Values) -> Values:
    """Return the mean of the `_WINDOW` values from each position. (n - _WINDOW + 1,)."""
    sums = _prefix_sums(values)
    window_sums = sums[_WINDOW:] - sums[:-_WINDOW]
    return window_sums / _WINDOW


def _prefix_sums(values: Values) -> Values:
    """Return at each index i the sum of the values before i. (n + 1,)."""
    return np.concatenate(([0.0], np.cumsum(values)))


def alike_offset(lines: Lines, first_row: int, end_row: int) -> int:
    """Guess the offset of the whole corpus: source line i belongs to target line i + offset.

    The offset is at most 50 lines, and 0 if none is clearly best.
    Source lines that share rare words should have target lines that share rare words. The two
    similarity matrices are compared at each offset (as in Gretton et al. 2005), for 1,000 lines
    from the middle of the corpus. Neither lengths nor a lexicon are needed.

    Args:
        lines: The lines of all corpora.
        first_row: First row of the corpus.
        end_row: Row after its last row.
    """
    num_rows = end_row - first_row
    num_lines = min(_WORD_LINES, num_rows)
    if num_lines <= 4 * _MAX_WORD_OFFSET:
        return 0
    start = first_row + (num_rows - num_lines) // 2
    rows = np.arange(start, start + num_lines)
    source = _word_similarities(lines.source.ids(rows))
    target = _word_similarities(lines.target.ids(rows))
    offsets = np.arange(-_MAX_WORD_OFFSET, _MAX_WORD_OFFSET + 1)
    means = np.empty(len(offsets))
    for index, offset in enumerate(offsets.tolist()):
        # Only source lines from `first` to `end` (exclusive) have a target line at this offset.
        first = max(-offset, 0)
        end = num_lines - max(offset, 0)
        sources = slice(first, end)
        targets = slice(first + offset, end + offset)
        products = source[sources, sources] * target[targets, targets]
        means[index] = products.sum() / (end - first) ** 2
    best = means.argmax()
    lower_means = np.delete(means, best)
    threshold = lower_means.mean() + _WORD_GAIN * lower_means.std()
    if means[best] <= threshold:
        return 0
    return int(offsets[best])


def _word_similarities(flat: FlatIds) -> Floats:
    """Return the cosine similarity of the rare words of every two lines; the diagonal is 0.

    (lines, lines).
    """
    _, word_indices, counts = np.unique(flat.ids, return_inverse=True, return_counts=True)
    num_lines = len(flat.lengths)
    # A word that occurs once is shared by no two lines, and a common word says little.
    common_count = max(num_lines // 20, 3)
    is_rare = counts > 1
    is_rare &= counts < common_count
    columns = np.cumsum(is_rare) - 1  # Column of each rare word in `bags`.
    is_rare_token = is_rare[word_indices]
    token_lines = flat.sentences[is_rare_token]
    words = word_indices[is_rare_token]
    shape = num_lines, np.count_nonzero(is_rare)
    bags = np.zeros(shape, np.float32)  # (lines, rare words)
    bags[token_lines, columns[words]] = 1 / np.sqrt(counts[words])
    norms = np.sqrt((bags**2).sum(1, keepdims=True))
    bags /= np.maximum(norms, 1e-6)
    cosines: Floats = bags @ bags.T
    np.fill_diagonal(cosines, 0)
    return cosines
