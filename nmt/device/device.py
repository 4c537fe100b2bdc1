"""The device of a process: choice, determinism, random state, free memory and queued work."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from nmt.device import gpu_number
from nmt.device.distributed import Processes
from nmt.errors import DeviceError

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_OUT_OF_MEMORY = ("can't allocate memory", "error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_BETWEEN_RANKS = 1_000_003  # difference of the seeds of two neighbouring ranks
_MAX_INFLIGHT_UPDATES = 64
_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_OWN_SIZES = Path("/proc/self/statm")
_OWN_LIMITS = Path("/proc/self/limits")
_LIMIT = r"^Max address space +(\d+)"  # `ulimit -v`, in bytes; no digits if it is unlimited
_MADV_HUGEPAGE = 14
_HUGE_PAGE = 1 << 21
_BLOCK_OF_HEAP = (1 << 30) - _HUGE_PAGE  # glibc keeps two of these instead of releasing them
T = TypeVar("T")


def choose_device(wanted: str) -> torch.device:
    """Return the device to compute on, and make it torch's current CUDA device.

    Args:
        wanted: ``cpu``, ``mps``, ``cuda:N``, ``cuda`` (a different GPU for each process), or
            ``auto`` (``cuda`` if there is a GPU, otherwise ``cpu``). ``auto`` never chooses
            ``mps``, because nmt was not tested on an Apple GPU.

    Raises:
        DeviceError: The device does not exist, or there are fewer GPUs than processes.
    """
    if wanted == "mps":
        if torch.backends.mps.is_available():
            return torch.device("mps")
        raise DeviceError(
            "No mps device: torch cannot find an Apple GPU.",
            fix="Use device auto or cpu. mps needs macOS 14 or later and an Apple processor.",
        )
    has_cuda = torch.cuda.is_available()
    if wanted.startswith("cuda") and not has_cuda:
        raise DeviceError(
            "No CUDA device: torch cannot find a GPU.",
            fix="Use device auto or cpu, or install a CUDA build of torch.",
        )
    if not has_cuda or wanted == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", gpu_number(wanted, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    # cuDNN attention plans each new shape for up to half a second, and batches of text rarely have
    # the same shape. It also rounds dropout rates to sixteenths.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def precise_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of counters and sums: float64, but float32 on ``mps``, which lacks it."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def deterministic(device: torch.device, *, wanted: bool) -> Iterator[None]:
    """Make a GPU use deterministic kernels inside the context. A CPU is always deterministic.

    Enter the context before the first matrix product on the GPU.

    Args:
        device: The device.
        wanted: False to change nothing.

    Raises:
        DeviceError: An operation has no deterministic kernel.
    """
    if not wanted or device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # fixes the order of cuBLAS sums
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # NVLink switches would sum in arrival order
    settings: Any = torch.utils.deterministic
    was_on = torch.are_deterministic_algorithms_enabled()
    was_filling = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # slow, and this code writes before it reads
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise DeviceError(
            f"An operation is not deterministic on this GPU: {str(error).splitlines()[0]}",
            fix="Set training.deterministic to false; resuming is then not bit-exact.",
        ) from error
    finally:
        torch.use_deterministic_algorithms(was_on)
        settings.fill_uninitialized_memory = was_filling


def prepare_process(threads: int | None) -> None:
    """Set the number of CPU threads, and make glibc keep freed memory.

    By default, glibc returns every large temporary to the kernel, and the next layer causes page
    faults again. Keeping the memory makes a training step up to a tenth faster. The arenas of other
    threads always return memory, so only one arena is used, which makes a beam search with several
    workers a seventh faster. Other C libraries are not changed.

    Args:
        threads: Number of CPU threads; None keeps torch's default.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if hasattr(os, "register_at_fork"):  # not on Windows
        # A forked process would wait for threads of OpenMP that it does not have.
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))
    if platform.libc_ver()[0] == "glibc" and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)  # smaller blocks are taken from the heap
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)  # the heap shrinks only above this, the maximum
        libc.mallopt(_M_ARENA_MAX, 1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means that the device or the system is out of memory."""
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY):
        return True
    return isinstance(error, torch.OutOfMemoryError | MemoryError)


def random_state(device: torch.device, processes: Processes | None = None) -> dict[str, Tensor]:
    """Return the states of the random generators of all processes, as uint8 tensors.

    Names are ``random/DEVICE`` in the first process and ``random/DEVICE/RANK`` in the others.
    """
    local_states = {"random/cpu": torch.get_rng_state()}  # of this process
    if device.type != "cpu":
        local_states[f"random/{device.type}"] = torch.get_device_module(device).get_rng_state()
    processes = processes or Processes()
    states = dict[str, Tensor]()
    for rank, rank_states in enumerate(processes.gather(local_states)):
        states |= {_rank_name(name, rank): state for name, state in rank_states.items()}
    return states


def restore_random_state(
    state: Mapping[str, Tensor], device: torch.device, processes: Processes | None = None
) -> None:
    """Restore the random generators of this process, if ``state`` contains them.

    Args:
        state: Result of `random_state`.
        device: The device.
        processes: The training processes; None for a single process.
    """
    rank = processes.rank if processes else 0
    cpu_name = _rank_name("random/cpu", rank)
    device_name = _rank_name(f"random/{device.type}", rank)
    if cpu_name not in state:
        return  # saved by fewer processes: this process keeps the seed of `seed_rank`
    torch.set_rng_state(state[cpu_name].cpu())
    if device.type != "cpu" and device_name in state:  # it may have been saved on another device
        torch.get_device_module(device).set_rng_state(state[device_name].cpu())


def seed_rank(seed: int, rank: int) -> None:
    """Give each process a different seed. The first process keeps its random state."""
    if rank:
        torch.manual_seed(seed + rank * _BETWEEN_RANKS)


def _rank_name(name: str, rank: int) -> str:
    """Return the name of a state of one process, as `random_state` describes it."""
    return f"{name}/{rank}" if rank else name


@dataclass(frozen=True, slots=True)
class DeviceQueue:
    """How much work the host queues on the device, so that the device never waits for the host."""

    device: torch.device
    # Maximum number of updates that are queued before their statistics are read.
    max_inflight_updates: int
    # Whether threads prepare data and write checkpoints while the device computes.
    uses_threads: bool

    def stream(self, items: Iterator[T]) -> AbstractContextManager[Iterator[T]]:
        """Return a context with the same items. On a GPU, a thread prepares the next item."""
        return prefetch(items) if self.uses_threads else nullcontext(items)

    def wait(self) -> None:
        """Wait until the device has finished all queued work."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def release_memory(self) -> None:
        """Return cached memory to the device, to reduce fragmentation."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_device_queue(device: torch.device) -> DeviceQueue:
    """Return the queue for ``device``. A CPU works synchronously, so it has no queue."""
    runs_ahead = device.type == "cuda"
    return DeviceQueue(device, _MAX_INFLIGHT_UPDATES if runs_ahead else 1, runs_ahead)


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Yield an iterator over ``items`` whose next item a thread computes in advance.

    The items must not use the GPU while they are computed: CUDA streams and graph captures belong
    to the calling thread.
    """

    def one_ahead(thread: ThreadPoolExecutor) -> Iterator[T]:
        end: Any = object()  # returned by `next` instead of an item at the end
        item = thread.submit(next, items, end).result()
        while item is not end:
            next_item = thread.submit(next, items, end)  # computed while the caller uses ``item``
            yield item
            item = next_item.result()

    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:
        yield one_ahead(thread)


def free_bytes(device: torch.device) -> int:
    """Return how many bytes tensors on ``device`` can still allocate.

    On a CPU, this is the memory of the machine or container that is free without swapping.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        # Memory that torch has reserved, but no tensor uses, is free too.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return max(0, min(_free_on_cpu()))


def use_huge_pages() -> None:
    """Request huge pages from Linux for the next 2 GiB of the glibc heap.

    This makes a training step a few percent faster, because there are fewer page faults and TLB
    misses. It reserves addresses, but no memory. Call it after `nmt.device.device.prepare_process`,
    which makes glibc keep freed memory. It does nothing on other systems, or if the address space
    is limited.
    """
    is_glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if not is_glibc or _find(_OWN_LIMITS, _LIMIT):
        return
    libc = ctypes.CDLL(None)
    pointer = ctypes.c_void_p
    size = ctypes.c_size_t
    libc.malloc.restype = pointer
    libc.malloc.argtypes = [size]
    libc.madvise.argtypes = [pointer, size, ctypes.c_int]
    libc.free.argtypes = [pointer]
    blocks = [libc.malloc(_BLOCK_OF_HEAP) for _ in range(2)]  # addresses; None without memory
    for block in filter(None, blocks):
        # Rounded up to a whole page; then the block has at most one page less.
        begin = -(-block // _HUGE_PAGE) * _HUGE_PAGE
        libc.madvise(begin, _BLOCK_OF_HEAP - _HUGE_PAGE, _MADV_HUGEPAGE)
    for block in blocks:  # glibc keeps them, with their huge pages, for later allocations
        libc.free(block)


def _free_on_cpu() -> Iterator[int]:
    """Yield the free bytes of the machine, of each control group (v2), and of ``ulimit -v``."""
    available = _find(_MEMINFO, r"^MemAvailable: *(\d+) kB$")
    if available:
        yield int(available) * 1024
    elif hasattr(os, "sysconf"):  # macOS: half of its memory
        yield os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    else:
        # Windows. MEMORYSTATUSEX has 64 bytes, here as 8 integers: item 0 tells the system the size
        # (64) before the call, and item 2 is the free memory after it.
        status = (ctypes.c_uint64 * 8)(64)
        vars(ctypes)["windll"].kernel32.GlobalMemoryStatusEx(status)
        yield status[2]
    group = _GROUPS / _find(_OWN_GROUP, r"^0::/(.*)$")
    # The limits of the parent groups count too.
    for folder in [group, *group.parents]:
        limit = _find(folder / "memory.max", r"^(\d+)$")
        used = _find(folder / "memory.current", r"^(\d+)$")
        if limit and used:
            # The kernel can free the file cache that was not used lately, so it counts as free.
            inactive = _find(folder / "memory.stat", r"^inactive_file (\d+)$")
            yield int(limit) - int(used) + int(inactive or 0)
        if folder == _GROUPS:
            break
    limit = _find(_OWN_LIMITS, _LIMIT)
    if limit:
        num_pages = int(_find(_OWN_SIZES, r"^(\d+)"))
        yield int(limit) - num_pages * mmap.PAGESIZE


def _find(path: Path, pattern: str) -> str:
    """Return the first group of ``pattern`` in a file of the system; empty if it is not found."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:  # not Linux, or no such limit
        return ""
    return match[1] if match else ""


def measure_peak(work: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """Run ``work``; return its result and the peak of the bytes that its tensors allocated.

    Only memory allocated during ``work`` counts. On a GPU, the allocator measures it. On a CPU, the
    results of all operations are tracked. This is slower, misses temporary memory inside kernels,
    and runs compiled code uncompiled.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        num_bytes_at_start = torch.cuda.memory_allocated(device)
        result = work()
        return result, torch.cuda.max_memory_allocated(device) - num_bytes_at_start
    # If torch._dynamo is not loaded, nothing is compiled. Loading it takes seconds.
    uncompiled: AbstractContextManager[object] = nullcontext()
    if "torch._dynamo" in sys.modules:
        uncompiled = torch.compiler.set_stance("force_eager")
    with uncompiled, _LiveBytes() as live:
        result = work()
    return result, live.peak


class _LiveBytes(TorchDispatchMode):
    """Tracks the bytes of all tensors that operations create.

    Its base class is documented, but only available from a private module of torch.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0  # largest number of bytes so far
        self._num_bytes = 0  # of all storages that are in use now
        self._addresses = set[int]()  # of these storages

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        input_addresses = {storage.data_ptr() for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            address = storage.data_ptr()
            size = storage.nbytes()
            # A result may be a view of an input, or use memory that is already counted.
            is_old = address in input_addresses or address in self._addresses
            if size and not is_old:
                self._addresses.add(address)
                self._num_bytes += size
                self.peak = max(self.peak, self._num_bytes)
                weakref.finalize(storage, self._forget, address, size)
        return result

    def _forget(self, address: int, size: int) -> None:
        """Subtract a storage whose memory was freed."""
        self._addresses.discard(address)
        self._num_bytes -= size


def _storages(values: object) -> Iterator[torch.UntypedStorage]:
    """Yield the storages of the tensors in nested lists, tuples and dicts."""
    if isinstance(values, Tensor):
        yield values.untyped_storage()
    elif isinstance(values, dict):
        yield from _storages(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _storages(value)
