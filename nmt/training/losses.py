"""What training minimises: a model and a batch -> a summed loss with its gradient; the registry.

A loss travels as a sum with the number of its tokens and is divided once, over all micro-batches
and processes. To add one, write an `Objective` in a new file and register it in `LOSSES`; the
key ``training.loss`` chooses by name.

Cross-entropy is of log softmax(hidden @ weight.T + bias), smoothed by spreading a share of the
probability evenly over the vocabulary (Szegedy et al. 2016, section 7). N x V logits would be the
largest tensors of training, so they never stand in memory all at once: a chunk of rows at a time is
multiplied out, and its gradient is computed on the way. On a CPU a chunk is a few hundred rows,
which stay in its cache; on a GPU some thousand, and what follows the product can be compiled into
few passes over 16-bit logits.

R-Drop makes two passes with different dropout masks, and penalises how far they differ (Liang et
al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2). The objective here is half
of the paper's, so that strength 0 and equal passes give the cross-entropy:

    (CE_1 + CE_2) / 2 + strength / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

Shapes: N real target tokens, P passes (1, or 2 of R-Drop), D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmt.config.training import TrainingConfig
from nmt.data.loader import Batch
from nmt.model.transformer import Transformer
from nmt.packed import rounded
from nmt.registry import Registry

_Step = Callable[..., tuple[Tensor, Tensor]]
# What runs a function faster, such as `nmt.model.transformer.Transformer.compiled`.
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

_ROWS_PER_CHUNK = 256
_LOGITS_PER_CHUNK = 1 << 27  # On a GPU: 256 MiB in 16 bits.
# Chunks summed in 16 bits before the sum moves to float32: more would lose small addends.
_CHUNKS_PER_SUM = 4
_ROWS_PER_16_BIT_CHUNK = 2048
_LEAST_16_BIT_PART, _ROW_STEP = 128, 32
# On a CPU: fewer rows pack the weights more often, more rows leave the cache.
_LOGITS_PER_16_BIT_PART = 1 << 22


class LossSum(NamedTuple):
    """A loss before division, so that sums over batches and devices stay exact."""

    loss_sum: Tensor  # Loss summed over the tokens, in nats: a scalar in float32.
    num_tokens: int  # Target tokens summed over, without padding.


class Objective(Protocol):
    """A loss of a model on a batch, called under autocast."""

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``, which is on the model's device."""
        ...


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Label-smoothed cross-entropy of the references."""

    smoothing: float  # Probability spread evenly over the vocabulary.

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``."""
        hidden = model(batch.source, batch.target)
        weight, bias = model.output_weight, model.output_bias
        loss = cross_entropy(hidden, weight, bias, batch.gold, self.smoothing, model.compiled)
        return LossSum(loss, batch.num_target_tokens)


@dataclass(frozen=True, slots=True)
class RDrop:
    """R-Drop: cross-entropy and divergence of two passes with different dropout masks."""

    smoothing: float  # Probability spread evenly over the vocabulary.
    strength: float  # Weight of the divergence (alpha in the paper; 5 there for translation).

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed objective of two passes over ``batch``."""
        passes = [model(batch.source, batch.target) for _ in range(2)]
        compiler: Compiler = _as_it_is if batch.gold.device.type == "cpu" else model.compiled
        step = partial(compiler(_r_drop_step), smoothing=self.smoothing, strength=self.strength)
        hidden = _for_products(torch.stack(passes, dim=1))
        loss = _chunked(hidden, model.output_weight, model.output_bias, batch.gold, step)
        return LossSum(loss, batch.num_target_tokens)


LOSSES = Registry[Callable[[TrainingConfig], Objective]]("loss")
LOSSES.register("cross_entropy", lambda config: CrossEntropy(config.label_smoothing))
LOSSES.register("r_drop", lambda config: RDrop(config.label_smoothing, config.r_drop_weight))


def loss_name(config: TrainingConfig) -> str:
    """Resolve ``auto``: R-Drop where its weight is set, else cross-entropy."""
    if config.loss != "auto":
        return config.loss
    return "r_drop" if config.r_drop_weight else "cross_entropy"


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    smoothing: float,
    compiler: Compiler = _as_it_is,
) -> Tensor:
    """Sum the smoothed cross-entropy over tokens, a chunk at a time; no gradient in validation.

    Args:
        hidden: (N, D).
        weight: Output projection. (V, D)
        bias: Its bias, (V,), or None.
        gold: Ids to predict. (N,), int64.
        smoothing: Probability spread evenly over the vocabulary.
        compiler: May be applied to what follows the matrix product, on a GPU.

    Returns:
        A float32 scalar.
    """
    if torch.is_grad_enabled():
        run = _cross_entropy_step if hidden.device.type == "cpu" else compiler(_fused_step)
        step = partial(run, smoothing=smoothing)
        return _chunked(_for_products(hidden.unsqueeze(1)), weight, bias, gold, step)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    size = _chunk_size(weight)
    for rows, wanted in zip(hidden.split(size), gold.split(size), strict=True):
        total += _loss_of(F.linear(rows, weight, bias).float(), wanted, smoothing)[0]
    return total


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


@dataclass(frozen=True, slots=True)
class _Chunks:
    """How much of the logits is worked on at a time. One product gives the gradients of a chunk."""

    size: int  # Rows whose gradients by the logits are held, in the dtype of products.
    part: int  # Of these, the rows whose logits are held in float32.
    per_sum: int = 1  # Chunks whose gradient by the weights is summed in 16 bits.
    # Rows are filled up to a multiple, if any: 16-bit kernels of a CPU are made for each size.
    row_step: int | None = None

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor) -> _Chunks:
        """Choose for ``hidden`` (N, P, D) and ``weight`` (V, D), both in the dtype of products."""
        if hidden.device.type == "cpu" and hidden.dtype.itemsize == 2:
            # Two large products of a chunk are quick; its logits in float32 would leave the cache.
            part = _LOGITS_PER_16_BIT_PART // len(weight) // _LEAST_16_BIT_PART
            part = max(part, 1) * _LEAST_16_BIT_PART
            return cls(_ROWS_PER_16_BIT_CHUNK, part, row_step=_ROW_STEP)
        size = _chunk_size(weight, hidden.shape[1])
        return cls(size, size, per_sum=_CHUNKS_PER_SUM)


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
    chunks, (_, passes, _) = _Chunks.of(hidden, weight), hidden.shape
    # In 16 bits a product can be added to a sum as it is made, which costs half of what it takes to
    # widen it and add it in float32; but such a sum soon swallows small addends.
    is_wide = weight.dtype == torch.float32
    narrow_sum = of_weight if is_wide else torch.zeros_like(weight)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    split = (tensor.split(chunks.size) for tensor in (hidden, of_hidden, gold))
    for number, (states, of_states, wanted) in enumerate(zip(*split, strict=True), start=1):
        rows, missing = states.flatten(0, 1), 0  # (n P, D)
        by_logits = rows.new_empty(0)
        if chunks.row_step is not None:
            missing = (rounded(len(states), chunks.row_step) - len(states)) * passes
            rows = F.pad(rows, (0, 0, 0, missing))
            by_logits = rows.new_empty(len(rows), len(weight))  # (n P, V)
            by_logits[len(rows) - missing :] = 0
        for begin in range(0, len(states), chunks.part):
            gold_part = wanted[begin : begin + chunks.part]
            first, last = begin * passes, (begin + len(gold_part)) * passes
            # Filler, too, is multiplied, so that this product has few sizes.
            filled = rows[first : first + chunks.part * passes]
            logits = F.linear(filled, weight, bias)[: last - first]
            loss, gradient = step(logits.view(len(gold_part), passes, -1), gold_part)
            total += loss
            gradient = gradient.view_as(logits)
            if of_bias is not None:
                of_bias += gradient.sum(dim=0, dtype=torch.float32)
            if chunks.row_step is None:  # the chunk is one part
                by_logits = gradient.to(rows.dtype)
            else:
                by_logits[first:last] = gradient
        of_states.copy_((by_logits @ weight)[: len(states) * passes].view_as(of_states))
        narrow_sum.addmm_(by_logits.T, rows)
        if not is_wide and number % chunks.per_sum == 0:
            of_weight += narrow_sum
            narrow_sum.zero_()
    if not is_wide:
        of_weight += narrow_sum
    return total


class _ChunkedLoss(torch.autograd.Function):
    """A loss of logits that never stand in memory all at once.

    ``step`` is given logits (n, P, V) of P passes and the ids to predict (n,), and returns the
    summed loss and its gradient by the logits, in float32 or as they are. ``hidden`` is (N, P, D).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, step: _Step
    ) -> Tensor:
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        # They differ under autocast.
        cast, shift = weight.to(hidden.dtype), bias if bias is None else bias.to(hidden.dtype)
        total = _sum_chunks(hidden, cast, shift, gold, step, (of_hidden, of_weight, of_bias))
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
