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


def dropped_share(probability: float) -> float:
    """Round a dropout probability to the nearest multiple of 1/256, from 1/256 to 255/256.

    >>> dropped_share(0.1)
    0.1015625
    """
    if probability <= 0:
        return 0.0
    return min(max(round(probability * 256), 1), 255) / 256


def keep_mask(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """Draw a mask of kept elements on the CPU: bool, or 0 and 1 if ``dtype`` has 16 bits."""
    size = shape.numel()
    # One number for eight elements, because drawing is most of the cost of dropout on a CPU.
    num_words = (size + 7) // 8
    words = torch.empty(num_words, dtype=torch.int64)
    words.random_(-(2**63), None)  # all 64-bit numbers are equally likely
    draws = words.view(torch.uint8)[:size]
    num_dropped = round(dropped_share(probability) * 256)  # of the 256 values of a byte
    keep = draws.view(shape).ge(num_dropped)
    if dtype.itemsize != 2:
        return keep
    # Built from integer bits: torch converts bool to a 16-bit float thirty times slower. `one` has
    # the bits of 1.0, and 0 has the bits of 0.0.
    one = torch.ones((), dtype=dtype).view(torch.int16)
    return keep.to(torch.int16).mul_(int(one)).view(dtype)


class _ByteDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float) -> Tensor:
        keep = keep_mask(values.shape, probability, values.dtype)
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - dropped_share(probability))
        return torch.mul(values, keep).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return torch.mul(gradient, keep).mul_(ctx.scale), None


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Zero each element with ``probability`` and scale the rest, if ``training``.

    Random numbers come from torch's default generator of the device. Compiled layers use torch's
    dropout, which is fused into neighbouring kernels.
    """
    if not training or probability == 0:
        return values
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        return _ByteDropout.apply(values, probability)  # type: ignore[no-untyped-call]
    return F.dropout(values, probability)
