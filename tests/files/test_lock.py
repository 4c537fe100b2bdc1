"""One process trains in a run folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.errors import CheckpointError
from nmt.files.atomic import run_lock

_HOLD = """
import sys
from pathlib import Path
from nmt.files.atomic import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that trains in ``tmp_path / "run"``."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_was_first(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """FAULT 15; a refusal leaves the holder's name."""
    for _ in range(2):
        with pytest.raises(CheckpointError) as caught, run_lock(tmp_path / "run"):
            pass
        shown = f"in use by process {holder.pid} on {socket.gethostname()} since "
        assert shown in str(caught.value)
        assert caught.value.exit_code == 4


def test_a_killed_process_leaves_no_lock(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    """FAULT 15: a stale lock."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert f"process {holder.pid} " in (tmp_path / "run" / ".lock").read_text()
    with run_lock(tmp_path / "run"):
        assert f"process {os.getpid()} " in (tmp_path / "run" / ".lock").read_text()


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
        run_dir.chmod(0o555)
        request.getfixturevalue("no_rights")
        with pytest.raises(CheckpointError, match="cannot be written: Permission denied"):
            run_lock(run_dir).__enter__()
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
