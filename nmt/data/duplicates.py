"""Which pairs of a stream repeat an earlier one, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

import numpy as np
import numpy.typing as npt

_HELD_AT_ONCE = 1 << 24


class DuplicateFinder:
    """Collects a 64-bit hash of each pair in a file, then finds the repetitions by sorting.

    The hash is Python's own: other numbers in each process, so it must not outlive this one. Two
    different pairs among 100 million share one with a chance of 1 in 4000.

    Args:
        file: Empty, open to write and read; 8 bytes a pair.
        held_at_once: Most hashes sorted at once, about; more pairs take more passes of the file.
    """

    def __init__(self, file: IO[bytes], *, held_at_once: int = _HELD_AT_ONCE) -> None:
        self._file = file
        self._held_at_once = held_at_once
        self._count = 0

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Show pairs, in order."""
        hashes = np.array([hash(pair) for pair in pairs], dtype=np.int64)
        self._file.write(hashes.tobytes())
        self._count += len(hashes)

    def repetitions(self) -> npt.NDArray[np.bool_]:
        """Return whether each pair repeats an earlier one. (pairs shown,)."""
        repeated = np.zeros(self._count, dtype=np.bool_)
        num_parts = -(-self._count // self._held_at_once)
        for part in range(num_parts):
            hashes, where = self._part(part, num_parts)
            first = np.unique(hashes, return_index=True)[1]
            repeated[where] = True
            repeated[where[first]] = False
        return repeated

    def _part(
        self, part: int, num_parts: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the hashes that leave remainder ``part``, and their places in the stream."""
        found, places, start = [], [], 0
        self._file.seek(0)
        while block := self._file.read(8 * self._held_at_once):
            hashes = np.frombuffer(block, dtype=np.int64)
            where = np.flatnonzero(hashes % num_parts == part)
            found.append(hashes[where])
            places.append(where + start)
            start += len(hashes)
        return np.concatenate(found), np.concatenate(places)
