"""One training in a run folder at a time."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from nmt.errors import CheckpointError


class RunLock:
    """Holds a run folder while the context is open.

    The kernel drops the lock with the process, however it ends: a lock cannot go stale.

    Args:
        run_dir: The run folder; made if missing.

    Raises:
        CheckpointError: Another process trains there, or the folder cannot be written.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / ".lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            file = self._open()
        except OSError as error:
            raise CheckpointError(
                f"{self._path.parent} cannot be written: {error.strerror}.",
                fix="Set run_dir to a folder you can write to, or change its permissions.",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            with file:
                file.seek(0)
                holder = file.read().strip() or "another process"
            raise CheckpointError(
                f"{self._path.parent} is in use by {holder}.",
                fix="Wait for it, stop it, or set another run_dir.",
            ) from error
        except OSError as error:
            file.close()
            raise CheckpointError(
                f"{self._path.parent} cannot be locked: {error.strerror}.",
                fix="Set run_dir to a file system with locks, for example a local disk.",
            ) from error
        started = time.strftime("%Y-%m-%d %H:%M:%S%z")
        file.truncate(0)
        holder = f"process {os.getpid()} on {socket.gethostname()} since {started}\n"
        with suppress(OSError):  # a full disk: the lock holds without a name, too
            os.write(file.fileno(), holder.encode())
        self._file = file
        return self

    def _open(self) -> IO[str]:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True)
        # A lock left from better days opens even where nothing new can be written.
        for place in (folder, folder / "checkpoints"):
            if place.exists():
                probe = place / f".tmp-probe-{os.getpid()}"
                probe.touch()
                probe.unlink()
        return self._path.open("a+", encoding="utf-8")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
