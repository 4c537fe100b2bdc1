"""Makes Linux resemble Windows for nmt, as far as Python can; called by a ``sitecustomize``.

Hidden from the modules of nmt (torch and others, which have code for Windows, keep them): modules
and names that Windows lacks. filelock loses ``fcntl``, and uses its lock without a kernel.

Changed for all modules: a folder cannot be opened; a file opened for reading cannot be synced; a
file that this process has open or mapped, or a folder that contains one, cannot be renamed,
replaced or deleted, and nothing is renamed onto a name that exists; ``select`` accepts only
sockets; event loops handle no signals; text written without ``newline`` gets CR LF; the standard
streams have the code page 1252 and CR LF; /proc and /sys cannot be read.

Not shown: backslashes and drive letters in paths, names that differ only in case, locks and memory
of Windows itself, processes that another process holds files of, libraries built for Windows, the
console.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import errno
import fcntl
import io
import os
import select
import shutil
import signal
import stat
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NAMES = {
    "os": """O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC chown chroot fchmod fchown fork forkpty
        getegid geteuid getgid getloadavg getpgid getuid killpg lchown mkfifo mknod nice openpty
        pread pwrite register_at_fork sched_getaffinity sched_setaffinity setsid setuid statvfs
        sysconf uname wait3 wait4""",
    "signal": """SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1
        SIGUSR2 SIGWINCH alarm pause pthread_kill pthread_sigmask setitimer siginterrupt sigwait""",
    "select": "epoll poll",
    "socket": "AF_UNIX SO_REUSEPORT",
}
HIDDEN = {name: frozenset(names.split()) for name, names in NAMES.items()}
_import, _open = builtins.__import__, io.open


class View(types.ModuleType):
    """A module without the names that Windows lacks."""

    def __getattr__(self, name: str) -> Any:
        if name in HIDDEN[self.__name__]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on Windows")
        return getattr(sys.modules[self.__name__], name)


VIEWS = {name: View(name) for name in HIDDEN}


def import_as_on_windows(
    name: str,
    globals: Any = None,  # noqa: A002 - names of the builtin
    locals: Any = None,  # noqa: A002
    fromlist: Any = (),
    level: int = 0,
) -> Any:
    caller = (globals or {}).get("__name__", "").partition(".")[0]
    hidden = {"nmt": MODULES, "filelock": {"fcntl"}}.get(caller, ())
    if level == 0 and name in hidden:
        raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
    module = _import(name, globals, locals, fromlist, level)
    return VIEWS.get(name, module) if caller == "nmt" and level == 0 else module


def open_as_on_windows(file: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
    if not isinstance(file, int) and os.fsdecode(file).startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(errno.ENOENT, "no such file on Windows", file)
    if "b" not in mode and mode.strip("rt") and len(others) < 4 and named.get("newline") is None:
        named["newline"] = "\r\n"
    return _open(file, mode, *others, **named)


def refuse_if_used(path: Any) -> None:
    """Raise the error of Windows if this process has the file open or mapped."""
    given = Path(os.fsdecode(path)).absolute()
    place, used = str(given.parent.resolve() / given.name), set[str]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the listing itself
            used.add(str(link.readlink()))
    with _open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        used |= {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps}
    if mine := [each for each in used if each == place or each.startswith(f"{place}/")]:
        raise PermissionError(errno.EACCES, f"is in use, as on Windows: {mine}", path)


def refusing(function: Callable[..., Any], *, new_name: bool = False) -> Callable[..., Any]:
    def refuse(path: Any, *others: Any, **named: Any) -> Any:
        # TemporaryFile deletes its file at once on Linux, and at the end on Windows.
        if sys._getframe(1).f_code.co_name != "opener":
            refuse_if_used(path)
        if others:
            refuse_if_used(others[0])
            if new_name and os.path.lexists(others[0]):
                raise FileExistsError(errno.EEXIST, "exists, as on Windows", others[0])
        return function(path, *others, **named)

    return refuse


def on_windows(function: Callable[..., Any], fails: Callable[..., OSError | None]) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        if error := fails(*arguments):
            raise error
        return function(*arguments, **named)

    return call


def opens_folder(path: Any, *_: Any) -> OSError | None:
    is_folder = isinstance(path, (str, os.PathLike)) and Path(path).is_dir()
    return PermissionError(errno.EACCES, "is a folder, as on Windows", path) if is_folder else None


def syncs_reader(descriptor: int) -> OSError | None:
    is_reader = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return OSError(errno.EBADF, "is open for reading, as on Windows") if is_reader else None


def waits_for_file(*lists: Any) -> OSError | None:
    numbers = [x if isinstance(x, int) else x.fileno() for each in lists[:3] for x in each]
    is_file = any(not stat.S_ISSOCK(os.fstat(number).st_mode) for number in numbers)
    return OSError(errno.ENOTSOCK, "is not a socket, as on Windows") if is_file else None


def memory_status(status: Any) -> int:
    """Fill MEMORYSTATUSEX: its size and the load, then seven sizes; 16 of 32 GiB are free."""
    assert status[0] & 0xFFFFFFFF == ctypes.sizeof(status) == 64
    status[1], status[2] = 32 << 30, 16 << 30
    return 1


def no_signals(*_: Any) -> None:
    raise NotImplementedError


def imitate() -> None:
    """Change this process for good."""
    warnings.filterwarnings("ignore", "only soft file lock is available")
    builtins.__import__ = import_as_on_windows
    builtins.open = io.open = cast("Any", open_as_on_windows)
    setattr(shutil, "_use_fd_functions", False)  # noqa: B010 - as on Windows
    os.fork = on_windows(os.fork, lambda: OSError(errno.ENOSYS, "no fork on Windows"))
    for name in ("replace", "unlink", "remove", "rmdir"):
        setattr(os, name, refusing(getattr(os, name)))
    os.rename = refusing(os.rename, new_name=True)
    os.open, os.fsync = on_windows(os.open, opens_folder), on_windows(os.fsync, syncs_reader)
    select.select = on_windows(select.select, waits_for_file)
    setattr(asyncio.SelectorEventLoop, "add_signal_handler", no_signals)  # noqa: B010
    kernel32 = types.SimpleNamespace(GlobalMemoryStatusEx=memory_status)
    setattr(ctypes, "windll", types.SimpleNamespace(kernel32=kernel32))  # noqa: B010
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            how: dict[str, Any] = {"encoding": "cp1252", "errors": "strict"}
            stream.reconfigure(**how, newline=None if stream is sys.stdin else "\r\n")
