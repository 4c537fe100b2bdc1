"""Where this process stands among those that a launcher has started. Loads no torch.

Torchrun, and `nmt.training.launch`, say so in environment variables.
"""

from __future__ import annotations

import os
from pathlib import Path


def is_first() -> bool:
    """Whether this process speaks for all that the launcher started."""
    return os.environ.get("RANK", "0") == "0"


def local_size() -> int:
    """Return how many of these processes run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the number of this process on its machine, from 0: that of its GPU, too."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_one_of_torchrun() -> bool:
    """Whether torchrun has started this process and others, and not one of them a command."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id is None or os.environ.get("WORLD_SIZE", "1") == "1":
        return False
    try:
        of_parent = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:  # not Linux, or not ours to read
        return True
    return f"TORCHELASTIC_RUN_ID={run_id}".encode() not in of_parent
