"""How much memory is left for tensors."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_OWN_SIZES = Path("/proc/self/statm")
_NO_LIMIT = 1 << 62


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
