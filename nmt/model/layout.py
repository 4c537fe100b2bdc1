"""Where the real tokens of a padded rectangle stand.

Everything position-wise runs on *packed* tokens, one row for each real token of a batch, so that
padding costs nothing in linears, norms and dropout. Only attention sees the rectangle; the row
indices that take it there and back are made once a batch and shared by all layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_WIDTH_UNIT = 8
"""Masks whose rows are as long as a multiple of it need not be copied for a GPU's kernels."""


class Cells(NamedTuple):
    """A rectangle of B x W cells for the tokens of a `Layout`.

    B and W may be more than they need. W is rounded up, and a single sentence stands beside a row
    that nobody reads: for a compiled layer, sizes of 1 would be a case of their own.
    """

    token: Tensor
    """The token that each cell shows; the first one in padding. (B, W), int64."""
    place: Tensor
    """The cell of each token. (N,), int64."""
    is_real: Tensor
    """Whether a cell holds a token; the first one of each row does. (B, W), bool."""

    def spread(self, packed: Tensor) -> Tensor:
        """(N, D) -> (B, W, D). Padding is finite and to be ignored: its gradient is left out."""
        cells: Tensor = _Select.apply(packed, self.token.flatten(), self.place, None)  # type: ignore[no-untyped-call]
        return cells.view(*self.token.shape, -1)

    def collect(self, cells: Tensor) -> Tensor:
        """(B, W, D) -> (N, D). The gradient of padding beside a sentence is 0."""
        selections = self.place, self.token.flatten(), self.is_real.view(-1, 1)
        return _Select.apply(cells.flatten(0, 1), *selections)  # type: ignore[no-untyped-call]


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
            gradient = gradient.masked_fill(~is_real, 0)
        return gradient, None, None, None


class Layout:
    """The real tokens of B sentences in rows of S positions, padded on the right.

    Args:
        index: Positions of the real tokens in the flattened rectangle, ascending. (N,), int64.
        batch_size: Sentences B.
        width: Positions S.
    """

    def __init__(self, index: Tensor, batch_size: int, width: int) -> None:
        self.index = index
        self.batch_size = batch_size
        self.width = width
        self.positions = index % width
        """Position of each real token in its sentence, from 0. (N,), int64."""
        self._cache: dict[tuple[str, int, int], Tensor] = {}
        self._cells: Cells | None = None

    @classmethod
    def from_lengths(cls, lengths: Tensor, width: int) -> Layout:
        """Make the layout of sentences of these lengths. (B,), int64; at most ``width`` each."""
        real = torch.arange(width, device=lengths.device) < lengths.unsqueeze(1)
        return cls(real.flatten().nonzero().squeeze(1), len(lengths), width)

    @property
    def num_tokens(self) -> int:
        """Real tokens N."""
        return len(self.index)

    @property
    def has_padding(self) -> bool:
        """Whether any position holds no token."""
        return self.num_tokens < self.batch_size * self.width

    def mask(self) -> Tensor:
        """True where the rectangle holds a token. (B, S), bool."""
        cells = self.index.new_zeros(self.batch_size * self.width, dtype=torch.bool)
        return cells.index_fill(0, self.index, True).view(self.batch_size, self.width)

    def pack(self, rectangle: Tensor) -> Tensor:
        """(B, S, ...) -> (N, ...): the real tokens only."""
        return rectangle.flatten(0, 1).index_select(0, self.index)

    def unpack(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, S, ...): zeros where there is no token."""
        cells = packed.new_zeros(self.batch_size * self.width, *packed.shape[1:])
        return cells.index_copy(0, self.index, packed).unflatten(0, (self.batch_size, self.width))

    def cells(self) -> Cells:
        """Return the rectangle in the form that GPUs and compiled layers use."""
        if self._cells is None:
            self._cells = _make_cells(self)
        return self._cells

    def heads_to_rectangle(self, parts: int, heads: int) -> Tensor:
        """Rows to select from (N * parts * heads, head width) for (parts, B, heads, S, head width).

        Padding selects the first row: finite, and to be ignored.
        """
        return self._cached("rectangle", parts, heads)

    def heads_to_packed(self, parts: int, heads: int) -> Tensor:
        """Rows to select from (parts * B * heads * S, head width) for (N, parts, heads, width)."""
        return self._cached("packed", parts, heads)

    def padded_head_rows(self, heads: int) -> Tensor:
        """Rows of (B * heads * S, head width) that are padding."""
        return self._cached("padding", 1, heads)

    def score_bias(self, heads: int) -> Tensor:
        """0 for real keys and minus infinity for padding. (B * heads, 1, S), float32."""
        return self._cached("bias", 1, heads)

    def _cached(self, kind: str, parts: int, heads: int) -> Tensor:
        key = (kind, parts, heads)
        if key not in self._cache:
            self._cache[key] = _MAKERS[kind](self, parts, heads)
        return self._cache[key]


def _make_cells(layout: Layout) -> Cells:
    width = -(-layout.width // _WIDTH_UNIT) * _WIDTH_UNIT
    place = layout.index // layout.width * width + layout.positions
    token = place.new_zeros(max(layout.batch_size, 2), width)
    token.view(-1).index_copy_(0, place, torch.arange(len(place), device=place.device))
    is_real = torch.zeros_like(token, dtype=torch.bool)
    is_real.view(-1).index_fill_(0, place, True)
    is_real[:, 0] = True  # a row of no keys at all would have no defined output
    return Cells(token, place, is_real)


def _rectangle_rows(layout: Layout, parts: int, heads: int) -> Tensor:
    cells = layout.index.new_zeros(layout.batch_size * layout.width)
    token = cells.index_copy(0, layout.index, torch.arange(len(layout.index), device=cells.device))
    part_and_head = torch.arange(parts * heads, device=cells.device).view(parts, 1, heads, 1)
    token = token.view(1, layout.batch_size, 1, layout.width)
    return (token * (parts * heads) + part_and_head).flatten()


def _packed_rows(layout: Layout, parts: int, heads: int) -> Tensor:
    part = torch.arange(parts, device=layout.index.device).view(1, parts, 1)
    head = torch.arange(heads, device=layout.index.device).view(1, 1, heads)
    sentence = (layout.index // layout.width).view(-1, 1, 1)
    row = (part * layout.batch_size + sentence) * heads + head
    return (row * layout.width + layout.positions.view(-1, 1, 1)).flatten()


def _padding_rows(layout: Layout, _parts: int, heads: int) -> Tensor:
    padding = (~layout.mask()).unsqueeze(1).expand(-1, heads, -1)
    return padding.flatten().nonzero().squeeze(1)


def _score_bias(layout: Layout, _parts: int, heads: int) -> Tensor:
    mask = layout.mask()
    bias = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)
    return bias.repeat_interleave(heads, dim=0).unsqueeze(1)


_MAKERS = {
    "rectangle": _rectangle_rows,
    "packed": _packed_rows,
    "padding": _padding_rows,
    "bias": _score_bias,
}
