"""Rows of a store -> `Batch`: the only place where training adds BOS, EOS and padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.resegment import Resegmenter
from nmt.data.store import ParallelStore
from nmt.text import BOS_ID, EOS_ID, PAD_ID

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentence pairs, padded to rectangles. B sentences, S source and T target positions."""

    source: Tensor
    """Source ids, ending in EOS. (B, S), int64."""
    source_index: Tensor
    """Positions of the real tokens in the flattened ``source``, ascending. (num_source_tokens,)"""
    target_input: Tensor
    """What the decoder reads: BOS, then the target. (B, T), int64."""
    target_output: Tensor
    """What the decoder must predict: the target, then EOS. (B, T), int64."""
    target_index: Tensor
    """Positions of the real tokens in the flattened target rectangles. (num_target_tokens,)"""
    rows: IntArray
    """Where the pairs stand in the store, for error messages. (B,)"""

    @property
    def num_source_tokens(self) -> int:
        """Source tokens with EOS, without padding."""
        return len(self.source_index)

    @property
    def num_target_tokens(self) -> int:
        """Predicted tokens without padding: the divisor of the loss."""
        return len(self.target_index)

    @property
    def num_padded_tokens(self) -> int:
        """Cells of both rectangles."""
        return self.source.numel() + self.target_input.numel()

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches of half the pairs, with no more padding than they need."""
        middle = len(self.rows) // 2
        return self._part(slice(0, middle)), self._part(slice(middle, None))

    def _part(self, pairs: slice) -> Batch:
        source_index, source_width = _index_of(self.source_index, self.source.shape, pairs)
        target_index, target_width = _index_of(self.target_index, self.target_input.shape, pairs)
        return Batch(
            source=self.source[pairs, :source_width],
            source_index=source_index,
            target_input=self.target_input[pairs, :target_width],
            target_output=self.target_output[pairs, :target_width],
            target_index=target_index,
            rows=self.rows[pairs],
        )

    def to(self, device: torch.device) -> Batch:
        """Return a copy on ``device``; this batch stays as it is."""
        if device.type == "cpu":
            return self
        names = ("source", "source_index", "target_input", "target_output", "target_index")
        moved = {
            name: getattr(self, name).pin_memory().to(device, non_blocking=True) for name in names
        }
        return replace(self, **moved)


def _index_of(index: Tensor, shape: torch.Size, pairs: slice) -> tuple[Tensor, int]:
    """Positions of the real tokens of some rows, in the rectangle that is as wide as they need."""
    lengths = torch.bincount(index // shape[1], minlength=shape[0])[pairs]
    width = int(lengths.max())
    is_real = torch.arange(width, device=index.device) < lengths.unsqueeze(1)
    return is_real.flatten().nonzero().squeeze(1), width


def _rectangle(ids: IntArray, index: IntArray, shape: tuple[int, int]) -> Tensor:
    cells = np.full(shape[0] * shape[1], PAD_ID, dtype=np.int64)
    cells[index] = ids
    return torch.from_numpy(cells.reshape(shape))


def _real_positions(lengths: IntArray) -> tuple[IntArray, IntArray, int]:
    """Return flat positions in the rectangle, the end of each row among them, and the width."""
    width, ends = int(lengths.max()), np.cumsum(lengths)
    shift = np.arange(len(lengths)) * width - (ends - lengths)
    return np.arange(ends[-1]) + np.repeat(shift, lengths), ends, width


def collate(
    store: ParallelStore, rows: IntArray, resegment: Resegmenter | None = None, epoch: int = 0
) -> Batch:
    """Gather ``rows`` of the store into a batch: BOS before and EOS after each sentence.

    Args:
        store: The pairs.
        rows: Which of them.
        resegment: Draws other subwords for the epoch.
        epoch: Number of the epoch, from 0.
    """
    sides = (store.source_ids(rows), store.target_ids(rows))
    if resegment is not None:
        sides = (resegment(0, epoch, rows, sides[0]), resegment(1, epoch, rows, sides[1]))
    source, source_offsets = sides[0]
    source_lengths = np.diff(source_offsets) + 1
    index, ends, width = _real_positions(source_lengths)
    packed = np.full(len(index), EOS_ID, dtype=np.int64)
    packed[np.delete(np.arange(len(index)), ends - 1)] = source

    target, target_offsets = sides[1]
    target_lengths = np.diff(target_offsets) + 1
    target_index, target_ends, target_width = _real_positions(target_lengths)
    before = np.full(len(target_index), BOS_ID, dtype=np.int64)
    before[np.delete(np.arange(len(before)), target_ends - target_lengths)] = target
    after = np.full(len(target_index), EOS_ID, dtype=np.int64)
    after[np.delete(np.arange(len(after)), target_ends - 1)] = target
    shape = (len(rows), target_width)
    return Batch(
        source=_rectangle(packed, index, (len(rows), width)),
        source_index=torch.from_numpy(index),
        target_input=_rectangle(before, target_index, shape),
        target_output=_rectangle(after, target_index, shape),
        target_index=torch.from_numpy(target_index),
        rows=rows,
    )
