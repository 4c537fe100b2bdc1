"""Rows of a store -> `Batch`: the only place where training adds BOS and EOS."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.resegment import Resegment
from nmt.data.store import ParallelStore, Rows
from nmt.packed import Packed, move, round_up
from nmt.text import BOS_ID, EOS_ID


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentence pairs without padding; filler may follow them, which `rows` and `gold` lack."""

    # Source ids, each sentence ending in EOS, and with ``model.source_bos`` beginning with BOS.
    source: Packed
    target: Packed  # What the decoder reads: BOS, then the target.
    # What the decoder must predict: the target, then EOS. (num_target_tokens,), int64.
    gold: Tensor
    rows: Rows  # Where the pairs stand in the store, for error messages. (B,)

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


def collate(
    store: ParallelStore,
    rows: Rows,
    resegment: Resegment | None = None,
    epoch: int = 0,
    *,
    source_bos: bool = False,
    longest: int | None = None,
) -> Batch:
    """Gather ``rows`` of the store into a batch: BOS before targets and EOS after each sentence.

    Args:
        store: The pairs.
        rows: Which of them.
        resegment: Draws other subwords, and noise, for the epoch.
        epoch: Number of the epoch, from 0.
        source_bos: Whether sources, too, begin with BOS.
        longest: Most tokens of any sentence of either side, if sizes are to be rounded up.
    """
    sides = (store.source_ids(rows), store.target_ids(rows))
    if resegment is not None:
        sides = resegment(epoch, rows, sides)
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


def _packed(ids: npt.NDArray[np.integer], offsets: Rows, special: int, *, last: bool) -> Packed:
    """Pack sentences with a special token as the last or the first of each."""
    ends = offsets + np.arange(len(offsets))
    where = ends[1:] - 1 if last else ends[:-1]
    values = np.full(ends[-1], special, dtype=np.int64)
    values[np.delete(np.arange(ends[-1]), where)] = ids
    longest = int(np.diff(ends).max())
    return Packed(torch.from_numpy(values), torch.from_numpy(ends.astype(np.int32)), longest)
