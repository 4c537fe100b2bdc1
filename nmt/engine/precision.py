"""Mixed precision: the dtypes of weights and products, and the loss scale of float16."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_INITIAL_SCALE, _MAX_SCALE = 2.0**15, 2.0**127
_GROWTH_INTERVAL = 2000


@dataclass(frozen=True, slots=True)
class Precision:
    """A policy for dtypes.

    On a CPU, bfloat16 keeps the working weights in bfloat16 beside a float32 master copy: casting
    them in every layer, as autocast does, costs more than it saves there. Elsewhere autocast is
    used.
    """

    name: Literal["float32", "bfloat16", "float16"]
    device_type: str
    """``cpu`` or ``cuda``."""

    @property
    def dtype(self) -> torch.dtype:
        """What most products are computed in."""
        return _DTYPES[self.name]

    @property
    def weight_dtype(self) -> torch.dtype:
        """What the working weights are stored in."""
        has_bf16_weights = self.name == "bfloat16" and self.device_type == "cpu"
        return torch.bfloat16 if has_bf16_weights else torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes."""
        if self.dtype == self.weight_dtype:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices itself instead of emulating it."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    # A release of torch without this call says nothing of the CPU: then it computes in float32.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16", False))


def choose_precision(
    wanted: Literal["auto", "float32", "bfloat16", "float16"], device: torch.device
) -> Precision:
    """Return the policy; ``auto`` is bfloat16 where the hardware has it, float32 elsewhere."""
    if wanted == "auto":
        wanted = "bfloat16" if has_fast_bf16(device) else "float32"
    return Precision(wanted, device.type)


class LossScale:
    """A factor on the loss, divided out of the gradient before the update; 1 but in float16.

    In float16 it keeps small gradients from becoming zero, and large ones from overflow: it halves
    at an overflow and doubles after 2000 updates without (Micikevicius et al. 2018, section 3.2).
    It lives on the device, so that the next update need not wait for the outcome of this one.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.factor: Tensor | float = 1.0
        """The factor, on the device if it changes."""
        if precision.name == "float16":
            self.factor = torch.full((), _INITIAL_SCALE, device=device)
            self._good_in_a_row = torch.zeros((), dtype=torch.int32, device=device)

    def adapt(self, skipped: Tensor) -> None:
        """Adapt to the last update; ``skipped`` is 1 if its gradient was not finite, else 0."""
        if isinstance(self.factor, float):
            return
        is_skipped = skipped > 0
        good = torch.where(is_skipped, 0, self._good_in_a_row + 1)
        grows = good == _GROWTH_INTERVAL
        change = torch.where(is_skipped, 0.5, torch.where(grows, 2.0, 1.0))
        self.factor.mul_(change).clamp_(1.0, _MAX_SCALE)
        self._good_in_a_row.copy_(good.masked_fill_(grows, 0))

    def counters(self) -> dict[str, float]:
        """Return what a resumed run must know. Waits for the device."""
        if isinstance(self.factor, float):
            return {}
        return {"loss_scale": float(self.factor), "good_in_a_row": int(self._good_in_a_row)}

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Take `counters` back; those of another precision say nothing."""
        if not isinstance(self.factor, float):
            self.factor.fill_(counters.get("loss_scale", _INITIAL_SCALE))
            self._good_in_a_row.fill_(int(counters.get("good_in_a_row", 0)) % _GROWTH_INTERVAL)
