"""Attention and layers with their parameters: what encoder and decoder are stacked from.

Parameters keep fused layouts: queries, keys and values of self-attention are one matrix; of
cross-attention, the queries are one and keys with values another.

Shapes: N packed target or source tokens, M packed tokens of the other side, D model width,
H heads, G key/value heads, E head width. Decoding: R = B * K rows, t positions so far.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.attention import attend, mean_weights, read_past, read_source
from nmt.model.dropout import dropout
from nmt.model.layers import FeedForward, RMSNorm, linear, make_norm, rotate
from nmt.model.layout import Layout


class _HeadTransform(nn.Module):
    """What happens to queries and keys between projection and product: QK-norm and rotation."""

    def __init__(self, config: ModelConfig, head_dim: int, *, rotary: bool) -> None:
        super().__init__()
        self._rotary = rotary
        self.query_norm = RMSNorm(head_dim, eps=1e-6) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(head_dim, eps=1e-6) if config.qk_norm else nn.Identity()
        self.is_identity = not (rotary or config.qk_norm)

    def queries(self, heads: Tensor, positions: Tensor) -> Tensor:
        """(N, H, E) -> (N, H, E)."""
        heads = self.query_norm(heads)
        return rotate(heads, positions) if self._rotary else heads

    def keys(self, heads: Tensor, positions: Tensor) -> Tensor:
        """(N, G, E) -> (N, G, E)."""
        heads = self.key_norm(heads)
        return rotate(heads, positions) if self._rotary else heads


class SelfAttention(nn.Module):
    """A sentence reads itself."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        self.head_dim = dim // config.num_heads
        kv_dim = self.num_kv_heads * self.head_dim
        self.query_key_value = linear(dim, dim + 2 * kv_dim, bias=config.bias)
        for block in self.query_key_value.weight.detach().split([dim, kv_dim, kv_dim]):
            nn.init.xavier_uniform_(block)
        self.output = linear(dim, dim, bias=config.bias)
        self.heads = _HeadTransform(config, self.head_dim, rotary=config.positions == "rotary")
        self._dropout = config.attention_dropout
        self._is_plain = self.heads.is_identity and self.num_kv_heads == self.num_heads

    def _split(self, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: each (N, H, E), shared key/value heads repeated."""
        fused = self.query_key_value(values).unflatten(-1, (-1, self.head_dim))
        query, key, value = fused.split([self.num_heads, *[self.num_kv_heads] * 2], dim=1)
        query, key = self.heads.queries(query, positions), self.heads.keys(key, positions)
        if self.num_kv_heads < self.num_heads:
            repeats = self.num_heads // self.num_kv_heads
            key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
        return query, key, value

    @override
    def forward(self, values: Tensor, layout: Layout, causal: bool) -> Tensor:
        """(N, D) -> (N, D)."""
        mixed = attend(
            self._heads(values, layout.positions),
            None,
            (layout, layout),
            num_heads=self.num_heads,
            causal=causal,
            dropout=self._dropout if self.training else 0.0,
        )
        return self.output(mixed)

    def _heads(self, values: Tensor, positions: Tensor) -> Tensor:
        """Queries, keys and values of all heads side by side: (N, D) -> (N, 3 * H * E)."""
        if self._is_plain:
            return self.query_key_value(values)
        return torch.cat(self._split(values, positions), dim=1).flatten(1)

    def read(
        self, values: Tensor, positions: Tensor, bias: Tensor, cells: Tensor, index: Tensor
    ) -> Tensor:
        """Read whole sentences without Python objects: (N, D) -> (N, D). For decoding.

        Args:
            values: Packed tokens of B sentences.
            positions: Where each stands in its sentence. (N,), int64.
            bias: 0, and minus infinity at padding. (B, 1, 1, S).
            cells: The token of each cell of the rectangle. (B * S,), int64.
            index: The cell of each token. (N,), int64.
        """
        heads = self._heads(values, positions).index_select(0, cells)
        heads = heads.view(bias.shape[0], bias.shape[3], 3, self.num_heads, self.head_dim)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, bias)  # (B, H, S, E)
        rows = mixed.transpose(1, 2).flatten(2).flatten(0, 1)
        return self.output(rows.index_select(0, index))

    def step(
        self, values: Tensor, past: Tensor, position: Tensor, filled: Tensor | None = None
    ) -> Tensor:
        """Read one more position of R rows: (R, D) -> (R, D).

        Args:
            values: At that position.
            past: Keys and values of all positions; this one is filled in. (2, R, H, t + 1, E).
            position: Which it is. (1,), int64.
            filled: Where ``past`` has more room than t + 1: 0 up to ``position``, and minus
                infinity after it. (1, 1, 1, C).
        """
        heads = self._heads(values, position).view(-1, 3, self.num_heads, self.head_dim)
        query, newly = heads.select(1, 0), heads.narrow(1, 1, 2).transpose(0, 1)
        if filled is None:
            past.select(3, -1).copy_(newly)
        else:
            past.index_copy_(3, position, newly.unsqueeze(3))
        return self.output(read_past(query, past, filled))


class CrossAttention(nn.Module):
    """The target reads the encoded source."""

    def __init__(self, dim: int, memory_dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        self.head_dim = dim // config.num_heads
        self.query = linear(dim, dim, bias=config.bias)
        self.key_value = linear(
            memory_dim, 2 * self.num_kv_heads * self.head_dim, bias=config.bias, blocks=2
        )
        self.output = linear(dim, dim, bias=config.bias)
        # Rotations say how far apart two tokens of one sentence are: not between two languages.
        self.heads = _HeadTransform(config, self.head_dim, rotary=False)
        self._dropout = config.attention_dropout

    def project_queries(self, values: Tensor) -> Tensor:
        """Return the queries of all heads side by side: (N, D) -> (N, H * E)."""
        query = self.query(values)
        if self.heads.is_identity:
            return query
        return self.heads.query_norm(query.unflatten(-1, (-1, self.head_dim))).flatten(1)

    def project_memory(self, memory: Tensor) -> Tensor:
        """Return keys and values side by side, shared heads repeated: (M, 2 * H * E)."""
        fused = self.key_value(memory)
        if self.heads.is_identity and self.num_kv_heads == self.num_heads:
            return fused
        key, value = fused.unflatten(-1, (2, self.num_kv_heads, self.head_dim)).unbind(1)
        pair = torch.stack((self.heads.key_norm(key), value), dim=1)
        repeats = self.num_heads // self.num_kv_heads
        return pair.repeat_interleave(repeats, dim=2).flatten(1)

    @override
    def forward(self, values: Tensor, memory: Tensor, layouts: tuple[Layout, Layout]) -> Tensor:
        """(N, D) and the encoder's output (M, D') -> (N, D)."""
        mixed = attend(
            self.project_queries(values),
            self.project_memory(memory),
            layouts,
            num_heads=self.num_heads,
            dropout=self._dropout if self.training else 0.0,
        )
        return self.output(mixed)

    def remember(self, memory: Tensor, bias: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Project the encoder's output (M, D') once: keys and values, (B, H, S, E) each.

        ``bias`` and ``cells`` as in `SelfAttention.read`.
        """
        rows = self.project_memory(memory).index_select(0, cells)
        rows = rows.view(bias.shape[0], bias.shape[3], 2, self.num_heads, self.head_dim)
        key, value = rows.permute(2, 0, 3, 1, 4).unbind(0)
        return key, value

    def step(
        self,
        values: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        seen: list[Tensor] | None = None,
    ) -> Tensor:
        """Read the source for R = B * K rows; beams share it. (R, D) -> (R, D).

        Args:
            values: What asks.
            key: Of the source, from `remember`.
            value: The same.
            bias: 0, and minus infinity at padding. (B, 1, 1, S).
            seen: Where to append how much of each source token is read. (R, S), float32.
        """
        query = self.project_queries(values)
        query = query.view(key.shape[0], -1, self.num_heads, self.head_dim).transpose(1, 2)
        if seen is not None:
            seen.append(mean_weights(query, key, bias).flatten(0, 1))
        mixed = read_source(query, key, value, bias)  # (B, H, K, E)
        return self.output(mixed.transpose(1, 2).reshape(values.shape[0], -1))


class Residual(nn.Module):
    """Wraps sub-layers of one width: norm, dropout and the sum, before or after (post or pre)."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config.norm, dim, bias=config.bias)
        self._is_pre = config.norm_position == "pre"
        self._dropout = config.dropout

    @override
    def forward(self, values: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """(N, D) -> (N, D)."""
        if self._is_pre:
            return values + dropout(sublayer(self.norm(values)), self._dropout, self.training)
        return self.norm(values + dropout(sublayer(values), self._dropout, self.training))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim = config.model_dim
        self.self_attention = SelfAttention(dim, config)
        self.self_residual = Residual(dim, config)
        self.feed_forward = _feed_forward(dim, config.ff_dim, config)
        self.feed_forward_residual = Residual(dim, config)

    @override
    def forward(self, values: Tensor, layout: Layout) -> Tensor:
        """(N, D) -> (N, D)."""
        values = self.self_residual(values, lambda x: self.self_attention(x, layout, False))
        return self.feed_forward_residual(values, self.feed_forward)

    def read(
        self, values: Tensor, positions: Tensor, bias: Tensor, cells: Tensor, index: Tensor
    ) -> Tensor:
        """(N, D) -> (N, D). See `SelfAttention.read`."""
        values = self.self_residual(
            values, lambda x: self.self_attention.read(x, positions, bias, cells, index)
        )
        return self.feed_forward_residual(values, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim = config.decoder_dim
        self.self_attention = SelfAttention(dim, config)
        self.self_residual = Residual(dim, config)
        self.cross_attention = CrossAttention(dim, config.model_dim, config)
        self.cross_residual = Residual(dim, config)
        self.feed_forward = _feed_forward(dim, config.decoder_ff, config)
        self.feed_forward_residual = Residual(dim, config)

    @override
    def forward(
        self, values: Tensor, memory: Tensor, target_layout: Layout, source_layout: Layout
    ) -> Tensor:
        """(N, D) and the encoder's output (M, D') -> (N, D)."""
        layouts = (target_layout, source_layout)
        values = self.self_residual(values, lambda x: self.self_attention(x, target_layout, True))
        values = self.cross_residual(values, lambda x: self.cross_attention(x, memory, layouts))
        return self.feed_forward_residual(values, self.feed_forward)

    def step(
        self,
        values: Tensor,
        past: Tensor,
        memory: tuple[Tensor, Tensor],
        bias: Tensor,
        position: Tensor,
        seen: list[Tensor] | None = None,
        filled: Tensor | None = None,
    ) -> Tensor:
        """One more position of R rows: (R, D) -> (R, D).

        For the others see `SelfAttention.step` and `CrossAttention.step`.
        """
        values = self.self_residual(
            values, lambda x: self.self_attention.step(x, past, position, filled)
        )
        values = self.cross_residual(
            values, lambda x: self.cross_attention.step(x, *memory, bias, seen)
        )
        return self.feed_forward_residual(values, self.feed_forward)


def _feed_forward(dim: int, inner_dim: int, config: ModelConfig) -> FeedForward:
    return FeedForward(
        dim,
        inner_dim,
        activation=config.activation,
        bias=config.bias,
        dropout=config.activation_dropout,
    )
