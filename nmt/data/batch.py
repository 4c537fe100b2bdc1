"""Rows of a store -> `Batch`: the only place where training adds BOS and EOS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.store import ParallelStore
from nmt.packed import Packed, move, round_up
from nmt.text import BOS_ID, EOS_ID
from nmt.text.subword_dropout import SubwordDropout, sentence_generator

IntArray = npt.NDArray[np.int64]
Flat: TypeAlias = tuple[npt.NDArray[np.integer], IntArray]
"""Ids of several sentences, and the offset of each with the end."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentence pairs without padding; filler may follow them, which `rows` and `gold` lack."""

    source: Packed
    """Source ids, each sentence ending in EOS, and with ``model.source_bos`` beginning with BOS."""
    target: Packed
    """What the decoder reads: BOS, then the target."""
    gold: Tensor
    """What the decoder must predict: the target, then EOS. (num_target_tokens,), int64."""
    rows: IntArray
    """Where the pairs stand in the store, for error messages. (B,)"""

    @property
    def num_source_tokens(self) -> int:
        """Source tokens with EOS, without padding."""
        return self.source.num_tokens - self.source.num_filler

    @property
    def num_target_tokens(self) -> int:
        """Predicted tokens without padding: the divisor of the loss."""
        return len(self.gold)

    @property
    def num_padded_tokens(self) -> int:
        """Cells of the padded rectangles of both sides."""
        return self.source.num_cells + self.target.num_cells

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches of half the pairs."""
        stop, middle = len(self.rows), len(self.rows) // 2
        split = int(self.target.cu_seqlens[middle])
        return self._part(0, middle, self.gold[:split]), self._part(middle, stop, self.gold[split:])

    def _part(self, start: int, stop: int, gold: Tensor) -> Batch:
        sides = self.source.part(start, stop), self.target.part(start, stop)
        return Batch(*sides, gold, self.rows[start:stop])

    def to(self, device: torch.device) -> Batch:
        """Return a copy on ``device``; this batch stays as it is."""
        if device.type == "cpu":
            return self
        source, target = self.source.to(device), self.target.to(device)
        return replace(self, source=source, target=target, gold=move(self.gold, device))


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

    def __call__(self, side: int, epoch: int, rows: IntArray, stored: Flat) -> Flat:
        """Return other ids of ``rows`` for the epoch, in the form of the stored ones.

        Args:
            side: 0 for the source, 1 for the target.
            epoch: Number of the epoch, from 0.
            rows: Of the store.
            stored: Their ids, flat, and offsets (len(rows) + 1,).
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


def collate(
    store: ParallelStore,
    rows: IntArray,
    resegment: Resegmenter | None = None,
    epoch: int = 0,
    *,
    source_bos: bool = False,
    longest: int | None = None,
) -> Batch:
    """Gather ``rows`` of the store into a batch: BOS before targets and EOS after each sentence.

    Args:
        store: The pairs.
        rows: Which of them.
        resegment: Draws other subwords for the epoch.
        epoch: Number of the epoch, from 0.
        source_bos: Whether sources, too, begin with BOS.
        longest: Most tokens of any sentence of either side, if sizes are to be rounded up.
    """
    sides = (store.source_ids(rows), store.target_ids(rows))
    if resegment is not None:
        sides = (resegment(0, epoch, rows, sides[0]), resegment(1, epoch, rows, sides[1]))
    (source, source_offsets), (target, offsets) = sides
    packed = _packed(source, source_offsets, EOS_ID, last=True)
    packed = packed.prepend(BOS_ID) if source_bos else packed
    read, gold = (
        _packed(target, offsets, special, last=last)
        for special, last in ((BOS_ID, False), (EOS_ID, True))
    )
    if longest is not None:
        packed, read = round_up(packed, read, longest)
    return Batch(source=packed, target=read, gold=gold.ids, rows=rows)


def _packed(ids: npt.NDArray[np.integer], offsets: IntArray, special: int, *, last: bool) -> Packed:
    """Pack sentences with a special token as the last or the first of each."""
    ends = offsets + np.arange(len(offsets))
    where = ends[1:] - 1 if last else ends[:-1]
    values = np.full(ends[-1], special, dtype=np.int64)
    values[np.delete(np.arange(ends[-1]), where)] = ids
    longest = int(np.diff(ends).max())
    return Packed(torch.from_numpy(values), torch.from_numpy(ends.astype(np.int32)), longest)
