"""Dropout whose random numbers are cheap on a CPU (Srivastava et al. 2014).

torch's CPU dropout draws one number for each element, which takes longer than the layer norm
beside it. Here one 64-bit number decides eight elements: a byte each, so probabilities are
multiples of 1/256 (0.1 becomes 26/256), and the scale uses the probability that was applied.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def dropped_share(probability: float) -> float:
    """Return the probability that byte masks apply: the nearest multiple of 1/256.

    >>> dropped_share(0.1)
    0.1015625
    """
    return min(max(round(probability * 256), 1), 255) / 256 if probability > 0 else 0.0


def keep_mask(shape: torch.Size, probability: float, dtype: torch.dtype) -> Tensor:
    """Draw whether to keep each element, on the CPU: bool, or 0 and 1 in a 16-bit ``dtype``."""
    size = shape.numel()
    # One number for eight elements: drawing is most of what dropout costs on a CPU.
    words = torch.empty((size + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    dropped = round(dropped_share(probability) * 256)
    keep = words.view(torch.uint8)[:size].view(shape).ge(dropped)
    if dtype.itemsize != 2:
        return keep
    # As bits of integers: torch takes thirty times as long to copy bool to a 16-bit float.
    one = int(torch.ones((), dtype=dtype).view(torch.int16))
    return keep.to(torch.int16).mul_(one).view(dtype)


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
    """Zero each element with ``probability`` and scale the rest, while training.

    Random numbers come from torch's default generator of the device. Compiled layers use torch's
    dropout, which becomes part of the kernels around it.
    """
    if not training or probability == 0:
        return values
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        return _ByteDropout.apply(values, probability)  # type: ignore[no-untyped-call]
    return F.dropout(values, probability)
