"""How much memory a piece of work takes at its peak, on top of what is held already."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

T = TypeVar("T")


def measure_peak(work: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """Run ``work``; return its result, and the most bytes of tensors it held at one time.

    Counts what is allocated during ``work`` only. On a GPU the allocator keeps the count; on a CPU
    every operation's results are followed until they are freed, which slows ``work`` down and
    misses what kernels need within themselves. There, compiled code runs as it was written.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        return result, torch.cuda.max_memory_allocated(device) - before
    with _uncompiled(), _LiveBytes() as live:
        result = work()
    return result, live.peak


def _uncompiled() -> AbstractContextManager[object]:
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and to load it takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


class _LiveBytes(TorchDispatchMode):
    """Follows the storages that operations make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._followed: set[int] = set()

    @override
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {storage.data_ptr() for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            address = storage.data_ptr()
            if storage.nbytes() and address not in given and address not in self._followed:
                self._follow(storage, address)
        return result

    def _follow(self, storage: torch.UntypedStorage, address: int) -> None:
        size = storage.nbytes()
        self._followed.add(address)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._followed.discard(address)
        self._now -= size


def _storages(values: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
