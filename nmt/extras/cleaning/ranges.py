"""Ranges of lines that are shifted or unrelated, by the best path through their offsets.

Shapes: L lines of a region, O offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

UNRELATED = np.iinfo(np.int64).min
"""Stands for an offset where none fits."""
_CHANGE = 14.0
"""What a change of the offset costs, in nats: less evidence than that is chance."""
_FEWEST_LINES = 10
_FEWEST_UNRELATED = 20


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


def best_path(evidence: npt.NDArray[np.float32], home: int) -> npt.NDArray[np.int64]:
    """Return the column of the best path through each line; as many as columns if none fits.

    Changing the column costs `_CHANGE`, half of that for beginning or ending in another than
    ``home``; to fit none is worth 0 a line.

    Args:
        evidence: How likely each offset is, for each line, in nats. (L, O).
        home: Column of offset 0.
    """
    num, width = evidence.shape
    best = np.full(width + 1, -_CHANGE / 2)
    best[home] = 0.0
    stays, origins = np.empty((num, width + 1), np.bool_), np.empty(num, np.int64)
    for line, own in enumerate(evidence):
        origins[line] = origin = int(best.argmax())
        changed = best[origin] - _CHANGE
        stays[line] = best >= changed
        np.maximum(best, changed, out=best)
        best[:-1] += own
    best[home] += _CHANGE / 2
    path = np.empty(num, np.int64)
    state = int(best.argmax())
    for line in range(num - 1, -1, -1):
        path[line] = state
        if not stays[line, state]:
            state = int(origins[line])
    return path


def path_ranges(path: npt.NDArray[np.int64], start: int) -> Iterator[Range]:
    """Yield the stretches of a path, given as offsets, that are long enough to be no accident.

    Some lines that fit nowhere do not end a shift that goes on behind them. Where the offset
    changes every few lines, the lines are unrelated.
    """
    stretches: list[tuple[int, int, int]] = []

    def add(state: int, first: int, last: int, gap: int) -> None:
        if stretches and stretches[-1][0] == state and first - stretches[-1][2] <= gap:
            first = stretches.pop()[1]
        stretches.append((state, first, last))

    cuts = np.concatenate(([0], np.flatnonzero(np.diff(path)) + 1, [len(path)]))
    for first, last in pairwise(cuts.tolist()):
        is_short = last - first < _FEWEST_LINES and path[first] != 0
        add(UNRELATED if is_short else int(path[first]), first, last, 0)
    found, stretches = stretches, []
    for state, first, last in found:
        if last - first >= (_FEWEST_UNRELATED if state == UNRELATED else _FEWEST_LINES):
            add(state, first, last, _FEWEST_UNRELATED)
    for state, first, last in stretches:
        if state:
            yield Range(start + first + 1, start + last, None if state == UNRELATED else state)
