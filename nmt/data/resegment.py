"""Other subwords of the stored text for each epoch: BPE-dropout. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nmt.text.subword_dropout import SubwordDropout, sentence_generator

IntArray = npt.NDArray[np.int64]
# Ids of several sentences, and the offset of each with the end.
Flat: TypeAlias = tuple[npt.NDArray[np.integer], IntArray]
Sides: TypeAlias = tuple[Flat, Flat]  # Of source and target.
# (epoch, rows, stored ids) -> other ids of these rows of the store for the epoch.
Resegment: TypeAlias = Callable[[int, IntArray, Sides], Sides]


def rows_of(flat: Flat) -> list[list[int]]:
    """Return the ids of each sentence."""
    ids = flat[0].tolist()
    return [ids[start:stop] for start, stop in pairwise(flat[1].tolist())]


def flat_of(rows: Sequence[Sequence[int]]) -> Flat:
    """Put sentences one after the other."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return np.array([index for row in rows for index in row], dtype=np.int64), ends


class Resegmenter:
    """Draws other subwords of the stored text for each epoch (BPE-dropout, Provilkov et al. 2020).

    What a pair gets depends on seed, epoch and row only.

    Args:
        sides: Segment source and target.
        seed: Seed of the run.
        longest: A sentence that would have more subwords keeps those that are stored.
    """

    def __init__(
        self, sides: tuple[SubwordDropout, SubwordDropout], *, seed: int, longest: int
    ) -> None:
        self._sides, self._seed, self._longest = sides, seed, longest

    def __call__(self, epoch: int, rows: IntArray, stored: Sides) -> Sides:
        """Return other ids of ``rows`` for the epoch, in the form of the stored ones.

        Args:
            epoch: Number of the epoch, from 0.
            rows: Of the store.
            stored: Their ids, flat, and offsets (len(rows) + 1,), of both sides.
        """
        source, target = stored
        return self._drawn(0, epoch, rows, source), self._drawn(1, epoch, rows, target)

    def _drawn(self, side: int, epoch: int, rows: IntArray, stored: Flat) -> Flat:
        drawn = []
        for row, ids in zip(rows.tolist(), rows_of(stored), strict=True):
            generator = sentence_generator(self._seed, epoch, row, side)
            other = self._sides[side].resegment(ids, generator)
            drawn.append(ids if len(other) > self._longest else other)
        return flat_of(drawn)


class InTurn:
    """Several changes of the stored ids, one after the other."""

    def __init__(self, *changes: Resegment) -> None:
        self._changes = changes

    def __call__(self, epoch: int, rows: IntArray, stored: Sides) -> Sides:
        """Return what the last one makes of what those before it made."""
        for change in self._changes:
            stored = change(epoch, rows, stored)
        return stored


_installed: list[Resegment] = []


def install(resegment: Resegment) -> None:
    """Keep what a worker process is to call: it is sent once, and not with every batch."""
    _installed[:] = [resegment]


def resegment_installed(epoch: int, rows: IntArray, stored: Sides) -> Sides:
    """Call what was installed."""
    return _installed[0](epoch, rows, stored)
