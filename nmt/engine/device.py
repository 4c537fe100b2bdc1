"""Choose the device and prepare the process for it."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from nmt.engine.launched import local_rank
from nmt.errors import DeviceError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ONE_GIB = 1 << 30
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the device to compute on; ``auto`` is a GPU of its own for each process, if any.

    Raises:
        DeviceError: CUDA is wanted but torch sees none, or there are fewer GPUs than processes.
    """
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise DeviceError(
            "No CUDA device: torch sees no GPU.",
            fix="Use device auto or cpu, or install a CUDA build of torch.",
        )
    if not has_cuda or wanted == "cpu":
        return torch.device("cpu")
    number = local_rank()
    if number >= torch.cuda.device_count():
        raise DeviceError(
            f"Process {number} of this machine has no GPU: there are {torch.cuda.device_count()}.",
            fix="Start fewer processes, or use device cpu.",
        )
    device = torch.device("cuda", number)
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
        raise DeviceError(
            f"Sums on the GPU have no fixed order: {str(error).splitlines()[0]}",
            fix="Set training.deterministic to false: then no resumed run is the same to the bit.",
        ) from error
    finally:
        torch.use_deterministic_algorithms(was_on)
        settings.fill_uninitialized_memory = was_filling


def prepare_process(threads: int | None) -> None:
    """Set the CPU threads, and let the allocator keep freed memory.

    glibc gives every large temporary back to the kernel and faults it in again in the next layer;
    keeping it saves up to a tenth of a training step. In the arenas that it has for further threads
    it does so whatever it is told, so there is none: that saves a seventh of a beam search by
    several workers. Does nothing on other C libraries.
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
