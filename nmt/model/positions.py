"""How tokens know where they stand: position schemes, their registry, and the embeddings.

A scheme has up to two parts: a table that is added to the embeddings (`AbsolutePositions`), and
what self-attention does with distances (`RelativePositions`): rotating queries and keys, adding a
bias to the scores, or adding vectors to keys and values. To add one, write its parts in a file of
their own and register it in `POSITIONS`; then ``model.positions: NAME`` selects it.

Shapes: N packed tokens, D model width, H heads, E head width, T query and S key positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.dropout import dropout
from nmt.registry import Registry


class AbsolutePositions(nn.Module):
    """Vectors that are added to the embeddings."""

    def table(self, num_positions: int) -> Tensor:
        """Return the vectors of all positions below ``num_positions`` or more: (>= that, D)."""
        raise NotImplementedError


class RelativePositions(nn.Module):
    """What self-attention does with positions; does nothing unless overridden."""

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Change queries or keys (N, H, E) that stand at ``positions``, (N,) or (1,)."""
        del positions
        return heads

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Return what is added to the scores, (H, T, S), for positions (T,) and (S,); or None."""
        del queries, keys
        return None

    def vectors(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what is added to the keys and to the values that each query reads, or None.

        For positions (T,) and (S,): (T, S, E) each. No fused kernel of attention has them.
        """
        del queries, keys
        return None


@dataclass(frozen=True, slots=True)
class PositionScheme:
    """Constructors of the parts of a scheme, of the model section and a width; None: no part."""

    # Gets the width D; made for encoder and decoder.
    absolute: Callable[[ModelConfig, int], AbsolutePositions] | None = None
    # Gets the head width E; made for each self-attention.
    relative: Callable[[ModelConfig, int], RelativePositions] | None = None


POSITIONS: Registry[PositionScheme] = Registry("position scheme")


def sinusoids(num_positions: int, dim: int, layout: str) -> Tensor:
    """Return the fixed position encodings of Vaswani et al. (2017), section 3.5.

    Args:
        num_positions: Rows.
        dim: Width D, even.
        layout: ``sinusoidal`` interleaves sines and cosines of wavelengths from 2 pi to below
            10000 * 2 pi, as in the paper; ``sinusoidal-concatenated`` puts all sines first, as
            Hugging Face does; so does ``sinusoidal-halves``, in D / 2 wavelengths that end exactly
            at 10000 * 2 pi, as in Tensor2Tensor and Marian.

    Returns:
        (num_positions, D), in torch's default dtype.
    """
    half = dim // 2
    steps = max(half - 1, 1) if layout == "sinusoidal-halves" else half
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10_000.0) / steps))
    # In float64: late positions have large angles, of which float32 keeps few digits.
    angles = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1) * rates
    waves = angles.sin(), angles.cos()
    interleaved = layout == "sinusoidal"
    table = torch.stack(waves, dim=-1).flatten(1) if interleaved else torch.cat(waves, dim=-1)
    return table.to(torch.get_default_dtype())


class SinusoidalPositions(AbsolutePositions):
    """Sinusoids for any position; the table grows when a longer sentence comes."""

    _table: Tensor

    def __init__(self, dim: int, layout: str) -> None:
        super().__init__()
        self._dim, self._layout = dim, layout
        # Not persistent: a checkpoint must not depend on the longest sentence so far.
        self.register_buffer("_table", sinusoids(256, dim, layout), persistent=False)

    @override
    def table(self, num_positions: int) -> Tensor:
        table = self._table  # another thread may change it meanwhile
        if num_positions > len(table):
            table = sinusoids(2 * num_positions, self._dim, self._layout).to(table)
            self._table = table
        return table


class LearnedPositions(AbsolutePositions):
    """One trained vector for each of ``num_positions`` positions."""

    def __init__(self, num_positions: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_positions, dim) * dim**-0.5)

    @override
    def table(self, num_positions: int) -> Tensor:
        if num_positions > len(self.weight):
            raise ValueError(f"{num_positions} positions, but the table holds {len(self.weight)}")
        return self.weight


class RotaryPositions(RelativePositions):
    """Rotates pairs of features by angles that grow with the position (Su et al. 2021).

    Feature i of the first half and of the second half form a pair; E is even.
    """

    @override
    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        half = heads.shape[-1] // 2
        # Worked out anew: a table would have to grow with the longest sentence.
        rates = torch.arange(half, device=heads.device, dtype=torch.float32)
        rates = torch.exp(rates * (-math.log(10_000.0) / half))
        angles = (positions.unsqueeze(1) * rates).unsqueeze(1)  # (N, 1, E / 2)
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RelativeEmbeddings(RelativePositions):
    """One trained vector for each distance of a key from its query, and one for each of a value.

    Distances beyond ``longest`` share its vectors; all heads of a layer share them, too. Source:
    Shaw et al. (2018), section 3.2.

    Args:
        longest: Distance k, in both directions: 2k + 1 vectors.
        dim: Width E of a head.
    """

    def __init__(self, longest: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * longest + 1, dim)))
        self.values = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * longest + 1, dim)))

    @override
    def vectors(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        longest = len(self.keys) // 2
        # Clamped: the paper's hypothesis is that exact distances matter only nearby.
        rows = (keys - queries.unsqueeze(1)).clamp(-longest, longest) + longest  # (T, S)
        return F.embedding(rows, self.keys), F.embedding(rows, self.values)


class Embedding(nn.Module):
    """Vectors of tokens, scaled, with those of their positions.

    Args:
        config: The model section.
        dim: Width D.
        zero_start: Whether the first token is zeros, whatever it is.
    """

    def __init__(self, config: ModelConfig, dim: int, *, zero_start: bool = False) -> None:
        super().__init__()
        self._zero_start, self._first = zero_start, config.first_position
        self._scale = dim**0.5 if config.scale_embeddings else 1.0
        self._dropout, self._word_dropout = config.dropout, config.word_dropout
        absolute = POSITIONS[config.positions].absolute
        self.positions = absolute(config, dim) if absolute else None

    def position_table(self, num_positions: int) -> Tensor | None:
        """Return vectors of at least ``num_positions`` positions; None where none are added."""
        return None if self.positions is None else self.positions.table(num_positions + self._first)

    @override
    def forward(
        self, ids: Tensor, positions: Tensor, vectors: Tensor, table: Tensor | None
    ) -> Tensor:
        """Embed ``ids`` (N,) at ``positions``, (N,) or (1,): (N, D).

        Args:
            ids: Tokens.
            positions: Of each token, or of all; from 0, whatever ``first_position`` is.
            vectors: Of the vocabulary. (V, D).
            table: From `position_table`.
        """
        values = F.embedding(ids, vectors)
        if self._scale != 1:
            values = values * self._scale
        if self._zero_start:
            values = values.masked_fill((positions == 0).unsqueeze(1), 0)
        if self.training and self._word_dropout:
            # A whole token is missing then, as if it were unknown: the others are not scaled up.
            kept = torch.rand(len(ids), 1, device=ids.device) >= self._word_dropout
            values = values * kept.to(values.dtype)
        if table is not None:
            positions = positions + self._first if self._first else positions
            values = values + table.index_select(0, positions).to(values.dtype)
        return dropout(values, self._dropout, self.training)


def _sinusoidal(layout: str) -> PositionScheme:
    return PositionScheme(lambda _, dim: SinusoidalPositions(dim, layout))


POSITIONS.register("none", PositionScheme())
for _layout in ("sinusoidal", "sinusoidal-concatenated", "sinusoidal-halves"):
    POSITIONS.register(_layout, _sinusoidal(_layout))
POSITIONS.register("learned", PositionScheme(lambda c, dim: LearnedPositions(c.max_positions, dim)))
POSITIONS.register("rotary", PositionScheme(relative=lambda *_: RotaryPositions()))
POSITIONS.register(
    "relative",
    PositionScheme(relative=lambda c, dim: RelativeEmbeddings(c.max_relative_distance, dim)),
)
