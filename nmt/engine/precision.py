"""Which arithmetic forward and backward use, decided once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """A policy for dtypes.

    bf16 on a CPU keeps the working weights in bf16 beside a float32 master copy: casting them in
    every layer, as autocast does, costs more than it saves there. Elsewhere autocast is used.
    """

    name: Literal["float32", "bf16", "fp16"]
    device_type: str
    """``cpu`` or ``cuda``."""

    @property
    def dtype(self) -> torch.dtype:
        """What most products are computed in."""
        names = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return names[self.name]

    @property
    def weight_dtype(self) -> torch.dtype:
        """What the working weights are stored in."""
        has_bf16_weights = self.name == "bf16" and self.device_type == "cpu"
        return torch.bfloat16 if has_bf16_weights else torch.float32

    @property
    def scales_loss(self) -> bool:
        """Whether gradients need a loss scale to stay in range."""
        return self.name == "fp16"

    @property
    def initial_loss_scale(self) -> float:
        """The factor to begin with."""
        return 2.0**15 if self.scales_loss else 1.0

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes."""
        if self.dtype == self.weight_dtype:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bf16 matrices itself; others emulate it, slowly."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    # AMX tiles imply the AVX-512 instructions that torch reports here.
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())


def choose_precision(
    wanted: Literal["auto", "float32", "bf16", "fp16"], device: torch.device
) -> Precision:
    """Return the policy; ``auto`` is bf16 where the hardware has it, float32 elsewhere."""
    if wanted == "auto":
        wanted = "bf16" if has_fast_bf16(device) else "float32"
    return Precision(wanted, device.type)
