"""Files and folders that appear whole: written beside their place, synced to disk, then renamed.

A reader finds the old content or the new one, also after a kill or a power cut. The temporary name
is ``.NAME.tmp-PID-N``, and its writer holds a lock on it: what another process can lock was left
behind by one that is gone, and the next writer of the same name removes it.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nmt.errors import NmtError

_TEMPORARY = ".tmp-"
_serial = itertools.count()


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the context ends without an error.

    It keeps the permissions of the file it replaces, and a symbolic link stays one. SIGTERM and
    SIGHUP, unless somebody handles them, end the context as an exception does.

    Raises:
        OSError: It cannot be written; nothing is left, and an older file stays as it was.
    """
    place = path.resolve()
    remove_leftovers(place.parent, place.name)
    with _unwound_by_signals():
        temporary = _temporary(place)
        try:
            with _created(temporary, place) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(place)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    with suppress(PermissionError):  # a folder may be open for writing and not for reading
        sync(place.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file through `atomic_file`."""
    with atomic_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file through `atomic_file`."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON through `atomic_file`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Make a folder, and its parents, that gets its name when the context ends without an error.

    With ``replace`` it takes the place of an older one. That stands aside as `replaced_folder` for
    a moment; after a kill in that moment `restore_replaced` puts it back.

    Yields:
        The folder to write into; everything in it is synced at the end.

    Raises:
        OSError: It cannot be written, or ``path`` holds something and ``replace`` is not set.
    """
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(place.parent, place.name)
    with _unwound_by_signals():
        temporary = _temporary(place)
        temporary.mkdir()
        descriptor = os.open(temporary, os.O_RDONLY)
        _lock(descriptor)
        try:
            yield temporary
            for written in (*temporary.rglob("*"), temporary):
                sync(written)
            aside = replaced_folder(place)
            if replace and place.exists():
                shutil.rmtree(aside, ignore_errors=True)
                place.rename(aside)
            temporary.rename(place)
            sync(place.parent)
            shutil.rmtree(aside, ignore_errors=True)
        finally:
            os.close(descriptor)
            shutil.rmtree(temporary, ignore_errors=True)


def replaced_folder(place: Path) -> Path:
    """Return where an older folder stands while `atomic_folder` replaces it."""
    return place.with_name(f".{place.name}.replaced")


def restore_replaced(place: Path) -> None:
    """Undo a replacement by `atomic_folder` that was cut short; only for who holds the lock."""
    aside = replaced_folder(place)
    if aside.exists() and not place.exists():
        aside.rename(place)
    shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder. If that is cut short, nothing is left under its name."""
    leaving = _temporary(folder)
    folder.rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders whose writer is gone: those of ``name``, or all."""
    start = "." if name is None else f".{name}{_TEMPORARY}"
    with suppress(OSError):  # whoever writes there says what is wrong
        for found in list(folder.iterdir()):
            if found.name.startswith(start) and _TEMPORARY in found.name:
                _remove_if_left(found)


def _remove_if_left(path: Path) -> None:
    with suppress(OSError):  # BlockingIOError: it is being written
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(descriptor)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def write_errors(
    shown: Path | str,
    error: type[NmtError],
    *,
    fix: str = "Choose a place you can write to, on a disk with room.",
) -> Iterator[None]:
    """Turn what the operating system says about writing ``shown`` into one ``error``."""
    try:
        yield
    except BrokenPipeError:  # no failure: the reader has what it wants
        raise
    except OSError as cause:
        raise error(f"{shown} cannot be written: {cause.strerror or cause}.", fix=fix) from cause


def _temporary(place: Path) -> Path:
    return place.with_name(f".{place.name}{_TEMPORARY}{os.getpid()}-{next(_serial)}")


def _created(temporary: Path, place: Path) -> IO[bytes]:
    """Open a new file, locked, with the permissions of the one at ``place`` if there is one."""
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode
    )
    _lock(descriptor)
    if mode is not None:
        os.fchmod(descriptor, mode)  # the umask has taken some away
    return os.fdopen(descriptor, "wb")


def _lock(descriptor: int) -> None:
    with suppress(OSError):  # a file system without locks: then nothing is ever removed there
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, as SIGINT raises, so that contexts clean up."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    ours = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
