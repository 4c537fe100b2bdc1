"""Stored subwords -> other subwords of the same text, drawn anew for each epoch (BPE-dropout)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nmt.text.subword_dropout import SubwordDropout, sentence_generator

IntArray = npt.NDArray[np.integer]


class Resegmenter:
    """Draws the subwords of both sides. What a pair gets depends on seed, epoch and row only.

    Args:
        sides: Cuts source and target anew.
        seed: Seed of the run.
        longest: A sentence that would have more subwords keeps those that are stored.
    """

    def __init__(
        self, sides: tuple[SubwordDropout, SubwordDropout], *, seed: int, longest: int
    ) -> None:
        self._sides, self._seed, self._longest = sides, seed, longest

    def __call__(
        self, side: int, epoch: int, rows: IntArray, stored: tuple[IntArray, IntArray]
    ) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return other ids in the form of ``stored``: flat, and offsets (len(rows) + 1,).

        Args:
            side: 0 for the source, 1 for the target.
            epoch: Number of the epoch, from 0.
            rows: Of the store.
            stored: Their ids, flat, and offsets.
        """
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
