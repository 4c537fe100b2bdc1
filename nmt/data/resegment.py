"""Other subwords of the stored text for each epoch: BPE-dropout. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nmt.text.subword_dropout import SubwordDropout, sentence_generator

IntArray = npt.NDArray[np.int64]
Flat: TypeAlias = tuple[npt.NDArray[np.integer], IntArray]
"""Ids of several sentences, and the offset of each with the end."""
Sides: TypeAlias = tuple[Flat, Flat]
"""Of source and target."""
Resegment: TypeAlias = Callable[[int, IntArray, Sides], Sides]
"""(epoch, rows, stored ids) -> other ids of these rows of the store for the epoch."""


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
        flat, offsets = stored[0].tolist(), stored[1].tolist()
        drawn: list[int] = []
        ends = [0]
        for row, (start, stop) in zip(rows.tolist(), pairwise(offsets), strict=True):
            ids = flat[start:stop]
            generator = sentence_generator(self._seed, epoch, row, side)
            other = self._sides[side].resegment(ids, generator)
            drawn += ids if len(other) > self._longest else other
            ends.append(len(drawn))
        return np.array(drawn, dtype=np.int64), np.array(ends, dtype=np.int64)


class InTurn:
    """Several changes of the stored ids, one after the other."""

    def __init__(self, *changes: Resegment) -> None:
        self._changes = changes

    def __call__(self, epoch: int, rows: IntArray, stored: Sides) -> Sides:
        """Return what the last one makes of what those before it made."""
        for change in self._changes:
            stored = change(epoch, rows, stored)
        return stored
