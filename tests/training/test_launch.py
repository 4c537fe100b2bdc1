"""The launcher, with processes that take no time to start: a shell script stands for Python."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.device.distributed import CAUSE, LAUNCHED, PEER_LOST, PeerLostError
from nmt.errors import DeviceError
from nmt.training.launch import ProcessKilledError, launch
from nmt.training.signals import StoppedBySignal

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
# The first process runs on until the launcher ends it, as one does that a peer has left.
WAIT = f"exec 2>/dev/null; trap 'exit {PEER_LOST}' TERM; while true; do sleep 0.01; done"

Program = Callable[[str, str], None]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Program]:
    """Sets what the first process does, and what the second does: shell commands."""
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in handled}
    path = tmp_path / "python"

    def write(first: str, second: str) -> None:
        path.write_text(f'#!/bin/sh\nif [ "$RANK" = 0 ]; then\n{first}\nelse\n{second}\nfi\n')
        path.chmod(0o755)

    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    # Set and taken away again, so that what `launch` sets does not outlive the test.
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    yield write
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_torch_that_knows_no_time_to_save_is_not_given_one(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher of torch 2.11 refuses the argument."""
    known = [field for field in fields(LaunchConfig) if field.name != "shutdown_timeout"]

    def older(**given: Any) -> LaunchConfig:
        assert given.keys() <= {field.name for field in known}
        return LaunchConfig(**given)

    monkeypatch.setattr("nmt.training.launch.fields", lambda _: known)
    monkeypatch.setattr("nmt.training.launch.LaunchConfig", older)
    program("true", "true")
    launch(["train", "a.yaml"], num_processes=2, threads=1)


def test_all_processes_get_the_arguments_their_place_and_their_threads(
    program: Program, tmp_path: Path
) -> None:
    tell = f'echo "$* in $LOCAL_RANK of $WORLD_SIZE, $OMP_NUM_THREADS" > {tmp_path}/$RANK'
    program(tell, tell)
    launch(["train", "a b.yaml"], num_processes=2, threads=3)

    for rank in (0, 1):
        told = (tmp_path / str(rank)).read_text()
        assert told == f"-m nmt train a b.yaml in {rank} of 2, 3\n"


@pytest.mark.parametrize(("cores", "share"), [(7, 3), (1, 1)])
def test_the_cores_are_shared_evenly(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, share: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    tell = f'echo "$OMP_NUM_THREADS" > {tmp_path}/$RANK'
    program(tell, tell)
    launch([], num_processes=2, threads=None)

    assert (tmp_path / "1").read_text() == f"{share}\n"


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (WAIT, "echo 'error: a cable broke' >&2; exit 3", 3),
        (f"exit {PEER_LOST}", "exit 5", 5),  # both have ended when the launcher looks
        ("exec sleep 60", "exit 4", 4),  # has not noticed yet when the launcher ends it by SIGTERM
    ],
)
def test_a_failure_ends_the_others_and_nothing_is_added_to_what_was_told(
    program: Program,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
    code: int,
) -> None:
    """FAULT 28: the code is that of the process that failed first, not of those that lost it."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    program(first, second)
    with pytest.raises(SystemExit) as caught:
        launch([], num_processes=2, threads=1)

    assert caught.value.code == code
    assert capfd.readouterr() == ("", "error: a cable broke\n" if code == 3 else "")
    assert not [*place.iterdir()]


def test_what_was_seen_is_told_where_nobody_failed_but_for_a_peer(program: Program) -> None:
    """As with a broken network; and nothing of it is left for other children of this process."""
    lost = f"echo 'the cable broke' > ${LAUNCHED}/{CAUSE}; exit {PEER_LOST}"
    program(lost, lost)
    with pytest.raises(PeerLostError, match="the cable broke") as caught:
        launch([], num_processes=2, threads=1)

    assert caught.value.exit_code == PEER_LOST
    assert LAUNCHED not in os.environ


def test_a_killed_process_is_named(
    program: Program, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """FAULT 29."""
    program(WAIT, f"echo $$ > {tmp_path}/pid; kill -KILL $$")
    with pytest.raises(ProcessKilledError) as caught:
        launch([], num_processes=2, threads=1)

    pid = (tmp_path / "pid").read_text().strip()
    expected = f"Process 1 of 2 (pid {pid}) was killed by SIGKILL; the others have ended."
    assert caught.value.problem == expected
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("code", [130, 143])
def test_processes_that_were_asked_to_stop_and_saved_are_no_failure(
    program: Program, code: int
) -> None:
    """FAULTS 19 and 20: someone sent the signal to one of them, not to the launcher."""
    program(f"exit {code}", f"exit {code}")
    with pytest.raises(StoppedBySignal) as caught:
        launch([], num_processes=2, threads=1)

    assert caught.value.code == code


def signalled(place: Path, *numbers: int) -> None:
    """Send signals to the launcher, half a second apart, when both processes have started."""

    def send() -> None:
        while not all((place / rank).exists() for rank in "01"):
            time.sleep(0.05)
        time.sleep(0.5)  # the launcher may still be taking note of the second one
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.5)
        (place / "sent").touch()

    # A signal that comes when the launcher has left fails this test, and no other.
    late: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: late.append(number))
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(StoppedBySignal) as caught:
            launch([], num_processes=2, threads=1)
    finally:
        sender.join()
        signal.signal(signal.SIGINT, before)
    assert not late
    assert caught.value.code == 128 + numbers[0]


def test_processes_have_the_time_to_save_when_the_launcher_is_asked_to_stop(
    program: Program, tmp_path: Path
) -> None:
    """FAULT 20."""
    until_sent = f"until [ -e {tmp_path}/sent ]; do sleep 0.05; done; sleep 1"
    save = (
        f"trap '{until_sent}; touch {tmp_path}/saved.$RANK; exit 130' INT; touch {tmp_path}/$RANK"
    )
    wait = "while true; do sleep 0.05; done"
    program(f"{save}; {wait}", f"{save}; {wait}")
    signalled(tmp_path, signal.SIGINT, signal.SIGTERM)

    assert (tmp_path / "saved.0").exists()
    assert (tmp_path / "saved.1").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are found on Linux only")
def test_a_second_interrupt_ends_all_processes_at_once(program: Program, tmp_path: Path) -> None:
    """FAULT 20: even those that do not listen any more."""
    deaf = f"trap '' INT TERM; echo $$ > {tmp_path}/$RANK; exec sleep 20"
    program(deaf, deaf)
    start = time.monotonic()
    signalled(tmp_path, signal.SIGTERM, signal.SIGINT)

    assert time.monotonic() - start < 15
    for rank in "01":
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / rank).read_text()), 0)


def test_more_processes_than_gpus_are_refused(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(f"touch {tmp_path}/started", f"touch {tmp_path}/started")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"3 processes were asked for.* 2 GPUs.\n.*--devices 2"):
        launch([], num_processes=3, threads=1)

    assert not (tmp_path / "started").exists()
    launch([], num_processes=3, threads=1, device="cpu")
    assert (tmp_path / "started").exists()


class Recorded(ModuleType):
    """Stands for `nmt.training.launch`: keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__("nmt.training.launch")
        self.calls: list[tuple[list[str], dict[str, Any]]] = []

    def launch(self, arguments: list[str], **options: Any) -> None:
        self.calls.append((arguments, options))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    launcher = Recorded()
    monkeypatch.setitem(sys.modules, "nmt.training.launch", launcher)
    return launcher


def test_the_flags_reach_each_process_but_for_devices(recorded: Recorded) -> None:
    flags = ["--set", "training.threads=3", "--run-dir", "runs/no 1: x", "--exact", "-q"]
    result = CliRunner().invoke(app, ["train", DEMO, *flags, "--devices", "4"])

    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    place = f"--set=run_dir={json.dumps('runs/no 1: x')}"
    arguments = ["train", DEMO, "--set=training.threads=3", place, "--exact", "-q"]
    assert recorded.calls == [(arguments, {"num_processes": 4, "threads": 3, "device": "auto"})]


def test_a_mistake_in_the_configuration_is_told_once_before_anything_starts(
    recorded: Recorded,
) -> None:
    flags = ["--set", "training.seeed=3", "--devices", "2"]
    result = CliRunner().invoke(app, ["train", DEMO, *flags])

    assert result.exit_code == 2
    assert result.stderr.count("unknown key training.seeed") == 1
    assert recorded.calls == []


@pytest.mark.parametrize("number", ["0", "-1"])
def test_fewer_than_one_device_is_wrong_usage(recorded: Recorded, number: str) -> None:
    result = CliRunner().invoke(app, ["train", DEMO, "--devices", number])

    assert result.exit_code == 2
    assert result.stderr.count("error: Invalid value for '--devices'") == 1
    assert recorded.calls == []
