"""The layers of encoder and decoder.

Each layer has one `forward` for training, scoring, alignment and decoding. With a cache, a decoder
layer computes one new token of each row. Projections are fused: queries, keys and values of
self-attention are one matrix, and keys and values of cross-attention are one matrix.

Shapes: N packed tokens of the computed side, M packed source tokens, D model width, D' width of the
encoder, F inner width, H heads, G key/value heads, E head width. Decoding: N is R = B * K rows with
one new token each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from nmt.config.model import ModelConfig
from nmt.model.attention import Segments, attention, cached_attention, mean_weights, row_width
from nmt.model.decoder_state import CrossCache, LayerCache, SelfCache
from nmt.model.dropout import dropout
from nmt.model.positions import POSITIONS
from nmt.packed import Packed

_LEAST_VARIANCE = 1e-30  # see `StdLayerNorm`


def linear(inputs: int, outputs: int, *, bias: bool, blocks: int = 1) -> nn.Linear:
    """Make a linear layer with Xavier-uniform weights (Glorot and Bengio 2010) and zero bias.

    Args:
        inputs: Width of the input.
        outputs: Width of the output.
        bias: Whether to add a bias.
        blocks: Number of layers that are fused in the output, for example 2 for keys and values.
            Each block is initialized like a separate layer.
    """
    layer = nn.Linear(inputs, outputs, bias=bias)
    # Xavier's bound depends on the shape. For the whole fused matrix it would be too small.
    for block in layer.weight.detach().chunk(blocks):
        nn.init.xavier_uniform_(block)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def make_norm(config: ModelConfig, dim: int) -> nn.Module:
    """Make a LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of width ``dim``."""
    norm: nn.Module
    if config.norm == "rms":
        norm = RMSNorm(dim, eps=config.norm_epsilon or 1e-6)
    else:
        kind = StdLayerNorm if config.norm == "layer-std" else nn.LayerNorm
        epsilon = config.norm_epsilon or 1e-5
        norm = kind(dim, eps=epsilon, bias=config.has_bias("norm"))
    if not config.norm_gain:
        norm.register_parameter("weight", None)
    return norm


class StdLayerNorm(nn.LayerNorm):
    """LayerNorm that divides by (standard deviation + epsilon), not by sqrt(variance + epsilon).

    Lecture notes often define it this way. The variance is the mean over all D features.
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., D), computed in float32, returned in the dtype of ``x``."""
        values = _wide(x)
        centred = values - values.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        # Clamped, because the gradient of the square root is infinite at 0.
        deviation = variance.clamp_min(_LEAST_VARIANCE).sqrt()
        normed = centred / (deviation + self.eps)
        weight = cast("Tensor | None", self.weight)
        if weight is not None:
            normed = normed * weight
        bias = cast("Tensor | None", self.bias)
        if bias is not None:
            normed = normed + bias
        return normed.to(x.dtype)


def _wide(values: Tensor) -> Tensor:
    """Convert ``values`` to float32, unless they are float64."""
    return values if values.dtype == torch.float64 else values.float()


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm, computed in float32 and returned in the dtype of its input.

    Under autocast, torch's version returns float32 or is slow, depending on the release.
    """

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Normalize (..., D)."""
        weight = cast("Tensor | None", self.weight)
        if weight is not None:
            weight = _wide(weight)
        # In 16 bits the mean of squares overflows (float16) or loses digits (bfloat16).
        normed = F.rms_norm(_wide(x), self.normalized_shape, weight, self.eps)
        return normed.to(x.dtype)


class FeedForward(nn.Module):
    """Two linear layers with an activation function between (Vaswani et al. 2017, section 3.3).

    ``swiglu`` gates the inner layer (Shazeer 2020), so its first linear layer is twice as wide.
    """

    def __init__(self, dim: int, inner_dim: int, config: ModelConfig) -> None:
        super().__init__()
        num_blocks = 1
        if config.activation == "swiglu":
            num_blocks = 2  # gates and values
        has_bias = config.has_bias("feed-forward")
        self.inner = linear(dim, inner_dim * num_blocks, bias=has_bias, blocks=num_blocks)
        self.outer = linear(inner_dim, dim, bias=has_bias)
        self._activate = _ACTIVATIONS[config.activation]
        self._dropout = config.activation_dropout

    @override
    def forward(self, values: Tensor) -> Tensor:
        """Run the layer: (N, D) -> (N, D)."""
        inner = self._activate(self.inner(values))
        inner = dropout(inner, self._dropout, self.training)
        return self.outer(inner)


def _swiglu(values: Tensor) -> Tensor:
    gate, value = values.chunk(2, dim=-1)
    return F.silu(gate) * value


# ReLU in place: its backward pass only needs the output. So the inner layer, the widest tensor of
# the model, is stored once.
_ACTIVATIONS = {"relu": torch.relu_, "gelu": F.gelu, "silu": F.silu, "swiglu": _swiglu}


class _SplitHeads(torch.autograd.Function):
    """Split a fused projection (N, heads, E) without a copy, also in the backward pass.

    torch's backward pass would concatenate the gradients. Gradients of `nmt.model.attention` are
    already adjacent in memory.
    """

    @staticmethod
    def forward(ctx: Any, fused: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        ctx.sizes = sizes
        return fused.split(sizes, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # If the gradients are adjacent parts of one tensor (N, heads, E), return that tensor. Then
        # they have its strides, and each begins in memory where the one before it ends.
        first_gradient = gradients[0]
        num_tokens, _, dim = first_gradient.shape
        num_heads = sum(ctx.sizes)
        strides = (num_heads * dim, dim, 1)
        address = first_gradient.data_ptr()
        for gradient in gradients:
            if gradient.stride() != strides or gradient.data_ptr() != address:
                return torch.cat(gradients, dim=1), None
            address += gradient.shape[1] * dim * gradient.element_size()
        return first_gradient.as_strided((num_tokens, num_heads, dim), strides), None


def _split_heads(fused: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Split (N, heads * E) into views (N, size, E), one for each of ``sizes``."""
    heads = fused.unflatten(1, (sum(sizes), -1))
    # `_SplitHeads` only saves a copy in the backward pass. The compiler removes this copy itself,
    # and cannot optimize custom functions.
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return heads.split_with_sizes(sizes, 1)
    return _SplitHeads.apply(heads, sizes)  # type: ignore[no-untyped-call]


class _Attention(nn.Module):
    """Common parts of self- and cross-attention.

    A subclass creates its projections first, then calls `_add_output`. So random weights are drawn
    in the order of the computation.
    """

    def __init__(self, dim: int, config: ModelConfig, *, dropout: float) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        self.head_dim = dim // config.num_heads
        self._dropout = dropout
        self._bias = config.has_bias("attention")

    def _add_output(self, dim: int, config: ModelConfig) -> None:
        """Add the output projection, and QK-norm (Henry et al. 2020) if configured."""
        self.output = linear(dim, dim, bias=self._bias)
        # Always RMSNorm, whatever the other norms are: only the direction of heads matters.
        self.heads = nn.ModuleDict()
        if config.qk_norm:
            self.heads["query_norm"] = RMSNorm(self.head_dim, eps=1e-6)
            self.heads["key_norm"] = RMSNorm(self.head_dim, eps=1e-6)

    def _norm(self, name: str, heads: Tensor) -> Tensor:
        """Apply ``query_norm`` or ``key_norm``, if there is one, to (N, heads, E)."""
        if name in self.heads:
            heads = self.heads[name](heads)
        return heads

    @property
    def _active_dropout(self) -> float:
        """Dropout of attention weights; 0 in evaluation mode."""
        return self._dropout if self.training else 0.0


class SelfAttention(_Attention):
    """Multi-head self-attention."""

    def __init__(self, dim: int, config: ModelConfig, *, dropout: float) -> None:
        super().__init__(dim, config, dropout=dropout)
        # Number of heads of each fused matrix: queries, keys, values.
        self.sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        block_rows = [size * self.head_dim for size in self.sizes]
        self.query_key_value = linear(dim, sum(block_rows), bias=self._bias)
        # Initialized again, because `linear` only knows blocks of equal size.
        for block in self.query_key_value.weight.detach().split(block_rows):
            nn.init.xavier_uniform_(block)
        self._add_output(dim, config)
        relative = POSITIONS[config.positions].relative
        self.positions = relative(config, self.head_dim) if relative else None

    @override
    def forward(
        self,
        values: Tensor,
        sentences: Packed | None,
        *,
        causal: bool = False,
        cache: SelfCache | None = None,
    ) -> Tensor:
        """Compute self-attention: (N, D) -> (N, D).

        Args:
            values: Hidden states of packed tokens.
            sentences: Sentences of the tokens; not used with a cache.
            causal: Whether to mask later tokens.
            cache: Keys and values of earlier tokens, for decoding. The new keys and values are
                stored in it.
        """
        fused = self.query_key_value(values)
        query, key, value = _split_heads(fused, self.sizes)
        query = self._norm("query_norm", query)
        key = self._norm("key_norm", key)
        relative = self.positions
        vectors = None
        if relative is not None:
            if cache is not None:
                positions = cache.position
                vectors = relative.vectors(positions, cache.order)
            else:
                assert sentences is not None
                positions = sentences.positions
                # Backends expect vectors of the width of `Padding`.
                order = torch.arange(row_width(sentences), device=values.device)
                vectors = relative.vectors(order, order)
            # Keys are stored after rotation, because their positions never change.
            # Together, because each call computes the angles.
            heads = torch.cat((query, key), dim=1)
            heads = relative.rotate(heads, positions)
            query, key = heads.split(self.sizes[:2], dim=1)
        if cache is not None:
            # Of all tokens so far: (R, G, t + 1, E).
            all_keys, all_values, mask = cache.extend(key, value)
            if vectors is not None:
                # (1, t + 1, E) each: the query has one position, so all rows share the vectors.
                key_vectors, value_vectors = vectors
                all_keys = all_keys + key_vectors
                all_values = all_values + value_vectors
            mixed = cached_attention(query, all_keys, all_values, mask)
        else:
            assert sentences is not None
            segments = Segments(sentences, sentences, causal)
            mixed = attention(
                query, key, value, segments, vectors=vectors, dropout=self._active_dropout
            )
        return self.output(mixed.flatten(1))


class CrossAttention(_Attention):
    """Multi-head attention of the decoder over the encoder's output."""

    def __init__(self, dim: int, memory_dim: int, config: ModelConfig, *, dropout: float) -> None:
        super().__init__(dim, config, dropout=dropout)
        self.sizes = [self.num_kv_heads] * 2  # Number of heads of each fused matrix: keys, values.
        self.query = linear(dim, dim, bias=self._bias)
        kv_rows = sum(self.sizes) * self.head_dim
        self.key_value = linear(memory_dim, kv_rows, bias=self._bias, blocks=2)
        self._add_output(dim, config)

    def project_cross_kv(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project the encoder's output (M, D') to keys and values, (M, G, E) each."""
        key, value = _split_heads(self.key_value(memory), self.sizes)
        return self._norm("key_norm", key), value

    @override
    def forward(
        self,
        values: Tensor,
        memory: Tensor | None,
        segments: Segments | None,
        *,
        cache: CrossCache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Compute cross-attention: (N, D) -> (N, D).

        Args:
            values: Hidden states of packed target tokens.
            memory: The encoder's output (M, D'); not used with a cache.
            segments: Sentences of target and source; not used with a cache.
            cache: Keys and values of the source, for decoding.
            weights: A list to append attention weights to, averaged over heads: (B, T, S), or
                (B, K, S) with a cache; float32.
        """
        query = self.query(values)
        query = query.view(len(values), -1, self.head_dim)
        query = self._norm("query_norm", query)
        # In both branches, weights are computed separately and in float32, because fused kernels do
        # not return them.
        if cache is not None:
            if weights is not None:
                queries = query.unflatten(0, (len(cache.key), -1))  # (B, K, H, E)
                keys = cache.key.transpose(1, 2)  # (B, S, G, E)
                is_source = cache.mask[:, 0, 0] == 0  # (B, S)
                weights.append(mean_weights(queries, keys, is_source))
            mixed = cached_attention(query, *cache)
        else:
            assert memory is not None
            assert segments is not None
            key, value = self.project_cross_kv(memory)
            if weights is not None:
                target, source, _ = segments
                queries = target.pad(query)  # (B, T, H, E)
                keys = source.pad(key)  # (B, S, G, E)
                weights.append(mean_weights(queries, keys, source.mask()))
            mixed = attention(query, key, value, segments, dropout=self._active_dropout)
        return self.output(mixed.flatten(1))


class Residual(nn.Module):
    """Residual connection around a sub-layer, with norm (before or after) and dropout."""

    def __init__(self, dim: int, config: ModelConfig) -> None:
        super().__init__()
        self.norm = make_norm(config, dim)
        self._is_pre_norm = config.norm_position == "pre"
        self._dropout = config.dropout

    @override
    def forward(self, values: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``sublayer`` with norm, dropout and residual: (N, D) -> (N, D)."""
        # Pre-norm keeps an identity path from input to output, so deep models train without
        # warm-up (Xiong et al. 2020). Post-norm is the original (Vaswani et al. 2017).
        inputs = self.norm(values) if self._is_pre_norm else values
        outputs = sublayer(inputs)
        values = dropout(outputs, self._dropout, self.training, residual=values)
        return values if self._is_pre_norm else self.norm(values)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim = config.model_dim
        self.self_attention = SelfAttention(dim, config, dropout=config.attention_dropout)
        self.self_residual = Residual(dim, config)
        self.feed_forward = FeedForward(dim, config.ff_dim, config)
        self.feed_forward_residual = Residual(dim, config)

    @override
    def forward(self, values: Tensor, source: Packed) -> Tensor:
        """Run the layer on packed source tokens: (N, D) -> (N, D)."""
        values = self.self_residual(values, lambda normed: self.self_attention(normed, source))
        return self.feed_forward_residual(values, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        dim = config.decoder_dim
        dropout = config.decoder_attention_dropout
        if dropout is None:
            dropout = config.attention_dropout
        self.self_attention = SelfAttention(dim, config, dropout=dropout)
        self.self_residual = Residual(dim, config)
        self.cross_attention = CrossAttention(dim, config.model_dim, config, dropout=dropout)
        self.cross_residual = Residual(dim, config)
        self.feed_forward = FeedForward(dim, config.decoder_ff, config)
        self.feed_forward_residual = Residual(dim, config)

    @override
    def forward(
        self,
        values: Tensor,
        memory: Tensor | None = None,
        target: Packed | None = None,
        source: Packed | None = None,
        cache: LayerCache | None = None,
        weights: list[Tensor] | None = None,
    ) -> Tensor:
        """Run the layer: (N, D) -> (N, D).

        Args:
            values: Hidden states of packed target tokens; with a cache, of one token of each row.
            memory: The encoder's output (M, D').
            target: Sentences of ``values``.
            source: Sentences of ``memory``.
            cache: Caches for decoding, instead of ``memory``, ``target`` and ``source``.
            weights: See `CrossAttention.forward`.
        """
        segments = None
        if target is not None and source is not None:
            segments = Segments(target, source)
        self_cache, cross_cache = cache or (None, None)

        # `Residual` calls these with hidden states, after its norm if that comes first.
        def attend_to_target(hidden: Tensor) -> Tensor:
            return self.self_attention(hidden, target, causal=True, cache=self_cache)

        def attend_to_source(hidden: Tensor) -> Tensor:
            return self.cross_attention(
                hidden, memory, segments, cache=cross_cache, weights=weights
            )

        values = self.self_residual(values, attend_to_target)
        values = self.cross_residual(values, attend_to_source)
        return self.feed_forward_residual(values, self.feed_forward)
