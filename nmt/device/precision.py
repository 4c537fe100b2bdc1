"""Precision of training: dtypes of weights and matrix products, and the float16 loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nmt.device.device import choose_device
from nmt.errors import DeviceError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PrecisionName = Literal["float32", "bfloat16", "float16"]
_INITIAL_SCALE = 2.0**15
_MAX_SCALE = 2.0**127
_GROWTH_INTERVAL = 2000  # updates without overflow, after which the scale doubles
# The lowest compute capability with tensor cores for each type.
_FLOAT16_CAPABILITY = 7
_BFLOAT16_CAPABILITY = 8


@dataclass(frozen=True)
class Precision:
    """The dtypes of training.

    With bfloat16 on a CPU, the model's weights are bfloat16, with a float32 master copy. Autocast,
    which casts the weights in every layer, would cost more time than bfloat16 saves. Everywhere
    else, autocast is used.
    """

    name: PrecisionName
    device_type: str  # ``cpu``, ``cuda`` or ``mps``.

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of most matrix products."""
        return _DTYPES[self.name]

    @property
    def weight_dtype(self) -> torch.dtype:
        """Dtype of the model's weights during training."""
        if self.name == "bfloat16" and self.device_type == "cpu":
            return torch.bfloat16
        return torch.float32

    @property
    def repeats_sizes(self) -> bool:
        """Whether batches should have few sizes, because oneDNN compiles a kernel for each."""
        return self.device_type == "cpu" and self.name != "float32"

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes. It can be entered repeatedly."""
        if self.dtype == self.weight_dtype:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)


def choose_precision(wanted: Literal["auto"] | PrecisionName, device: torch.device) -> Precision:
    """Return the precision of training.

    Args:
        wanted: The setting `training.precision`. ``auto`` is `fastest_dtype`.
        device: The device.

    Raises:
        DeviceError: A 16-bit type is chosen for an Apple GPU.
    """
    if device.type == "mps" and wanted in ("bfloat16", "float16"):
        raise DeviceError(
            f"Training on mps does not support {wanted}, only float32.",
            fix="Set training.precision to auto or float32.",
        )
    if wanted == "auto":
        wanted = fastest_dtype(device)
    return Precision(wanted, device.type)


def fastest_dtype(device: torch.device) -> PrecisionName:
    """Return the fastest dtype of matrix products that does not reduce the quality of a model.

    bfloat16 if the hardware supports it; otherwise float16 on GPUs with tensor cores; otherwise
    float32.
    """
    if has_fast_bf16(device):
        return "bfloat16"
    return "float16" if _has_capability(device, _FLOAT16_CAPABILITY) else "float32"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices natively, without emulation."""
    if device.type != "cpu":
        return _has_capability(device, _BFLOAT16_CAPABILITY)
    return _cpu_has("avx512_bf16") or _cpu_has("amx_bf16")


def kind_of_machine() -> str:
    """Return the kind of hardware, on which the time of a training depends most."""
    if choose_device("auto").type == "cuda":
        return "GPU"
    if _cpu_has("amx_bf16"):
        return "CPU with AMX"
    if has_fast_bf16(torch.device("cpu")):
        return "CPU with bfloat16"
    return "CPU without bfloat16"


def _cpu_has(capability: str) -> bool:
    # Older releases of torch do not have this function. Then float32 is used.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get(capability, False))


def _has_capability(device: torch.device, min_major: int) -> bool:
    """Whether a device is a GPU with at least this compute capability."""
    if device.type != "cuda":
        return False
    major, _minor = torch.cuda.get_device_capability(device)
    return major >= min_major


class LossScale:
    """Loss scale of float16 training (Micikevicius et al. 2018, section 3.2).

    The factor keeps small gradients from becoming zero; it is divided out before the update. It
    halves after an overflow, and doubles after 2000 updates without overflow. It is stored on the
    device, so that the next update does not wait for the outcome of this one.
    """

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), _INITIAL_SCALE, device=device)  # Scalar, float32.
        # Updates without overflow since the last change of the factor. Scalar, int32.
        self._good_in_a_row = torch.zeros((), dtype=torch.int32, device=device)

    def adapt(self, skipped: Tensor) -> None:
        """Halve, keep or double the factor after an update.

        Args:
            skipped: 1 if the gradient was not finite, otherwise 0. Scalar on the device.
        """
        is_skipped = skipped > 0
        good_in_a_row = torch.where(is_skipped, 0, self._good_in_a_row + 1)
        grows = good_in_a_row == _GROWTH_INTERVAL
        change = torch.where(is_skipped, 0.5, torch.where(grows, 2.0, 1.0))
        self.factor.mul_(change).clamp_(1.0, _MAX_SCALE)
        self._good_in_a_row.copy_(good_in_a_row.masked_fill_(grows, 0))

    def counters(self) -> dict[str, float]:
        """Return the state for a checkpoint. Waits for the device."""
        return {"loss_scale": float(self.factor), "good_in_a_row": int(self._good_in_a_row)}

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Restore the output of `counters`. Missing values (after a new precision) are reset."""
        self.factor.fill_(counters.get("loss_scale", _INITIAL_SCALE))
        # Smaller than the interval, so that `adapt` reaches it.
        self._good_in_a_row.fill_(int(counters.get("good_in_a_row", 0)) % _GROWTH_INTERVAL)
