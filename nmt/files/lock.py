"""Locks of files, so that one process at a time works on a folder.

The kernel drops a lock with its process, however that ends: a lock cannot go stale.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from nmt.errors import CheckpointError

logger = logging.getLogger(__name__)

_LOCK = ".lock"
"""In a run folder."""


class InUseError(Exception):
    """Another process holds a lock. Its text says which."""


class NoLocksError(OSError):
    """The file system has no locks."""


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
        NoLocksError: The file system has no locks.
        OSError: The file cannot be written.
    """
    has_waited = False
    while True:
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                other = path.read_text(encoding="utf-8", errors="replace").strip()
                other = other or "another process"
                if not wait:
                    raise InUseError(other) from error
                logger.info("waiting for %s, which holds %s", other, path)
                fcntl.flock(file, fcntl.LOCK_EX)
                has_waited = True
            except OSError as error:
                raise NoLocksError(error.errno, error.strerror) from error
            if not _is_at(path, file.fileno()):
                continue  # the holder before us has removed it
            started = time.strftime("%Y-%m-%d %H:%M:%S%z")
            holder = f"process {os.getpid()} on {socket.gethostname()} since {started}\n"
            with suppress(OSError):  # a full disk: the lock holds without a name, too
                file.truncate(0)
                os.write(file.fileno(), holder.encode())
            try:
                yield has_waited
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold a run folder, which is made if missing, and goes if nothing is written: one training.

    Raises:
        CheckpointError: Another process trains there, or the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            made = [place for place in (run_dir, *run_dir.parents) if not place.exists()]
            run_dir.mkdir(parents=True, exist_ok=True)
            # An older lock opens even where nothing new can be written.
            for place in (run_dir, run_dir / "checkpoints"):
                if place.exists():
                    TemporaryFile(dir=place).close()
            stack.enter_context(file_lock(run_dir / _LOCK))
        except InUseError as error:
            fix = "Wait for it, stop it, or set another run_dir."
            raise CheckpointError(f"{run_dir} is in use by {error}.", fix=fix) from error
        except OSError as error:
            problem, fix = "written", "a folder you can write to, or change its permissions"
            if isinstance(error, NoLocksError):
                problem, fix = "locked", "a file system with locks, for example a local disk"
            raise CheckpointError(
                f"{run_dir} cannot be {problem}: {error.strerror}.", fix=f"Set run_dir to {fix}."
            ) from error
        try:
            yield
        finally:
            with suppress(OSError):
                _remove_unused(run_dir, made)


def _remove_unused(run_dir: Path, made: Sequence[Path]) -> None:
    """Remove the folders that were made for a run that has written nothing."""
    lock = run_dir / _LOCK
    if made and list(run_dir.iterdir()) == [lock]:
        lock.unlink()
        for place in made:
            place.rmdir()
