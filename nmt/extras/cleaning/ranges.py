"""Ranges of a corpus whose lines stand beside lines that do not translate them.

A missing or additional line on one side shifts all after it. A lexicon that was learned from lines
that do belong together decides, line by line, by the best path through the offsets (Viterbi 1967),
so that borders are found to the line.

Shapes: n lines of a corpus, L lines of a region, O = 2 * MOST_OFFSET + 1 offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nmt.data.store import Rows
from nmt.extras.cleaning.evidence import MOST_AGAINST, Evidence, Measured
from nmt.extras.cleaning.lexicon import PairScorer
from nmt.extras.cleaning.offsets import MOST_OFFSET

_NEAR = 20
_MARGIN = 100
_AT_ONCE = 128
_CHANGE = 14.0  # What a change of the offset costs, in nats: less evidence than that is chance.
_FEWEST_LINES = 10
_FEWEST_UNRELATED = 20
_UNRELATED = 2 * MOST_OFFSET + 1  # Stands for a column where no offset fits.

Values = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Range:
    """Lines of a corpus that do not belong together as they stand."""

    start: int  # First source line, from 1.
    end: int  # Last source line.
    # What to add to a source line to find the target line of it; None where no line is near.
    offset: int | None


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in order, those that go on where another ends as one."""
    joint: list[Range] = []
    for part in ranges:
        last = joint[-1] if joint else None
        if last and (last.end + 1, last.offset) == (part.start, part.offset):
            joint[-1] = Range(last.start, part.end, part.offset)
        else:
            joint.append(part)
    return joint


def find_ranges(
    scorer: PairScorer,
    evidence: Evidence,
    rows: Rows,
    taught: npt.NDArray[np.integer],
    nats: tuple[Values, Values],
) -> Iterator[Range]:
    """Yield the ranges of a corpus that are shifted or unrelated.

    Args:
        scorer: Knows words.
        evidence: What scores and lengths say.
        rows: All rows of the corpus. (n,).
        taught: Offset at which each line has taught the lexicon. (n,).
        nats: Evidence for each line as it stands, and at that offset, which leaves out what it has
            taught. (n,) and (n,).
    """
    here, there = nats
    odd = np.flatnonzero(is_odd(here))
    if not len(odd):
        return
    for part in np.split(odd, np.flatnonzero(np.diff(odd) > 2 * _MARGIN) + 1):
        start, stop = max(int(part[0]) - _MARGIN, 0), min(int(part[-1]) + _MARGIN, len(rows))
        table = _evidence_table(scorer, evidence, rows, start, stop)
        table[np.arange(stop - start), taught[start:stop] + MOST_OFFSET] = there[start:stop]
        yield from path_ranges(best_path(table), start)


def is_odd(nats: Values) -> npt.NDArray[np.bool_]:
    """Return which lines have neighbours that agree less than is usual. (n,)."""
    sums = np.concatenate(([0.0], np.cumsum(nats)))
    places = np.arange(len(nats))
    first, last = (places - _NEAR // 2).clip(0), (places + _NEAR // 2).clip(max=len(nats))
    means = (sums[last] - sums[first]) / (last - first)
    return means < 0.5 * max(float(np.quantile(means, 0.9)), 0.0)


def _evidence_table(
    scorer: PairScorer, evidence: Evidence, rows: Rows, start: int, stop: int
) -> npt.NDArray[np.float32]:
    """Return the evidence for each line of a region at each offset. (L, O)."""
    lines = scorer.lexicon.lines
    table = np.full((stop - start, 2 * MOST_OFFSET + 1), -MOST_AGAINST, np.float32)
    for first in range(start, stop, _AT_ONCE):
        last = min(first + _AT_ONCE, stop)
        sources = rows[first:last]
        targets = rows[max(first - MOST_OFFSET, 0) : last + MOST_OFFSET]
        lengths = lines.source_lengths[sources][:, None], lines.target_lengths[targets]
        nats = evidence(Measured.of(scorer.score_all(sources, targets), *lengths))
        columns = targets - sources[:, None] + MOST_OFFSET
        line, place = np.nonzero((columns >= 0) & (columns < table.shape[1]))
        table[first - start + line, columns[line, place]] = nats[line, place]
    return table


def best_path(evidence: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return the column of the best path through each line; as many as columns if none fits.

    Changing the column costs `_CHANGE`, half of that for beginning or ending in another than the
    middle one; to fit none is worth 0 a line.

    Args:
        evidence: How likely each offset is, for each line, in nats. (L, O).
    """
    num, width = evidence.shape
    best = np.full(width + 1, -_CHANGE / 2)
    best[width // 2] = 0.0
    stays, origins = np.empty((num, width + 1), np.bool_), np.empty(num, np.int64)
    for line, nats in enumerate(evidence):
        origins[line] = origin = int(best.argmax())
        changed = best[origin] - _CHANGE
        stays[line] = best >= changed
        np.maximum(best, changed, out=best)
        best[:-1] += nats
    best[width // 2] += _CHANGE / 2
    path = np.empty(num, np.int64)
    state = int(best.argmax())
    for line in range(num - 1, -1, -1):
        path[line] = state
        if not stays[line, state]:
            state = int(origins[line])
    return path


def path_ranges(path: npt.NDArray[np.int64], start: int) -> Iterator[Range]:
    """Yield the stretches of a path that are long enough to be no accident.

    Some lines that fit nowhere do not end a shift that goes on behind them. Where the offset
    changes every few lines, the lines are unrelated.

    Args:
        path: Column of each line. (L,).
        start: Lines of the corpus before it.
    """
    stretches: list[tuple[int, int, int]] = []

    def add(state: int, first: int, last: int, gap: int) -> None:
        if stretches and stretches[-1][0] == state and first - stretches[-1][2] <= gap:
            first = stretches.pop()[1]
        stretches.append((state, first, last))

    cuts = np.concatenate(([0], np.flatnonzero(np.diff(path)) + 1, [len(path)]))
    for first, last in pairwise(cuts.tolist()):
        is_short = last - first < _FEWEST_LINES and path[first] != MOST_OFFSET
        add(_UNRELATED if is_short else int(path[first]), first, last, 0)
    short_and_long, stretches = stretches, []
    for state, first, last in short_and_long:
        if last - first >= (_FEWEST_UNRELATED if state == _UNRELATED else _FEWEST_LINES):
            add(state, first, last, _FEWEST_UNRELATED)
    for state, first, last in stretches:
        if state != MOST_OFFSET:
            offset = None if state == _UNRELATED else state - MOST_OFFSET
            yield Range(start + first + 1, start + last, offset)
