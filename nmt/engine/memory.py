"""How much memory is left for tensors."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Return the bytes that tensors on ``device`` could still take, as far as the system tells.

    On a CPU that is what is left without swapping, to the machine or to the container.
    """
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    return min(_free_in_machine(), _free_in_group())


def _free_in_machine() -> int:
    try:
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_group() -> int:
    """Of a container (cgroup version 2); very much where there is no limit."""
    try:
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        return max(0, limit - int((_GROUP / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return 1 << 62
