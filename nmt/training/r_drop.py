"""R-Drop: two passes with other dropout should say the same.

Liang et al. (2021), "R-Drop: Regularized Dropout for Neural Networks", section 2. The objective
here is half of the paper's, so that strength 0 and equal passes give the plain loss:

    (CE_1 + CE_2) / 2 + strength / 4 * (KL(p_1 || p_2) + KL(p_2 || p_1))

A few hundred rows are worked on at a time, with their gradient, as in `nmt.training.loss`.

Shapes: N real target tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_ROWS_PER_CHUNK = 256


def r_drop_loss(
    hidden: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor | None,
    gold: Tensor,
    *,
    smoothing: float,
    strength: float,
) -> Tensor:
    """Sum the objective over tokens: a float32 scalar.

    Args:
        hidden: States of both passes, (N, D) each.
        weight: Output projection. (V, D)
        bias: Its bias, (V,), or None.
        gold: Ids to predict. (N,), int64.
        smoothing: Probability spread evenly over the vocabulary.
        strength: Weight of the divergence (alpha in the paper; 5 there for translation).
    """
    both = torch.stack(hidden)
    objective: Tensor = _RDrop.apply(both, weight, bias, gold, smoothing, strength)  # type: ignore[no-untyped-call]
    return objective


def _chunk_gradient(
    logits: Tensor, gold: Tensor, smoothing: float, strength: float
) -> tuple[Tensor, Tensor]:
    """Return the objective of float32 ``logits`` (2, n, V) and its gradient, of the same shape."""
    vocab_size = logits.shape[-1]
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    rows = gold.expand(2, -1).unsqueeze(-1)
    of_gold = log_probs.gather(-1, rows).sum()
    nats = -((1 - smoothing) * of_gold + smoothing / vocab_size * log_probs.sum()) / 2
    difference = log_probs[0] - log_probs[1]
    nats += strength / 4 * ((probs[0] - probs[1]) * difference).sum()

    gradient = probs - smoothing / vocab_size
    gradient.scatter_add_(-1, rows, torch.full_like(rows, -(1 - smoothing), dtype=logits.dtype))
    gradient /= 2
    for own, other, sign in ((0, 1, 1.0), (1, 0, -1.0)):
        centred = difference - (probs[own] * difference).sum(-1, keepdim=True)
        divergence = probs[own] * centred * sign + probs[own] - probs[other]
        gradient[own].add_(divergence, alpha=strength / 4)
    return nats, gradient


class _RDrop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        gold: Tensor,
        smoothing: float,
        strength: float,
    ) -> Tensor:
        of_hidden = torch.empty_like(hidden)
        cast = weight.to(hidden.dtype)  # they differ under autocast
        # Sums of many chunks: in 16 bits, what a chunk adds would be lost in what is there.
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        objective = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[1], _ROWS_PER_CHUNK):
            chunk = slice(start, start + _ROWS_PER_CHUNK)
            rows = hidden[:, chunk]
            logits = F.linear(rows, cast).float()
            if bias is not None:
                logits += bias
            nats, gradient = _chunk_gradient(logits, gold[chunk], smoothing, strength)
            objective += nats
            gradient = gradient.to(hidden.dtype)
            of_hidden[:, chunk] = gradient @ cast
            of_weight += gradient.flatten(0, 1).T @ rows.flatten(0, 1)
            if of_bias is not None:
                of_bias += gradient.sum(dim=(0, 1), dtype=torch.float32)
        of_bias = None if bias is None or of_bias is None else of_bias.to(bias.dtype)
        ctx.save_for_backward(of_hidden, of_weight.to(weight.dtype), of_bias)
        return objective

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, of_bias = ctx.saved_tensors
        scale = gradient.to(of_hidden.dtype)
        of_bias = None if of_bias is None else of_bias * scale
        return of_hidden * scale, of_weight * scale, of_bias, None, None, None
