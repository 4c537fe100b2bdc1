"""Attention over packed tokens without padding: torch's variable-length flash attention.

Source: Dao (2023), "FlashAttention-2". For GPUs from compute capability 8.0 on and 16-bit types;
`nmt.model.attention` has other backends for what it lacks. Its public function changes: torch 2.10
says ``is_causal`` where later releases say ``window_size``, and shared keys came after 2.11. The
signatures of 2.10 and 2.13 are tested, with another kernel; tests marked ``gpu`` run the
kernel itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.packed import Packed

_DTYPES = (torch.bfloat16, torch.float16)
_LEAST_CAPABILITY = 8
_WIDEST_HEAD = 256


@dataclass(frozen=True)
class FlashAttention:
    """A kernel such as `torch.nn.attention.varlen.varlen_attn`, and what it has."""

    kernel: Callable[..., Any]
    causal: dict[str, Any]  # Arguments that let a token read only itself and those before it.
    # Arguments that let several query heads share keys; None where they cannot.
    shared: dict[str, Any] | None

    @classmethod
    def of(cls, kernel: Callable[..., Any]) -> FlashAttention:
        """Read what ``kernel`` has from its signature."""
        names = inspect.signature(kernel).parameters
        causal = {"window_size": (-1, 0)} if "window_size" in names else {"is_causal": True}
        return cls(kernel, causal, {"enable_gqa": True} if "enable_gqa" in names else None)

    def fits(self, query: Tensor, key: Tensor, bias: Tensor | None, dropout: float) -> bool:
        """Whether it does all that is asked: see `nmt.model.attention.attention`."""
        shares_keys, width = query.shape[1] != key.shape[1], query.shape[2]
        has_types = query.dtype in _DTYPES and width % 8 == 0 and width <= _WIDEST_HEAD
        return (
            has_types
            and bias is None
            and not dropout
            and (self.shared is not None or not shares_keys)
        )

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        segments: tuple[Packed, Packed],
        causal: bool,
    ) -> Tensor:
        """(N, H, E), (M, G, E) twice -> (N, H, E)."""
        queries, keys = segments
        options = dict(self.causal) if causal else {}
        if query.shape[1] != key.shape[1]:
            options |= self.shared or {}
        ends, lengths = (queries.cu_seqlens, keys.cu_seqlens), (queries.max_length, keys.max_length)
        mixed: Tensor = self.kernel(query, key, value, *ends, *lengths, **options)
        return mixed


def find_flash(device: torch.device) -> FlashAttention | None:
    """Return the kernel for ``device``; None where torch or the device has none."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < _LEAST_CAPABILITY:
        return None
    try:
        # Here, because it loads the compiler, which takes seconds.
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415
    except ImportError:  # before torch 2.10
        return None
    return FlashAttention.of(varlen_attn)
