"""Atomic writes of files and folders, and file locks.

A file is written under a temporary name in the same folder, synced to disk, then renamed. The
file has either the old content or the new content, even after a kill or a power cut. The temporary
name is ``.NAME.tmp-PID-N``, and the writer holds a lock on that file. If another process can take
the lock, the writer is dead, and the next writer of the same name removes the temporary file.

`file_lock` and `run_lock` ensure that only one process works on a folder. The kernel releases a
lock when its process ends, so a lock cannot become stale. The lock file contains the process id and
the host, for the error message that a second process prints.
"""

from __future__ import annotations

import bz2
import fcntl
import gzip
import itertools
import json
import logging
import lzma
import os
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

from nmt.errors import CheckpointError, ConfigError, DataError, NmtError
from nmt.files.lines import is_standard

_FIX = "Choose a folder with write permission and enough free disk space."
_TEMPORARY = ".tmp-"
_COMPRESSORS: dict[str, Callable[[IO[bytes]], AbstractContextManager[object]]] = {
    # No file name and no time in the header: the same text always gives the same bytes.
    ".gz": lambda raw: gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0),
    ".bz2": lambda raw: bz2.BZ2File(raw, "wb"),
    ".xz": lambda raw: lzma.LZMAFile(raw, "wb"),  # noqa: SIM115 - the caller closes it
}
_UNKNOWN_COMPRESSIONS = (".zst", ".lz4", ".zip", ".7z")
# Suffixes of the files in run, model and data folders.
_PART_SUFFIXES = (".safetensors", ".json", ".jsonl", ".yaml", ".model", ".bin", ".html")
_serial = itertools.count()

logger = logging.getLogger(__name__)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing; it appears under ``path`` when the context ends without an error.

    The new file keeps the permissions of the file it replaces. A symbolic link is followed. SIGTERM
    and SIGHUP end the context like an exception, unless the program handles these signals.

    Raises:
        OSError: The file cannot be written. An older file stays unchanged, and no temporary file
            remains.
    """
    place = path.resolve()
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    with _beside(place) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            _lock(descriptor)
            if mode is not None:
                os.fchmod(descriptor, mode)  # `os.open` applied the umask
            yield file
            file.flush()
            os.fsync(descriptor)
            temporary.replace(place)
    with suppress(PermissionError):  # a folder may be writable but not readable
        sync(place.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically, as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write indented UTF-8 JSON atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Create a folder; it appears under ``path`` when the context ends without an error.

    Missing parent folders are created. With ``replace``, the older folder is first renamed to
    `replaced_folder`, then deleted. If the process is killed in between, `restore_replaced` renames
    it back.

    Yields:
        The temporary folder to write into. Its files are synced to disk at the end.

    Raises:
        OSError: The folder cannot be written, or ``path`` exists and ``replace`` is not set.
    """
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    with _beside(place) as temporary:
        temporary.mkdir()
        with _opened(temporary) as descriptor:
            _lock(descriptor)
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


def replaced_folder(place: Path) -> Path:
    """Return the name of the old folder while `atomic_folder` puts the new one in its place."""
    return place.with_name(f".{place.name}.replaced")


def restore_replaced(place: Path) -> None:
    """Undo a replacement by `atomic_folder` that was interrupted. Hold the folder's lock first."""
    aside = replaced_folder(place)
    if aside.exists() and not place.exists():
        aside.rename(place)
    shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder. It is renamed first, so an interrupted deletion leaves no partial folder."""
    leaving = _temporary(folder)
    folder.rename(leaving)
    shutil.rmtree(leaving, ignore_errors=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of dead writers: only those for ``name``, or all."""
    start = "." if name is None else f".{name}{_TEMPORARY}"
    with suppress(OSError):  # the next write reports the problem
        for found in list(folder.iterdir()):
            if not found.name.startswith(start) or _TEMPORARY not in found.name:
                continue
            # BlockingIOError: another process is writing it
            with suppress(OSError), _opened(found, os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(found)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk (fsync)."""
    with _opened(path) as descriptor:
        os.fsync(descriptor)


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def write_errors(shown: Path | str, error: type[NmtError], *, fix: str = _FIX) -> Iterator[None]:
    """Turn an OSError from writing ``shown`` into an ``error`` with a fix."""
    try:
        yield
    except BrokenPipeError:  # not a failure: the reader has closed the pipe
        raise
    except OSError as cause:
        raise error(f"{shown} cannot be written: {cause.strerror or cause}.", fix=fix) from cause


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Check the path of an output file before any work starts.

    A command must not overwrite its inputs. Hard and symbolic links count as the same file, and so
    do the files of a model or data folder that the command reads.

    Args:
        output: The file to write; None or ``-`` for standard output.
        inputs: Files and folders that are read; None and ``-`` for standard input.

    Raises:
        ConfigError: The suffix names an unsupported compression, the folder does not exist, or the
            file is one of the inputs.
    """
    if output is None or is_standard(output):
        return
    if output.suffix in _UNKNOWN_COMPRESSIONS:
        fix = f"Use {', '.join(_COMPRESSORS)}, or remove {output.suffix} for plain text."
        raise ConfigError(f"{output}: cannot write {output.suffix} files.", fix=fix)
    if not output.parent.is_dir():
        raise ConfigError(f"The folder of {output} does not exist.", fix="Create it first.")
    for path in inputs:
        if path is not None and _would_overwrite(output, path):
            what = f"a file of the input folder {path}" if path.is_dir() else "also an input file"
            raise ConfigError(f"{output} is {what}.", fix="Choose another output file.")


def _would_overwrite(output: Path, path: Path) -> bool:
    with suppress(OSError):  # opening the file reports the problem
        if output.is_file():  # a device may be both input and output
            # Translations may be written into the run folder, but not over its own files.
            is_part = path.is_dir() and output.resolve().suffix in _PART_SUFFIXES
            parts = path.rglob("*.*") if is_part else [path]
            return any(part.is_file() and part.samefile(output) for part in parts)
    return False


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file for writing, or standard output if ``path`` is None or ``-``.

    A file is written as by `atomic_file`, and compressed if its suffix is .gz, .bz2 or .xz. Devices
    and pipes are written directly.

    Raises:
        DataError: Writing fails, now or later, for example because the disk is full.
    """
    with write_errors("standard output" if is_standard(path) else str(path), DataError):
        if path is None or is_standard(path):
            if sys.stdout is None:
                raise DataError("Standard output is closed.", fix="Pass a file as `output`.")
            yield sys.stdout.buffer
        elif path.exists() and not path.is_file():  # never replace a device or a pipe
            with path.open("wb") as stream:
                yield stream
        else:
            compress = _COMPRESSORS.get(path.suffix, nullcontext)
            with atomic_file(path) as raw, compress(raw) as stream:
                yield cast("IO[bytes]", stream)


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``place``; remove whatever is left there."""
    remove_leftovers(place.parent, place.name)
    with _unwound_by_signals():
        temporary = _temporary(place)
        try:
            yield temporary
        finally:
            _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _temporary(place: Path) -> Path:
    return place.with_name(f".{place.name}{_TEMPORARY}{os.getpid()}-{next(_serial)}")


def _lock(descriptor: int) -> None:
    with suppress(OSError):  # a file system without locks: `remove_leftovers` removes nothing there
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit, so that contexts clean up as after SIGINT."""
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


@contextmanager
def file_lock(path: Path, *, wait: bool = False, remove: bool = False) -> Iterator[bool]:
    """Hold an exclusive lock on a file. The process id and the host are written into the file.

    Args:
        path: The lock file; created if missing.
        wait: Wait for the lock, with a log message, instead of raising.
        remove: Remove the file at the end.

    Yields:
        Whether this process had to wait for another process.

    Raises:
        CheckpointError: Another process holds the lock, and ``wait`` is not set. The message names
            the process.
        OSError: The file cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - `nmt translate` rarely needs it

    lock, has_waited = FileLock(path), False
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        other = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        if not wait:
            fix = "Wait until it ends, stop it, or choose another folder."
            raise CheckpointError(f"{path.parent} is in use by {other}.", fix=fix) from error
        logger.info("waiting for %s to release the lock %s", other, path)
        lock.acquire()
        has_waited = True
    try:
        place, started = socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S%z")
        with suppress(OSError):  # a full disk: the lock works without this text
            path.write_text(f"process {os.getpid()} on {place} since {started}\n", "utf-8")
        yield has_waited
    finally:
        if remove:  # before the release: waiting processes notice, and create a new file
            path.unlink(missing_ok=True)
        lock.release()


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Lock a run folder, so that only one process trains in it.

    The folder is created if missing, and removed at the end if it is still empty.

    Raises:
        CheckpointError: Another process trains there, or the folder cannot be written.
    """
    with ExitStack() as held:
        try:
            made = [place for place in (run_dir, *run_dir.parents) if not place.exists()]
            run_dir.mkdir(parents=True, exist_ok=True)
            # An existing lock file can be opened even if no new file can be written.
            for place in (run_dir, run_dir / "checkpoints"):
                if place.exists():
                    TemporaryFile(dir=place).close()
            held.enter_context(file_lock(run_dir / ".lock"))
        except OSError as error:
            problem = f"{run_dir} cannot be written: {error.strerror}."
            fix = "Set run_dir to a folder that you can write to, or change the permissions."
            raise CheckpointError(problem, fix=fix) from error
        try:
            yield
        finally:
            with suppress(OSError):
                if made and [path.name for path in run_dir.iterdir()] == [".lock"]:
                    (run_dir / ".lock").unlink()
                    for place in made:
                        place.rmdir()
