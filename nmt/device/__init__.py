"""Ranks, GPUs and CPU cores of this process. Other modules add device, precision and memory.

This module does not import torch. It reads the environment variables that torchrun sets.
"""

from __future__ import annotations

import os

from nmt.errors import DeviceError


def is_first() -> bool:
    """Whether this process has rank 0, which logs and writes for all processes."""
    return os.environ.get("RANK", "0") == "0"


def local_size() -> int:
    """Return the number of training processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the rank of this process on its machine, from 0. It is also the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def gpu_number(device: str, num_gpus: int) -> int:
    """Return the index of the CUDA GPU that this process uses.

    Args:
        device: ``cuda:N`` for GPU N, or ``cuda`` for a different GPU in each process.
        num_gpus: Number of visible GPUs.

    Raises:
        DeviceError: The GPU does not exist, or several processes would share it.
    """
    chosen_index = device.partition(":")[2]  # N as text; empty for ``cuda``
    if chosen_index and local_size() > 1:
        raise DeviceError(
            f"{local_size()} processes cannot share {device}.",
            fix="Use device cuda, which gives each process a GPU, or start a single process.",
        )
    index = int(chosen_index or local_rank())
    if index >= num_gpus:
        problem = f"There is no GPU for process {index}"
        fix = "Start fewer processes, or use device cpu."
        if chosen_index:
            problem = f"{device} does not exist"
            fix = "Choose another device."
        raise DeviceError(f"{problem}; torch finds {num_gpus} GPUs, counted from 0.", fix=fix)
    return index


def is_one_of_torchrun() -> bool:
    """Whether torchrun started several processes, of which this is one.

    Child processes inherit the environment variables, so callers that start commands unset them.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_cores() -> int:
    """Return `usable_cores` divided by the number of training processes; at least 1."""
    return max(1, usable_cores() // local_size())
