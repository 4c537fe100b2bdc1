"""The device of a process: its random state, and work given to it ahead."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from nmt.device import gpu_number
from nmt.device.distributed import Processes
from nmt.errors import DeviceError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ONE_GIB = 1 << 30
_OUT_OF_MEMORY = ("can't allocate memory", "error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_BETWEEN_RANKS = 1_000_003
_MAX_INFLIGHT_UPDATES = 64
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
        libc.mallopt(_M_MMAP_THRESHOLD, _ONE_GIB)
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
