"""The proof proves what it says, notices when it is not so, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from typer.testing import CliRunner

from nmt.checkpoint.files import save_checkpoint
from nmt.cli.app import app
from nmt.commands.train import prove_resume
from nmt.config.loader import load_config
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.planning import prove_resume as module
from nmt.extras.planning.prove_resume import Proof, choose_updates, settings
from nmt.extras.planning.watched import WatchedTraining, compare_runs, last_hashes
from nmt.training.signals import StoppedBySignal
from tests.training.toy import CONFIG, write_corpus

PROOF = Proof(
    updates=60,
    kills=2,
    killed_at_steps=(13, 42),
    kills_while_saving=1,
    weights_sha256=("ab" * 32, "ab" * 32),
    optimizer_sha256=("cd" * 32, "cd" * 32),
    metrics_lines=33,
    equal=True,
)

# Does to the disk what a training does, without torch. PACE: seconds of an update.
IMITATION = """#!{python} -IS
import json, os, sys, time
flags = sys.argv[1:]
with open(os.environ["PIDS"], "a") as pids:
    print(os.getpid(), file=pids)
if os.environ.get("FAIL"):
    sys.exit("error: der Grund dafür")
values = dict(flag[len("--set=training."):].split("=", 1) for flag in flags
              if flag.startswith("--set=training."))
run = next(flag for flag in flags if flag.startswith("--run-dir="))[len("--run-dir="):]
steps, save_every = int(values["max_steps"]), int(values["save_every"])
checkpoints, metrics = run + "/checkpoints", run + "/metrics.jsonl"
os.makedirs(checkpoints, exist_ok=True)
for name in os.listdir(checkpoints):
    if name.startswith(".tmp-"):
        os.rmdir(checkpoints + "/" + name)
done = max([int(name[5:]) for name in os.listdir(checkpoints)], default=0)
lines = open(metrics).read().splitlines(True) if os.path.exists(metrics) else []
with open(metrics + ".tmp", "w") as file:
    file.writelines(line for line in lines if json.loads(line)["step"] <= done)
os.replace(metrics + ".tmp", metrics)
for step in range(done + 1, steps + 1):
    time.sleep(float(os.environ["PACE"]))
    with open(metrics, "a") as file:
        file.write(json.dumps({{"step": step, "loss": 1 / step}}) + chr(10))
    if step % save_every == 0 or step == steps:
        name = "%s/.tmp-step-%08d" % (checkpoints, step)
        os.mkdir(name)
        time.sleep(0.02)
        os.rename(name, name.replace(".tmp-", ""))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proof")
    write_corpus(folder)
    data = {
        "train": [{"source": "@config/train.de", "target": "@config/train.en"}],
        "valid": {"source": "@config/valid.de", "target": "@config/valid.en"},
    }
    places = {"prepared_dir": str(folder / "prepared"), "run_dir": str(folder / "runs" / "toy")}
    config = CONFIG | {"data": data} | places
    (folder / "toy.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.fixture(autouse=True)
def _notes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nmt")


@pytest.fixture
def imitation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for ``python -m nmt train``; returns the file of the process ids."""
    program = tmp_path / "imitation"
    program.write_text(IMITATION.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("PACE", "0.004")
    monkeypatch.setattr(module, "compare_runs", lambda *_: ())
    hashes = dict.fromkeys(("model.safetensors", "optimizer.safetensors"), "ab" * 32)
    monkeypatch.setattr(module, "last_hashes", lambda *_: hashes)
    return tmp_path / "pids"


def assert_nothing_is_left(folder: Path) -> None:
    assert [*(folder / "runs").iterdir()] == []


def assert_ended(pids: Path) -> None:
    started = pids.read_text().split() if pids.exists() else []
    for pid in map(int, started):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_toy_training_is_killed_twice_and_ends_with_the_same_bytes(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT 7, as anybody can see it."""
    overrides = ["batch.max_tokens=600", "training.threads=1", "training.max_epochs=1"]
    proof = prove_resume(folder / "toy.yaml", overrides, kills=2, seed=3)

    assert proof.equal
    assert proof.kills == len(proof.killed_at_steps) == 2
    assert all(0 < step <= 60 for step in proof.killed_at_steps)
    assert proof.weights_sha256[0] == proof.weights_sha256[1] != proof.optimizer_sha256[0]
    assert proof.metrics_lines == 33  # a report for every two updates, and validations 25, 50, 60
    assert caplog.text.count("killed at step") == 2
    assert_nothing_is_left(folder)


def test_kills_come_at_all_parts_of_the_run_and_also_in_saves(
    folder: Path, imitation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All with the numbers found once for ``auto``: free memory differs from start to start."""
    started: list[list[str]] = []
    popen = subprocess.Popen

    def recorded(command: list[str], **options: Any) -> Any:
        started.append([flag[6:] for flag in command if flag.startswith("--set=batch.")])
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", recorded)
    overrides = ["batch={max_tokens: auto, tokens_per_update: 900}"]
    proof = prove_resume(folder / "toy.yaml", overrides, kills=6, seed=1)

    assert proof.kills == 6
    assert proof.killed_at_steps[0] < 25
    assert proof.killed_at_steps[-1] > 35
    assert proof.kills_while_saving >= 1
    assert proof.equal
    assert len(imitation.read_text().split()) == 1 + 6 + 1
    assert_nothing_is_left(folder)
    assert len(started) == 1 + 6 + 1
    assert all(settings == started[0] for settings in started)
    batch = load_config(folder / "toy.yaml", started[0]).batch
    assert (batch.max_tokens, batch.tokens_per_update) == (900, None)


def test_slow_updates_make_a_short_training(
    folder: Path,
    imitation: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PACE", "0.02")
    proof = prove_resume(folder / "toy.yaml", [], kills=2, seed=1, training_seconds=0.4)

    assert 8 <= proof.updates < 30
    assert "that would be long" in caplog.text
    assert_ended(imitation)


def test_a_difference_is_an_error_that_says_which(
    folder: Path,
    imitation: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And where time is short there are two kills."""
    found = ["model.safetensors: sha256 a and b"]
    monkeypatch.setattr(module, "compare_runs", lambda *_: found)
    with pytest.raises(CheckpointError) as caught:
        prove_resume(folder / "toy.yaml", [], kills=5, seed=1, total_seconds=0.1)

    assert "2 kills, not 5" in caplog.text
    assert "Not equal: the training that was killed at steps " in caught.value.problem
    assert caught.value.problem.split(" steps ")[1].count(",") == 1
    assert found[0] in caught.value.problem
    assert_ended(imitation)
    assert_nothing_is_left(folder)


@pytest.mark.usefixtures("imitation")
def test_what_a_failing_training_wrote_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "yes")
    with pytest.raises(CheckpointError) as caught:
        prove_resume(folder / "toy.yaml", [])

    assert "ended with exit code 1:\nerror: der Grund dafür" in caught.value.problem
    assert_nothing_is_left(folder)


@pytest.mark.parametrize(
    ("number", "code", "when"),
    [(signal.SIGINT, 130, "in one go"), (signal.SIGTERM, 143, "killed at")],
)
def test_a_signal_stops_the_training_and_clears_up(
    folder: Path, imitation: Path, number: signal.Signals, code: int, when: str
) -> None:
    def filter_(record: logging.LogRecord) -> bool:
        if when in record.getMessage():
            signal.raise_signal(number)
        return True

    module.logger.addFilter(filter_)
    try:
        with pytest.raises(StoppedBySignal) as caught:
            prove_resume(folder / "toy.yaml", [], kills=2, seed=1)
    finally:
        module.logger.removeFilter(filter_)

    assert caught.value.code == code
    assert_ended(imitation)
    assert_nothing_is_left(folder)


def test_a_mistake_of_the_user_starts_nothing(folder: Path, imitation: Path) -> None:
    with pytest.raises(ConfigError):
        prove_resume(folder / "toy.yaml", ["training.sed=1"])
    with pytest.raises(ValueError, match="kills must be at least 2"):
        prove_resume(folder / "toy.yaml", [], kills=1)
    (folder / "file").write_text("")
    override = f"run_dir={folder}/file/runs/toy"
    with pytest.raises(CheckpointError, match="cannot be written"):
        prove_resume(folder / "toy.yaml", [override])

    assert not imitation.exists()


@pytest.mark.parametrize("seconds", [0.001, 0.7, 0.8, 2.0, 100.0])
def test_any_speed_makes_a_good_configuration(folder: Path, seconds: float) -> None:
    updates = choose_updates(seconds, 30)
    training = load_config(folder / "toy.yaml", settings(updates)).training

    assert 8 <= updates <= 60
    assert updates == 8 or updates * seconds <= 1.5 * 30
    assert training.max_steps == updates
    assert training.max_minutes is training.max_epochs is training.patience is None
    assert 2 <= training.save_every <= updates // 4
    assert training.save_every < training.validate_every < updates


def save(run_dir: Path, model: dict[str, Tensor], losses: list[float], step: int = 5) -> None:
    optimizer = {"moments": torch.zeros(2)}
    save_checkpoint(run_dir, step, model=model, optimizer=optimizer, state={})
    lines = [
        {"step": i, "loss": loss, "seconds": os.urandom(1)[0]} for i, loss in enumerate(losses)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "metrics.jsonl").write_text(text)


def test_equal_bytes_are_equal_and_missing_lines_are_a_difference(tmp_path: Path) -> None:
    for name, losses in (("one", [2.0, 1.0]), ("same", [2.0, 1.0]), ("short", [2.0])):
        save(tmp_path / name, {"w": torch.tensor([1.0, float("nan")])}, losses)
    one, same, short = (tmp_path / name for name in ("one", "same", "short"))

    assert last_hashes(one, 5) == last_hashes(same, 5)
    assert [*compare_runs(one, same, 5)] == []
    assert [*compare_runs(one, short, 5)] == ["metrics.jsonl: 2 lines and 1"]


def test_the_first_tensors_and_the_first_line_that_differ_are_named(tmp_path: Path) -> None:
    one = {name: torch.zeros(4, dtype=torch.bfloat16) for name in "abcd"}
    save(tmp_path / "one", one, [2.0, 1.5, 1.0])
    other = {name: torch.zeros(4, dtype=torch.bfloat16) for name in "abe"}
    other["b"][2:] = torch.tensor([0.5, -0.25])
    other["c"] = torch.zeros(3)
    save(tmp_path / "other", other, [2.0, 1.25, 1.0, 0.5])
    head, *rest = compare_runs(tmp_path / "one", tmp_path / "other", 5)
    weights = last_hashes(tmp_path / "one", 5)["model.safetensors"]

    assert head.startswith(f"model.safetensors: sha256 {weights} and ")
    assert rest == [
        "  4 of 5 tensors differ",
        "  b: 2 of 4 values, by up to 0.5",
        "  c: torch.bfloat16 (4,) and torch.float32 (3,)",
        "  d: only in one of them",
        "metrics.jsonl: line 2 (step 1), loss: 1.5 and 1.25",
    ]


def test_a_run_that_did_not_come_to_its_end_is_not_compared(tmp_path: Path) -> None:
    save(tmp_path / "one", {"w": torch.ones(1)}, [], step=5)
    (tmp_path / "other").mkdir()
    with pytest.raises(CheckpointError, match=r"to step 5, but its newest checkpoint is missing"):
        last_hashes(tmp_path / "other", 5)
    with pytest.raises(CheckpointError, match=r"to step 6, but .* step-00000005"):
        last_hashes(tmp_path / "one", 6)


def test_a_training_that_starts_again_is_at_step_0_until_its_lines_are_its_own(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    save(run_dir, {"w": torch.ones(1)}, [3.0, 2.0, 1.0], step=1)
    with WatchedTraining([sys.executable, "-ISc", "input()"], run_dir) as training:
        assert training.step == 0
        (run_dir / "metrics.jsonl").unlink()
        (run_dir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 4}\n{"st')
        assert training.step == 4
        assert not training.is_saving
        (run_dir / "checkpoints" / ".tmp-step-00000002-1").mkdir()
        assert training.is_saving


@pytest.mark.parametrize("flag", [None, "--json", "--quiet"])
def test_the_flag_reaches_the_command_and_the_result_is_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flag: str | None
) -> None:
    def prove(config: Path, overrides: list[str]) -> Proof:
        assert config == folder / "toy.yaml"
        assert overrides == ["training.seed=9", 'run_dir="runs/a b"']
        module.logger.info("training")
        return PROOF

    monkeypatch.setattr("nmt.commands.train.prove_resume", prove)
    arguments = ["--prove-resume", "--set", "training.seed=9", "--run-dir", "runs/a b"]
    arguments += [flag] if flag else []
    result = CliRunner().invoke(app, ["train", str(folder / "toy.yaml"), *arguments])

    assert result.exit_code == 0, result.stderr
    assert result.stderr == ("" if flag == "--quiet" else "nmt: training\n")
    if flag == "--json":
        assert json.loads(result.stdout)["killed_at_steps"] == [13, 42]
    else:
        assert result.stdout == (
            "killed     2 times, at steps 13, 42; 1 of them in the middle of a save\n"
            "weights    sha256 abababababab = abababababab\n"
            "optimizer  sha256 cdcdcdcdcdcd = cdcdcdcdcdcd\n"
            "losses     33 lines of metrics.jsonl = 33 lines\n"
            "equal: 60 updates end with the same bytes, killed or not\n"
        )


@pytest.mark.parametrize(
    ("mode", "flag"),
    [
        ("--dry-run", "--strict-resume"),
        ("--dry-run", "--prove-resume"),
        ("--prove-resume", "--exact"),
        ("--prove-resume", "--devices=2"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(folder: Path, mode: str, flag: str) -> None:
    result = CliRunner().invoke(app, ["train", str(folder / "toy.yaml"), mode, flag])

    assert result.exit_code == 2
    assert f"{flag.partition('=')[0]} does not go with {mode}." in result.stderr


def test_under_torchrun_a_dry_run_is_of_the_first_rank_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("nmt.commands.train.dry_run", lambda *_: pytest.fail("measured"))
    result = CliRunner().invoke(app, ["train", str(folder / "toy.yaml"), "--dry-run"])

    assert (result.exit_code, result.stdout) == (0, "")


def test_under_torchrun_the_proof_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.device.is_one_of_torchrun", lambda: True)
    result = CliRunner().invoke(app, ["train", str(folder / "toy.yaml"), "--prove-resume"])

    assert result.exit_code == 2
    assert "Start it without torchrun." in result.stderr
