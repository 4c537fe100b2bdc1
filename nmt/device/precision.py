"""What a device computes in: dtypes of weights and products, and the scale of a float16 loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nmt.errors import DeviceError

_DTYPES = {
    "float32": torch.float32,
    "bf16-products": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PrecisionName = Literal["float32", "bf16-products", "bfloat16", "float16"]
_INITIAL_SCALE, _MAX_SCALE = 2.0**15, 2.0**127
_GROWTH_INTERVAL = 2000
_FAST_FLOAT16_CAPABILITY = 7


@dataclass(frozen=True, slots=True)
class Precision:
    """A policy for dtypes.

    On a CPU, bfloat16 keeps the working weights in bfloat16 beside a float32 master copy: casting
    them in every layer, as autocast does, costs more than it saves there. Elsewhere autocast is
    used. With bf16-products every tensor stays float32, and a CPU may multiply in bfloat16.
    """

    name: PrecisionName
    device_type: str  # ``cpu`` or ``cuda``.
    bf16_weights: bool = False  # Whether a GPU, too, keeps the working weights in bfloat16.

    @property
    def dtype(self) -> torch.dtype:
        """What most products are computed in."""
        return _DTYPES[self.name]

    @property
    def weight_dtype(self) -> torch.dtype:
        """What the working weights are stored in."""
        is_narrow = self.device_type == "cpu" or self.bf16_weights
        return torch.bfloat16 if self.name == "bfloat16" and is_narrow else torch.float32

    @property
    def repeats_sizes(self) -> bool:
        """Whether batches should be of few sizes: 16-bit kernels of a CPU are made for each."""
        return self.device_type == "cpu" and self.name != "float32"

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context for forward passes."""
        if self.dtype == self.weight_dtype:
            return nullcontext()
        return torch.autocast(self.device_type, self.dtype)

    @contextmanager
    def fast_products(self) -> Iterator[None]:
        """Have float32 matrices multiplied as bf16-products says; for forward and backward passes.

        By oneDNN: see `rounds_products`. In float32, too, it is twice as fast as torch's other
        library on AMD's processors with AVX512.
        """
        if self.name != "bf16-products":
            yield
            return
        backend: Any = torch.backends.mkldnn
        products = backend.matmul
        before, products.fp32_precision = products.fp32_precision, "bf16"
        try:
            yield
        finally:
            products.fp32_precision = before


def has_fast_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices itself instead of emulating it."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    if device.type != "cpu":
        return False
    return _cpu_has("avx512_bf16")


def _cpu_has(instructions: str) -> bool:
    # A release of torch without this call says nothing of the CPU: then it computes in float32.
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get(instructions, False))


def rounds_products() -> bool:
    """Whether bf16-products multiplies in bfloat16 on this CPU; if not, it is float32 arithmetic.

    Without AMX oneDNN has no use for that leave: products are as exact as those of float32.
    """
    return _cpu_has("amx_bf16")


def precisions_to_compare(device: torch.device) -> list[PrecisionName]:
    """Return what may be fastest on ``device``, the likeliest first: on a GPU its capability tells.

    Without AVX512 torch multiplies float32 by one library only, so bf16-products changes nothing.

    >>> "float32" in precisions_to_compare(torch.device("cpu"))
    True
    """
    fastest = fastest_dtype(device)
    if device.type != "cpu":
        return [fastest]
    bf16_products: list[PrecisionName] = ["bf16-products"] if _cpu_has("avx512_bw") else []
    return list(dict.fromkeys((fastest, *bf16_products, "float32")))


def choose_precision(
    wanted: Literal["auto"] | PrecisionName,
    device: torch.device,
    *,
    bf16_weights: bool = False,
) -> Precision:
    """Return the policy; ``auto`` is what the hardware should be fastest in.

    bfloat16 where it multiplies that itself; float16 on GPUs that have only that; else float32.

    Raises:
        DeviceError: It is a 16-bit type on Apple's GPU, or bf16-products on any.
    """
    if device.type != "cpu" and wanted == "bf16-products":
        raise DeviceError(
            "Training in bf16-products is for CPUs.",
            fix="Set training.precision to auto, or leave it out.",
        )
    if device.type == "mps" and wanted in ("bfloat16", "float16"):
        raise DeviceError(
            f"Training on mps is in float32, not in {wanted}.",
            fix="Set training.precision to auto or float32.",
        )
    if wanted == "auto":
        wanted = fastest_dtype(device)
    return Precision(wanted, device.type, bf16_weights)


def fastest_dtype(device: torch.device) -> Literal["float32", "bfloat16", "float16"]:
    """Return what the hardware multiplies fastest, of those that a model keeps its quality in."""
    if has_fast_bf16(device):
        return "bfloat16"
    has_fast_float16 = (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] >= _FAST_FLOAT16_CAPABILITY
    )
    return "float16" if has_fast_float16 else "float32"


class LossScale:
    """A factor on the loss, divided out of the gradient before the update; 1 but in float16.

    In float16 it keeps small gradients from becoming zero, and large ones from overflow: it halves
    at an overflow and doubles after 2000 updates without (Micikevicius et al. 2018, section 3.2).
    It lives on the device, so that the next update need not wait for the outcome of this one.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.factor: Tensor | float = 1.0  # The factor, on the device if it changes.
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
