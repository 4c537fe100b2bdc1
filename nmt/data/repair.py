"""Shifted ranges of two aligned files, paired again as they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TypeVar

T = TypeVar("T")
Shift = Mapping[str, int]
"""``start``, ``end`` and ``offset`` as in reports: source line + offset = target line, from 1."""


def repaired(targets: Iterable[T], shifts: Sequence[Shift], blank: T) -> Iterator[T]:
    """Yield for each source line the target that translates it, as many as there are.

    Lines outside the ranges keep theirs, unless a range has taken it: then they get ``blank``.

    Args:
        targets: Target lines in order.
        shifts: Ranges that do not overlap.
        blank: Stands for no line.

    >>> shift = {"start": 3, "end": 4, "offset": -1}
    >>> list(repaired("abcde", [shift], "-"))
    ['a', '-', 'b', 'c', 'e']
    """
    own = sorted((each["start"], each["end"], each["offset"]) for each in shifts)
    taken = sorted((start + offset, end + offset, 0) for start, end, offset in own)
    reach = max((abs(offset) for *_, offset in own), default=0)
    waiting, held, first = iter(targets), deque[T](), 1
    for line in count(1):
        held.extend(islice(waiting, line + reach + 1 - first - len(held)))
        if line - first >= len(held):
            return
        shift = _covering(own, line)
        place = line + (shift[2] if shift else 0) - first
        is_free = shift is not None or _covering(taken, line) is None
        yield held[place] if is_free and 0 <= place < len(held) else blank
        if line - first >= reach:
            held.popleft()
            first += 1


def _covering(ranges: Sequence[tuple[int, int, int]], line: int) -> tuple[int, int, int] | None:
    """Return the last range that begins before or at a line, if it holds the line."""
    index = bisect_right(ranges, line, key=lambda each: each[0]) - 1
    return ranges[index] if index >= 0 and line <= ranges[index][1] else None
