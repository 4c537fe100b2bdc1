"""Forms of cross-entropy and R-Drop: hidden states and weights -> a summed loss with its gradient.

Cross-entropy is of log softmax(hidden @ weight.T + bias), smoothed by spreading a share of the
probability evenly over the vocabulary (Szegedy et al. 2016, section 7). Two forms give the same
numbers; `choose_form` picks one:

- `plain_cross_entropy`: one matrix product and torch's own loss. Holds N x V logits several times.
- `chunked_cross_entropy`: some rows at a time, with the gradient computed on the way. Holds
  chunk x V. On a CPU a chunk is a few hundred rows, which stay in its cache; on a GPU some
  thousand, and what follows the product can be compiled into few passes over 16-bit logits.

R-Drop makes two passes with different dropout masks, and penalises how far they differ (Liang et
al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2). The objective here is half
of the paper's, so that strength 0 and equal passes give the cross-entropy:

    (CE_1 + CE_2) / 2 + strength / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

Shapes: N real target tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmt.packed import rounded

_Step = Callable[..., tuple[Tensor, Tensor]]
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What runs a function faster, such as `nmt.model.transformer.Transformer.compiled`."""

_ROWS_PER_CHUNK = 256
_LOGITS_PER_CHUNK = 1 << 27
"""On a GPU: 256 MiB in 16 bits."""
_CHUNKS_PER_SUM = 4
"""Chunks summed in 16 bits before the sum moves to float32: more would lose small addends."""
_ROWS_PER_BLOCK = 2048
_LEAST_16_BIT_CHUNK, _ROW_STEP = 128, 32
_LOGITS_PER_16_BIT_CHUNK = 1 << 22
"""On a CPU: fewer rows pack the weights more often, more rows leave the cache."""


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class CrossEntropyForm(Protocol):
    """How cross-entropy is computed."""

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gold: Tensor,
        smoothing: float,
        /,
        compiler: Compiler = ...,
    ) -> Tensor:
        """Return the summed loss, a float32 scalar.

        Args:
            hidden: (N, D).
            weight: (V, D).
            bias: (V,), or None.
            gold: (N,), int64.
            smoothing: Probability spread evenly over the vocabulary.
            compiler: May be applied to what follows the matrix product, on a GPU.
        """
        ...


def choose_form(dtype: torch.dtype, device: torch.device, vocab_size: int) -> CrossEntropyForm:
    """Return the form: chunks are faster on a CPU and save memory on a GPU."""
    del dtype, device, vocab_size
    return chunked_cross_entropy


def plain_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    smoothing: float,
    /,
    compiler: Compiler = _as_it_is,
) -> Tensor:
    """Sum the smoothed cross-entropy of all rows at once."""
    del compiler
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(logits.float(), gold, label_smoothing=smoothing, reduction="sum")


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    smoothing: float,
    /,
    compiler: Compiler = _as_it_is,
) -> Tensor:
    """Sum the smoothed cross-entropy a chunk of rows at a time; no gradient in validation."""
    if torch.is_grad_enabled():
        run = _cross_entropy_step if hidden.device.type == "cpu" else compiler(_fused_step)
        step = partial(run, smoothing=smoothing)
        return _chunked(_for_products(hidden.unsqueeze(1)), weight, bias, gold, step)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    size = _chunk_size(weight)
    chunks = (tensor.split(size) for tensor in (hidden, gold))
    for rows, wanted in zip(*chunks, strict=True):
        total += _loss_of(F.linear(rows, weight, bias).float(), wanted, smoothing)[0]
    return total


def r_drop_loss(
    hidden: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    *,
    smoothing: float,
    strength: float,
    compiler: Compiler = _as_it_is,
) -> Tensor:
    """Sum R-Drop's objective over tokens: a float32 scalar.

    Args:
        hidden: States of both passes, (N, D) each.
        weight: Output projection. (V, D)
        bias: Its bias, (V,), or None.
        gold: Ids to predict. (N,), int64.
        smoothing: Probability spread evenly over the vocabulary.
        strength: Weight of the divergence (alpha in the paper; 5 there for translation).
        compiler: May be applied to what follows the matrix product, on a GPU.
    """
    run = compiler(_r_drop_step) if gold.device.type != "cpu" else _r_drop_step
    step = partial(run, smoothing=smoothing, strength=strength)
    return _chunked(_for_products(torch.stack(hidden, dim=1)), weight, bias, gold, step)


def _for_products(hidden: Tensor) -> Tensor:
    """In the dtype of products: a last norm gives float32 under autocast."""
    kind = hidden.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return hidden.to(torch.get_autocast_dtype(kind))
    return hidden


def _chunk_size(weight: Tensor, num_passes: int = 1) -> int:
    """Rows whose logits are held at once; a row has logits for each pass.

    On a GPU the same for all batches, so that its libraries choose kernels once.
    """
    if weight.device.type == "cpu":
        return _ROWS_PER_CHUNK
    return max(64, _LOGITS_PER_CHUNK // (num_passes * len(weight)) // 64 * 64)


def _loss_of(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss of float32 ``logits`` (n, V), and softmax sums (n, 1).

    Turns the logits, in place, into the exponentials that those sums are of.
    """
    of_gold = logits.gather(1, gold.unsqueeze(1)).sum()
    of_all = logits.sum() / logits.shape[1] if smoothing else 0.0
    largest = logits.amax(dim=1, keepdim=True)
    sums = logits.sub_(largest).exp_().sum(dim=1, keepdim=True)
    normaliser = (sums.log() + largest).sum()
    return normaliser - (1 - smoothing) * of_gold - smoothing * of_all, sums


def _fused_step(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Do what `_cross_entropy_step` does, in a form that a compiler turns into few passes.

    No element is scattered: in a fixed order that would take a sort.
    """
    wide, vocab_size = logits.squeeze(1).float(), logits.shape[-1]
    rows = gold.unsqueeze(1)
    normaliser = wide.logsumexp(1, keepdim=True)
    loss = (normaliser - (1 - smoothing) * wide.gather(1, rows)).sum()
    if smoothing:
        loss = loss - smoothing * wide.mean(1).sum()
    gradient = (wide - normaliser).exp() - smoothing / vocab_size
    is_gold = torch.arange(vocab_size, device=gold.device) == rows
    return loss, torch.where(is_gold, gradient - (1 - smoothing), gradient).to(logits.dtype)


def _cross_entropy_step(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss of ``logits`` (n, 1, V), and its gradient, float32, in place of theirs."""
    logits = logits.squeeze(1).float()
    loss, sums = _loss_of(logits, gold, smoothing)
    rows = gold.unsqueeze(1)
    logits.div_(sums)
    if smoothing:
        logits.sub_(smoothing / logits.shape[1])
    logits.scatter_add_(1, rows, torch.full_like(rows, -(1 - smoothing), dtype=logits.dtype))
    return loss, logits


def _r_drop_step(
    logits: Tensor, gold: Tensor, smoothing: float, strength: float
) -> tuple[Tensor, Tensor]:
    """Return the objective of ``logits`` (n, 2, V), and its gradient, float32."""
    vocab_size = logits.shape[-1]
    log_probs = logits.float().log_softmax(-1)
    probs = log_probs.exp()
    rows = gold.unsqueeze(1).expand(-1, 2).unsqueeze(-1)
    of_gold = log_probs.gather(-1, rows).sum()
    loss = -((1 - smoothing) * of_gold + smoothing / vocab_size * log_probs.sum()) / 2
    difference = log_probs[:, 0] - log_probs[:, 1]
    loss += strength / 4 * ((probs[:, 0] - probs[:, 1]) * difference).sum()

    gradient = probs - smoothing / vocab_size
    gradient.scatter_add_(-1, rows, torch.full_like(rows, -(1 - smoothing), dtype=probs.dtype))
    gradient /= 2
    for own, other, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        centred = difference - (probs[:, own] * difference).sum(-1, keepdim=True)
        divergence = probs[:, own] * centred * sign + probs[:, own] - probs[:, other]
        gradient[:, own].add_(divergence, alpha=strength / 4)
    return loss, gradient


def _sum_chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    step: _Step,
    gradients: tuple[Tensor, Tensor, Tensor | None],
) -> Tensor:
    """Return the loss of ``hidden`` (N, P, D) and fill in zeroed ``gradients``, chunk by chunk."""
    of_hidden, of_weight, of_bias = gradients
    is_whole = weight.dtype == torch.float32
    part = of_weight if is_whole else torch.zeros_like(weight)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    size = _chunk_size(weight, hidden.shape[1])
    chunks = (tensor.split(size) for tensor in (hidden, of_hidden, gold))
    for number, (states, of_states, wanted) in enumerate(zip(*chunks, strict=True), start=1):
        rows = states.flatten(0, 1)
        logits = F.linear(rows, weight, bias)
        loss, by_logits = step(logits.view(*states.shape[:2], -1), wanted)
        total += loss
        by_logits = by_logits.view_as(logits)
        gradient = by_logits.to(hidden.dtype)
        torch.mm(gradient, weight, out=of_states.flatten(0, 1))
        part.addmm_(gradient.T, rows)
        if of_bias is not None:
            of_bias += by_logits.sum(dim=0, dtype=torch.float32)
        if not is_whole and number % _CHUNKS_PER_SUM == 0:
            of_weight += part
            part.zero_()
    if not is_whole:
        of_weight += part
    return total


def _sum_16_bits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    gradients: tuple[Tensor, Tensor, Tensor | None],
) -> Tensor:
    """Return the loss of 16-bit ``hidden`` (N, P, D) and fill in zeroed ``gradients``, on a CPU.

    Some logits at a time become a gradient in 16 bits; of many rows of that, two large products
    give the gradients. Rows are rounded up, so that kernels are made for few sizes.
    """
    of_hidden, of_weight, of_bias = gradients
    total = torch.zeros((), dtype=torch.float32)
    size = _LOGITS_PER_16_BIT_CHUNK // len(weight) // _LEAST_16_BIT_CHUNK * _LEAST_16_BIT_CHUNK
    size = max(size, _LEAST_16_BIT_CHUNK)
    blocks = (tensor.split(_ROWS_PER_BLOCK) for tensor in (hidden, of_hidden, gold))
    for states, of_states, wanted in zip(*blocks, strict=True):
        missing = rounded(len(states), _ROW_STEP) - len(states)
        rows = F.pad(states, (0, 0, 0, 0, 0, missing))
        by_logits = rows.new_empty(*rows.shape[:2], len(weight))
        by_logits[len(states) :] = 0
        for part, of_part, own in zip(
            *(tensor.split(size) for tensor in (rows, by_logits, wanted)),
            strict=True,
        ):
            logits = F.linear(part, weight, bias)[: len(own)].float()
            loss, gradient = step(logits, own)
            of_part[: len(own)] = gradient.view_as(logits)
            total += loss
            if of_bias is not None:
                of_bias += gradient.view(-1, len(weight)).sum(dim=0)
        flat = by_logits.flatten(0, 1)
        of_states.copy_((flat @ weight).view_as(rows)[: len(states)])
        of_weight += flat.T @ rows.flatten(0, 1)
    return total


class _ChunkedLoss(torch.autograd.Function):
    """A loss of logits that never stand in memory all at once.

    ``step`` is given logits (n, P, V) of P passes and the ids to predict (n,), and returns the
    summed loss and its gradient by the logits, in float32 or as they are. ``hidden`` is (N, P, D).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gold: Tensor,
        step: _Step,
    ) -> Tensor:
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        # They differ under autocast.
        cast, shift = weight.to(hidden.dtype), bias if bias is None else bias.to(hidden.dtype)
        is_on_16_bits = hidden.device.type == "cpu" and hidden.dtype.itemsize == 2
        sum_up = _sum_16_bits if is_on_16_bits else _sum_chunks
        total = sum_up(hidden, cast, shift, gold, step, (of_hidden, of_weight, of_bias))
        of_bias = None if bias is None or of_bias is None else of_bias.to(bias.dtype)
        ctx.save_for_backward(of_hidden, of_weight.to(weight.dtype), of_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        scale = gradient.to(of_hidden.dtype)
        of_bias = None if of_bias is None else of_bias * scale
        return of_hidden * scale, of_weight * scale, of_bias, None, None


_chunked: Callable[..., Tensor] = _ChunkedLoss.apply
