"""Scaled dot-product attention over packed tokens (Vaswani et al. 2017, section 3.2).

Shapes: B sentences, T query and S key positions, H heads, E width of a head; N real tokens.
One function, `attend`, with two implementations that agree within rounding:

- `bmm_attention`, for the CPU: an autograd function of plain batched products. It copies each
  operand once, saves queries, keys, values and weights only, and is much faster at sentence
  lengths than the fused kernels there, whose backward is slow.
- `sdpa_attention`, for GPUs and compiled layers: torch's own `scaled_dot_product_attention`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmt.model.dropout import dropped_share, keep_mask
from nmt.model.layout import Cells, Layout


def attend(
    queries: Tensor,
    memory: Tensor | None,
    layouts: tuple[Layout, Layout],
    *,
    num_heads: int,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Read from each query's sentence what it asks for.

    Args:
        queries: Self-attention: queries, keys and values side by side, (N, 3 * H * E).
            Cross-attention: queries, (N, H * E).
        memory: Cross-attention: keys and values side by side, (M, 2 * H * E). Else None.
        layouts: Layouts of the queries and of the keys.
        num_heads: Heads H.
        causal: Whether a token sees only itself and those before it.
        dropout: Probability of dropping an attention weight.

    Returns:
        (N, H * E), in the dtype of ``queries``.
    """
    is_plain_cpu = queries.device.type == "cpu" and not torch.compiler.is_compiling()
    implementation = bmm_attention if is_plain_cpu else sdpa_attention
    return implementation(queries, memory, layouts, num_heads, causal, dropout)


def sdpa_attention(
    queries: Tensor,
    memory: Tensor | None,
    layouts: tuple[Layout, Layout],
    num_heads: int,
    causal: bool,
    dropout: float,
) -> Tensor:
    """`attend` by torch's fused kernels on the padded rectangle.

    No choice here depends on the batch: so one compiled graph serves all of them.
    """
    query_cells, key_cells = (layout.cells() for layout in layouts)

    def split(packed: Tensor, cells: Cells, parts: int) -> tuple[Tensor, ...]:
        heads = cells.spread(packed).unflatten(-1, (parts, num_heads, -1))
        return heads.permute(2, 0, 3, 1, 4).unbind(0)  # each (B, H, W, E)

    if memory is None:
        query, key, value = split(queries, query_cells, 3)
    else:
        (query,) = split(queries, query_cells, 1)
        key, value = split(memory, key_cells, 2)
    # A causal query that holds a token sees only keys that hold tokens: padding is on the right.
    mask = None if causal else key_cells.is_real[:, None, None, :]
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
    )
    return query_cells.collect(mixed.transpose(1, 2).flatten(-2))


def bmm_attention(
    queries: Tensor,
    memory: Tensor | None,
    layouts: tuple[Layout, Layout],
    num_heads: int,
    causal: bool,
    dropout: float,
) -> Tensor:
    """`attend` by batched matrix products with a hand-written backward."""
    inputs = (queries, memory, layouts, num_heads, causal, dropout)
    return _BmmAttention.apply(*inputs)  # type: ignore[no-untyped-call]


def read_past(query: Tensor, past: Tensor, filled: Tensor | None = None) -> Tensor:
    """Let one position of R rows read all positions so far, and itself.

    On a CPU, plain products of more than a few positions take two thirds of the time of the fused
    kernel. Which of both is used depends on the number of positions alone: so a row's result does
    not depend on the others.

    Args:
        query: (R, H, E).
        past: Keys and values. (2, R, H, t, E).
        filled: Where some of these t positions are still empty: 0, and minus infinity there.
            (1, 1, 1, t).

    Returns:
        (R, H * E).
    """
    rows, num_heads, head_dim = query.shape
    if filled is None and query.device.type == "cpu" and past.shape[3] * head_dim >= 448:
        key, value = past.flatten(1, 2).unbind(0)
        scores = torch.bmm(query.reshape(rows * num_heads, 1, head_dim), key.transpose(1, 2))
        weights = scores.mul_(head_dim**-0.5).softmax(-1)
        return torch.bmm(weights, value).view(rows, num_heads * head_dim)
    mixed = F.scaled_dot_product_attention(query.unsqueeze(2), past[0], past[1], filled)
    return mixed.flatten(1)


def read_source(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Let K rows of each of B sentences read its source.

    On a CPU, plain products take two thirds of the time of the fused kernel for large batches, and
    the fused kernel two thirds of theirs for small ones.

    Args:
        query: (B, H, K, E).
        key: (B, H, S, E).
        value: (B, H, S, E).
        bias: 0, and minus infinity at padding. (B, 1, 1, S).

    Returns:
        (B, H, K, E).
    """
    sentences, num_heads, rows, head_dim = query.shape
    if query.device.type == "cpu" and sentences * num_heads * rows >= 64:
        scores = torch.bmm(query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
        scores = scores.view(sentences, num_heads, rows, -1)
        weights = scores.mul_(head_dim**-0.5).add_(bias).softmax(-1).flatten(0, 1)
        return torch.bmm(weights, value.flatten(0, 1)).view(query.shape)
    return F.scaled_dot_product_attention(query, key, value, bias)


def mean_weights(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """Return how much of each key each query sees: the mean over the heads.

    Args:
        query: (B, H, T, E).
        key: (B, H, S, E).
        bias: 0, and minus infinity at padding. (B, 1, 1, S).

    Returns:
        (B, T, S), float32. Rows sum to 1.
    """
    scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
    return (scores + bias).softmax(-1).mean(1)


def _causal_bias(width: int, like: Tensor) -> Tensor:
    return torch.full((width, width), -torch.inf, dtype=like.dtype, device=like.device).triu_(1)


def _weights(query: Tensor, key: Tensor, layout: Layout, num_heads: int, causal: bool) -> Tensor:
    """Softmax of the scaled scores: (B * H, T, S)."""
    scale = query.shape[-1] ** -0.5
    if causal:
        bias = _causal_bias(key.shape[1], query)
    elif layout.has_padding:
        bias = layout.score_bias(num_heads).to(query.dtype)
    else:
        return torch.bmm(query * scale, key.mT).softmax(-1)
    return torch.baddbmm(bias, query, key.mT, alpha=scale).softmax(-1)


class _BmmAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        memory: Tensor | None,
        layouts: tuple[Layout, Layout],
        num_heads: int,
        causal: bool,
        dropout: float,
    ) -> Tensor:
        query_layout, key_layout = layouts

        def split(packed: Tensor, layout: Layout, parts: int) -> tuple[Tensor, ...]:
            rows = packed.reshape(layout.num_tokens * parts * num_heads, -1)
            cells = rows.index_select(0, layout.heads_to_rectangle(parts, num_heads))
            return cells.view(parts, layout.batch_size * num_heads, layout.width, -1).unbind(0)

        if memory is None:
            query, key, value = split(queries, query_layout, 3)
        else:
            (query,) = split(queries, query_layout, 1)
            key, value = split(memory, key_layout, 2)
        weights = _weights(query, key, key_layout, num_heads, causal)
        kept = None
        if dropout:
            kept = keep_mask(weights, dropout).mul_(1 / (1 - dropped_share(dropout)))
        mixed = torch.bmm(weights if kept is None else weights * kept, value)
        ctx.save_for_backward(query, key, value, weights, kept)
        ctx.layouts, ctx.num_heads, ctx.fused = layouts, num_heads, memory is None
        rows = mixed.view(-1, mixed.shape[-1])
        packed = rows.index_select(0, query_layout.heads_to_packed(1, num_heads))
        return packed.view(query_layout.num_tokens, -1)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        query, key, value, weights, kept = ctx.saved_tensors
        (query_layout, key_layout), num_heads = ctx.layouts, ctx.num_heads
        head_dim = query.shape[-1]
        rows = gradient.reshape(-1, head_dim)
        mixed = rows.index_select(0, query_layout.heads_to_rectangle(1, num_heads))
        if query_layout.has_padding:
            mixed.index_fill_(0, query_layout.padded_head_rows(num_heads), 0)
        mixed = mixed.view_as(query)

        parts = 3 if ctx.fused else 2
        gradients = key.new_empty(parts, *key.shape)
        dropped = weights if kept is None else weights * kept
        torch.bmm(dropped.mT, mixed, out=gradients[-1])
        of_weights = torch.bmm(mixed, value.mT)
        if kept is not None:
            of_weights.mul_(kept)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_scores.mul_(head_dim**-0.5)
        torch.bmm(of_scores.mT, query, out=gradients[-2])

        def join(heads: Tensor, layout: Layout, parts: int) -> Tensor:
            select = layout.heads_to_packed(parts, num_heads)
            packed = heads.view(-1, head_dim).index_select(0, select)
            return packed.view(layout.num_tokens, parts * num_heads * head_dim)

        if ctx.fused:
            torch.bmm(of_scores, key, out=gradients[0])
            return join(gradients, query_layout, 3), None, None, None, None, None
        of_query = join(torch.bmm(of_scores, key), query_layout, 1)
        return of_query, join(gradients, key_layout, 2), None, None, None, None
