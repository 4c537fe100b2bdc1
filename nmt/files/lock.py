"""Locks of files, so that one process at a time works on a folder.

The kernel drops a lock with its process, however that ends: a lock cannot go stale. The file names
its holder, so that a second process can say who is in its way.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from nmt.errors import CheckpointError

logger = logging.getLogger(__name__)

_LOCK = ".lock"  # in a run folder


class InUseError(Exception):
    """Another process holds a lock. Its text says which."""


@contextmanager
def file_lock(path: Path, *, wait: bool = False, remove: bool = False) -> Iterator[bool]:
    """Hold the exclusive lock of a file, which is made if missing and names its holder.

    Args:
        path: The file.
        wait: Wait for another holder, with a note, instead of raising.
        remove: Remove the file at the end.

    Yields:
        Whether another process held the lock when this one came.

    Raises:
        InUseError: Another process holds it, and ``wait`` is not set.
        OSError: The file cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - a translation rarely needs it

    lock, has_waited = FileLock(path), False
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        other = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        if not wait:
            raise InUseError(other) from error
        logger.info("waiting for %s, which holds %s", other, path)
        lock.acquire()
        has_waited = True
    with lock:
        place, started = socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S%z")
        with suppress(OSError):  # a full disk: the lock holds without a name, too
            path.write_text(f"process {os.getpid()} on {place} since {started}\n", "utf-8")
        try:
            yield has_waited
        finally:
            if remove:  # before the lock ends: whoever waits notices, and makes a new file
                path.unlink(missing_ok=True)
            lock.release()


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold a run folder, which is made if missing, and goes if nothing is written: one training.

    Raises:
        CheckpointError: Another process trains there, or the folder cannot be written.
    """
    held = file_lock(run_dir / _LOCK)
    try:
        made = [place for place in (run_dir, *run_dir.parents) if not place.exists()]
        run_dir.mkdir(parents=True, exist_ok=True)
        # An older lock opens even where nothing new can be written.
        for place in (run_dir, run_dir / "checkpoints"):
            if place.exists():
                TemporaryFile(dir=place).close()
        held.__enter__()
    except InUseError as error:
        fix = "Wait for it, stop it, or set another run_dir."
        raise CheckpointError(f"{run_dir} is in use by {error}.", fix=fix) from error
    except OSError as error:
        fix = "Set run_dir to a folder you can write to, or change its permissions."
        raise CheckpointError(f"{run_dir} cannot be written: {error.strerror}.", fix=fix) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if made and [path.name for path in run_dir.iterdir()] == [_LOCK]:
                (run_dir / _LOCK).unlink()
                for place in made:
                    place.rmdir()
        held.__exit__(None, None, None)
