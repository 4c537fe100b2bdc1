"""The device of a process: its random state, its memory, and work given to it ahead."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from nmt.device import gpu_number
from nmt.device.distributed import Processes
from nmt.errors import DeviceError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_OUT_OF_MEMORY = ("can't allocate memory", "error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_BETWEEN_RANKS = 1_000_003
_MAX_INFLIGHT_UPDATES = 64
_MEMINFO, _GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
_OWN_GROUP, _OWN_SIZES = Path("/proc/self/cgroup"), Path("/proc/self/statm")
_MADV_HUGEPAGE, _HUGE_PAGE = 14, 1 << 21
_BLOCK_OF_HEAP = (1 << 30) - _HUGE_PAGE  # two are below the size at which glibc gives memory back
T = TypeVar("T")


def choose_device(wanted: str) -> torch.device:
    """Return the device to compute on.

    Args:
        wanted: ``cpu``, ``mps``, ``cuda:N``; ``cuda`` for a GPU of its own for each process;
            ``auto`` for that where there are any.

    Raises:
        DeviceError: CUDA or Apple's GPU is wanted but torch sees none, or there are fewer GPUs than
            processes.
    """
    if wanted == "mps":
        if torch.backends.mps.is_available():
            return torch.device("mps")
        fix = "Use device auto or cpu, or torch on macOS 14 or later with an Apple processor."
        raise DeviceError("No mps device: torch sees no GPU of an Apple processor.", fix=fix)
    has_cuda = torch.cuda.is_available()
    if wanted.startswith("cuda") and not has_cuda:
        fix = "Use device auto or cpu, or install a CUDA build of torch."
        raise DeviceError("No CUDA device: torch sees no GPU.", fix=fix)
    if not has_cuda or wanted == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", gpu_number(wanted, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    # cuDNN's attention makes a plan for each new shape, up to half a second; batches of text hardly
    # ever have the same one. And it knows dropout in sixteenths only.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


@contextmanager
def deterministic(device: torch.device, *, wanted: bool) -> Iterator[None]:
    """Have a GPU use kernels that add in the same order each time; a CPU always does.

    To be entered before the GPU multiplies matrices.

    Raises:
        DeviceError: An operation has no such kernel.
    """
    if not wanted or device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS divides sums freely
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # else switches add, in the order of arrival
    settings: Any = torch.utils.deterministic
    was_on = torch.are_deterministic_algorithms_enabled()
    was_filling = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # nothing is read here before it is written
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        fix = "Set training.deterministic to false; then resuming is not bit-exact."
        problem = f"Sums on the GPU have no fixed order: {str(error).splitlines()[0]}"
        raise DeviceError(problem, fix=fix) from error
    finally:
        torch.use_deterministic_algorithms(was_on)
        settings.fill_uninitialized_memory = was_filling


def prepare_process(threads: int | None) -> None:
    """Set the CPU threads, and let the allocator keep freed memory.

    glibc gives every large temporary back to the kernel and faults it in again in the next layer;
    keeping it saves up to a tenth of a training step. In the arenas of further threads it always
    does so; having none saves a seventh of a beam search by several workers. Does nothing on other
    C libraries.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_ARENA_MAX, 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device or the system had no memory left for a tensor."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def random_state(device: torch.device, processes: Processes | None = None) -> dict[str, Tensor]:
    """Return the state of the generators that training draws from. uint8 tensors.

    Those of all processes: the first has the plain names, the others add their rank.
    """
    state = {"random/cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[f"random/{device.type}"] = torch.get_device_module(device).get_rng_state()
    gathered = (processes or Processes()).gather(state)
    return {_name(name, rank): t for rank, own in enumerate(gathered) for name, t in own.items()}


def restore_random_state(
    state: Mapping[str, Tensor], device: torch.device, processes: Processes | None = None
) -> None:
    """Continue the generators of this process from `random_state`, if they are in it."""
    rank = (processes or Processes()).rank
    if (name := _name("random/cpu", rank)) not in state:
        return  # of fewer processes: this one draws what `seed_rank` has given it
    torch.set_rng_state(state[name].cpu())
    if device.type != "cpu" and (name := _name(f"random/{device.type}", rank)) in state:
        torch.get_device_module(device).set_rng_state(state[name].cpu())


def seed_rank(seed: int, rank: int) -> None:
    """Seed each process but the first differently; the first keeps its random state."""
    if rank:
        torch.manual_seed(seed + rank * _BETWEEN_RANKS)


def _name(name: str, rank: int) -> str:
    return f"{name}/{rank}" if rank else name


@dataclass(frozen=True, slots=True)
class DeviceQueue:
    """How far the process runs ahead of its device, so that the device never waits for work."""

    device: torch.device  # Where the work is done.
    # Updates whose numbers may stay on the device until they are read; 1 reads them at once.
    max_inflight_updates: int
    # Whether threads make data ready and write checkpoints while the device computes.
    uses_threads: bool

    def stream(self, items: Iterator[T]) -> AbstractContextManager[Iterator[T]]:
        """Give the same items, while the context is open; one is made ahead if that saves time."""
        return prefetch(items) if self.uses_threads else nullcontext(items)

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def release_memory(self) -> None:
        """Give freed memory back to the device, against fragmentation."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_device_queue(device: torch.device) -> DeviceQueue:
    """Return the queue for ``device``: a CPU does its work at once, so nothing can run ahead."""
    runs_ahead = device.type == "cuda"
    return DeviceQueue(device, _MAX_INFLIGHT_UPDATES if runs_ahead else 1, runs_ahead)


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Give ``items``; a thread makes the next one while the caller uses the last.

    The thread must not touch the device: streams and graph captures belong to the caller's.
    """

    def one_ahead() -> Iterator[T]:
        end = object()
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]

    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:
        yield one_ahead()


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
