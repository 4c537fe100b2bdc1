"""How much memory is left for tensors, how much work takes at its peak, and huge pages for it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

_MEMINFO, _GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_OWN_GROUP, _OWN_SIZES = Path("/proc/self/cgroup"), Path("/proc/self/statm")
_MADV_HUGEPAGE, _HUGE_PAGE = 14, 1 << 21
_BLOCK_OF_HEAP = (1 << 30) - _HUGE_PAGE  # two are below the size at which glibc gives memory back
T = TypeVar("T")


def free_bytes(device: torch.device) -> int:
    """Return the bytes that tensors on ``device`` could still take, as far as the system tells.

    On a CPU that is what is left without swapping, to the machine or to the container.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return max(0, min(_free_on_cpu()))


def use_huge_pages() -> None:
    """Have Linux back the next 2 GiB of glibc's heap with huge pages, where it does so on request.

    The heap grows by that and stays empty: addresses are taken, no memory. Fewer page faults and
    misses of the address cache save some percent of a training step. To be called after
    `nmt.device.device.prepare_process`, which has glibc keep freed memory. Does nothing where
    addresses are limited, and on other systems.
    """
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if is_limited or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return
    libc, pointer, size = ctypes.CDLL(None), ctypes.c_void_p, ctypes.c_size_t
    libc.malloc.restype, libc.malloc.argtypes = pointer, [size]
    libc.madvise.argtypes, libc.free.argtypes = [pointer, size, ctypes.c_int], [pointer]
    blocks = [libc.malloc(_BLOCK_OF_HEAP) for _ in range(2)]
    for block in filter(None, blocks):
        begin = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(begin, _BLOCK_OF_HEAP - _HUGE_PAGE, _MADV_HUGEPAGE)
    for block in blocks:
        libc.free(block)


def _free_on_cpu() -> Iterator[int]:
    """Yield what the machine, the control groups (version 2) and ``ulimit -v`` leave, if set."""
    available = _find(_MEMINFO, r"^MemAvailable: *(\d+) kB$")
    half = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() // 2
    yield int(available) * 1024 if available else half
    group = _GROUPS / _find(_OWN_GROUP, r"^0::/(.*)$")
    for place in [group, *group.parents][: -len(_GROUPS.parents)]:
        limit, used = (_find(place / f"memory.{x}", r"^(\d+)$") for x in ("max", "current"))
        if limit and used:
            # Of that, copies of files that nobody has read lately are given back when need be.
            files = _find(place / "memory.stat", r"^inactive_file (\d+)$")
            yield int(limit) - int(used) + int(files or 0)
    limits, pages = resource.getrlimit(resource.RLIMIT_AS), _find(_OWN_SIZES, r"^(\d+)")
    if pages and limits[0] != resource.RLIM_INFINITY:
        yield limits[0] - int(pages) * resource.getpagesize()


def _find(path: Path, pattern: str) -> str:
    """Return what a file of the system holds at the group of ``pattern``; empty if nothing."""
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # not Linux, or no such limit
        return ""
    return found[1] if found else ""


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
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage.data_ptr() for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            address, size = storage.data_ptr(), storage.nbytes()
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
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _storages(value)
