"""Scaled dot-product attention over packed tokens (Vaswani et al. 2017, section 3.2).

`attention` reads whole sentences, by a backend of `BACKENDS`; `cached_attention` lets a new token
of each row read what came before. Rectangles, packed tokens with padding, serve attention alone.
Flash attention (Dao 2023) needs none: `FlashAttention`.

Shapes: B sentences, N query and M key tokens, T and S the longest sentence of each, H query heads,
G key/value heads (G divides H; each serves H / G query heads, Ainslie et al. 2023), E head width.
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

_MANY_SCORES = 2048  # of fewer torch's fused kernel is faster, on a CPU
_DTYPES = (torch.bfloat16, torch.float16)
_LEAST_CAPABILITY = 8
_WIDEST_HEAD = 256
# The sentences of queries and of keys; one object twice in self-attention.
Segments = tuple[Packed, Packed]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: Segments,
    *,
    causal: bool = False,
    bias: Tensor | None = None,
    vectors: tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Read from the keys of each query's sentence what the query asks for.

    Args:
        query: (N, H, E).
        key: (M, G, E).
        value: (M, G, E).
        segments: Sentences of queries and keys.
        causal: Whether a token reads only itself and those before it.
        bias: Added to the scores: (H, T, S).
        vectors: Added to the keys and to the values that each query reads, of all positions in
            rows of `row_width`: (W, W', E) each.
        dropout: Probability of dropping an attention weight.

    Returns:
        (N, H, E), in the dtype of ``query``.
    """
    if vectors is not None:
        return _plain_attention(query, key, value, bias, vectors, segments, causal, dropout)
    flash = FLASH.get(query.device.type)
    if flash is not None and flash.fits(query, key, bias, dropout):
        return flash(query, key, value, segments, causal)
    backend = "compiled" if torch.compiler.is_compiling() else query.device.type
    run = BACKENDS.get(backend, sdpa_attention)
    return run(query, key, value, bias, segments, causal, dropout)


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """Let R rows, one new token each, read cached keys and values.

    The beams of a sentence and the heads of a group read the same keys: they are the queries of one
    product, (B, G, K * H / G, E).

    Args:
        query: (R, H, E).
        key: (R, G, S, E), or (B, G, S, E) where beams share them.
        value: As ``key``.
        mask: Minus infinity where a key must not be read and else 0: (B, G, 1, S), or what can be
            expanded to it.
        bias: Added to the scores: (H, 1, S).

    Returns:
        (R, H, E).
    """
    rows, num_heads, dim = query.shape
    sentences, groups, length, _ = key.shape
    beams, share = rows // sentences, num_heads // groups
    grouped = query.view(sentences, beams, groups, share, dim).transpose(1, 2)
    grouped = grouped.reshape(sentences, groups, beams * share, dim)
    if bias is not None:
        own = bias.view(groups, 1, share, length).expand(-1, beams, -1, -1)
        own = own.reshape(groups, beams * share, length).to(query.dtype)
        mask = own if mask is None else own + mask
    if query.device.type == "cpu" and rows * num_heads * length >= _MANY_SCORES:
        mixed = _cpu_products(grouped, key, value, mask)
    else:
        mixed = F.scaled_dot_product_attention(grouped, key, value, mask)
    mixed = mixed.view(sentences, groups, beams, share, dim).transpose(1, 2)
    return mixed.reshape(rows, num_heads, dim)


def _cpu_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as three operations, in down to half the time of torch's fused kernel."""
    queries, keys, values = (x.flatten(0, 1) for x in (query, key, value))
    added, beta = queries.new_empty(1), 0
    if mask is not None:
        added, beta = mask.expand(*query.shape[:2], -1, -1).flatten(0, 1), 1
    scores = torch.baddbmm(added, queries, keys.mT, beta=beta, alpha=query.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), values).view(query.shape)


def mean_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """Return how much of each key each query reads: the mean over the heads.

    Queries (B, T, H, E), keys (B, S, G, E), and whether there is a key, (B, S), bool -> (B, T, S),
    float32, whose rows sum to 1.
    """
    key = key.repeat_interleave(query.shape[2] // key.shape[2], dim=2)
    scores = query.float().transpose(1, 2) @ key.float().permute(0, 2, 3, 1)
    scores.mul_(query.shape[-1] ** -0.5).masked_fill_(~mask[:, None, None, :], -torch.inf)
    return scores.softmax(-1).mean(1)


def _padding_rows(packed: Packed, heads: int) -> Tensor:
    """Rows of (B * heads * S, E) that are padding."""
    padding = (~packed.mask()).unsqueeze(1).expand(-1, heads, -1)
    return padding.flatten().nonzero().squeeze(1)


def _key_mask(packed: Packed, heads: int) -> Tensor:
    """0 for real keys and minus infinity for padding. (B * heads, 1, S), float32."""
    mask = packed.mask()
    bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
    return bias.repeat_interleave(heads, dim=0).unsqueeze(1)


class _BmmAttention(torch.autograd.Function):
    """Batched matrix products with a hand-written backward, for sentences on a CPU.

    Copies each operand once, saves queries, keys, values and weights only, and is much faster at
    sentence lengths than torch's fused kernels there, whose backward is slow. The H / G query heads
    of a group are in one matrix, so shared keys and values are never repeated.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        segments: Segments,
        causal: bool,
        dropout: float,
    ) -> Tensor:
        queries, keys = segments
        num_heads, groups, dim = query.shape[1], key.shape[1], query.shape[2]
        query = to_padded(query, queries).view(len(queries) * groups, -1, dim)
        key, value = to_padded(key, keys), to_padded(value, keys)
        added, scale = _added(query, bias, keys, groups, causal), dim**-0.5
        if added is None:
            weights = torch.bmm(query * scale, key.mT).softmax(-1)
        else:
            weights = torch.baddbmm(added, query, key.mT, alpha=scale).softmax(-1)
        kept = None
        if dropout:
            kept = keep_mask(weights.shape, dropout, weights.dtype).to(weights.dtype)
            kept.mul_(1 / (1 - dropped_share(dropout)))
        mixed = torch.bmm(weights if kept is None else weights * kept, value)
        ctx.save_for_backward(query, key, value, weights, kept)
        ctx.segments, ctx.heads = segments, (num_heads, groups)
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)
        return to_packed(mixed.view(-1, dim), queries, (num_heads,))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, kept = ctx.saved_tensors
        (queries, keys), (num_heads, groups) = ctx.segments, ctx.heads
        dim = query.shape[-1]
        mixed = to_padded(gradient, queries)
        if queries.has_padding:
            mixed.view(-1, dim).index_fill_(0, queries.derived(_padding_rows, num_heads), 0)
        mixed = mixed.view_as(query)

        sizes = [query.shape[0] * query.shape[1], *[key.shape[0] * key.shape[1]] * 2]
        gradients = key.new_empty(sum(sizes), dim)
        of_query, of_key, of_value = gradients.split(sizes)
        dropped = weights if kept is None else weights * kept
        torch.bmm(dropped.mT, mixed, out=of_value.view_as(value))
        of_weights = torch.bmm(mixed, value.mT)
        if kept is not None:
            of_weights.mul_(kept)
        # Of softmax: weights * (gradient - sum(gradient * weights)). torch's own kernel differs in
        # the last bit, but has no public name; and torch.autograd.grad on a graph of softmax alone
        # would run each layer once more where layers are recomputed.
        of_scores = of_weights.mul_(weights)
        of_scores.addcmul_(weights, of_scores.sum(-1, keepdim=True), value=-1)
        of_bias = None
        if ctx.bias is not None and ctx.needs_input_grad[3]:
            shape, dtype = ctx.bias
            of_bias = of_scores.view(-1, *shape).sum(0).to(dtype)
        of_scores.mul_(dim**-0.5)
        torch.bmm(of_scores.mT, query, out=of_key.view_as(key))
        torch.bmm(of_scores, key, out=of_query.view_as(query))
        if queries is keys:
            joined = to_packed(gradients, queries, (num_heads, groups, groups))
            parts = joined.split((num_heads, groups, groups), dim=1)
        else:
            both = to_packed(gradients[sizes[0] :], keys, (groups, groups))
            parts = (to_packed(of_query, queries, (num_heads,)), *both.split(groups, dim=1))
        return *parts, of_bias, None, None, None


def _added(
    query: Tensor, bias: Tensor | None, keys: Packed, groups: int, causal: bool
) -> Tensor | None:
    """What is added to the scores (B * G, H / G * T, S), or broadcast to them."""
    width, added = keys.max_length, None
    if causal:
        shares = query.shape[1] // width
        blocked = torch.full((width, width), -torch.inf, dtype=query.dtype, device=query.device)
        added = blocked.triu_(1) if shares == 1 else blocked.triu_(1).repeat(shares, 1)
    elif keys.has_padding:
        added = keys.derived(_key_mask, groups).to(query.dtype)
    if bias is None:
        return added
    own = bias.reshape(groups, -1, width).repeat(len(keys), 1, 1).to(query.dtype)
    return own if added is None else own + added


# Query, key, value, bias, segments, causal and dropout as of `attention` -> what it returns.
Backend = Callable[[Tensor, Tensor, Tensor, Tensor | None, Segments, bool, float], Tensor]
# Whole sentences by batched matrix products on the padded batch.
bmm_attention: Backend = _BmmAttention.apply


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    segments: Segments,
    causal: bool,
    dropout: float,
) -> Tensor:
    """Whole sentences by torch's fused kernels on the padded batch.

    No branch depends on the batch, so one compiled graph serves all batches.
    """
    queries, keys = (Padding.of(packed) for packed in segments)
    # A causal query that holds a token reads only keys that hold tokens: padding is on the right.
    mask = None if causal else keys.is_real[:, None, None, :]
    if bias is not None:  # one float mask, the causal one included
        widths = queries.token.shape[1], keys.token.shape[1]
        missing = 0, widths[1] - bias.shape[2], 0, widths[0] - bias.shape[1]
        if mask is None:
            mask = torch.ones(widths, dtype=torch.bool, device=bias.device).tril()
        mask = F.pad(bias, missing).masked_fill(~mask, -torch.inf).to(query.dtype)
    mixed = F.scaled_dot_product_attention(
        queries.pad(query).transpose(1, 2),
        keys.pad(key).transpose(1, 2),
        keys.pad(value).transpose(1, 2),
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal and bias is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return queries.unpad(mixed.transpose(1, 2))


def _plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    vectors: tuple[Tensor, Tensor],
    segments: Segments,
    causal: bool,
    dropout: float,
) -> Tensor:
    """Whole sentences whose keys and values depend on the query, too (Shaw et al. 2018).

    No fused kernel has them. Scores and outputs are sums of two products, one with the keys or
    values of the sentence, one with those of the pair of positions (section 3.3 there).
    """
    queries, keys = (Padding.of(packed) for packed in segments)
    of_keys, of_values = (x.to(query.dtype) for x in vectors)
    groups, widths = key.shape[1], of_keys.shape[:2]
    query = queries.pad(query).unflatten(2, (groups, -1)) * query.shape[2] ** -0.5  # (B,T,G,H/G,E)
    key, value = keys.pad(key), keys.pad(value)  # (B, S, G, E)
    scores = torch.einsum("btghe,bsge->bghts", query, key)
    scores = scores + torch.einsum("btghe,tse->bghts", query, of_keys)
    mask = keys.is_real[:, None, None, None, :]
    if causal:
        mask = mask & torch.ones(widths, dtype=torch.bool, device=mask.device).tril()
    if bias is not None:
        bias = F.pad(bias, (0, widths[1] - bias.shape[2], 0, widths[0] - bias.shape[1]))
        scores = scores + bias.unflatten(0, (groups, -1)).to(scores.dtype)
    wide = torch.promote_types(scores.dtype, torch.float32)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1, dtype=wide).to(query.dtype)
    weights = drop(weights, dropout, training=True)
    mixed = torch.einsum("bghts,bsge->btghe", weights, value)
    mixed = mixed + torch.einsum("bghts,tse->btghe", weights, of_values)
    # Not `Padding.unpad`: in the unused row beside a single sentence its gradient is not 0.
    return mixed.flatten(2, 3).flatten(0, 1).index_select(0, queries.cell)


def to_padded(heads: Tensor, packed: Packed) -> Tensor:
    """(N, G, E) -> (B * G, S, E). Padding holds the first token: finite, and to be ignored.

    Heads that lie between others, as those of fused projections do, are copied once.
    """
    _, num_heads, dim = heads.shape
    if heads.stride(1) != dim or heads.stride(2) != 1 or heads.stride(0) % dim:
        heads = heads.contiguous()
    # Selecting from the fused projection itself saves the copy that `contiguous` would make.
    apart = heads.stride(0) // dim
    rows = heads.as_strided(((len(heads) - 1) * apart + num_heads, dim), (dim, 1))
    found = rows.index_select(0, packed.derived(_padded_rows, apart, num_heads))
    return found.view(len(packed) * num_heads, packed.max_length, dim)


def to_packed(rectangles: Tensor, packed: Packed, parts: Sequence[int]) -> Tensor:
    """Rows of rectangles (B * heads, S, E) of each part, one after another -> (N, heads, E)."""
    rows = packed.derived(_packed_rows, *parts)
    return rectangles.index_select(0, rows).view(packed.num_tokens, sum(parts), -1)


def _padded_rows(packed: Packed, apart: int, heads: int) -> Tensor:
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


class Padding(NamedTuple):
    """Cells (B, W) for packed tokens, as GPUs and compiled layers use them.

    B and W may be more than they need. W is a multiple of 8, so that masks need not be copied for
    a GPU's kernels; and a single sentence has an unused second row, because a compiled layer
    would be compiled again for a size of 1.
    """

    token: Tensor  # The token that each cell shows; the first one in padding. (B, W), int64.
    cell: Tensor  # The cell of each token. (N,), int64.
    is_real: Tensor  # Whether a cell holds a token; the first one of each row does. (B, W), bool.

    @classmethod
    def of(cls, packed: Packed) -> Padding:
        """Return the padding of ``packed``, computed once per batch."""
        return packed.derived(_padding_of)

    def pad(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, W, ...). Padding is finite and to be ignored."""
        cells: Tensor = _Select.apply(packed, self.token.flatten(), self.cell, None)  # type: ignore[no-untyped-call]
        return cells.unflatten(0, self.token.shape)

    def unpad(self, cells: Tensor) -> Tensor:
        """(B, W, ...) -> (N, ...). The gradient of padding beside a sentence is 0."""
        selections = self.cell, self.token.flatten(), self.is_real.flatten()
        return _Select.apply(cells.flatten(0, 1), *selections)  # type: ignore[no-untyped-call]


def row_width(packed: Packed) -> int:
    """Cells W of a row of `Padding`."""
    return -(-packed.max_length // 8) * 8


def _padding_of(packed: Packed) -> Padding:
    width = row_width(packed)
    cell = packed.sentences * width + packed.positions
    token = cell.new_zeros(max(len(packed), 2), width)
    token.view(-1).index_copy_(0, cell, torch.arange(len(cell), device=cell.device))
    is_real = torch.zeros_like(token, dtype=torch.bool)
    is_real.view(-1).index_fill_(0, cell, True)
    is_real[:, 0] = True  # a row of no keys at all would have no defined output
    return Padding(token, cell, is_real)


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


@dataclass(frozen=True)
class FlashAttention:
    """torch's variable-length flash attention over packed tokens, without padding.

    For GPUs from compute capability 8.0 on and 16-bit types. Its public function changes: torch
    2.10 says ``is_causal`` where later releases say ``window_size``, and shared keys came after
    2.11. The signatures of 2.10 and 2.13 are tested, with another kernel; tests marked ``gpu`` run
    the kernel itself.
    """

    kernel: Callable[..., Any]
    causal: dict[str, Any]  # Arguments that let a token read only itself and those before it.
    # Arguments that let several query heads share keys; None where they cannot.
    shared: dict[str, Any] | None

    @classmethod
    def of(cls, kernel: Callable[..., Any]) -> FlashAttention:
        """Read what ``kernel`` has from its signature."""
        names = inspect.signature(kernel).parameters
        causal = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
        return cls(kernel, causal, {"enable_gqa": True} if "enable_gqa" in names else None)

    def fits(self, query: Tensor, key: Tensor, bias: Tensor | None, dropout: float) -> bool:
        """Whether it does all that is asked: see `nmt.model.attention.attention`."""
        width, can_share = query.shape[2], self.shared is not None
        fits_heads = query.dtype in _DTYPES and width % 8 == 0 and width <= _WIDEST_HEAD
        fits_keys = can_share or query.shape[1] == key.shape[1]
        return fits_heads and fits_keys and bias is None and not dropout

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: tuple[Packed, Packed],
        causal: bool,
    ) -> Tensor:
        """(N, H, E), (M, G, E) twice -> (N, H, E)."""
        queries, keys = segments
        options = dict(self.causal) if causal else {}
        if query.shape[1] != key.shape[1]:
            options |= self.shared or {}
        ends, lengths = (queries.cu_seqlens, keys.cu_seqlens), (queries.max_length, keys.max_length)
        mixed: Tensor = self.kernel(query, key, value, *ends, *lengths, **options)
        return mixed


def find_flash(device: torch.device) -> FlashAttention | None:
    """Return the kernel for ``device``; None where torch or the device has none."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < _LEAST_CAPABILITY:
        return None
    try:
        # Here, because it loads the compiler, which takes seconds.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415
    except ImportError:  # before torch 2.10
        return None
    return FlashAttention.of(varlen_attn)


# Device type, or ``compiled`` for compiled layers -> its attention of whole sentences. Any other
# type has `sdpa_attention`.
BACKENDS: dict[str, Backend] = {"cpu": bmm_attention, "compiled": sdpa_attention}
# Device type -> what stands before its backend, for all that it does; None: nothing.
FLASH: dict[str, FlashAttention | None] = {"cpu": None}


def prepare(packed: Packed) -> None:
    """Find what attention of sentences on this device needs: compiled layers must not."""
    device = packed.ids.device
    if device.type not in FLASH:
        FLASH[device.type] = find_flash(device)
