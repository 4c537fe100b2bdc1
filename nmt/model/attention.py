"""Scaled dot-product attention over packed tokens (Vaswani et al. 2017, section 3.2).

`attention` computes whole sentences, with a backend from `BACKENDS`. `cached_attention` computes
one new token of each row, while decoding. Most backends pad packed tokens.
`FlashAttention` (Dao 2023) works without padding.

Shapes: B sentences, N query and M key tokens, T and S the longest sentence of each, H query heads,
G key/value heads (each is shared by H / G query heads, Ainslie et al. 2023), E head width.
Decoding: R = B * K rows, K beams of each sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmt.model.dropout import dropout as drop
from nmt.model.dropout import dropped_share, keep_mask
from nmt.packed import Packed

_MANY_SCORES = 2048  # with fewer scores torch's fused kernel is faster on a CPU
# What flash attention requires: dtypes, major version of the compute capability, head width.
_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_LEAST_CAPABILITY = 8
_WIDEST_HEAD = 256


class Segments(NamedTuple):
    """Which tokens attend to which."""

    queries: Packed  # Sentences of the queries.
    keys: Packed  # Sentences of the keys: the same object in self-attention.
    is_causal: bool = False  # Whether later keys are masked.


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    *,
    vectors: tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute attention within each sentence.

    Args:
        query: (N, H, E).
        key: (M, G, E).
        value: (M, G, E).
        segments: Sentences of queries and keys.
        vectors: Vectors to add to keys, and vectors to add to values, for each position of the
            query and of the key. (W, W', E) each, with widths from `row_width`.
        dropout: Probability of dropping an attention weight.

    Returns:
        (N, H, E), in the dtype of ``query``.
    """
    if vectors is not None:
        return _relative_attention(query, key, value, segments, vectors, dropout)
    flash = FLASH.get(query.device.type)
    if flash is not None and flash.fits(query, key, dropout):
        return flash(query, key, value, segments)
    kind = query.device.type
    if torch.compiler.is_compiling():
        kind = "compiled"
    backend = BACKENDS.get(kind, sdpa_attention)
    return backend(query, key, value, segments, dropout)


def cached_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention of one new token of each row over cached keys and values.

    The beams of a sentence may share keys, and the H / G heads of a group do. The queries that
    share keys are multiplied in one product: (B, G, K * H / G, E).

    Args:
        query: (R, H, E).
        key: (R, G, S, E), or (B, G, S, E) if the beams of a sentence share keys.
        value: Same shape as ``key``.
        mask: 0, or minus infinity for masked keys. (B, G, 1, S), or a shape that expands to it.

    Returns:
        (R, H, E).
    """
    num_rows, num_heads, dim = query.shape
    # Without shared keys, each row counts as a sentence with one beam.
    num_sentences, num_groups, length, _ = key.shape
    num_beams = num_rows // num_sentences
    group_size = num_heads // num_groups
    # (B, K, G, H / G, E) -> (B, G, K, H / G, E).
    grouped = query.view(num_sentences, num_beams, num_groups, group_size, dim).transpose(1, 2)
    grouped = grouped.reshape(num_sentences, num_groups, num_beams * group_size, dim)
    if query.device.type == "cpu" and num_rows * num_heads * length >= _MANY_SCORES:
        mixed = _cpu_products(grouped, key, value, mask)
    else:
        mixed = F.scaled_dot_product_attention(grouped, key, value, mask)
    # Back to rows and heads.
    mixed = mixed.view(num_sentences, num_groups, num_beams, group_size, dim).transpose(1, 2)
    return mixed.reshape(num_rows, num_heads, dim)


def _cpu_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention as three operations, up to twice as fast as torch's fused kernel.

    Args:
        query: (B, G, Q, E), with Q queries that share keys.
        key: (B, G, S, E).
        value: (B, G, S, E).
        mask: See `cached_attention`.

    Returns:
        (B, G, Q, E).
    """
    num_sentences, num_groups, _, dim = query.shape
    queries = query.flatten(0, 1)
    keys = key.flatten(0, 1)
    scale = dim**-0.5
    if mask is None:
        ignored = queries.new_empty(1)  # with `beta` 0 it is not read
        scores = torch.baddbmm(ignored, queries, keys.mT, beta=0, alpha=scale)
    else:
        mask = mask.expand(num_sentences, num_groups, -1, -1).flatten(0, 1)
        scores = torch.baddbmm(mask, queries, keys.mT, alpha=scale)
    weights = scores.softmax(-1)
    return torch.bmm(weights, value.flatten(0, 1)).view(query.shape)


def mean_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """Return attention weights, averaged over the heads.

    Args:
        query: (B, T, H, E).
        key: (B, S, G, E).
        mask: Whether a key is not padding. (B, S), bool.

    Returns:
        (B, T, S), float32. Rows sum to 1.
    """
    # Grouped queries: repeat each key for the query heads that share it.
    group_size = query.shape[2] // key.shape[2]
    key = key.repeat_interleave(group_size, dim=2)
    queries = query.float().transpose(1, 2)  # (B, H, T, E)
    keys = key.float().permute(0, 2, 3, 1)  # (B, H, E, S)
    scores = queries @ keys
    scores.mul_(query.shape[-1] ** -0.5)
    scores.masked_fill_(~mask[:, None, None, :], -torch.inf)
    return scores.softmax(-1).mean(1)


def _padding_rows(packed: Packed, num_heads: int) -> Tensor:
    """Return the indices of the rows of (B * heads * S, E) that are padding. int64."""
    is_padding = ~packed.mask()
    is_padding = is_padding.unsqueeze(1).expand(-1, num_heads, -1)  # (B, heads, S)
    return is_padding.flatten().nonzero().squeeze(1)


def _key_mask(packed: Packed, num_heads: int, dtype: torch.dtype) -> Tensor:
    """Return 0 for real keys and minus infinity for padding. (B * heads, 1, S)."""
    is_token = packed.mask()
    mask = torch.zeros(is_token.shape, dtype=dtype, device=is_token.device)
    mask.masked_fill_(~is_token, -torch.inf)
    return mask.repeat_interleave(num_heads, dim=0).unsqueeze(1)


def _later_mask(packed: Packed, group_size: int, dtype: torch.dtype) -> Tensor:
    """Return 0 for a token and earlier tokens, else minus infinity. (heads of a group * S, S)."""
    width = packed.max_length
    mask = torch.full((width, width), -torch.inf, dtype=dtype)
    return mask.triu_(1).repeat(group_size, 1)


class _BmmAttention(torch.autograd.Function):
    """Attention on a CPU by batched matrix products, with a hand-written backward pass.

    Copies each operand once, and saves only queries, keys, values and weights. At sentence lengths
    it is much faster than torch's fused CPU kernels, whose backward pass is slow. The H / G query
    heads of a group are rows of one matrix, so shared keys and values are not repeated.

    Padded shapes: query (B * G, H / G * T, E), key and value (B * G, S, E), and weights
    (B * G, H / G * T, S).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, dropout: float
    ) -> Tensor:
        queries, keys, _ = segments
        _, num_heads, dim = query.shape
        num_groups = key.shape[1]
        query = to_padded(query, queries).view(len(queries) * num_groups, -1, dim)
        key = to_padded(key, keys)
        value = to_padded(value, keys)
        mask = _score_mask(query, segments, num_groups)
        scale = dim**-0.5
        if mask is None:
            scores = torch.bmm(query * scale, key.mT)
        else:
            scores = torch.baddbmm(mask, query, key.mT, alpha=scale)
        weights = scores.softmax(-1)
        del scores  # the largest tensor here: not kept beside the weights
        # 0 for dropped weights; the factor of dropout, which keeps the mean, for the others.
        drop_factors = None
        if dropout:
            drop_factors = keep_mask(weights.shape, dropout, weights.dtype)
            drop_factors = drop_factors.to(weights.dtype)
            drop_factors.mul_(1 / (1 - dropped_share(dropout)))
        mixed = torch.bmm(_dropped(weights, drop_factors), value)
        ctx.save_for_backward(query, key, value, weights, drop_factors)
        ctx.segments = segments
        ctx.num_heads = num_heads
        return to_packed(mixed.view(-1, dim), queries, (num_heads,))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, drop_factors = ctx.saved_tensors
        queries, keys, _ = ctx.segments
        num_heads = ctx.num_heads
        num_groups = len(key) // len(keys)
        dim = query.shape[-1]
        # Names with `grad` are gradients of the loss with respect to the rest of the name.
        mixed_grad = to_padded(gradient, queries)
        if queries.has_padding:
            # `to_padded` fills padding with the values of the first token.
            padding = queries.derived(_padding_rows, num_heads)
            mixed_grad.view(-1, dim).index_fill_(0, padding, 0)
        mixed_grad = mixed_grad.view_as(query)

        # One tensor with the gradients of queries, keys and values, so that one selection packs it.
        num_queries = query.numel() // dim
        num_keys = key.numel() // dim
        gradients = key.new_empty(num_queries + 2 * num_keys, dim)
        query_grad, key_grad, value_grad = gradients.split([num_queries, num_keys, num_keys])
        torch.bmm(_dropped(weights, drop_factors).mT, mixed_grad, out=value_grad.view_as(value))
        # First the gradient of the weights, which becomes that of the scores in place.
        scores_grad = torch.bmm(mixed_grad, value.mT)
        if drop_factors is not None:
            scores_grad.mul_(drop_factors)
        # Gradient of softmax: weights * (gradient - sum(gradient * weights)). torch's kernel for it
        # is not public. torch.autograd.grad on softmax would run recomputed layers once more.
        scores_grad.mul_(weights)
        scores_grad.addcmul_(weights, scores_grad.sum(-1, keepdim=True), value=-1)
        scale = dim**-0.5
        key_out = key_grad.view_as(key)
        query_out = query_grad.view_as(query)
        # With `beta` 0, old values are ignored.
        torch.baddbmm(key_out, scores_grad.mT, query, beta=0, alpha=scale, out=key_out)
        torch.baddbmm(query_out, scores_grad, key, beta=0, alpha=scale, out=query_out)
        # The last two results belong to `segments` and `dropout`, which have no gradient.
        if queries is keys:  # self-attention
            heads = (num_heads, num_groups, num_groups)
            packed = to_packed(gradients, queries, heads)
            return *packed.split(heads, dim=1), None, None
        packed_query = to_packed(query_grad, queries, (num_heads,))
        packed_kv = to_packed(gradients[num_queries:], keys, (num_groups, num_groups))
        return packed_query, *packed_kv.split(num_groups, dim=1), None, None


def _score_mask(query: Tensor, segments: Segments, num_groups: int) -> Tensor | None:
    """Return a mask to add to scores (B * G, H / G * T, S), or None if no score is masked."""
    keys = segments.keys
    if segments.is_causal:
        group_size = query.shape[1] // keys.max_length
        return keys.derived(_later_mask, group_size, query.dtype)
    if keys.has_padding:
        return keys.derived(_key_mask, num_groups, query.dtype)
    return None


def _dropped(weights: Tensor, drop_factors: Tensor | None) -> Tensor:
    return weights if drop_factors is None else weights * drop_factors


# Takes query, key, value, segments and dropout of `attention`; returns its result.
Backend = Callable[[Tensor, Tensor, Tensor, Segments, float], Tensor]
# Attention by batched matrix products on padded batches.
bmm_attention: Backend = _BmmAttention.apply


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, dropout: float
) -> Tensor:
    """Attention by torch's fused kernels on padded batches. For the arguments see `attention`.

    No branch depends on the batch, so one compiled graph serves all batches.
    """
    queries = Padding.of(segments.queries)
    keys = Padding.of(segments.keys)
    mask = None
    # Causal attention needs no padding mask, because padding is on the right.
    if not segments.is_causal:
        mask = keys.is_real[:, None, None, :]
    mixed = F.scaled_dot_product_attention(
        queries.pad(query).transpose(1, 2),
        keys.pad(key).transpose(1, 2),
        keys.pad(value).transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=segments.is_causal,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return queries.unpad(mixed.transpose(1, 2))


def _relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    vectors: tuple[Tensor, Tensor],
    dropout: float,
) -> Tensor:
    """Attention whose keys and values depend on the position of the query (Shaw et al. 2018).

    Fused kernels do not support this. Scores and outputs are sums of two products: one with the
    keys or values of tokens, one with the vectors of position pairs (section 3.3 of the paper).
    """
    queries = Padding.of(segments.queries)
    keys = Padding.of(segments.keys)
    key_vectors, value_vectors = (pairs.to(query.dtype) for pairs in vectors)
    num_groups = key.shape[1]
    scale = query.shape[2] ** -0.5
    query = queries.pad(query) * scale
    # In einsum: b sentence, t query, s key, g group, h head of the group, e feature.
    query = query.unflatten(2, (num_groups, -1))  # (B, T, G, H/G, E)
    key = keys.pad(key)  # (B, S, G, E)
    value = keys.pad(value)
    scores = torch.einsum("btghe,bsge->bghts", query, key)
    scores = scores + torch.einsum("btghe,tse->bghts", query, key_vectors)
    mask = keys.is_real[:, None, None, None, :]
    if segments.is_causal:
        widths = key_vectors.shape[:2]
        is_not_later = torch.ones(widths, dtype=torch.bool, device=mask.device).tril()
        mask = mask & is_not_later
    scores = scores.masked_fill(~mask, -torch.inf)
    # At least float32; float64 stays.
    softmax_dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.softmax(-1, dtype=softmax_dtype).to(query.dtype)
    weights = drop(weights, dropout, training=True)
    mixed = torch.einsum("bghts,bsge->btghe", weights, value)
    mixed = mixed + torch.einsum("bghts,tse->btghe", weights, value_vectors)
    # Not `Padding.unpad`, whose gradient is not 0 in the unused second row of a single sentence.
    mixed = mixed.flatten(2, 3).flatten(0, 1)
    return mixed.index_select(0, queries.cell)


def to_padded(heads: Tensor, packed: Packed) -> Tensor:
    """Pad heads: (N, G, E) -> (B * G, S, E). Padding contains the values of the first token.

    Views into a fused projection, (N, all heads, E), are copied only once.
    """
    _, num_heads, dim = heads.shape
    token_stride, *inner_strides = heads.stride()
    if inner_strides != [dim, 1] or token_stride % dim:
        heads = heads.contiguous()
    # Select rows of E values from the fused projection: this saves the copy of `contiguous`. The
    # heads of the next token begin `rows_per_token` rows later.
    rows_per_token = heads.stride(0) // dim
    # Up to the last head of the last token: later rows may be outside of the memory.
    num_rows = (len(heads) - 1) * rows_per_token + num_heads
    rows = heads.as_strided((num_rows, dim), (dim, 1))
    padded = rows.index_select(0, packed.derived(_padded_rows, rows_per_token, num_heads))
    return padded.view(len(packed) * num_heads, packed.max_length, dim)


def to_packed(padded: Tensor, packed: Packed, part_heads: Sequence[int]) -> Tensor:
    """Remove padding, and put heads that were padded separately side by side.

    Args:
        padded: One or more padded parts, each (B * heads, S, E), as one list of rows of width E.
        packed: The sentences.
        part_heads: Number of heads of each part.

    Returns:
        (N, sum of heads, E).
    """
    rows = packed.derived(_packed_rows, *part_heads)
    return padded.index_select(0, rows).view(packed.num_tokens, sum(part_heads), -1)


def _padded_rows(packed: Packed, rows_per_token: int, num_heads: int) -> Tensor:
    """Return the row to copy into each cell of (B, heads, S), flattened. int64.

    Args:
        packed: The sentences.
        rows_per_token: How many rows later the heads of the next token begin.
        num_heads: Number of heads. They are adjacent rows.
    """
    tokens = packed.derived(_cell_tokens)
    heads = torch.arange(num_heads, device=tokens.device)
    rows = torch.add(heads.unsqueeze(1), tokens, alpha=rows_per_token)  # (B, heads, S)
    return rows.flatten()


def _cell_tokens(packed: Packed) -> Tensor:
    """Return the index of the token in each cell; padding has token 0. (B, 1, S), int64."""
    order = torch.arange(packed.num_tokens, device=packed.ids.device)
    tokens = order.new_zeros(packed.num_cells)
    tokens.index_copy_(0, packed.cells, order)
    return tokens.view(len(packed), 1, -1)


def _packed_rows(packed: Packed, *part_heads: int) -> Tensor:
    """Return the row to copy for each token and head, (N, sum of heads), flattened. int64.

    The rows are those of the concatenated parts of `to_packed`. A part with h heads has the padded
    shape (B, h, S).
    """
    columns = []
    start = 0  # first row of the part
    width = packed.max_length
    sentences = packed.sentences.unsqueeze(1)
    positions = packed.positions.unsqueeze(1)
    for num_heads in part_heads:
        sentence_rows = num_heads * width
        # First row of each head of the first sentence. (heads,)
        heads = torch.arange(start, start + sentence_rows, width, device=positions.device)
        columns.append(torch.add(positions + heads, sentences, alpha=sentence_rows))
        start += len(packed) * sentence_rows
    return torch.cat(columns, dim=1).flatten()


class Padding(NamedTuple):
    """Index maps between packed tokens and a padded batch of B x W cells.

    Used on GPUs and by compiled layers. W is rounded up to a multiple of 8, because GPU kernels
    copy masks of any other width. B is at least 2, because torch compiles a layer again for size 1.
    """

    token: Tensor  # Index of the token in each cell; padding has token 0. (B, W), int64.
    cell: Tensor  # Index of the cell of each token. (N,), int64.
    is_real: Tensor  # Whether a cell is not padding; True in column 0. (B, W), bool.

    @classmethod
    def of(cls, packed: Packed) -> Padding:
        """Return the padding of ``packed``, computed once per batch."""
        return packed.derived(_padding_of)

    def pad(self, packed: Tensor) -> Tensor:
        """Pad: (N, ...) -> (B, W, ...). Padding contains the values of the first token."""
        cells = _select(packed, self.token.flatten(), self.cell, None)
        return cells.unflatten(0, self.token.shape)

    def unpad(self, cells: Tensor) -> Tensor:
        """Remove padding: (B, W, ...) -> (N, ...). The gradient of padding is 0."""
        rows = cells.flatten(0, 1)
        return _select(rows, self.cell, self.token.flatten(), self.is_real.flatten())


def row_width(packed: Packed) -> int:
    """Return the width W of the `Padding` of ``packed``: its length, rounded up to 8."""
    return -(-packed.max_length // 8) * 8


def _padding_of(packed: Packed) -> Padding:
    """Compute the padding of ``packed``."""
    width = row_width(packed)
    cell = packed.sentences * width + packed.positions
    order = torch.arange(len(cell), device=cell.device)
    token = cell.new_zeros(max(len(packed), 2), width)
    token.view(-1).index_copy_(0, cell, order)
    is_real = torch.zeros_like(token, dtype=torch.bool)
    is_real.view(-1).index_fill_(0, cell, True)
    is_real[:, 0] = True  # attention over a row without any key is NaN
    return Padding(token, cell, is_real)


class _Select(torch.autograd.Function):
    """Select rows ``there``, with a gradient that is also a selection, of rows ``back``.

    This is correct if no real row is selected twice. Without this assumption, torch uses a slower
    sum. For each input row, ``back`` is the index of the output row that is its copy. Input rows
    without a copy are False in ``is_real``, and their gradient is 0. None: all rows have a copy.
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
            # The mask of rows, with a dimension of size 1 for each other dimension.
            inner_shape = [1] * (gradient.dim() - 1)
            gradient = gradient.masked_fill(~is_real.view(-1, *inner_shape), 0)
        return gradient, None, None, None


_select: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor] = _Select.apply


@dataclass(frozen=True)
class FlashAttention:
    """torch's variable-length flash attention, which needs no padding.

    It needs a GPU of compute capability 8.0 or higher, and 16-bit types. The arguments of torch's
    function depend on the release: ``is_causal`` in 2.10 is ``window_size`` later, and shared keys
    came after 2.11. Tests check the signatures of 2.10 and 2.13 with a substitute kernel; tests
    marked ``gpu`` run the real kernel.
    """

    kernel: Callable[..., Any]
    causal: dict[str, Any]  # Arguments for causal attention.
    # Arguments for query heads that share keys; None if the kernel does not support it.
    shared: dict[str, Any] | None

    @classmethod
    def of(cls, kernel: Callable[..., Any]) -> FlashAttention:
        """Wrap ``kernel``, with arguments that fit its signature."""
        names = inspect.signature(kernel).parameters
        causal: dict[str, Any] = {"is_causal": True}
        shared: dict[str, Any] | None = None
        if "window_size" in names:
            causal = {"window_size": (-1, 0)}
        if "enable_gqa" in names:
            shared = {"enable_gqa": True}
        return cls(kernel, causal, shared)

    def fits(self, query: Tensor, key: Tensor, dropout: float) -> bool:
        """Whether the kernel supports these arguments of `attention`."""
        _, num_heads, head_dim = query.shape
        fits_width = head_dim % 8 == 0 and head_dim <= _WIDEST_HEAD
        fits_groups = self.shared is not None or num_heads == key.shape[1]
        return query.dtype in _FLASH_DTYPES and fits_width and fits_groups and not dropout

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, segments: Segments) -> Tensor:
        """Compute attention: (N, H, E) and twice (M, G, E) -> (N, H, E)."""
        queries, keys, is_causal = segments
        options: dict[str, Any] = {}  # Dynamo cannot trace `dict[str, Any]()`.
        if is_causal:
            options |= self.causal
        if query.shape[1] != key.shape[1]:
            options |= self.shared or {}  # not None here: see `fits`
        mixed: Tensor = self.kernel(
            query,
            key,
            value,
            queries.cu_seqlens,
            keys.cu_seqlens,
            queries.max_length,
            keys.max_length,
            **options,
        )
        return mixed


def find_flash(device: torch.device) -> FlashAttention | None:
    """Return flash attention for ``device``; None if torch or the device does not support it."""
    if device.type != "cuda":
        return None
    major, _ = torch.cuda.get_device_capability(device)
    if major < _LEAST_CAPABILITY:
        return None
    try:
        # Imported here, because it loads the compiler, which takes seconds.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415
    except ImportError:  # before torch 2.10
        return None
    return FlashAttention.of(varlen_attn)


# Backend by device type, or by ``compiled`` for compiled layers. Other types use `sdpa_attention`.
BACKENDS: dict[str, Backend] = {"cpu": bmm_attention, "compiled": sdpa_attention}
# Flash attention by device type, used instead of the backend if it supports the arguments.
FLASH: dict[str, FlashAttention | None] = {"cpu": None}


def look_for_flash(packed: Packed) -> None:
    """Look for flash attention on the device of ``packed``. Must run outside compiled layers."""
    device = packed.ids.device
    if device.type not in FLASH:
        FLASH[device.type] = find_flash(device)
