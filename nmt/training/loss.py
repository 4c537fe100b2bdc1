"""Label-smoothed cross-entropy of real tokens, not yet divided.

The loss is of log softmax(hidden @ weight.T + bias), smoothed by spreading a share of the
probability evenly over the vocabulary (Szegedy et al. 2016, section 7). Two forms give the same
numbers; `choose_loss` picks the one that was measured faster:

- `plain_loss`: one big product, torch's own cross-entropy. Holds N x V logits several times.
- `chunked_loss`: a few hundred rows at a time, with the gradient worked out on the way, while the
  logits are still in the cache. Holds chunk x V.

Shapes: N real target tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


class LossSum(NamedTuple):
    """A loss before division, so that sums over batches and devices stay exact."""

    nats: Tensor
    """Summed loss, a scalar in float32."""
    tokens: int
    """Target tokens summed over, without padding."""


LossFunction = Callable[[Tensor, Tensor, "Tensor | None", Tensor, float], LossSum]
"""(hidden (N, D), weight (V, D), bias (V,), gold (N,) int64, smoothing) -> `LossSum`."""


def plain_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, smoothing: float
) -> LossSum:
    """Sum the smoothed cross-entropy of all rows at once."""
    logits = F.linear(hidden, weight, bias)
    nats = F.cross_entropy(logits.float(), gold, label_smoothing=smoothing, reduction="sum")
    return LossSum(nats, len(gold))


def chunked_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, gold: Tensor, smoothing: float
) -> LossSum:
    """Sum the smoothed cross-entropy, a chunk of rows at a time."""
    nats: Tensor = _ChunkedLoss.apply(hidden, weight, bias, gold, smoothing)  # type: ignore[no-untyped-call]
    return LossSum(nats, len(gold))


_ROWS_PER_CHUNK = 256
_CHUNKS_PER_SUM = 4
"""In 16 bits: so few may be summed before what they add is lost in what is there."""
_LARGE_VOCABULARY = 16_000


def choose_loss(dtype: torch.dtype, device: torch.device, vocab_size: int) -> LossFunction:
    """Return the faster form: chunks pay in float32 and where the logits are large."""
    if device.type == "cpu" and (dtype == torch.float32 or vocab_size > _LARGE_VOCABULARY):
        return chunked_loss
    return plain_loss


def _chunk_gradient(logits: Tensor, gold: Tensor, smoothing: float) -> Tensor:
    """Turn float32 ``logits`` (n, V) into the gradient of the loss, in place; return the loss."""
    rows = gold.unsqueeze(1)
    vocab_size = logits.shape[1]
    of_gold = logits.gather(1, rows).sum()
    of_all = logits.sum() / vocab_size if smoothing else 0.0
    largest = logits.amax(dim=1, keepdim=True)
    sums = logits.sub_(largest).exp_().sum(dim=1, keepdim=True)
    normaliser = (sums.log() + largest).sum()
    logits.div_(sums)
    if smoothing:
        logits.sub_(smoothing / vocab_size)
    logits.scatter_add_(1, rows, torch.full_like(rows, -(1 - smoothing), dtype=logits.dtype))
    return normaliser - (1 - smoothing) * of_gold - smoothing * of_all


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gold: Tensor,
        smoothing: float,
    ) -> Tensor:
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        is_whole = weight.dtype == torch.float32
        part = of_weight if is_whole else torch.zeros_like(weight)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        nats = torch.zeros((), dtype=torch.float32, device=hidden.device)
        chunks = zip(
            hidden.split(_ROWS_PER_CHUNK),
            of_hidden.split(_ROWS_PER_CHUNK),
            gold.split(_ROWS_PER_CHUNK),
            strict=True,
        )
        for number, (rows, of_rows, wanted) in enumerate(chunks, start=1):
            logits = F.linear(rows, weight, bias).float()
            nats += _chunk_gradient(logits, wanted, smoothing)
            gradient = logits.to(hidden.dtype)
            torch.mm(gradient, weight, out=of_rows)
            part.addmm_(gradient.T, rows)
            if of_bias is not None:
                of_bias += logits.sum(dim=0)
            if not is_whole and number % _CHUNKS_PER_SUM == 0:
                of_weight += part
                part.zero_()
        if not is_whole:
            of_weight += part
        of_bias = None if bias is None or of_bias is None else of_bias.to(bias.dtype)
        ctx.save_for_backward(of_hidden, of_weight.to(weight.dtype), of_bias)
        return nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        scale = gradient.to(of_hidden.dtype)
        return (
            of_hidden * scale,
            of_weight * scale,
            None if of_bias is None else of_bias * scale,
            None,
            None,
        )
