"""Sentences of different lengths side by side, without padding.

Everything position-wise (embeddings, linear layers, norms, dropout, loss) runs on packed tokens, so
padding costs nothing there. Rectangles exist only inside attention.

Shapes: B sentences, N tokens in all, S the longest sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Packed:
    """Token ids of a batch. Made once, by `nmt.data.batch.collate` or an engine.

    Args:
        ids: All tokens, one sentence after another. (N,), int64.
        cu_seqlens: Where each sentence begins, and where the last one ends. (B + 1,), int32.
        max_length: Tokens of the longest sentence, S.
    """

    def __init__(self, ids: Tensor, cu_seqlens: Tensor, max_length: int) -> None:
        self.ids = ids
        self.cu_seqlens = cu_seqlens
        self.max_length = max_length
        self._derived: dict[Hashable, Any] = {}

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Packed:
        """Pack lists of ids; none is empty."""
        lengths = [len(row) for row in rows]
        ids = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        return cls(ids, ends, max(lengths, default=0)).to(torch.device(device))

    def rows(self) -> list[list[int]]:
        """Return the ids of each sentence."""
        ids = self.ids.tolist()
        return [ids[first:last] for first, last in pairwise(self.cu_seqlens.tolist())]

    def __len__(self) -> int:
        """Sentences B."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """Tokens N."""
        return len(self.ids)

    @property
    def num_cells(self) -> int:
        """Cells of the padded rectangle."""
        return len(self) * self.max_length

    @property
    def has_padding(self) -> bool:
        """Whether the padded rectangle has a cell without a token."""
        return self.num_tokens < self.num_cells

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sentence. (B,), int32."""
        return self.cu_seqlens.diff()

    def derived(self, make: Callable[..., T], *args: Hashable) -> T:
        """Return ``make(self, *args)``, which is worked out once a batch.

        Never as inference tensors, whoever asks first: training could not save them for its
        backward pass, and layers compiled for the one kind would be compiled again for the other.
        """
        key = (make, *args)
        if key not in self._derived:
            with torch.inference_mode(False):
                self._derived[key] = make(self, *args)
        found: T = self._derived[key]
        return found

    @property
    def sentences(self) -> Tensor:
        """Which sentence each token is of. (N,), int64."""
        return self.derived(Packed._sentences)

    @property
    def positions(self) -> Tensor:
        """Position of each token in its sentence, from 0. (N,), int64."""
        return self.derived(Packed._positions)

    @property
    def cells(self) -> Tensor:
        """Cell of each token in the flattened rectangle (B, S). (N,), int64."""
        return self.derived(Packed._cells)

    def _sentences(self) -> Tensor:
        order = torch.arange(len(self), device=self.ids.device)
        return order.repeat_interleave(self.lengths, output_size=self.num_tokens)

    def _positions(self) -> Tensor:
        order = torch.arange(self.num_tokens, device=self.ids.device)
        return order - self.cu_seqlens.index_select(0, self.sentences)

    def _cells(self) -> Tensor:
        return self.sentences * self.max_length + self.positions

    def mask(self) -> Tensor:
        """True where the padded rectangle holds a token. (B, S), bool."""
        order = torch.arange(self.max_length, device=self.ids.device)
        return order < self.lengths.unsqueeze(1)

    def pad(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, S, ...): zeros where there is no token."""
        cells = packed.new_zeros(self.num_cells, *packed.shape[1:])
        return cells.index_copy(0, self.cells, packed).unflatten(0, (len(self), self.max_length))

    def prepend(self, token: int) -> Packed:
        """Return the sentences with ``token`` before each."""
        order = torch.arange(len(self) + 1, device=self.ids.device, dtype=torch.int32)
        ids = self.ids.new_full((self.num_tokens + len(self),), token)
        places = torch.arange(self.num_tokens, device=self.ids.device) + self.sentences + 1
        ids.index_copy_(0, places, self.ids)
        return Packed(ids, self.cu_seqlens + order, self.max_length + 1)

    def part(self, start: int, stop: int) -> Packed:
        """Return the sentences from ``start`` to before ``stop``."""
        ends = self.cu_seqlens[start : stop + 1]
        first, last = int(ends[0]), int(ends[-1])
        return Packed(self.ids[first:last], ends - first, int(ends.diff().max()))

    def to(self, device: torch.device) -> Packed:
        """Return a copy on ``device``, made without waiting for it; this one stays as it is."""
        if self.ids.device.type == device.type:
            return self
        ids, ends = (move(tensor, device) for tensor in (self.ids, self.cu_seqlens))
        return Packed(ids, ends, self.max_length)


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to ``device`` without waiting for it."""
    if device.type == "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
