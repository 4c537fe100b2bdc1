"""One process's place in the machine: ranks, device, precision, memory, random state.

This module itself loads no torch: what torchrun and `nmt.training.processes` say in environment
variables, and how many CPU cores there are.
"""

from __future__ import annotations

import os

from nmt.errors import DeviceError


def is_first() -> bool:
    """Whether this process speaks for all that the launcher started."""
    return os.environ.get("RANK", "0") == "0"


def local_size() -> int:
    """Return how many of these processes run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the number of this process on its machine, from 0: that of its GPU, too."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def gpu_number(device: str, num_gpus: int) -> int:
    """Return which of the CUDA GPUs that there are a process computes on.

    Args:
        device: ``cuda:1`` is the second; otherwise each process of a machine has one of its own.
        num_gpus: How many this process sees.

    Raises:
        DeviceError: There are fewer, or several processes ask for the same.
    """
    named = device.partition(":")[2]
    if named and local_size() > 1:
        fix = "Use device cuda, which gives each a GPU, or one process."
        raise DeviceError(f"{local_size()} processes cannot share {device}.", fix=fix)
    number = int(named or local_rank())
    if number >= num_gpus:
        who = f"There is no {device}" if named else f"Process {number} of this machine has no GPU"
        fix = "Choose another device." if named else "Start fewer processes, or use device cpu."
        raise DeviceError(f"{who}: {num_gpus} can be used, counted from 0.", fix=fix)
    return number


def is_one_of_torchrun() -> bool:
    """Whether torchrun has started this process and others.

    What such a process starts inherits this, too: who starts commands there unsets it for them.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def usable_cores() -> int:
    """Return the cores that the system lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_cores() -> int:
    """Return this process's share of them: a launcher may have started several."""
    return max(1, usable_cores() // local_size())


def machine_load() -> float | None:
    """Return how many processes of the machine ran or waited for a core in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
