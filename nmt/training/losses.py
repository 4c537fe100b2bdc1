"""Training losses, computed without holding all logits in memory.

A loss is returned as a sum and a token count. It is divided only once, over all micro-batches and
processes. To add a loss, write an `Objective` in a new file and register it in `LOSSES`; the
key ``training.loss`` chooses by name.

Cross-entropy uses log softmax(hidden @ weight.T + bias) and label smoothing, which spreads a share
of the probability evenly over the vocabulary (Szegedy et al. 2016, section 7). The N x V logits
would be the largest tensor of training, so they are computed in chunks of rows, together with their
gradient. On a CPU, a chunk has a few hundred rows and stays in the cache. On a GPU, a chunk has a
few thousand rows, and `torch.compile` fuses the operations on its 16-bit logits.

R-Drop makes two passes with different dropout masks, and penalises the difference of their
distributions (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2). The
loss here is half of the paper's. With strength 0, or with equal passes, it is the cross-entropy:

    (CE_1 + CE_2) / 2 + strength / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

Shapes: N target tokens without padding, P passes (1, or 2 for R-Drop), D model width, V vocabulary
size.
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
# Returns a compiled version of a function: see `nmt.model.transformer.Transformer.compiled`.
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

_ROWS_PER_CHUNK = 256
_LOGITS_PER_CHUNK = 1 << 27  # On a GPU: 256 MiB in 16 bits.
# Chunks summed in 16 bits before the sum is added to float32. A longer sum loses small addends.
_CHUNKS_PER_SUM = 4
_ROWS_PER_16_BIT_CHUNK = 2048
_LEAST_16_BIT_PART, _ROW_STEP = 128, 32
# On a CPU: with fewer rows the weights are packed more often; with more rows the cache overflows.
_LOGITS_PER_16_BIT_PART = 1 << 22


class LossSum(NamedTuple):
    """Summed loss and token count, so that batches and processes can be added up."""

    loss_sum: Tensor  # Sum over the tokens, in nats. Scalar, float32.
    num_tokens: int  # Target tokens in the sum, without padding.


class Objective(Protocol):
    """A training loss. It is called under autocast."""

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``, whose tensors are on the model's device."""
        ...


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """Label-smoothed cross-entropy."""

    smoothing: float  # Probability spread evenly over the vocabulary.

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``."""
        hidden = model(batch.source, batch.target)
        weight, bias = model.output_weight, model.output_bias
        loss = cross_entropy(hidden, weight, bias, batch.gold, self.smoothing, model.compiled)
        return LossSum(loss, batch.num_target_tokens)


@dataclass(frozen=True, slots=True)
class RDrop:
    """R-Drop: cross-entropy plus the divergence of two passes with different dropout masks."""

    smoothing: float  # Probability spread evenly over the vocabulary.
    strength: float  # Weight of the divergence (alpha in the paper; 5 there for translation).

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of two passes over ``batch``."""
        passes = [model(batch.source, batch.target) for _ in range(2)]
        compiler: Compiler = _as_it_is if batch.gold.device.type == "cpu" else model.compiled
        step = partial(compiler(_r_drop_step), smoothing=self.smoothing, strength=self.strength)
        hidden = _for_products(torch.stack(passes, dim=1))
        loss = _chunked(hidden, model.output_weight, model.output_bias, batch.gold, step)
        return LossSum(loss, batch.num_target_tokens)


LOSSES = Registry[Callable[[TrainingConfig], Objective]]("loss")


def make_cross_entropy(config: TrainingConfig) -> CrossEntropy:
    """Return the loss ``cross_entropy`` with the configured label smoothing."""
    return CrossEntropy(config.label_smoothing)


def make_r_drop(config: TrainingConfig) -> RDrop:
    """Return the loss ``r_drop`` with the configured label smoothing and weight."""
    return RDrop(config.label_smoothing, config.r_drop_weight)


def loss_name(config: TrainingConfig) -> str:
    """Return `training.loss`; ``auto`` becomes R-Drop if its weight is set, else cross-entropy."""
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
    """Return the label-smoothed cross-entropy, summed over tokens and computed in chunks of rows.

    Computes the gradient in the same pass, unless gradients are disabled.

    Args:
        hidden: Decoder outputs. (N, D), float32 or 16-bit.
        weight: Output projection. (V, D).
        bias: Bias of the output projection, (V,), or None.
        gold: Ids of the reference subwords. (N,), int64.
        smoothing: Probability spread evenly over the vocabulary.
        compiler: Compiles the operations after the matrix product; used only on a GPU.

    Returns:
        The loss in nats. Scalar, float32.
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
    """Cast ``hidden`` to the autocast dtype: under autocast, the final norm returns float32."""
    kind = hidden.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return hidden.to(torch.get_autocast_dtype(kind))
    return hidden


def _chunk_size(weight: Tensor, num_passes: int = 1) -> int:
    """Return how many rows a chunk has. A row has logits for each pass.

    On a GPU, all batches use the same number, so that cuBLAS chooses its kernels only once.
    """
    if weight.device.type == "cpu":
        return _ROWS_PER_CHUNK
    return max(64, _LOGITS_PER_CHUNK // (num_passes * len(weight)) // 64 * 64)


def _loss_of(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss of float32 ``logits`` (n, V), and the softmax denominators (n, 1).

    Overwrites the logits with the softmax numerators.
    """
    of_gold = logits.gather(1, gold.unsqueeze(1)).sum()
    of_all = logits.sum() / logits.shape[1] if smoothing else 0.0
    largest = logits.amax(dim=1, keepdim=True)
    sums = logits.sub_(largest).exp_().sum(dim=1, keepdim=True)
    normaliser = (sums.log() + largest).sum()
    return normaliser - (1 - smoothing) * of_gold - smoothing * of_all, sums


def _fused_step(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Compute the same as `_cross_entropy_step`, in a form that `torch.compile` can fuse.

    It avoids scatter, which would need a sort to be deterministic.
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
    """Return the loss of ``logits`` (n, 1, V), and its gradient (n, V) in float32.

    The gradient may overwrite the logits.
    """
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
    """Return the R-Drop loss of ``logits`` (n, 2, V), and its gradient in float32."""
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
    """Sizes of the chunks. One matrix product computes the gradients of a whole chunk."""

    size: int  # Rows of a chunk; its logit gradients are kept in the dtype of the products.
    part: int  # Rows of a part of a chunk; its logits are kept in float32.
    per_sum: int = 1  # Chunks whose weight gradient is summed in 16 bits.
    # If set, rows are padded to a multiple of it: oneDNN compiles a 16-bit kernel for each size.
    row_step: int | None = None

    @classmethod
    def of(cls, hidden: Tensor, weight: Tensor) -> _Chunks:
        """Return the sizes for ``hidden`` (N, P, D) and ``weight`` (V, D), cast for products."""
        if hidden.device.type == "cpu" and hidden.dtype.itemsize == 2:
            # Large matrix products are fast, but float32 logits of a chunk overflow the cache.
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
    gradients: tuple[Tensor, Tensor | None, Tensor | None],
) -> Tensor:
    """Return the summed loss of ``hidden`` (N, P, D), and add to zeroed ``gradients`` in place.

    A gradient of None is not computed.
    """
    of_hidden, of_weight, of_bias = gradients
    chunks, (_, passes, _) = _Chunks.of(hidden, weight), hidden.shape
    # Adding a product to a 16-bit sum takes half the time of adding it in float32, but a long
    # 16-bit sum loses small addends.
    is_wide = weight.dtype == torch.float32
    narrow_sum = of_weight if is_wide or of_weight is None else torch.zeros_like(weight)
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
            # The product includes the padding, so that it has few different sizes.
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
        if of_weight is None or narrow_sum is None:
            continue
        narrow_sum.addmm_(by_logits.T, rows)
        is_last = number * chunks.size >= len(hidden)
        if not is_wide and (is_last or number % chunks.per_sum == 0):
            of_weight += narrow_sum
            narrow_sum.zero_()
    return total


class _ChunkedLoss(torch.autograd.Function):
    """A loss whose logits are computed in chunks.

    ``hidden`` is (N, P, D). ``step`` takes logits (n, P, V) of P passes and reference ids (n,). It
    returns the summed loss, and the gradient of the logits in float32 or in the logits' dtype.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, step: _Step
    ) -> Tensor:
        of_hidden = torch.empty_like(hidden)
        parameters = zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
        of_weight, of_bias = (
            torch.zeros_like(each, dtype=torch.float32) if each is not None and needed else None
            for each, needed in parameters
        )
        # Under autocast, `hidden` has another dtype than the parameters.
        cast, shift = weight.to(hidden.dtype), bias if bias is None else bias.to(hidden.dtype)
        total = _sum_chunks(hidden, cast, shift, gold, step, (of_hidden, of_weight, of_bias))
        of_bias = None if bias is None or of_bias is None else of_bias.to(bias.dtype)
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        ctx.save_for_backward(of_hidden, of_weight, of_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        scale = gradient.to(of_hidden.dtype)
        of_weight, of_bias = (
            None if each is None else each * scale for each in (of_weight, of_bias)
        )
        return of_hidden * scale, of_weight, of_bias, None, None


_chunked: Callable[..., Tensor] = _ChunkedLoss.apply
