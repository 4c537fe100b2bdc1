"""Start and end of ``nmt train``: flags, the processes of torchrun, and signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import torch
import yaml
from typer.testing import CliRunner
from typing_extensions import override

from nmt.cli.app import app
from nmt.commands import train as story
from nmt.commands.config import with_metric
from nmt.commands.options import TrainOptions
from nmt.config.loader import load_config
from nmt.config.training import TrainingConfig
from nmt.device.distributed import PEER_LOST, Processes
from nmt.errors import ConfigError, DeviceError, shell_command
from nmt.training.processes import StoppedBySignal, StopSignal, launch
from tests.process import LIMIT, started

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
# The first process runs on until torchrun ends it, as one does that a peer has left.
WAIT = f"exec 2>/dev/null; trap 'exit {PEER_LOST}' TERM; while true; do sleep 0.01; done"

# A process that trains, as far as signals go; run by a shell that is its launcher.
TRAINING = """
import time
from nmt.training.processes import StopSignal
with StopSignal() as stop:
    print("begun", flush=True)
    while stop.number is None:
        time.sleep(0.01)
print(stop.number, flush=True)
"""

Program = Callable[[str, str], None]


def training_of(**values: Any) -> TrainingConfig:
    return TrainingConfig.model_validate({"max_steps": 1, "threads": 1, **values})


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP as in a terminal; these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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


@pytest.mark.parametrize(
    ("threads", "cores", "share"),
    [
        (None, 7, 3),
        pytest.param(3, 7, 3, marks=pytest.mark.long),
        pytest.param(None, 1, 1, marks=pytest.mark.long),
    ],
)
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


def test_a_program_of_the_user_does_not_replace_a_module_of_python(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_on_path in (False, True):  # True: `python -m nmt`, in a clone that is not installed
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path)] * is_on_path + sys.path)
        tell = f'echo "$*" > {tmp_path}/$RANK'
        program(tell, tell)
        launch([], 2, training_of())
        safe = " -P" * (not is_on_path)
        assert (tmp_path / "1").read_text() == f"-u{safe} -m nmt\n"


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (WAIT, "exit 3", 3),
        (f"exit {PEER_LOST}", "sleep 0.5; exit 5", PEER_LOST),  # before anybody else has failed
        # Has noticed nothing when torchrun ends it by SIGTERM.
        pytest.param("exec sleep 60", "exit 4", 4, marks=pytest.mark.long),
        # Asked to stop, and saved: someone sent the signal to one of them, not to torchrun.
        ("exit 130", "exit 130", 130),
        pytest.param("exit 143", "exit 143", 143, marks=pytest.mark.long),
        pytest.param("exit 129", "exit 129", 129, marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("hangup")
@pytest.mark.long
def test_a_failure_ends_the_others_and_gives_the_exit_code(
    program: Program, first: str, second: str, code: int
) -> None:
    """FAULTS 19, 20 and 28."""
    program(first, second)
    with pytest.raises(SystemExit) as caught:
        launch([], 2, training_of())
    assert caught.value.code == code
    assert isinstance(caught.value, StoppedBySignal) == (code > 128)


def send_when(files: Path, number: int) -> None:
    """Send a signal to this process, a launcher, when both processes have made a file."""

    def send() -> None:
        deadline = time.monotonic() + LIMIT
        while len(list(files.glob("ready-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()


def answers(name: str, answer: str, files: Path) -> str:
    """What a process does that answers a signal, and else ends after a minute."""
    handler = f"""trap '{answer}' {name}; touch "$NMT_PROCESSES/$$" {files}/ready-$RANK"""
    return f"{handler}; for _ in $(seq 600); do sleep 0.1; done"


@pytest.mark.usefixtures("hangup")
def test_a_closed_terminal_stops_all_processes(program: Program, tmp_path: Path) -> None:
    """FAULT 66."""
    work = answers("HUP", f"touch {tmp_path}/saved-$RANK; exit 129", tmp_path)
    program(work, work)
    send_when(tmp_path, signal.SIGHUP)
    with pytest.raises(StoppedBySignal) as caught:
        launch([], 2, training_of())
    assert caught.value.code == 129
    assert len(list(tmp_path.glob("saved-*"))) == 2


@pytest.mark.usefixtures("hangup")
def test_under_nohup_a_closed_terminal_stops_nothing(program: Program, tmp_path: Path) -> None:
    """FAULT 66: neither the launcher nor the processes, which inherit that they ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    work = f"touch {tmp_path}/ready-$RANK; kill -HUP $$; sleep 1; touch {tmp_path}/done-$RANK"
    program(work, work)
    send_when(tmp_path, signal.SIGHUP)
    launch([], 2, training_of())
    assert len(list(tmp_path.glob("done-*"))) == 2


def test_a_request_to_save_reaches_the_processes(program: Program, tmp_path: Path) -> None:
    """FAULT 66. Afterwards the signal does what it did before."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        work = answers("USR1", f"touch {tmp_path}/saved-$RANK; exit 0", tmp_path)
        program(work, work)
        send_when(tmp_path, signal.SIGUSR1)
        launch([], 2, training_of())
        assert len(list(tmp_path.glob("saved-*"))) == 2
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_process_stops_when_its_launcher_is_killed() -> None:
    """FAULT 75: as after SIGTERM, so that it saves and releases the lock."""
    script = '"$0" -c "$1" & wait'
    environment = os.environ | {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2"}
    command = ["sh", "-c", script, sys.executable, TRAINING]
    with started(command, stdout=subprocess.PIPE, env=environment) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"begun\n"
        launcher.kill()
        assert launcher.stdout.readline() == b"15\n"


def test_more_processes_than_gpus_are_refused(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(f"touch {tmp_path}/started", f"touch {tmp_path}/started")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"`devices` is 3.* 2 GPUs.\n.*`devices` to"):
        launch([], 3, training_of())
    assert not (tmp_path / "started").exists()
    launch([], 3, training_of(device="cpu"))
    assert (tmp_path / "started").exists()


def test_the_flags_reach_each_process_but_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(story, "launch", lambda *given: calls.append(given))
    flags = ["--set", "training.threads=2", "--run-dir", "runs/no 1: it's \U0001f600", "--exact"]
    flags += ["--device", "cpu", "--threads", "3", "-q"]
    result = CliRunner().invoke(app, ["train", DEMO, *flags, "--devices", "4"])
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    settings = ["training.threads=2", 'training.device="cpu"', "training.threads=3"]
    settings.append('run_dir="runs/no 1: it\'s \U0001f600"')
    command = shell_command("train", DEMO, set_=settings, exact=True, quiet=True)
    ((arguments, number, training),) = calls
    assert (arguments, number) == (shlex.split(command)[1:], 4)
    assert (training.device, training.threads) == ("cpu", 3)
    config = load_config(DEMO, settings)
    assert config.run_dir == Path("runs/no 1: it's \U0001f600")


def test_several_processes_need_a_configuration_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process trains with a dictionary."""
    values: Any = yaml.safe_load(Path(DEMO).read_text(encoding="utf-8"))
    with pytest.raises(ConfigError, match="Several processes cannot read a dictionary"):
        story.train(TrainOptions(config=values, devices=2))
    configs: list[Any] = []
    monkeypatch.setattr(story, "fit", lambda config, **_: configs.append(config))
    overrides: Any = {"training.seed": 7}
    story.train(TrainOptions(config=values, set_=overrides))
    assert configs == [with_metric(load_config(DEMO, ["training.seed=7"]))]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dry-run", "--strict-resume"], "--dry-run cannot be combined with --strict-resume."),
        (["--devices", "0"], "--devices"),
        (["--devices", "2", "--set", "training.seeed=3"], "unknown key training.seeed"),
    ],
)
def test_mistakes_are_reported_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str
) -> None:
    for name in ("launch", "fit"):
        monkeypatch.setattr(story, name, lambda *_, **__: pytest.fail("started"))
    result = CliRunner().invoke(app, ["train", DEMO, *flags])
    assert result.exit_code == 2
    assert result.stderr.count(words) == 1


T = TypeVar("T")


STOPS = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)


@STOPS
@pytest.mark.usefixtures("hangup")
def test_the_first_signal_is_recorded_and_a_second_interrupt_raises(
    number: signal.Signals, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """FAULTS 19, 20 and 66. Afterwards all signals do what they did before."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(each) for each in signals]
    with StopSignal() as stop:
        os.kill(os.getpid(), number)
        assert stop.number == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert StoppedBySignal(number).code == code
    # So "except Exception" catches none: not where a compiler's failure is passed over, say.
    assert not issubclass(StoppedBySignal, Exception)
    assert "stopping after this update and saving" in capfd.readouterr().err
    assert [signal.getsignal(each) for each in signals] == before


@pytest.mark.usefixtures("hangup")
def test_an_ignored_hangup_stays_ignored_and_a_request_to_save_stops_nothing() -> None:
    """FAULT 66."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop, stop.at_once():
        os.kill(os.getpid(), signal.SIGHUP)
        requests = [stop.save_requested]
        os.kill(os.getpid(), signal.SIGUSR1)
        requests.append(stop.save_requested)
    assert requests == [False, True]
    assert stop.number is None


@STOPS
@pytest.mark.usefixtures("hangup")
def test_at_once_lets_a_signal_interrupt_the_work(number: signal.Signals, code: int) -> None:
    """Also where parts of it are gathered from processes; and one that came before counts."""
    with StopSignal() as stop:
        with stop.at_once():
            assert stop.gather(lambda: 3, Processes()) == [3]
            with pytest.raises(StoppedBySignal) as caught:
                os.kill(os.getpid(), number)
        assert caught.value.code == code
        with pytest.raises(StoppedBySignal), stop.at_once():
            pytest.fail("began")


def test_outside_the_main_thread_nothing_is_changed() -> None:
    found: list[object] = []

    def work() -> None:
        with StopSignal():
            found.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found == [before]


class Peer(Processes):
    """This process, and another one that behaves as is known beforehand."""

    def __init__(self, number: int | None, part: list[str]) -> None:
        self._outcome = number, part

    @override
    def gather(self, value: T) -> list[T]:
        return [value, cast(T, self._outcome)]


@pytest.mark.parametrize(("own", "of_other", "number"), [(15, None, 15), (None, 2, 2), (15, 2, 15)])
def test_work_interrupted_in_one_process_is_interrupted_in_all(
    own: int | None, of_other: int | None, number: int
) -> None:
    def work() -> str:
        if own is not None:
            signal.raise_signal(own)
        return "ours"

    with StopSignal() as stop:
        with pytest.raises(StoppedBySignal) as caught:
            stop.gather(work, Peer(of_other, [] if of_other else ["theirs"]))
        assert caught.value.number == number


def test_a_signal_after_the_work_does_not_lose_its_result() -> None:
    with StopSignal() as stop:
        assert stop.gather(lambda: "ours", Peer(15, ["theirs"])) == ["ours", "theirs"]
