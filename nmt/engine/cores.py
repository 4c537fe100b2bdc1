"""What of this machine a process may use. Loads no torch."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores that the system lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_cores() -> int:
    """Return this process's share of them: a launcher may have started several."""
    return max(1, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def own_gpu() -> int:
    """Return the number of the GPU that this process is to use, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))
