"""How much memory is left for tensors, and how much a piece of work takes at its peak."""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_OWN_SIZES = Path("/proc/self/statm")
_NO_LIMIT = 1 << 62
T = TypeVar("T")


def free_bytes(device: torch.device) -> int:
    """Return the bytes that tensors on ``device`` could still take, as far as the system tells.

    On a CPU that is what is left without swapping, to the machine or to the container.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    return min(_free_in_machine(), _free_in_groups(), _free_for_process())


def _free_in_machine() -> int:
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_groups() -> int:
    """Of a container, or a group of processes and those around it (cgroup version 2)."""
    try:
        inner = re.search(r"^0::/(.*)$", _OWN_GROUP.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        inner = None
    group = _GROUPS / (inner[1] if inner else "")
    return min(map(_free_in_group, [group, *group.parents][: -len(_GROUPS.parents)]))


def _free_in_group(group: Path) -> int:
    try:
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
        # Of that, copies of files that nobody has read lately are given back when need be.
        statistics = (group / "memory.stat").read_text(encoding="ascii")
        files = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
        return max(0, limit - used + (int(files[1]) if files else 0))
    except (OSError, ValueError):
        return _NO_LIMIT


def _free_for_process() -> int:
    """What ``ulimit -v`` leaves."""
    try:
        import resource  # noqa: PLC0415 - not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        used = int(_OWN_SIZES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return _NO_LIMIT
    return _NO_LIMIT if limit == resource.RLIM_INFINITY else max(0, limit - used)


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
    # Where torch._dynamo is not loaded nothing is compiled, and to load it takes seconds.
    can_be_compiled = "torch._dynamo" in sys.modules
    uncompiled = torch.compiler.set_stance("force_eager") if can_be_compiled else nullcontext()
    with uncompiled, _LiveBytes() as live:
        result = work()
    return result, live.peak


class _LiveBytes(TorchDispatchMode):
    """Follows the storages that operations make.

    Its base class has no public place, though torch documents it: without it, `measure_peak` has no
    count on a CPU.
    """

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
            size = storage.nbytes()
            if size and address not in given and address not in self._followed:
                self._followed.add(address)
                self._now += size
                self.peak = max(self.peak, self._now)
                weakref.finalize(storage, self._forget, address, size)
        return result

    def _forget(self, address: int, size: int) -> None:
        self._followed.discard(address)
        self._now -= size


def _storages(values: object) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of the tensors in nested lists, tuples and dicts."""
    if isinstance(values, Tensor):
        yield values.untyped_storage()
    elif isinstance(values, dict):
        yield from _storages(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _storages(value)
