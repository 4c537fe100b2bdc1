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

# Computes the loss of a chunk, and the gradient of its logits: see `_ChunkedLoss`.
_Step = Callable[..., tuple[Tensor, Tensor]]
# Returns a compiled version of a function: see `nmt.model.transformer.Transformer.compiled`.
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]

_ROWS_PER_CHUNK = 256
_LOGITS_PER_CHUNK = 1 << 27  # On a GPU: 256 MiB in 16 bits.
# Chunks summed in 16 bits before the sum is added to float32. A longer sum loses small addends.
_CHUNKS_PER_SUM = 4
_ROWS_PER_16_BIT_CHUNK = 2048
_LEAST_16_BIT_PART = 128
_ROW_STEP = 32
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


@dataclass(frozen=True)
class CrossEntropy:
    """Label-smoothed cross-entropy."""

    smoothing: float  # Probability spread evenly over the vocabulary.

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of ``batch``."""
        hidden = model(batch.source, batch.target)
        loss = cross_entropy(
            hidden,
            model.output_weight,
            model.output_bias,
            batch.gold,
            self.smoothing,
            model.compiled,
        )
        return LossSum(loss, batch.num_target_tokens)


@dataclass(frozen=True)
class RDrop:
    """R-Drop: cross-entropy plus the divergence of two passes with different dropout masks."""

    smoothing: float  # Probability spread evenly over the vocabulary.
    strength: float  # Weight of the divergence (alpha in the paper; 5 there for translation).

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        """Return the summed loss of two passes over ``batch``."""
        passes = [model(batch.source, batch.target) for _ in range(2)]
        run: Callable[..., Any] = _r_drop_step
        if batch.gold.device.type != "cpu":
            run = model.compiled(run)
        step = partial(run, smoothing=self.smoothing, strength=self.strength)
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


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    smoothing: float,
    compiler: Compiler = lambda function: function,
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
        run = _cross_entropy_step
        if hidden.device.type != "cpu":
            run = compiler(_fused_step)
        step = partial(run, smoothing=smoothing)
        return _chunked(_for_products(hidden.unsqueeze(1)), weight, bias, gold, step)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    size = _chunk_size(weight)
    for hidden_chunk, gold_chunk in zip(hidden.split(size), gold.split(size), strict=True):
        logits = F.linear(hidden_chunk, weight, bias).float()
        loss, _ = _loss_of(logits, gold_chunk, smoothing)
        total += loss
    return total


def _for_products(hidden: Tensor) -> Tensor:
    """Cast ``hidden`` to the autocast dtype: under autocast, the final norm returns float32."""
    device_type = hidden.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return hidden.to(torch.get_autocast_dtype(device_type))
    return hidden


def _chunk_size(weight: Tensor, num_passes: int = 1) -> int:
    """Return how many rows a chunk has. A row has logits for each pass.

    On a GPU, all batches use the same number, so that cuBLAS chooses its kernels only once.
    """
    if weight.device.type == "cpu":
        return _ROWS_PER_CHUNK
    num_rows = _LOGITS_PER_CHUNK // (num_passes * len(weight))
    return max(64, num_rows // 64 * 64)  # a multiple of 64, at least 64


def _loss_of(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the summed loss of float32 ``logits`` (n, V), and the softmax denominators (n, 1).

    Overwrites the logits with the softmax numerators. The log probability of a token is its logit
    minus the log normaliser. The smoothed target gives 1 - smoothing to the gold token, and
    smoothing to the mean over the vocabulary.
    """
    gold_logits = logits.gather(1, gold.unsqueeze(1)).sum()
    mean_logits: Tensor | float = 0.0
    if smoothing:
        mean_logits = logits.sum() / logits.shape[1]
    # Subtracted, so that the exponentials do not overflow.
    largest = logits.amax(dim=1, keepdim=True)
    denominators = logits.sub_(largest).exp_().sum(dim=1, keepdim=True)
    log_normalisers = (denominators.log() + largest).sum()
    loss = log_normalisers - (1 - smoothing) * gold_logits - smoothing * mean_logits
    return loss, denominators


def _fused_step(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Compute the same as `_cross_entropy_step`, in a form that `torch.compile` can fuse.

    It avoids scatter, which would need a sort to be deterministic.
    """
    vocab_size = logits.shape[-1]
    logits32 = logits.squeeze(1).float()  # (n, V)
    gold_ids = gold.unsqueeze(1)
    log_normaliser = logits32.logsumexp(1, keepdim=True)
    loss = (log_normaliser - (1 - smoothing) * logits32.gather(1, gold_ids)).sum()
    if smoothing:
        loss = loss - smoothing * logits32.mean(1).sum()
    # The gradient is the probability minus the smoothed target.
    gradient = (logits32 - log_normaliser).exp() - smoothing / vocab_size
    is_gold = torch.arange(vocab_size, device=gold.device) == gold_ids
    gradient = torch.where(is_gold, gradient - (1 - smoothing), gradient)
    return loss, gradient.to(logits.dtype)


def _cross_entropy_step(logits: Tensor, gold: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the loss of ``logits`` (n, 1, V), and its gradient (n, V) in float32.

    The gradient may overwrite the logits.
    """
    values = logits.squeeze(1).float()  # (n, V); in float32 a view of the logits
    loss, denominators = _loss_of(values, gold, smoothing)
    # `values` are now the softmax numerators. The division makes them probabilities. Subtracting
    # the smoothed target then makes them the gradient. All in place, because a chunk is large.
    values.div_(denominators)
    if smoothing:
        values.sub_(smoothing / values.shape[1])
    gold_ids = gold.unsqueeze(1)
    gold_shift = torch.full_like(gold_ids, -(1 - smoothing), dtype=values.dtype)
    values.scatter_add_(1, gold_ids, gold_shift)
    return loss, values


def _r_drop_step(
    logits: Tensor, gold: Tensor, smoothing: float, strength: float
) -> tuple[Tensor, Tensor]:
    """Return the R-Drop loss of ``logits`` (n, 2, V), and its gradient in float32.

    For the formula of the loss see the module.
    """
    vocab_size = logits.shape[-1]
    log_probs = logits.float().log_softmax(-1)
    probs = log_probs.exp()
    gold_ids = gold.unsqueeze(1).expand(-1, 2).unsqueeze(-1)  # (n, 2, 1)
    gold_log_probs = log_probs.gather(-1, gold_ids).sum()
    loss = -((1 - smoothing) * gold_log_probs + smoothing / vocab_size * log_probs.sum()) / 2
    # KL(p_1 || p_2) + KL(p_2 || p_1) is the sum of (p_1 - p_2) * (log p_1 - log p_2). (n, V).
    difference = log_probs[:, 0] - log_probs[:, 1]
    divergence = (probs[:, 0] - probs[:, 1]) * difference
    loss += strength / 4 * divergence.sum()

    # Gradient of the cross-entropy: the probability minus the smoothed target. Halved, because the
    # loss is the mean of two passes.
    gradient = probs - smoothing / vocab_size
    gold_shift = torch.full_like(gold_ids, -(1 - smoothing), dtype=probs.dtype)
    gradient.scatter_add_(-1, gold_ids, gold_shift)
    gradient /= 2
    # Gradient of the divergence with respect to the logits of pass 1, where E_1 is the mean under
    # p_1: p_1 * (difference - E_1(difference)) + p_1 - p_2. For pass 2 the difference changes sign.
    for index, other_index, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        pass_probs = probs[:, index]
        mean = (pass_probs * difference).sum(-1, keepdim=True)
        centred = difference - mean
        divergence_grad = pass_probs * centred * sign + pass_probs - probs[:, other_index]
        gradient[:, index].add_(divergence_grad, alpha=strength / 4)
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
            num_rows = _LOGITS_PER_16_BIT_PART // len(weight)
            part = max(num_rows // _LEAST_16_BIT_PART, 1) * _LEAST_16_BIT_PART
            return cls(_ROWS_PER_16_BIT_CHUNK, part, row_step=_ROW_STEP)
        size = _chunk_size(weight, hidden.shape[1])
        return cls(size, size, per_sum=_CHUNKS_PER_SUM)


class _ChunkSums:
    """Sums over chunks of rows: the loss, and the gradients of the output projection.

    Args:
        weight: Output projection, in the dtype of the products. (V, D).
        bias: Its bias, in the same dtype. (V,).
        step: See `_ChunkedLoss`.
        sizes: Sizes of the chunks.
        needs: Whether the gradients of weight and bias are needed.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        step: _Step,
        sizes: _Chunks,
        needs: tuple[bool, bool],
    ) -> None:
        needs_weight, needs_bias = needs
        self._weight = weight
        self._bias = bias
        self._step = step
        self._sizes = sizes
        self.loss = torch.zeros((), dtype=torch.float32, device=weight.device)
        # Gradients; None if not needed. Float32, (V, D) and (V,).
        self.weight_grad: Tensor | None = None
        self.bias_grad: Tensor | None = None
        # A 16-bit sum of the weight gradient of a few chunks; None in float32. Adding a product to
        # it takes half the time of adding it in float32, but a long 16-bit sum loses small addends.
        self._short_sum: Tensor | None = None
        self._num_summed = 0  # chunks in this sum
        if needs_weight:
            self.weight_grad = torch.zeros_like(weight, dtype=torch.float32)
            if weight.dtype != torch.float32:
                self._short_sum = torch.zeros_like(weight)
        if needs_bias and bias is not None:
            self.bias_grad = torch.zeros_like(bias, dtype=torch.float32)

    def add(self, hidden: Tensor, gold: Tensor) -> Tensor:
        """Add a chunk of hidden states (n, P, D) with reference ids (n,); return their gradient."""
        num_passes = hidden.shape[1]
        rows = hidden.flatten(0, 1)  # (n P, D)
        num_rows = len(rows)
        row_step = self._sizes.row_step
        if row_step is None:  # the chunk is one part
            logits_grad = self._add_part(rows, gold, num_passes).to(rows.dtype)
        else:
            num_filler = rounded(len(hidden), row_step) - len(hidden)
            rows = F.pad(rows, (0, 0, 0, num_filler * num_passes))
            logits_grad = rows.new_empty(len(rows), len(self._weight))  # (n P and filler, V)
            logits_grad[num_rows:] = 0
            begin = 0
            for gold_part in gold.split(self._sizes.part):
                # The last part includes the filler, so that its product has few different sizes.
                part = rows[begin : begin + self._sizes.part * num_passes]
                part_grad = self._add_part(part, gold_part, num_passes)
                end = begin + len(part_grad)
                logits_grad[begin:end] = part_grad
                begin = end
        hidden_grad = (logits_grad @ self._weight)[:num_rows].view_as(hidden)
        if self._short_sum is not None:
            self._short_sum.addmm_(logits_grad.T, rows)
            self._num_summed += 1
            if self._num_summed == self._sizes.per_sum:
                self.finish()
        elif self.weight_grad is not None:
            self.weight_grad.addmm_(logits_grad.T, rows)
        return hidden_grad

    def _add_part(self, rows: Tensor, gold: Tensor, num_passes: int) -> Tensor:
        """Add the loss of the rows without the filler; return the gradient of their logits.

        Args:
            rows: Hidden states, then filler, if any. (at least n P, D).
            gold: Reference ids. (n,).
            num_passes: Number P of rows for each reference id.

        Returns:
            (n P, V), float32 or in the dtype of ``rows``.
        """
        num_rows = len(gold) * num_passes
        logits = F.linear(rows, self._weight, self._bias)[:num_rows]
        loss, gradient = self._step(logits.view(len(gold), num_passes, -1), gold)
        self.loss += loss
        gradient = gradient.view_as(logits)
        if self.bias_grad is not None:
            self.bias_grad += gradient.sum(dim=0, dtype=torch.float32)
        return gradient

    def finish(self) -> None:
        """Complete `weight_grad`: add the 16-bit sum to it, and begin a new sum."""
        if self._num_summed and self.weight_grad is not None and self._short_sum is not None:
            self.weight_grad += self._short_sum
            self._short_sum.zero_()
            self._num_summed = 0


class _ChunkedLoss(torch.autograd.Function):
    """A loss whose logits are computed in chunks.

    ``hidden`` is (N, P, D). ``step`` takes logits (n, P, V) of P passes and reference ids (n,). It
    returns the summed loss, and the gradient of the logits in float32 or in the logits' dtype.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, step: _Step
    ) -> Tensor:
        # Under autocast, `hidden` has another dtype than the parameters.
        cast_weight = weight.to(hidden.dtype)
        cast_bias = None if bias is None else bias.to(hidden.dtype)
        sizes = _Chunks.of(hidden, cast_weight)
        needs_grad = ctx.needs_input_grad[1:3]  # of weight and bias
        sums = _ChunkSums(cast_weight, cast_bias, step, sizes, needs_grad)
        hidden_grad = torch.empty_like(hidden)
        chunks = (tensor.split(sizes.size) for tensor in (hidden, hidden_grad, gold))
        for hidden_chunk, grad_chunk, gold_chunk in zip(*chunks, strict=True):
            grad_chunk.copy_(sums.add(hidden_chunk, gold_chunk))
        sums.finish()
        weight_grad = None if sums.weight_grad is None else sums.weight_grad.to(weight.dtype)
        bias_grad = None
        if bias is not None and sums.bias_grad is not None:
            bias_grad = sums.bias_grad.to(bias.dtype)
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        return sums.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The gradients are ready, for a loss with gradient 1. `gradient` is that of the loss.
        gradients = ctx.saved_tensors
        scale = gradient.to(gradients[0].dtype)
        scaled = [None if tensor is None else tensor * scale for tensor in gradients]
        return *scaled, None, None  # `gold` and `step` have no gradient


_chunked: Callable[..., Tensor] = _ChunkedLoss.apply
