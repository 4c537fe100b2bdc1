"""Position schemes, their registry, and token embeddings.

A scheme has up to two parts. `AbsolutePositions` are vectors that are added to the embeddings.
`RelativePositions` change self-attention: they rotate queries and keys, or add vectors to keys and
values. To add a scheme, write its parts in a new file and register it in `POSITIONS`; then
``model.positions: NAME`` selects it.

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
        """Return vectors of positions from 0. At least ``num_positions`` rows, D columns."""
        raise NotImplementedError


class RelativePositions(nn.Module):
    """Position-dependent changes of self-attention. A method does nothing unless overridden."""

    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys (N, H, E) at ``positions``, (N,) or (1,). Same shape."""
        del positions
        return heads

    def vectors(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return vectors to add to keys and to values, depending on the position of the query.

        They prevent the use of fused attention kernels.

        Args:
            queries: Positions of queries. (T,).
            keys: Positions of keys. (S,).

        Returns:
            Vectors for keys and vectors for values, (T, S, E) each; None for no vectors.
        """
        del queries, keys
        return None


@dataclass(frozen=True)
class PositionScheme:
    """Constructors of the parts of a scheme, called with the model section and a width."""

    # Takes the model width D. Called once for the encoder and once for the decoder.
    absolute: Callable[[ModelConfig, int], AbsolutePositions] | None = None
    # Takes the head width E. Called for each self-attention.
    relative: Callable[[ModelConfig, int], RelativePositions] | None = None


POSITIONS = Registry[PositionScheme]("position scheme")


def rates(dim: int, layout: str) -> Tensor:
    """Return the angular frequency of each pair of sine and cosine of `sinusoids`.

    Pair i has the frequency 10000^(-2i / D), as in Vaswani et al. (2017), or 10000^(-i / (D / 2 -
    1)) in ``sinusoidal-halves``: wavelengths grow by a constant factor.

    Returns:
        (D / 2,), float64, because late positions have large angles, which lose digits in float32.
    """
    num_pairs = dim // 2
    num_steps = num_pairs  # that lead from the wavelength 2 pi to 10000 * 2 pi
    if layout == "sinusoidal-halves":
        num_steps = max(num_pairs - 1, 1)
    steps = torch.arange(num_pairs, dtype=torch.float64)
    return torch.exp(steps * (-math.log(10_000.0) / num_steps))


def sinusoids(num_positions: int, dim: int, layout: str) -> Tensor:
    """Return the fixed position encodings of Vaswani et al. (2017), section 3.5.

    Args:
        num_positions: Number of rows.
        dim: Width D, even.
        layout: Order of the columns. ``sinusoidal`` alternates sines and cosines of wavelengths
            from 2 pi to below 10000 * 2 pi, as in the paper. ``sinusoidal-concatenated`` has the
            same columns, all sines first, as in Hugging Face. ``sinusoidal-halves`` also has all
            sines first, but its largest wavelength is exactly 10000 * 2 pi, as in Tensor2Tensor and
            Marian.

    Returns:
        (num_positions, D), in torch's default dtype.
    """
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = positions.unsqueeze(1) * rates(dim, layout)
    waves = (angles.sin(), angles.cos())
    if layout == "sinusoidal":
        table = torch.stack(waves, dim=-1).flatten(1)
    else:
        table = torch.cat(waves, dim=-1)
    return table.to(torch.get_default_dtype())


class SinusoidalPositions(AbsolutePositions):
    """Sinusoidal encodings of any position. The matrix grows with the longest sentence."""

    _table: Tensor  # (at least 256, D).

    def __init__(self, dim: int, layout: str) -> None:
        super().__init__()
        self._dim = dim
        self._layout = layout
        # Not saved: a checkpoint must not depend on the longest sentence so far.
        self.register_buffer("_table", sinusoids(256, dim, layout), persistent=False)

    @override
    def table(self, num_positions: int) -> Tensor:
        table = self._table  # another thread may replace the attribute
        if num_positions > len(table):  # twice as many, so that it grows rarely
            longer = sinusoids(2 * num_positions, self._dim, self._layout)
            table = longer.to(table)
            self._table = table
        return table


class LearnedPositions(AbsolutePositions):
    """One trained vector for each of ``max_positions`` positions."""

    def __init__(self, config: ModelConfig, dim: int) -> None:
        super().__init__()
        vectors = torch.randn(config.max_positions, dim) * dim**-0.5
        if config.position_init == "zeros":
            vectors.zero_()
        self.weight = nn.Parameter(vectors)

    @override
    def table(self, num_positions: int) -> Tensor:
        if num_positions > len(self.weight):
            raise ValueError(f"{num_positions} positions, but the model has {len(self.weight)}")
        return self.weight


class RotaryPositions(RelativePositions):
    """Rotates pairs of features by angles proportional to the position (Su et al. 2021).

    Feature i of the first half and feature i of the second half form a pair. E must be even.
    """

    @override
    def rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        num_pairs = heads.shape[-1] // 2
        # Computed in each call: a stored matrix would have to grow with the longest sentence.
        pairs = torch.arange(num_pairs, device=heads.device, dtype=torch.float32)
        rates = torch.exp(pairs * (-math.log(10_000.0) / num_pairs))  # radians per position
        angles = (positions.unsqueeze(1) * rates).unsqueeze(1)  # (N, 1, E / 2)
        cos = angles.cos().to(heads.dtype)
        sin = angles.sin().to(heads.dtype)
        # A pair is a complex number, and rotation multiplies it by cos + i sin. `roll` exchanges
        # real and imaginary parts.
        cos = torch.cat((cos, cos), dim=-1)
        sin = torch.cat((-sin, sin), dim=-1)
        exchanged = heads.roll(num_pairs, -1)
        return torch.addcmul(heads * cos, exchanged, sin)


class RelativeEmbeddings(RelativePositions):
    """Trained vectors for keys and for values, one for each distance between query and key.

    Larger distances use the vectors of ``longest``. All heads of a layer share the vectors.

    Source: Shaw et al. (2018), section 3.2.

    Args:
        longest: Maximum distance k in both directions. There are 2k + 1 vectors.
        dim: Head width E.
    """

    def __init__(self, longest: int, dim: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.empty(2 * longest + 1, dim))
        self.values = nn.Parameter(torch.empty(2 * longest + 1, dim))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    @override
    def vectors(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        longest = len(self.keys) // 2
        # Clamped: exact distances are only useful nearby (a hypothesis of the paper).
        distances = keys - queries.unsqueeze(1)  # (T, S)
        # Row 0 has the vector of distance -longest.
        rows = distances.clamp(-longest, longest) + longest
        return F.embedding(rows, self.keys), F.embedding(rows, self.values)


class Embedding(nn.Module):
    """Scaled token embeddings plus position vectors, with dropout.

    Args:
        config: The model section.
        dim: Width D.
        zero_start: Whether the embedding of the first position is zero, whatever its token.
    """

    def __init__(self, config: ModelConfig, dim: int, *, zero_start: bool = False) -> None:
        super().__init__()
        self._config = config
        self._zero_start = zero_start
        self._scale = dim**0.5 if config.scale_embeddings else 1.0
        absolute = POSITIONS[config.positions].absolute
        self.positions = absolute(config, dim) if absolute else None

    def position_table(self, num_positions: int) -> Tensor | None:
        """Return vectors of at least ``num_positions`` positions; None if the scheme has none."""
        if self.positions is None:
            return None
        return self.positions.table(num_positions + self._config.first_position)

    @override
    def forward(
        self, ids: Tensor, positions: Tensor, vectors: Tensor, table: Tensor | None
    ) -> Tensor:
        """Embed tokens.

        Args:
            ids: Token ids. (N,), int64.
            positions: Position of each token, or one position for all tokens, from 0 even if
                ``first_position`` is not 0. (N,) or (1,), int64.
            vectors: Embedding matrix. (V, D).
            table: Position vectors from `position_table`.

        Returns:
            (N, D).
        """
        config = self._config
        values = F.embedding(ids, vectors)
        device_type = values.device.type
        if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
            values = values.float()  # frozen embeddings may have 16 bits
        if self._zero_start:
            values = values.masked_fill((positions == 0).unsqueeze(1), 0)
        if self.training and config.word_dropout:
            # A whole token is dropped, as if it were unknown, so other tokens are not scaled up.
            is_kept = torch.rand(len(ids), 1, device=ids.device) >= config.word_dropout
            values = values * is_kept.to(values.dtype)
        if table is not None:
            if config.first_position:
                positions = positions + config.first_position
            rows = table.index_select(0, positions).to(values.dtype)
            values = torch.add(rows, values, alpha=self._scale)
        elif self._scale != 1:
            values = values * self._scale
        return dropout(values, config.dropout, self.training)


# The entries of registry.toml.
NO_POSITIONS = PositionScheme()
SINUSOIDAL = PositionScheme(lambda config, dim: SinusoidalPositions(dim, config.positions))
LEARNED = PositionScheme(LearnedPositions)
ROTARY = PositionScheme(relative=lambda _config, _dim: RotaryPositions())
RELATIVE = PositionScheme(
    relative=lambda config, dim: RelativeEmbeddings(config.max_relative_distance, dim)
)
