"""Tensors that say they are on an Apple GPU, and that are computed on the CPU.

They show which code nmt chooses for the device ``mps``. float64 is refused, as by Metal, and so is
an operation on tensors of two devices. Not shown: operations that torch does not have for ``mps``,
numerical differences and speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

APPLE, CPU = torch.device("mps"), torch.device("cpu")
_MOVES = (
    "cpu",
    "to",
    "copy_",
    "__get__",
    "__set__",
    "_has_compatible_shallow_copy_type",
    "__getitem__",
    "__setitem__",
)


class AppleTensor(Tensor):
    """Says it is on ``mps``."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return APPLE

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        return compute(function, arguments, named or {})


def compute(function: Any, arguments: Any, named: dict[str, Any]) -> Any:
    """Run an operation on the CPU; its results are on ``mps`` if it says so, or its inputs are."""
    with torch._C.DisableTorchFunctionSubclass():
        name, given = getattr(function, "__name__", ""), tree_leaves((arguments, named))
        if name == "_parse_to" or function is torch.device:
            return function(*arguments, **named)
        tensors = [x for x in given if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, AppleTensor)]
        places = [str(x) for x in given if isinstance(x, torch.device | str)]
        places = [place for place in places if place in ("cpu", "mps")]
        is_apple = places[0] == "mps" if places else bool(ours) and name != "cpu"
        is_mixed = ours and any(x.ndim and not isinstance(x, AppleTensor) for x in tensors)
        if is_mixed and name not in _MOVES:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")

        def moved(value: Any) -> Any:
            return CPU if isinstance(value, torch.device | str) and str(value) == "mps" else value

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if is_apple and value.dtype in (torch.float64, torch.complex128):
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
            is_there = isinstance(value, AppleTensor) is is_apple
            return value if is_there else value.as_subclass(AppleTensor if is_apple else Tensor)

        return tree_map(placed, function(*tree_map(moved, arguments), **tree_map(moved, named)))


class Apple(TorchFunctionMode):
    """Inside this context, the device ``mps`` exists."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        return compute(function, arguments, named or {})
