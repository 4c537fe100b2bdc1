"""The position-wise parts: normalisation, feed-forward, position encodings, initial values.

Shapes: N packed tokens (see `nmt.model.layout`), D model width, F inner width, E head width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmt.model.dropout import dropout


def linear(inputs: int, outputs: int, *, bias: bool, blocks: int = 1) -> nn.Linear:
    """Make a linear layer with Glorot-uniform weights (Glorot and Bengio 2010) and zero bias.

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        bias: Whether to add a bias.
        blocks: Layers fused side by side in the output (3 for queries, keys, values): each gets
            the values it would have alone.
    """
    layer = nn.Linear(inputs, outputs, bias=bias)
    for block in layer.weight.detach().chunk(blocks):
        nn.init.xavier_uniform_(block)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def make_norm(kind: Literal["layer", "rms"], dim: int, *, bias: bool) -> nn.Module:
    """Make a LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019), ``dim`` wide."""
    return nn.LayerNorm(dim, bias=bias) if kind == "layer" else RMSNorm(dim, eps=1e-6)


class RMSNorm(nn.RMSNorm):
    """torch's, worked out in float32 and returned in the dtype of its input.

    Under autocast torch's own returns float32 or takes a slow path, as its release has it.
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D), or more dimensions in front."""
        weight = self.weight.float()
        return F.rms_norm(x.float(), self.normalized_shape, weight, self.eps).to(x.dtype)


class FeedForward(nn.Module):
    """Two linear layers with a non-linearity between (Vaswani et al. 2017, section 3.3).

    ``swiglu`` gates the inner layer (Shazeer 2020): its first linear layer is twice as wide.
    """

    def __init__(
        self, dim: int, inner_dim: int, *, activation: str, bias: bool, dropout: float
    ) -> None:
        super().__init__()
        gates = 2 if activation == "swiglu" else 1
        self.inner = linear(dim, inner_dim * gates, bias=bias, blocks=gates)
        self.outer = linear(inner_dim, dim, bias=bias)
        self._activate = {"relu": torch.relu_, "gelu": F.gelu, "swiglu": _swiglu}[activation]
        self._dropout = dropout

    @override
    def forward(self, values: Tensor) -> Tensor:
        """(N, D) -> (N, D)."""
        inner = self._activate(self.inner(values))
        return self.outer(dropout(inner, self._dropout, self.training))


def _swiglu(values: Tensor) -> Tensor:
    gate, value = values.chunk(2, dim=-1)
    return F.silu(gate) * value


def sinusoids(num_positions: int, dim: int, layout: str) -> Tensor:
    """Return the fixed position encodings of Vaswani et al. (2017), section 3.5.

    Args:
        num_positions: Rows.
        dim: Width D, even.
        layout: ``sinusoidal`` interleaves sines and cosines of wavelengths from 2 pi to
            10000 * 2 pi, as in the paper; ``sinusoidal-halves`` puts all sines first, in D / 2
            wavelengths that end exactly at 10000 * 2 pi, as in Tensor2Tensor.

    Returns:
        (num_positions, D), float32.
    """
    half = dim // 2
    steps = half if layout == "sinusoidal" else max(half - 1, 1)
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000.0) / steps))
    angles = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1) * rates
    if layout == "sinusoidal":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()
    return torch.cat((angles.sin(), angles.cos()), dim=-1).float()


class SinusoidalPositions(nn.Module):
    """Sinusoids for any position; the table grows when a longer sentence comes."""

    table: Tensor

    def __init__(self, dim: int, layout: str) -> None:
        super().__init__()
        self._dim, self._layout = dim, layout
        self.register_buffer("table", sinusoids(256, dim, layout), persistent=False)

    @override
    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """Return the encodings of ``positions`` (N,), all below ``longest``: (N, D)."""
        return self.rows(longest).index_select(0, positions)

    def rows(self, longest: int) -> Tensor:
        """Return the encodings of all positions below ``longest`` or more: (>= longest, D)."""
        table = self.table  # another thread may change it meanwhile
        if longest > len(table):
            table = sinusoids(2 * longest, self._dim, self._layout).to(table)
            self.table = table
        return table


class LearnedPositions(nn.Module):
    """One trained vector for each of ``num_positions`` positions."""

    def __init__(self, num_positions: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_positions, dim) * dim**-0.5)

    @override
    def forward(self, positions: Tensor, longest: int) -> Tensor:
        """Return the vectors of ``positions`` (N,): (N, D). ``longest`` must fit the table."""
        return self.rows(longest).index_select(0, positions)

    def rows(self, longest: int) -> Tensor:
        """Return the vectors of all positions; ``longest`` must fit."""
        if longest > len(self.weight):
            raise ValueError(f"{longest} positions, but the table holds {len(self.weight)}")
        return self.weight


def rotate(heads: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of features by angles that grow with the position (Su et al. 2021).

    Feature i of the first half and of the second half form a pair.

    Args:
        heads: Queries or keys. (N, H, E), E even.
        positions: Position of each row. (N,), int64.
    """
    half = heads.shape[-1] // 2
    rates = torch.arange(half, device=heads.device, dtype=torch.float32)
    rates = torch.exp(rates * (-math.log(10_000.0) / half))
    angles = (positions.unsqueeze(1) * rates).unsqueeze(1)  # (N, 1, E / 2)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
