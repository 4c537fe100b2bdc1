"""Which arithmetic forward and backward use, decided once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

_FIRST_SCALE = 2.0**15
_UPDATES_TO_GROW = 2000


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


class LossScale(Protocol):
    """A factor of the loss that is taken out of the gradient again."""

    @property
    def factor(self) -> Tensor | float:
        """The factor, on the device if it changes."""
        ...

    def adapt(self, skipped: Tensor) -> None:
        """Take note of an update; ``skipped`` is 1 if its gradient was not finite, else 0."""
        ...

    def counters(self) -> dict[str, float]:
        """Return what a resumed run must know. Waits for the device."""
        ...

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Take `counters` back."""
        ...


class FixedLossScale:
    """Gradients stay in range by themselves."""

    factor = 1.0

    def adapt(self, skipped: Tensor) -> None:
        """Do nothing."""

    def counters(self) -> dict[str, float]:
        """Return nothing."""
        return {}

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Do nothing."""


class AdaptiveLossScale:
    """Keeps small gradients from becoming zero, large ones from overflow.

    Halves at an overflow and doubles after 2000 updates without (Micikevicius et al. 2018, section
    3.2). Lives on the device, so that the next update need not wait for the outcome of this one.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), _FIRST_SCALE, device=device)
        self._good_in_a_row = torch.zeros((), dtype=torch.int32, device=device)

    def adapt(self, skipped: Tensor) -> None:
        """Halve, double or leave the factor."""
        # One kernel, the one behind torch.amp.GradScaler.
        torch._amp_update_scale_(
            self.factor, self._good_in_a_row, skipped, 2.0, 0.5, _UPDATES_TO_GROW
        )
        self.factor.clamp_(min=1.0)

    def counters(self) -> dict[str, float]:
        """Return the factor, and the good updates since it last changed."""
        return {"loss_scale": float(self.factor), "good_in_a_row": int(self._good_in_a_row)}

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Take `counters` back; those of another precision say nothing."""
        self.factor.fill_(counters.get("loss_scale", _FIRST_SCALE))
        self._good_in_a_row.fill_(int(counters.get("good_in_a_row", 0)) % _UPDATES_TO_GROW)


def make_loss_scale(precision: Precision, device: torch.device) -> LossScale:
    """Return what the precision needs."""
    return AdaptiveLossScale(device) if precision.scales_loss else FixedLossScale()
