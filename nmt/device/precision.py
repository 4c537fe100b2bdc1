"""What a device computes in: dtypes of weights and products, and the scale of a float16 loss."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nmt.errors import DeviceError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PrecisionName = Literal["float32", "bfloat16", "float16"]
_INITIAL_SCALE, _MAX_SCALE = 2.0**15, 2.0**127
_GROWTH_INTERVAL = 2000
_FAST_FLOAT16_CAPABILITY, _FAST_BFLOAT16_CAPABILITY = 7, 8


@dataclass(frozen=True, slots=True)
class Precision:
    """A policy for dtypes.

    On a CPU, bfloat16 keeps the working weights in bfloat16 beside a float32 master copy: casting
    them in every layer, as autocast does, costs more than it saves there. Elsewhere autocast is
    used.
    """

    name: PrecisionName
    device_type: str  # ``cpu``, ``cuda`` or ``mps``.

    @property
    def dtype(self) -> torch.dtype:
        """What most products are computed in."""
        return _DTYPES[self.name]

    @property
    def weight_dtype(self) -> torch.dtype:
        """What the working weights are stored in."""
        is_narrow = self.name == "bfloat16" and self.device_type == "cpu"
        return torch.bfloat16 if is_narrow else torch.float32

    @property
    def repeats_sizes(self) -> bool:
        """Whether batches should be of few sizes: 16-bit kernels of a CPU are made for each."""
        return self.device_type == "cpu" and self.name != "float32"

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes; it may be entered again and again."""
        if self.dtype == self.weight_dtype:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)


def choose_precision(wanted: Literal["auto"] | PrecisionName, device: torch.device) -> Precision:
    """Return the policy; ``auto`` is what the hardware computes in.

    bfloat16 where it multiplies that itself; float16 on GPUs that have only that; else float32.

    Raises:
        DeviceError: It is a 16-bit type on Apple's GPU.
    """
    if device.type == "mps" and wanted in ("bfloat16", "float16"):
        fix = "Set training.precision to auto or float32."
        raise DeviceError(f"Training on mps is in float32, not in {wanted}.", fix=fix)
    return Precision(fastest_dtype(device) if wanted == "auto" else wanted, device.type)


def fastest_dtype(device: torch.device) -> PrecisionName:
    """Return what the hardware multiplies fastest, of those that a model keeps its quality in."""
    if has_fast_bf16(device):
        return "bfloat16"
    is_cuda = device.type == "cuda"
    if is_cuda and torch.cuda.get_device_capability(device)[0] >= _FAST_FLOAT16_CAPABILITY:
        return "float16"
    return "float32"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices itself instead of emulating it."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= _FAST_BFLOAT16_CAPABILITY
    if device.type != "cpu":
        return False
    # A release of torch without this call says nothing of the CPU: then it computes in float32.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


class LossScale:
    """A factor on a float16 loss, divided out of the gradient before the update.

    It keeps small gradients from becoming zero, and large ones from overflow: it halves at an
    overflow and doubles after 2000 updates without (Micikevicius et al. 2018, section 3.2). It
    lives on the device, so that the next update need not wait for the outcome of this one.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), _INITIAL_SCALE, device=device)  # The factor, on the device.
        self._good_in_a_row = torch.zeros((), dtype=torch.int32, device=device)

    def adapt(self, skipped: Tensor) -> None:
        """Adapt to the last update; ``skipped`` is 1 if its gradient was not finite, else 0."""
        is_skipped = skipped > 0
        good = torch.where(is_skipped, 0, self._good_in_a_row + 1)
        grows = good == _GROWTH_INTERVAL
        change = torch.where(is_skipped, 0.5, torch.where(grows, 2.0, 1.0))
        self.factor.mul_(change).clamp_(1.0, _MAX_SCALE)
        self._good_in_a_row.copy_(good.masked_fill_(grows, 0))

    def counters(self) -> dict[str, float]:
        """Return what a resumed run must know. Waits for the device."""
        return {"loss_scale": float(self.factor), "good_in_a_row": int(self._good_in_a_row)}

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Take `counters` back; those of another precision say nothing."""
        self.factor.fill_(counters.get("loss_scale", _INITIAL_SCALE))
        self._good_in_a_row.fill_(int(counters.get("good_in_a_row", 0)) % _GROWTH_INTERVAL)
