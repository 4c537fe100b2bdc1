"""Files and folders appear whole, what a dead process left is removed, and one trains at a time."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.errors import CheckpointError, DataError
from nmt.files import atomic
from nmt.files.atomic import (
    atomic_file,
    atomic_folder,
    file_lock,
    is_locked,
    remove_leftovers,
    run_lock,
    write_text,
)
from tests.process import LIMIT, limited

_WRITE = """
import sys, time
from pathlib import Path
from nmt.files import atomic
with getattr(atomic, sys.argv[1])(Path(sys.argv[2])) as place:
    if isinstance(place, Path):
        (place / "part").touch()
    elif place is not None:
        place.write(b"half")
    print("begun", flush=True)
    while True:  # a signal just before a sleep is handled after it
        time.sleep(0.05)
"""


def begin(kind: str, place: Path) -> subprocess.Popen[bytes]:
    """Another process that has begun to write ``place``, or to train there, and does not end."""
    command = [sys.executable, "-c", _WRITE, kind, str(place)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with limited(process):
        assert process.stdout.readline() == b"begun\n"
    return process


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    with process:
        process.send_signal(number)
        return process.wait(LIMIT)


@pytest.fixture(params=["atomic_file", "atomic_folder"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    """Finding 19: a terminal that is closed."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("these tests run under nohup, whose children ignore it too")
    assert end(begin(kind, tmp_path / "out"), number) in (128 + number, -number)
    assert list(tmp_path.iterdir()) == []


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, kind: str) -> None:
    """Finding 19; FAULT 4. What another process is writing stays."""
    writer = begin(kind, tmp_path / "out")
    write_text(tmp_path / "out", "text")
    remove_leftovers(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    end(writer, signal.SIGKILL)
    (tmp_path / ".outer.tmp-1").touch()  # of another name
    (tmp_path / ".out.tmp-99999999").touch()  # of a release that took no locks
    write_text(tmp_path / "out", "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".outer.tmp-1", "out"]
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_signals_do_what_they_did_before_and_after(tmp_path: Path) -> None:
    own: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: own.append(number))
    try:
        with atomic_file(tmp_path / "out"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert own == [signal.SIGTERM]
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as with nohup
    try:
        with atomic_file(tmp_path / "out"):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_failure_leaves_the_old_content(tmp_path: Path) -> None:
    old, folder = tmp_path / "old", tmp_path / "folder"
    write_text(old, "old")
    with pytest.raises(KeyError), atomic_file(old) as file:
        raise KeyError(file.write(b"new"))
    with pytest.raises(KeyError), atomic_folder(folder) as place:
        raise KeyError((place / "part").write_text("new"))
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "old"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o444])
def test_the_permissions_of_a_file_stay(tmp_path: Path, mode: int) -> None:
    """Also while it is written, and whatever new files get."""
    place = tmp_path / "file"
    place.write_text("old\n")
    place.chmod(mode)
    with atomic_file(place):
        written = [path for path in tmp_path.rglob("*") if path.name == "file"]
        modes = [path.stat().st_mode & 0o777 for path in written]
    assert modes == [mode, mode]
    assert place.stat().st_mode & 0o777 == mode


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is synced and renamed from now on, in order: inodes, and sizes of files if synced."""
    calls: list[tuple[str, int]] = []
    fsync = os.fsync
    rename = os.rename
    replace = os.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        calls.append(("synced", found.st_ino))
        if stat.S_ISREG(found.st_mode):
            calls.append(("size", found.st_size))

    def renamed(origin: Path, place: Path) -> None:
        calls.append(("renamed", Path(origin).stat().st_ino))
        rename(origin, place)

    def replaced(origin: Path, place: Path) -> None:
        calls.append(("renamed", Path(origin).stat().st_ino))
        replace(origin, place)

    for name, call in (("fsync", synced), ("rename", renamed), ("replace", replaced)):
        monkeypatch.setattr(os, name, call)
    return calls


def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, disk: list[tuple[str, int]]
) -> None:
    """FAULT 4, for a power cut: a name that comes first may stay without content."""
    place = tmp_path / "file"
    write_text(place, "text")
    of_file = place.stat().st_ino
    of_parent = tmp_path.stat().st_ino
    content = [("synced", of_file), ("size", 4)]
    assert disk == [*content, ("renamed", of_file), ("synced", of_parent)]
    disk.clear()
    folder = tmp_path / "folder"
    make(folder, "more text")
    of_part = (folder / "part").stat().st_ino
    of_folder = folder.stat().st_ino
    content = [("synced", of_part), ("size", 9), ("synced", of_folder)]
    assert disk == [*content, ("renamed", of_folder), ("synced", of_parent)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_named_once_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """FAULT 68: CIFS and FUSE. Files are still synced."""
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(atomic, "_known_limits", set())
    write_text(tmp_path / "file", "text")
    make(tmp_path / "folder", "more text")
    assert len(synced) == 2
    assert (tmp_path / "folder" / "part").read_text() == "more text"
    (message,) = caplog.messages
    assert message.startswith(f"the file system of {tmp_path} cannot sync folders")


def test_a_sync_that_fails_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 8: the content may be lost."""

    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output"):
        write_text(tmp_path / "file", "text")


# Run before `_WRITE`, in another process.
_NO_LOCKS = f"""
import fcntl
def flock(*_):
    raise OSError({errno.ENOLCK}, "No locks available")
fcntl.flock = flock
"""


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_file_system_without_locks_one_process_trains_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """FAULTS 15 and 68: NFS. A dead process keeps nobody out."""

    def flock(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(atomic, "_known_limits", set())
    monkeypatch.setattr(sys.modules[__name__], "_WRITE", _NO_LOCKS + _WRITE)
    run = tmp_path / "run"
    holder = begin("run_lock", run)
    with pytest.raises(CheckpointError, match=f"in use by process {holder.pid} "), run_lock(run):
        pass
    end(holder, signal.SIGKILL)
    with run_lock(run):
        assert f"process {os.getpid()} " in (run / ".lock").read_text()
        write_text(run / "log.txt", "text")
    assert sorted(path.name for path in run.iterdir()) == [".lock", "log.txt"]
    (message,) = [record.message for record in caplog.records if record.levelno > logging.INFO]
    assert message.startswith(f"the file system of {run / '.lock'} has no locks")
    with run_lock(tmp_path / "new"):  # and a run that wrote nothing leaves no folder
        pass
    assert not (tmp_path / "new").exists()


def make(folder: Path, content: str, *, replace: bool = False) -> None:
    with atomic_folder(folder, replace=replace) as place:
        (place / "part").write_text(content)


def test_a_folder_replaces_another_only_if_told_to(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    make(place, "old")
    with pytest.raises(OSError, match="not empty"):
        make(place, "new")
    assert (place / "part").read_text() == "old"
    make(place, "new", replace=True)
    assert (place / "part").read_text() == "new"
    assert list(tmp_path.iterdir()) == [place]


def test_an_interrupted_replacement_is_undone(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    make(place, "old")
    place.rename(atomic.replaced_folder(place))
    atomic.restore_replaced(place)
    assert (place / "part").read_text() == "old"
    make(atomic.replaced_folder(place), "older")
    atomic.restore_replaced(place)
    assert (place / "part").read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_an_interrupted_removal_leaves_no_partial_folder(tmp_path: Path) -> None:
    make(tmp_path / "folder", "old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        atomic.remove_folder(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_a_file_needs_the_name_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught, atomic.open_output(tmp_path):
        pass
    assert caught.value.fix == "Choose the name of a file."


def test_an_os_error_becomes_one_error_of_nmt() -> None:
    with (
        pytest.raises(DataError, match=r"^it cannot be written: No space left"),
        atomic.write_errors("it", DataError),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(BrokenPipeError), atomic.write_errors("it", DataError):
        raise BrokenPipeError  # Fault 44: the reader has what it wants


def test_a_second_process_gets_an_error_and_a_dead_process_holds_no_lock(tmp_path: Path) -> None:
    """FAULT 15; a refusal leaves the holder's name, and a lock cannot go stale."""
    run = tmp_path / "run"
    holder = begin("run_lock", run)
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught, run_lock(run):
            pass
        shown = f"in use by process {holder.pid} on {socket.gethostname()} since "
        assert shown in str(caught.value)
        assert caught.value.exit_code == 4
        assert is_locked(run)
    end(holder, signal.SIGKILL)
    assert not is_locked(run)
    assert f"process {holder.pid} " in (run / ".lock").read_text()
    with run_lock(run):
        assert f"process {os.getpid()} " in (run / ".lock").read_text()


def test_a_run_starts_while_another_process_looks_whether_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_LOOK_SECONDS", 10)
    looking = os.open(tmp_path / ".lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_EX)
    threading.Timer(0.01, os.close, [looking]).start()
    with run_lock(tmp_path):
        assert is_locked(tmp_path)


def test_who_waits_for_a_lock_learns_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other process has done in the meantime need not be done again."""
    place = tmp_path / "lock"
    is_held = threading.Event()
    may_end = threading.Event()
    outcomes: list[bool] = []

    def hold() -> None:
        with file_lock(place) as has_waited:
            outcomes.append(has_waited)
            is_held.set()
            outcomes.append(may_end.wait(60))  # the wait was announced

    # The message comes just before the wait.
    monkeypatch.setattr(atomic.logger, "info", lambda *_: may_end.set())
    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)
    with file_lock(place, wait=True, remove=True) as has_waited:
        outcomes.append(has_waited)
    holder.join(60)
    assert outcomes == [False, True, True]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_rights() -> Iterator[None]:
    """Work without the rights of the superuser, who may write anywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


@pytest.mark.usefixtures("no_rights")
@pytest.mark.parametrize("place", ["/usr", "/usr/new/run", "/proc/run", "/dev/null"])
def test_a_folder_that_cannot_be_written_is_refused(place: str) -> None:
    """FAULT 9."""
    with pytest.raises(CheckpointError, match=f"^{place} cannot be written") as caught:
        run_lock(Path(place)).__enter__()
    assert "Set run_dir" in caught.value.fix


def test_a_folder_that_became_read_only_is_refused(request: pytest.FixtureRequest) -> None:
    """FAULT 9."""
    with tempfile.TemporaryDirectory() as name:  # tmp_path is closed to others
        run_dir = Path(name)
        with run_lock(run_dir):
            pass
        (run_dir / ".lock").chmod(0o666)
        other = run_dir / "other"
        other.mkdir()
        (other / ".lock").touch(mode=0o600)
        run_dir.chmod(0o555)
        request.getfixturevalue("no_rights")
        with pytest.raises(CheckpointError, match="cannot be written: Permission denied"):
            run_lock(run_dir).__enter__()
        assert not is_locked(other)  # which cannot be opened
        if os.getuid() == 0:
            os.seteuid(0)
        run_dir.chmod(0o755)


@pytest.mark.parametrize("name", ["run", "runs/new/run"])
def test_a_run_that_wrote_nothing_leaves_no_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    with pytest.raises(ZeroDivisionError), run_lock(folder), run_lock(tmp_path / "other"):
        _ = folder.is_dir() and 1 / 0
    assert list(tmp_path.iterdir()) == []
    with run_lock(folder):
        (folder / "log.txt").touch()
    assert (folder / ".lock").is_file()
    (folder / "log.txt").unlink()
    with run_lock(folder):  # a folder that was there stays
        pass
    assert folder.is_dir()
