"""Atomic writes of files and folders, and file locks.

A file is written in a temporary folder next to its final place, synced to disk, then renamed. It
has either the old content or the new content, even after a kill or a power cut. The temporary
folder is ``.NAME.tmp-PID-N``, and the writer locks a file in this folder. If another process can
take the lock, the writer is dead, and the next writer of the same name removes the folder.

`file_lock` and `run_lock` ensure that only one process works on a folder. The system releases a
lock when its process ends, so a lock cannot become stale. The lock file contains the process id and
the host, for the error message that a second process prints.

Some file systems (CIFS, FUSE, NFS) cannot sync folders or have no locks. This is said once; a file
that exists while the lock is held then replaces the lock.

This works on Linux, macOS and Windows. Windows cannot rename, replace or delete a file that is open
or mapped into memory, nor a folder that contains such a file, and it cannot sync a folder.
"""

from __future__ import annotations

import bz2
import errno
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

from nmt.errors import CheckpointError, ConfigError, DataError, NmtError
from nmt.files.lines import is_standard

_FIX = "Choose a folder with write permission and enough free disk space."
_TEMPORARY = ".tmp-"  # part of the name of each temporary folder
_LOCK = ".lock"
_LOOK_SECONDS = 0.2  # `is_locked` of another process holds a lock for a moment.
_COMPRESSORS: dict[str, Callable[[IO[bytes]], AbstractContextManager[object]]] = {
    # No file name and no time in the header: the same text always gives the same bytes.
    ".gz": lambda raw: gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0),
    ".bz2": lambda raw: bz2.BZ2File(raw, "wb"),
    ".xz": lambda raw: lzma.LZMAFile(raw, "wb"),  # noqa: SIM115 - the caller closes it
}
_UNKNOWN_COMPRESSIONS = (".zst", ".lz4", ".zip", ".7z")
# Suffixes of the files in run, model and data folders.
_PART_SUFFIXES = (".safetensors", ".json", ".jsonl", ".yaml", ".model", ".bin", ".html")
# Errors of file systems that cannot do something at all.
_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_serial = itertools.count()  # numbers the temporary folders of this process
_known_limits = set[str]()  # what file systems cannot do, as logged by this process

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
    place = path.resolve()  # of the file itself, if ``path`` is a symbolic link
    has_old_file = place.exists()
    mode = 0o666  # permissions, from which the system takes away those of the umask
    if has_old_file:
        mode = stat.S_IMODE(place.stat().st_mode)
    with _beside(place) as temporary:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if has_old_file:
                temporary.chmod(mode)  # `os.open` applied the umask
            yield file
            file.flush()
            _fsync(file.fileno(), place)
        temporary.replace(place)
    sync(place.parent)  # the new name


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
        yield temporary
        for written in (*temporary.rglob("*"), temporary):
            sync(written)
        aside = replaced_folder(place)  # name of the old folder until it is deleted
        if replace and place.exists():
            shutil.rmtree(aside, ignore_errors=True)  # of an interrupted replacement
            place.rename(aside)
        with suppress(OSError):  # an empty folder may be replaced, also on Windows
            place.rmdir()
        temporary.rename(place)
        sync(place.parent)
        shutil.rmtree(aside, ignore_errors=True)


def replaced_folder(place: Path) -> Path:
    """Return the name of the old folder while `atomic_folder` puts the new one in its place."""
    return place.with_name(f".{place.name}.replaced")


def restore_replaced(place: Path) -> None:
    """Undo an interrupted replacement by `atomic_folder`. The caller must hold the lock."""
    aside = replaced_folder(place)
    if aside.exists() and not place.exists():
        aside.rename(place)
    shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Delete a folder. It is renamed first, so an interrupted deletion leaves no partial folder."""
    temporary = _temporary(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders of dead writers, of all names or only of ``name``."""
    prefix = "."
    if name is not None:
        prefix = f".{name}{_TEMPORARY}"
    with suppress(OSError):  # the next write reports the problem
        for path in list(folder.iterdir()):
            is_temporary = path.name.startswith(prefix) and _TEMPORARY in path.name
            if not is_temporary:
                continue
            with suppress(OSError):  # another process is writing it, and holds the lock
                if path.is_symlink() or not path.is_dir():
                    path.unlink()
                else:
                    # Fails while the writer is alive.
                    _acquire(path / _LOCK).lock.release()
                    shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk (fsync)."""
    with suppress(PermissionError):  # a folder on Windows, or one that cannot be read
        # Windows syncs only files that are open for writing.
        flags = os.O_RDONLY
        if path.is_file():
            flags = os.O_RDWR
        descriptor = os.open(path, flags)
        try:
            _fsync(descriptor, path)
        finally:
            os.close(descriptor)


def _fsync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        _tolerate(error, path, "cannot sync folders to disk: a power cut may lose the newest files")


def _tolerate(error: OSError, path: Path, limit: str) -> None:
    """Log ``limit`` once if a file system cannot do something; raise all other errors."""
    if error.errno not in _UNSUPPORTED:
        raise error
    if limit not in _known_limits:
        _known_limits.add(limit)
        logger.warning("the file system of %s %s", path, limit)


@contextmanager
def write_errors(
    shown: Path | str, error_type: type[NmtError], *, fix: str = _FIX
) -> Iterator[None]:
    """Turn an OSError from writing a file into an error of ``error_type``.

    Args:
        shown: The file, as the message shows it.
        error_type: Class of the new error.
        fix: What the user can do.
    """
    try:
        yield
    except BrokenPipeError:  # not a failure: the reader has closed the pipe
        raise
    except OSError as error:
        problem = f"{shown} cannot be written: {error.strerror or error}."
        if isinstance(error, IsADirectoryError):
            fix = "Choose the name of a file."
        raise error_type(problem, fix=fix) from error


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
            role = "also an input file"
            if path.is_dir():
                role = f"a file of the input folder {path}"
            raise ConfigError(f"{output} is {role}.", fix="Choose another output file.")


def _would_overwrite(output: Path, path: Path) -> bool:
    """Whether an existing output file is the input ``path``, or a file of this input folder."""
    with suppress(OSError):  # opening the file reports the problem
        if output.is_file():  # a device may be both input and output
            # Translations may be written into the run folder, but not over its own files.
            inputs: Iterable[Path] = [path]
            if path.is_dir() and output.resolve().suffix in _PART_SUFFIXES:
                inputs = path.rglob("*.*")
            return any(file.is_file() and file.samefile(output) for file in inputs)
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
            if sys.stdout is None or getattr(sys.stdout, "closed", False):
                raise DataError("Standard output is closed.", fix="Pass a file as `output`.")
            sys.stdout.flush()  # earlier text is not in `buffer` yet
            yield getattr(sys.stdout, "buffer", cast("IO[bytes]", _TextOutput(sys.stdout)))
        elif path.exists() and not path.is_file():  # never replace a device or a pipe
            with path.open("wb") as stream:
                yield stream
        else:
            compress = _COMPRESSORS.get(path.suffix, nullcontext)
            with atomic_file(path) as raw, compress(raw) as stream:
                yield cast("IO[bytes]", stream)


class _TextOutput:
    """Writes UTF-8 to a stream without bytes: that of a notebook, or of `redirect_stdout`."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.flush = stream.flush

    def write(self, content: bytes) -> int:
        return self._stream.write(content.decode("utf-8"))


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """Yield a path in a locked temporary folder next to ``place``; remove the folder at the end."""
    remove_leftovers(place.parent, place.name)
    folder = _temporary(place)
    with _unwound_by_signals():
        try:
            folder.mkdir()
            with _acquire(folder / _LOCK):
                yield folder / place.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _temporary(place: Path) -> Path:
    """Return an unused name for a temporary folder next to ``place``."""
    return place.with_name(f".{place.name}{_TEMPORARY}{os.getpid()}-{next(_serial)}")


def _acquire(path: Path, seconds: float = 0) -> Any:
    """Lock a file; return a context that releases the lock, with the attribute ``lock``.

    Args:
        path: The lock file.
        seconds: How long to wait for another process; negative for as long as it takes.

    Raises:
        TimeoutError: Another process holds the lock.
    """
    from filelock import FileLock, SoftFileLock  # noqa: PLC0415 - `nmt translate` rarely needs it

    try:
        return FileLock(path).acquire(seconds)
    except OSError as error:
        limit = (
            "has no locks: nmt creates files named .lock.soft instead; delete one that a killed "
        )
        _tolerate(error, path, f"{limit}process of another machine has left")
    return SoftFileLock(f"{path}.soft").acquire(seconds)


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise SystemExit, so that contexts clean up as after SIGINT."""
    unhandled: list[int] = []  # signals that would end the process at once
    if threading.current_thread() is threading.main_thread():  # others cannot set handlers
        for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
            signal_number = getattr(signal, name, None)  # some systems lack some
            if signal_number is not None and signal.getsignal(signal_number) is signal.SIG_DFL:
                unhandled.append(signal_number)
    for signal_number in unhandled:
        # The exit code of a process that a signal ends, as shells show it.
        signal.signal(signal_number, lambda received, _: sys.exit(128 + received))
    try:
        yield
    finally:
        for signal_number in unhandled:
            signal.signal(signal_number, signal.SIG_DFL)


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
    has_waited = False
    try:
        lock = _acquire(path, _LOOK_SECONDS).lock
    except TimeoutError as error:
        holder = "another process"
        with suppress(OSError):  # Windows does not let others read a locked file
            holder = path.read_text(encoding="utf-8", errors="replace").strip() or holder
        if not wait:
            fix = "Wait until that process ends, stop it, or choose another folder."
            raise CheckpointError(f"{path.parent} is in use by {holder}.", fix=fix) from error
        logger.info("waiting for %s to release the lock %s", holder, path)
        lock = _acquire(path, -1).lock
        has_waited = True
    try:
        host = socket.gethostname()
        started = time.strftime("%Y-%m-%d %H:%M:%S%z")
        with suppress(OSError):  # a full disk, or Windows: the lock works without this text
            # filelock may make a `SoftFileLock` of the file, which depends on its own text.
            is_soft = "Soft" in type(lock).__name__
            if not is_soft or lock.lock_file != str(path):
                path.write_text(f"process {os.getpid()} on {host} since {started}\n", "utf-8")
        yield has_waited
    finally:
        if remove:  # before the release: waiting processes notice, and create a new file
            with suppress(OSError):  # Windows: filelock removes the file after the release
                path.unlink()
        lock.release()


def is_locked(run_dir: Path) -> bool:
    """Whether a process trains in a run folder: see `run_lock`."""
    path = run_dir / _LOCK
    try:
        if path.exists():
            _acquire(path).lock.release()
    except TimeoutError:
        return True
    except OSError:  # such as the run of another user: nothing is known
        pass
    return False


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Lock a run folder, so that only one process trains in it.

    The folder is created if missing, and removed at the end if it is still empty.

    Raises:
        CheckpointError: Another process trains there, or the folder cannot be written.
    """
    fix = "Set run_dir to a folder that you can write to, or change the permissions."
    with ExitStack() as lock:
        with write_errors(run_dir, CheckpointError, fix=fix):
            # Innermost first, which is the order in which they can be removed.
            created = [folder for folder in (run_dir, *run_dir.parents) if not folder.exists()]
            run_dir.mkdir(parents=True, exist_ok=True)
            # Try to write. An existing lock file can be opened even if no new file can be written.
            for folder in (run_dir, run_dir / "checkpoints"):
                if folder.exists():
                    TemporaryFile(dir=folder).close()
            # Only errors of the lock become errors of writing, not those of the training below.
            lock.enter_context(file_lock(run_dir / _LOCK))
        try:
            yield
        finally:
            with suppress(OSError):
                names = [path.name for path in run_dir.iterdir()]
                if created and set(names) <= {_LOCK, f"{_LOCK}.soft"}:
                    for name in names:
                        (run_dir / name).unlink()
                    for folder in created:
                        folder.rmdir()
