"""Packed tokens <-> padded rectangles: on a CPU of each head, and for GPUs and compiled layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmt.packed import Packed


def to_rectangle(heads: Tensor, packed: Packed) -> Tensor:
    """(N, G, E) -> (B * G, S, E). Padding holds the first token: finite, and to be ignored.

    Heads that lie between others, as those of fused projections do, are copied once.
    """
    _, num_heads, dim = heads.shape
    if heads.stride(1) != dim or heads.stride(2) != 1 or heads.stride(0) % dim:
        heads = heads.contiguous()
    # Selecting from the fused projection itself saves the copy that `contiguous` would make.
    apart = heads.stride(0) // dim
    rows = heads.as_strided(((len(heads) - 1) * apart + num_heads, dim), (dim, 1))
    found = rows.index_select(0, packed.derived(_rectangle_rows, apart, num_heads))
    return found.view(len(packed) * num_heads, packed.max_length, dim)


def to_packed(rectangles: Tensor, packed: Packed, parts: Sequence[int]) -> Tensor:
    """Rows of rectangles (B * heads, S, E) of each part, one after another -> (N, heads, E)."""
    rows = packed.derived(_packed_rows, *parts)
    return rectangles.index_select(0, rows).view(packed.num_tokens, sum(parts), -1)


def _rectangle_rows(packed: Packed, apart: int, heads: int) -> Tensor:
    """Rows of tokens with ``apart`` rows each, for (B, heads, S)."""
    order = torch.arange(packed.num_tokens, device=packed.ids.device)
    tokens = order.new_zeros(packed.num_cells).index_copy(0, packed.cells, order)
    head = torch.arange(heads, device=order.device).view(1, heads, 1)
    return (tokens.view(len(packed), 1, -1) * apart + head).flatten()


def _packed_rows(packed: Packed, *parts: int) -> Tensor:
    """Rows of rectangles (B, heads, S), one for each part, for (N, sum of heads)."""
    columns, first = [], 0
    sentences, positions = packed.sentences.unsqueeze(1), packed.positions.unsqueeze(1)
    for heads in parts:
        head = torch.arange(heads, device=sentences.device)
        columns.append(first + (sentences * heads + head) * packed.max_length + positions)
        first += packed.num_cells * heads
    return torch.cat(columns, dim=1).flatten()


class Rectangle(NamedTuple):
    """A rectangle of B x W cells for packed tokens, as GPUs and compiled layers use it.

    B and W may be more than they need. W is a multiple of 8, so that masks need not be copied for
    a GPU's kernels; and a single sentence stands beside an unused row, because a compiled layer
    would be compiled again for a size of 1.
    """

    token: Tensor  # The token that each cell shows; the first one in padding. (B, W), int64.
    cell: Tensor  # The cell of each token. (N,), int64.
    is_real: Tensor  # Whether a cell holds a token; the first one of each row does. (B, W), bool.

    @classmethod
    def of(cls, packed: Packed) -> Rectangle:
        """Return that of ``packed``: worked out once a batch."""
        return packed.derived(_rectangle)

    def pad(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, W, ...). Padding is finite and to be ignored."""
        cells: Tensor = _Select.apply(packed, self.token.flatten(), self.cell, None)  # type: ignore[no-untyped-call]
        return cells.unflatten(0, self.token.shape)

    def unpad(self, cells: Tensor) -> Tensor:
        """(B, W, ...) -> (N, ...). The gradient of padding beside a sentence is 0."""
        selections = self.cell, self.token.flatten(), self.is_real.flatten()
        return _Select.apply(cells.flatten(0, 1), *selections)  # type: ignore[no-untyped-call]


def row_width(packed: Packed) -> int:
    """Cells W of a row of `Rectangle`."""
    return -(-packed.max_length // 8) * 8


def _rectangle(packed: Packed) -> Rectangle:
    width = row_width(packed)
    cell = packed.sentences * width + packed.positions
    token = cell.new_zeros(max(len(packed), 2), width)
    token.view(-1).index_copy_(0, cell, torch.arange(len(cell), device=cell.device))
    is_real = torch.zeros_like(token, dtype=torch.bool)
    is_real.view(-1).index_fill_(0, cell, True)
    is_real[:, 0] = True  # a row of no keys at all would have no defined output
    return Rectangle(token, cell, is_real)


class _Select(torch.autograd.Function):
    """Select rows, each at most once where it matters; so the gradient is a selection, too.

    Torch does not know that no row is selected twice, and would add up.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, there: Tensor, back: Tensor, is_real: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(back, is_real)
        return rows.index_select(0, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        back, is_real = ctx.saved_tensors
        gradient = gradient.index_select(0, back)
        if is_real is not None:
            gradient = gradient.masked_fill(~is_real.view(-1, *[1] * (gradient.dim() - 1)), 0)
        return gradient, None, None, None
