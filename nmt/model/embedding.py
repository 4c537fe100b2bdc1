"""Token and position to vector; what encoder and decoder begin with.

Shapes: N packed tokens, V vocabulary, D model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.dropout import dropout
from nmt.model.layers import LearnedPositions, SinusoidalPositions


class Embedding(nn.Module):
    """Vectors of tokens, scaled, with those of their positions.

    Args:
        config: The model section.
        dim: Width D.
        table: Token vectors. (V, D)
    """

    def __init__(self, config: ModelConfig, dim: int) -> None:
        super().__init__()
        self._scale = dim**0.5 if config.scale_embeddings else 1.0
        self._dropout, self._word_dropout = config.dropout, config.word_dropout
        self.positions: LearnedPositions | SinusoidalPositions | None = None
        if config.positions == "learned":
            self.positions = LearnedPositions(config.max_positions, dim)
        elif config.positions in ("sinusoidal", "sinusoidal-halves"):
            self.positions = SinusoidalPositions(dim, config.positions)

    @override
    def forward(self, ids: Tensor, positions: Tensor, longest: int, table: Tensor) -> Tensor:
        """Embed ``ids`` (N,) at ``positions`` (N,), all below ``longest``: (N, D)."""
        values = self.look_up(ids, table)
        if self.training and self._word_dropout:
            kept = torch.rand(len(ids), 1, device=ids.device) >= self._word_dropout
            values = values * kept.to(values.dtype)
        if self.positions is not None:
            values = values + self.positions(positions, longest).to(values.dtype)
        return dropout(values, self._dropout, self.training)

    def look_up(self, ids: Tensor, table: Tensor) -> Tensor:
        """Return the scaled vectors of ``ids`` (N,): (N, D)."""
        values = F.embedding(ids, table)
        return values if self._scale == 1 else values * self._scale

    def places(self, longest: int, table: Tensor) -> Tensor:
        """Return what `look_up` lacks at each position below ``longest``: (longest or more, D).

        Without vectors for positions, any tensor.
        """
        return table if self.positions is None else self.positions.rows(longest)
