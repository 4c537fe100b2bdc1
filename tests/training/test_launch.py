"""``nmt train``: what becomes of its flags, and several processes that torchrun starts."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.commands import train as story
from nmt.config.training import TrainingConfig
from nmt.device.distributed import PEER_LOST
from nmt.errors import DeviceError, shell_command
from nmt.training.processes import ProcessKilledError, StoppedBySignal, launch

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
# The first process runs on until torchrun ends it, as one does that a peer has left.
WAIT = f"exec 2>/dev/null; trap 'exit {PEER_LOST}' TERM; while true; do sleep 0.01; done"

Program = Callable[[str, str], None]


def training_of(**values: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"max_steps": 1, "threads": 1, **values})


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Program]:
    """Sets what the first process does, and what the second does: shell commands."""
    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in handled}
    path = tmp_path / "python"

    def write(first: str, second: str) -> None:
        path.write_text(f'#!/bin/sh\nif [ "$RANK" = 0 ]; then\n{first}\nelse\n{second}\nfi\n')
        path.chmod(0o755)

    monkeypatch.setenv("PYTHON_EXEC", str(path))  # torchrun runs this in place of Python
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield write
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("threads", "cores", "share"), [(3, 7, 3), (None, 7, 3), (None, 1, 1)])
def test_all_processes_get_the_arguments_their_place_and_their_threads(
    program: Program,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: int | None,
    cores: int,
    share: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    tell = f'echo "$* in $LOCAL_RANK of $WORLD_SIZE, $OMP_NUM_THREADS" > {tmp_path}/$RANK'
    program(tell, tell)
    launch(["train", "a b.yaml", "--exact"], 2, training_of(threads=threads))
    for rank in (0, 1):
        told = (tmp_path / str(rank)).read_text()
        assert told.endswith(f"-m nmt train a b.yaml --exact in {rank} of 2, {share}\n")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (WAIT, "exit 3", 3),
        (f"exit {PEER_LOST}", "sleep 0.5; exit 5", PEER_LOST),  # before anybody else has failed
        ("exec sleep 60", "exit 4", 4),  # has noticed nothing when torchrun ends it by SIGTERM
        # Asked to stop, and saved: someone sent the signal to one of them, not to torchrun.
        *((f"exit {code}", f"exit {code}", code) for code in (130, 143)),
    ],
)
def test_a_failure_ends_the_others_and_gives_the_exit_code(
    program: Program, first: str, second: str, code: int
) -> None:
    """FAULTS 19, 20 and 28."""
    program(first, second)
    with pytest.raises(SystemExit) as caught:
        launch([], 2, training_of())
    assert caught.value.code == code
    assert isinstance(caught.value, StoppedBySignal) == (code > 128)


def test_a_killed_process_is_named(program: Program, tmp_path: Path) -> None:
    """FAULT 29."""
    program(WAIT, f"echo $$ > {tmp_path}/pid; kill -KILL $$")
    with pytest.raises(ProcessKilledError) as caught:
        launch([], 2, training_of())
    pid = (tmp_path / "pid").read_text().strip()
    expected = f"Process 1 of 2 (pid {pid}) was killed by SIGKILL; the others have ended."
    assert caught.value.problem == expected


def test_more_processes_than_gpus_are_refused(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(f"touch {tmp_path}/started", f"touch {tmp_path}/started")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"3 processes were asked for.* 2 GPUs.\n.*`devices` to"):
        launch([], 3, training_of())
    assert not (tmp_path / "started").exists()
    launch([], 3, training_of(device="cpu"))
    assert (tmp_path / "started").exists()


def test_the_flags_reach_each_process_but_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(story, "launch", lambda *given: calls.append(given))
    flags = ["--set", "training.threads=3", "--run-dir", "runs/no 1: it's", "--exact", "-q"]
    result = CliRunner().invoke(app, ["train", DEMO, *flags, "--devices", "4"])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    settings = ["training.threads=3", "run_dir='runs/no 1: it''s'"]
    command = shell_command("train", DEMO, set_=settings, exact=True, quiet=True)
    ((arguments, number, training),) = calls
    assert (arguments, number, training.threads) == (shlex.split(command)[1:], 4, 3)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dry-run", "--strict-resume"], "A dry run resumes nothing: --strict-resume."),
        (["--devices", "0"], "--devices"),
        (["--devices", "2", "--set", "training.seeed=3"], "unknown key training.seeed"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    for name in ("launch", "fit"):
        monkeypatch.setattr(story, name, lambda *_, **__: pytest.fail("started"))
    result = CliRunner().invoke(app, ["train", DEMO, *flags])
    assert result.exit_code == 2
    assert result.stderr.count(words) == 1


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.registry.find_spec", lambda _: None)
    result = CliRunner().invoke(app, ["train", DEMO, "--dry-run"])
    assert result.exit_code == 2
    assert "nmt/extras/planning" in result.stderr
