"""Work that ends its process; apart from tests, as a worker imports little."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def square_after_a_kill(folder: Path, number: int) -> int:
    """Kill the process that does this for the first time."""
    mark = folder / str(number)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number
