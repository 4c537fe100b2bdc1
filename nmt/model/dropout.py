"""Dropout (Srivastava et al. 2014) with fast random numbers on a CPU.

torch's CPU dropout draws one number for each element, which takes longer than a layer norm. Here
one 64-bit number decides eight elements, with one byte for each. So probabilities are multiples of
1/256: 0.1 becomes 26/256. The scale uses the rounded probability.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_ZERO = torch.zeros(())


def dropped_share(probability: float) -> float:
    """Round a dropout probability to the nearest multiple of 1/256, from 1/256 to 255/256.

    >>> dropped_share(0.1)
    0.1015625
    """
    if probability <= 0:
        return 0.0
    return min(max(round(probability * 256), 1), 255) / 256


def keep_mask(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """Draw a mask on the CPU: 1 for kept elements, 0 for others.

    Returns:
        A tensor of ``dtype`` if this has 16 bits, otherwise uint8, which needs less memory. Not
        bool, because torch compares to bool and converts bool several times slower.
    """
    size = shape.numel()
    # One number for eight elements, because drawing is most of the cost of dropout on a CPU.
    num_words = (size + 7) // 8
    words = torch.empty(num_words, dtype=torch.int64)
    words.random_(-(2**63), None)  # all 64-bit numbers are equally likely
    draws = words.view(torch.uint8)[:size]
    num_dropped = round(dropped_share(probability) * 256)  # of the 256 values of a byte
    if dtype.itemsize != 2:
        dtype = torch.uint8
    mask = torch.empty(shape, dtype=dtype)
    return torch.ge(draws.view(shape), num_dropped, out=mask)


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, residual: Tensor, probability: float) -> Tensor:
        keep = keep_mask(values.shape, probability, values.dtype)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - dropped_share(probability))
        return torch.addcmul(residual, values, keep, value=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (keep,) = ctx.saved_tensors
        values_grad = torch.addcmul(_ZERO, gradient, keep, value=ctx.scale)
        return values_grad, gradient, None


def dropout(
    values: Tensor, probability: float, training: bool, residual: Tensor | None = None
) -> Tensor:
    """Zero each element with ``probability`` and scale the rest, if ``training``.

    Random numbers come from torch's default generator of the device. Compiled layers use torch's
    dropout, which is fused into neighbouring kernels.

    Args:
        values: Any shape.
        probability: Probability of zeroing an element.
        training: Whether to do it.
        residual: Added to the result. Same shape; None for nothing.
    """
    if training and probability:
        if values.device.type == "cpu" and not torch.compiler.is_compiling():
            residual = _ZERO if residual is None else residual
            return _ByteDropout.apply(values, residual, probability)  # type: ignore[no-untyped-call]
        values = F.dropout(values, probability)
    return values if residual is None else residual + values
