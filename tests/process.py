"""Programs that a test starts and talks to: none of them runs, or is waited for, without end."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LIMIT = 120
"""Seconds that a test waits for a program; a loaded machine is ten times as slow as an idle one."""


@contextmanager
def limited(process: subprocess.Popen[Any], seconds: float = LIMIT) -> Iterator[None]:
    """Kill a program that is too slow for what the block waits for; its output ends then."""
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a program, and wait for its end at the end of the block, but not for ever."""
    words = [str(word) for word in command]
    with subprocess.Popen(words, **options) as process, limited(process):
        try:
            yield process
            process.wait(LIMIT)
        except BaseException:
            process.kill()
            raise
