"""Files and folders that appear whole: written beside their place, synced to disk, then renamed.

A reader finds the old content or the new one, also after a kill or a power cut. The temporary name
is ``.NAME.tmp-PID-N``, and its writer holds a lock on it: what another process can lock was left
behind by one that is gone, and the next writer of the same name removes it.

At the end: locks of files, so that one process at a time works on a folder. The kernel drops a lock
with its process, however that ends: a lock cannot go stale. The file names its holder, so that a
second process can say who is in its way.
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

_FIX = "Choose a place you can write to, on a disk with room."
_TEMPORARY = ".tmp-"
_COMPRESSORS: dict[str, Callable[[IO[bytes]], AbstractContextManager[object]]] = {
    # Without the temporary name and the time: equal text, equal bytes.
    ".gz": lambda raw: gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0),
    ".bz2": lambda raw: bz2.BZ2File(raw, "wb"),
    ".xz": lambda raw: lzma.LZMAFile(raw, "wb"),  # noqa: SIM115 - the caller closes it
}
_UNKNOWN_COMPRESSIONS = (".zst", ".lz4", ".zip", ".7z")
# Of the files in run, model and data folders.
_PART_SUFFIXES = (".safetensors", ".json", ".jsonl", ".yaml", ".model", ".bin", ".html")
_serial = itertools.count()

logger = logging.getLogger(__name__)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the context ends without an error.

    It keeps the permissions of the file it replaces, and a symbolic link stays one. SIGTERM and
    SIGHUP, unless somebody handles them, end the context as an exception does.

    Raises:
        OSError: It cannot be written; nothing is left, and an older file stays as it was.
    """
    place = path.resolve()
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    with _beside(place) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        with os.fdopen(descriptor, "wb") as file:
            _lock(descriptor)
            if mode is not None:
                os.fchmod(descriptor, mode)  # the umask has taken some away
            yield file
            file.flush()
            os.fsync(descriptor)
            temporary.replace(place)
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
            if not found.name.startswith(start) or _TEMPORARY not in found.name:
                continue
            # BlockingIOError: it is being written
            with suppress(OSError), _opened(found, os.O_NOFOLLOW | os.O_NONBLOCK) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(found)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, would survive a power cut."""
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
    """Turn what the operating system says about writing ``shown`` into one ``error``."""
    try:
        yield
    except BrokenPipeError:  # no failure: the reader has what it wants
        raise
    except OSError as cause:
        raise error(f"{shown} cannot be written: {cause.strerror or cause}.", fix=fix) from cause


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Check the name of an output file, before there is any work to lose.

    No command writes over one of its inputs: not under another name (a hard or symbolic link),
    and not over a part of a model or data folder that it reads.

    Args:
        output: The file to write; None or ``-`` for standard output.
        inputs: Files and folders that are read; None and ``-`` for standard input.

    Raises:
        ConfigError: It asks for a compression that there is not, its folder does not exist, or it
            is one of the inputs.
    """
    if output is None or is_standard(output):
        return
    if output.suffix in _UNKNOWN_COMPRESSIONS:
        fix = f"Name it {', '.join(_COMPRESSORS)}, or leave {output.suffix} out for plain text."
        raise ConfigError(f"{output}: there is no way to write {output.suffix}.", fix=fix)
    if not output.parent.is_dir():
        raise ConfigError(f"The folder of {output} does not exist.", fix="Create it first.")
    for path in inputs:
        if path is not None and _would_overwrite(output, path):
            what = f"a part of {path}, which is read" if path.is_dir() else "both input and output"
            raise ConfigError(f"{output} is {what}.", fix="Choose another output file.")


def _would_overwrite(output: Path, path: Path) -> bool:
    with suppress(OSError):  # whoever opens it says what is wrong
        if output.is_file():  # a device may be both
            # Translations may lie in the run folder, but not under the name of one of its parts.
            is_part = path.is_dir() and output.resolve().suffix in _PART_SUFFIXES
            parts = path.rglob("*.*") if is_part else [path]
            return any(part.is_file() and part.samefile(output) for part in parts)
    return False


@contextmanager
def open_output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open a file, or standard output when there is none or it is ``-``.

    A file appears when it is complete, as `atomic_file` says. One named .gz, .bz2 or .xz is
    compressed.

    Raises:
        DataError: It cannot be written: also when that shows late, as with a full disk.
    """
    with write_errors("standard output" if is_standard(path) else str(path), DataError):
        if path is None or is_standard(path):
            if sys.stdout is None:
                raise DataError("Standard output is closed.", fix="Pass a file: `output`.")
            yield sys.stdout.buffer
        elif path.exists() and not path.is_file():  # a device or a pipe must not be replaced
            with path.open("wb") as stream:
                yield stream
        else:
            compress = _COMPRESSORS.get(path.suffix, nullcontext)
            with atomic_file(path) as raw, compress(raw) as stream:
                yield cast("IO[bytes]", stream)


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """Yield a temporary place for what will be named ``place``; nothing is left there."""
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
        CheckpointError: Another process holds it, and ``wait`` is not set; says which.
        OSError: The file cannot be written.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 - a translation rarely needs it

    lock, has_waited = FileLock(path), False
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        other = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        if not wait:
            fix = "Wait for it, stop it, or choose another folder."
            raise CheckpointError(f"{path.parent} is in use by {other}.", fix=fix) from error
        logger.info("waiting for %s, which holds %s", other, path)
        lock.acquire()
        has_waited = True
    try:
        place, started = socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S%z")
        with suppress(OSError):  # a full disk: the lock holds without a name, too
            path.write_text(f"process {os.getpid()} on {place} since {started}\n", "utf-8")
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
    with ExitStack() as held:
        try:
            made = [place for place in (run_dir, *run_dir.parents) if not place.exists()]
            run_dir.mkdir(parents=True, exist_ok=True)
            # An older lock opens even where nothing new can be written.
            for place in (run_dir, run_dir / "checkpoints"):
                if place.exists():
                    TemporaryFile(dir=place).close()
            held.enter_context(file_lock(run_dir / ".lock"))
        except OSError as error:
            problem = f"{run_dir} cannot be written: {error.strerror}."
            fix = "Set run_dir to a folder you can write to, or change its permissions."
            raise CheckpointError(problem, fix=fix) from error
        try:
            yield
        finally:
            with suppress(OSError):
                if made and [path.name for path in run_dir.iterdir()] == [".lock"]:
                    (run_dir / ".lock").unlink()
                    for place in made:
                        place.rmdir()
