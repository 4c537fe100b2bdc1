"""How many CPU cores this process may use. Loads no torch."""

from __future__ import annotations

import os

from nmt.engine.launched import local_size


def usable_cores() -> int:
    """Return the cores that the system lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_cores() -> int:
    """Return this process's share of them: a launcher may have started several."""
    return max(1, usable_cores() // local_size())
