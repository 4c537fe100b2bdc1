"""A run that is stopped anywhere and resumed gives the same result as an uninterrupted run.

Whatever it trains with, to the bit.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import yaml

from nmt.checkpoint.files import (
    AVERAGE,
    MODEL,
    checkpoint_dir,
    load_checkpoint,
    load_tensors,
    read_best,
)
from nmt.checkpoint.model_folder import load_model
from nmt.files.atomic import run_lock
from nmt.files.json_file import Manifest
from tests.checkpoint.faults import flip_bit
from tests.conftest import MISSING
from tests.process import started
from tests.training.runs import Harm, Run, Server, assert_equal
from tests.training.toy import STEPS


@pytest.mark.long
def test_a_complete_run_continued_with_more_steps_equals_a_single_run(run: Run, whole: Run) -> None:
    """FAULTS 1 and 13: the budget may grow under a schedule that does not depend on it."""
    run.finish(max_steps=10, log_every=4)
    assert [line["step"] for line in run.lines("update")] == [4, 8, 10]  # and so is the end
    run.finish()
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert run.hashes()[name] == whole.hashes()[name]
    for change in ("training.max_steps: was 10, is 30", "training.log_every: was 4, is 3"):
        assert f"setting changed since the last start: {change}" in run.log()
    recorded = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert recorded["training"]["max_steps"] == STEPS


@pytest.mark.long
def test_a_run_resumed_in_new_processes_equals_an_uninterrupted_run(run: Run, whole: Run) -> None:
    """FAULTS 2 and 19: in mid-epoch, with accumulation and dropout, by a signal from outside."""
    command = [sys.executable, "-m", "nmt", "train", str(run.config), f"--run-dir={run.folder}"]
    cwd, environment = run.config.parent, os.environ | {"OMP_NUM_THREADS": "1"}
    with started(command, cwd=cwd, env=environment, stderr=subprocess.DEVNULL) as process:
        metrics = run.folder / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert 3 <= run.steps()[-1] < STEPS
    run.finish("--exact", "--strict-resume")
    assert_equal(run, whole)


@pytest.mark.long
def test_a_run_resumed_twice_equals_an_uninterrupted_run(run: Run, whole: Run) -> None:
    """FAULTS 3, 18, 19 and 26: the second time in the update before a validation is due.

    The newest checkpoint is that of the last step, also when the clock went back before it.
    """
    for updates, step in ((8, 8), (12, 20)):
        stopped = run.train(harm=Harm("update", updates, (signal.SIGTERM,)))
        assert stopped.code == 143
        assert run.steps()[-1] == step
        assert f"stopped at step {step}; run the same command again to resume" in stopped.stderr
        newest = checkpoint_dir(run.folder, step)
        for path in (newest, *newest.iterdir()):
            os.utime(path, (1, 1))
    assert [line["step"] for line in run.lines("validation")] == [10]
    run.finish("--exact", "--strict-resume")
    assert_equal(run, whole)


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_signal_interrupts_validation_to_be_repeated(run: Run, whole: Run, count: int) -> None:
    """FAULTS 18 and 19; the third is the one after the last update."""
    assert run.train(harm=Harm("validation", count, (signal.SIGTERM,))).code == 143
    assert run.steps()[-1] == 10 * count
    assert len(run.lines("validation")) == count - 1
    # Once more, in the validation that makes up for it.
    assert run.train(harm=Harm("validation", 1, (signal.SIGINT,))).code == 130
    run.finish()
    assert_equal(run, whole)


def test_one_interrupt_saves_and_two_quit_at_once(run: Run, whole: Run) -> None:
    """FAULT 20."""
    assert run.train(harm=Harm("update", 7, (signal.SIGINT,))).code == 130
    assert run.steps() == [5, 7]
    assert run.train(harm=Harm("update", 2, (signal.SIGINT, signal.SIGINT))).code == 130
    assert run.steps() == [5, 7]
    run.finish("--strict-resume")
    assert_equal(run, whole)


def test_a_request_to_save_changes_nothing_but_the_checkpoints(run: Run, whole: Run) -> None:
    """FAULT 66: SIGUSR1; it counts when the next update begins."""
    result = run.train(harm=Harm("update", 12, (signal.SIGUSR1,)))
    assert result.code == 0, result.stderr
    saved = re.findall(r"saved step-(\d+)", run.log())
    assert [int(step) for step in saved] == [5, 10, 13, 15, 20, 25, 30]
    assert_equal(run, whole)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)],
)
def test_signals_end_preparation_at_once(run: Run, server: Server, number: int, code: int) -> None:
    """FAULTS 19 and 20: nothing is half-prepared afterwards."""
    place = server.folder / f"interrupted-{number}"
    data = f"--set=prepared_dir={place}"
    result = run.train(data, harm=Harm("prepare", 1, (number,)))
    assert result.code == code, result.stderr
    assert "Traceback" not in result.stderr
    assert not place.exists()
    run.finish(data, max_steps=1)
    assert not [*server.folder.glob(f".{place.name}*")]


@pytest.mark.long
def test_patience_counts_on_over_a_restart(run: Run) -> None:
    """FAULT 18."""
    settings: dict[str, Any] = {
        "max_steps": None,
        "patience": 3,
        "validate_every": 4,
        "schedule.peak_lr": 1e-7,
    }
    run.finish(**settings)
    last, metrics = run.steps()[-1], run.metrics()
    assert len(run.lines("validation")) >= 4
    hashes = run.hashes(last)
    shutil.rmtree(run.folder)
    assert run.train(harm=Harm("update", last - 5, (signal.SIGTERM,)), **settings).code == 143
    run.finish(**settings)
    assert run.steps()[-1] == last
    assert run.hashes(last) == hashes
    assert run.metrics() == metrics


@pytest.mark.parametrize(
    ("signals", "code", "last"),
    [pytest.param((15,), 143, 15, marks=pytest.mark.long), ((15, 2), 130, 10)],
)
def test_a_signal_while_saving_completes_the_checkpoint_and_a_second_interrupt_discards_it(
    run: Run, whole: Run, signals: tuple[int, ...], code: int, last: int
) -> None:
    """FAULTS 20 and 21."""
    assert run.train(harm=Harm("save", 3, signals)).code == code
    assert run.steps()[-1] == last
    run.finish("--strict-resume")
    assert_equal(run, whole)


def test_a_kill_after_the_last_save_does_not_lose_the_best(run: Run, whole: Run) -> None:
    """FAULT 7: the checkpoint exists, but it is not yet recorded as the best one."""
    # Saved every 5 steps, and validated every 10: the fifth record is that of step 30.
    killed = run.train(harm=Harm("best", 5, (signal.SIGKILL,)))
    assert killed.code == -signal.SIGKILL, killed.stderr
    assert run.steps()[-1] == whole.steps()[-1]
    assert (run.folder / "best").read_bytes() != (whole.folder / "best").read_bytes()
    run.finish("--exact")
    assert run.steps() == whole.steps()
    assert_equal(run, whole)


@pytest.mark.long
@pytest.mark.parametrize("kills", [4, 100])
def test_kills_at_random_moments_do_not_change_the_result(run: Run, whole: Run, kills: int) -> None:
    """FAULT 7."""
    seconds = whole.train("--json").seconds  # what a start and an end take
    draw = random.Random(7)
    for _ in range(kills):
        harm = Harm(kill_after=seconds + draw.uniform(0, 0.6))
        result = run.train("--exact", "--strict-resume", harm=harm)
        assert result.code in (0, -signal.SIGKILL), result.stderr
        if result.code == 0:  # the end came before the kill
            assert_equal(run, whole)
            shutil.rmtree(run.folder)
    run.finish("--strict-resume")
    assert_equal(run, whole)


def test_a_kill_while_a_checkpoint_is_replaced_loses_nothing(run: Run, whole: Run) -> None:
    """FAULTS 4 and 7: the only checkpoint there is, saved again with the validation added."""
    only: dict[str, Any] = {"keep_last": 1, "save_every": 100}
    assert run.train(harm=Harm("update", 10, (signal.SIGTERM,)), **only).code == 143
    assert run.steps() == [10]
    result = run.train(harm=Harm("replaced", 1, (signal.SIGKILL,)), **only)
    assert result.code == -signal.SIGKILL, result.stderr
    run.finish("--strict-resume", **only)
    assert run.log().count("resuming at step 10") == 2
    assert run.hashes() == whole.hashes()
    assert run.metrics() == whole.metrics()


@pytest.mark.long
def test_a_full_disk_stops_with_the_earlier_checkpoints_intact(run: Run, whole: Run) -> None:
    """FAULT 8."""
    result = run.train(harm=Harm(full_saves=(3,)))
    assert result.code == 4
    assert "step-00000015 was not written: No space left on device" in result.stderr
    assert "fix: Free disk space" in result.stderr
    assert run.steps()[-1] == 10
    assert not [*run.folder.rglob(".*.tmp-*")]
    run.finish("--strict-resume")
    assert_equal(run, whole)


def test_on_a_full_disk_training_continues_if_configured(run: Run, whole: Run) -> None:
    """FAULT 8."""
    result = run.train(on_full_disk="continue", harm=Harm(full_saves=(1, 4)))
    assert result.code == 0, result.stderr
    assert result.stderr.count("checkpoint not saved") == 2
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert run.hashes()[name] == whole.hashes()[name]
    assert (run.folder / "best").read_text().strip() in {p.name for _, p in run.checkpoints()}


def test_a_run_folder_that_cannot_be_written_is_refused_before_anything_else(
    server: Server, whole: Run
) -> None:
    """FAULT 9."""
    (server.folder / "file").write_text("x")
    (result,) = server.train(str(whole.config), f"--run-dir={server.folder}/file/run")
    assert result.code == 4
    assert "file/run cannot be written" in result.stderr
    assert "fix: Set run_dir" in result.stderr


def test_a_damaged_newest_checkpoint_is_skipped_and_without_an_intact_one_nothing_changes(
    stopped: Run, whole: Run
) -> None:
    """FAULTS 10 and 11."""
    newest, other = (checkpoint_dir(stopped.folder, step) for step in (12, 10))
    flip_bit(newest / "optimizer.safetensors")
    refused = stopped.train("--strict-resume")
    assert refused.code == 4
    assert "step-00000012/optimizer.safetensors has sha256" in refused.stderr
    flip_bit(other / "model.safetensors")
    before = stopped.contents()
    refused = stopped.train()
    assert refused.code == 4
    for damaged in ("12/optimizer", "10/model"):
        assert f"step-000000{damaged}.safetensors has sha256" in refused.stderr
    assert stopped.contents() == before
    flip_bit(other / "model.safetensors")
    stopped.finish()
    assert "damaged checkpoint skipped: " in stopped.log()
    assert "resuming at step 10" in stopped.log()
    assert_equal(stopped, whole)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--set=model.ff_dim=48"], "model.ff_dim: was 32, is 48"),
        (["--set=training.seed=2"], "training.seed: was 1, is 2"),
        (["--set=tokenizer.vocab_size=50", "--set=prepared_dir=other"], "vocab_hash: was "),
        (["--set=data.train.0.max_pairs=200", "--set=prepared_dir=fewer"], "data_hash: was "),
        (["--set=data.train.0.max_pairs=200", "--dry-run"], "data_hash: was "),
    ],
)
@pytest.mark.long
def test_another_model_or_data_are_refused(stopped: Run, flags: list[str], message: str) -> None:
    """FAULT 12. What the run has begun with stays, too: it is needed when the settings are."""
    prepared = stopped.config.parent / "prepared" / "manifest.json"
    before = stopped.contents(), prepared.read_bytes()
    if "--dry-run" in flags and "planning" in MISSING:
        pytest.skip("the extra planning is missing")
    result = stopped.train(*flags)
    assert result.code == 4, result.stderr
    assert message in result.stderr
    assert (stopped.contents(), prepared.read_bytes()) == before


def test_a_second_process_in_the_same_folder_is_refused(stopped: Run) -> None:
    """FAULT 15."""
    with run_lock(stopped.folder):
        result = stopped.train()
    assert result.code == 4
    assert f"is in use by process {os.getpid()} on " in result.stderr


MINUTES: dict[str, Any] = {
    "max_steps": None,
    "max_minutes": 0.05,
    "validate_every": 5,
    "save_every": 3,
    "schedule.shape": "linear",
}


def assert_equal_with_the_same_plans(run: Run, server: Server) -> None:
    """To a run that is not stopped, and is given the plans."""
    plans = (run.folder / "plans.jsonl").read_bytes()
    unstopped = Run(server, f"{run.folder.name}-unstopped")
    unstopped.folder.mkdir(parents=True)
    (unstopped.folder / "plans.jsonl").write_bytes(plans)
    (result,) = unstopped.finish(**MINUTES)
    assert "timing updates" not in result.stderr
    assert (unstopped.folder / "plans.jsonl").read_bytes() == plans
    last = run.steps()[-1]
    assert last == unstopped.steps()[-1] == json.loads(plans.splitlines()[-1])["total_steps"]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert run.hashes(last)[name] == unstopped.hashes(last)[name]
    assert run.metrics() == unstopped.metrics()


@pytest.mark.long
def test_a_run_of_minutes_repeats_its_plans_after_a_kill(run: Run, server: Server) -> None:
    """FAULTS 1, 7 and 19: also where the first measurement is stopped, and with another clock."""
    stopped = run.train(**MINUTES, harm=Harm("update", 2, (signal.SIGTERM,)))
    assert (stopped.code, run.steps()) == (143, []), stopped.stderr
    for harm in (
        Harm("update", 25, (signal.SIGKILL,)),  # some of these updates measure
        Harm("save", 2, (signal.SIGKILL,)),
        Harm("validation", 2, (signal.SIGTERM,)),
    ):
        run.train(**MINUTES, harm=harm)
    run.finish(**MINUTES)
    assert_equal_with_the_same_plans(run, server)


@pytest.mark.parametrize(("smoothing", "plans_again"), [(0.1, False), (0.3, True)])
@pytest.mark.long
def test_plans_of_a_start_that_saved_nothing_are_repeated_only_with_its_settings(
    run: Run, smoothing: float, *, plans_again: bool
) -> None:
    settings = MINUTES | {"validate_every": 1000, "save_every": 1000, "label_smoothing": 0.1}
    settings["max_minutes"] = 0.2  # enough for 25 updates on a busy machine
    killed = run.train(**settings, harm=Harm("update", 25, (signal.SIGKILL,)))
    assert (killed.code, run.steps()) == (-signal.SIGKILL, [])
    assert (run.folder / "plans.jsonl").is_file()
    (result,) = run.finish(**settings | {"label_smoothing": smoothing})
    assert ("timing updates" in result.stderr) == plans_again


@pytest.mark.long
@pytest.mark.parametrize("kills", [10, 100])
def test_kills_at_random_moments_do_not_change_a_run_of_minutes(
    run: Run, server: Server, kills: int
) -> None:
    """FAULT 7."""
    draw = random.Random(7)
    for _ in range(kills):
        result = run.train(**MINUTES, harm=Harm(kill_after=draw.uniform(0.3, 3)))
        assert result.code in (0, -signal.SIGKILL), result.stderr
        if result.code == 0:  # the end came before the kill
            assert_equal_with_the_same_plans(run, server)
            shutil.rmtree(run.folder)
            shutil.rmtree(f"{run.folder}-unstopped")
    run.finish(**MINUTES)
    assert_equal_with_the_same_plans(run, server)


OPTIONS: dict[str, dict[str, Any]] = {
    # Stopped in the middle of an epoch, and of three batches to an update: FAULT 2.
    "muon, bpe-dropout and r-drop": {
        "training.optimizer.kind": "muon",
        "batch.bpe_dropout": 0.2,
        "training.r_drop_weight": 1.0,
    },
    "noise": {"data.train.0.noise": {"upper_case": 0.3, "typos": 0.5, "spacing": 0.5}},
    "glossary": {"data.glossary": {"share": 0.5}},
    "stages": {
        "data.train.0.name": "toy",
        "data.stages": [{"mix": {"toy": 1}, "until": {"toy": 0.5}}, {"mix": {"toy": 1}}],
    },
    "schedule-free": {"training.optimizer.kind": "schedule-free"},
    "ema and frozen encoder": {"training.ema_decay": 0.9, "training.freeze": ["encoder"]},
    # The master weights are what is saved.
    "bf16 and a schedule that ends": {
        "training.precision": "bf16",
        "training.schedule.shape": "linear",
    },
    "recomputed": {"training.activation_checkpointing": True},
}
QUICK = ("muon, bpe-dropout and r-drop",)
AVERAGED: dict[str, Any] = {"keep_last": 3, "average_last": 3, "max_steps": 15}


def flags(settings: dict[str, Any]) -> list[str]:
    return [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in OPTIONS],
)
def test_resuming_is_exact_with(run: Run, server: Server, stopped_run: Run, name: str) -> None:
    """FAULTS 1, 2, 3 and 18."""
    settings = flags(OPTIONS[name])
    unstopped = Run(server, f"{run.folder.name}-unstopped")
    unstopped.finish(*settings, max_steps=12)
    for update in (5, 3):  # counted from each start
        harm = Harm("update", update, (signal.SIGTERM,))
        assert run.train(*settings, harm=harm, max_steps=12).code == 143
    run.finish("--exact", *settings, max_steps=12)
    assert run.hashes(12) == unstopped.hashes(12)
    assert run.metrics() == unstopped.metrics()
    # The option did something; but working activations out again changes nothing at all.
    is_plain = run.hashes(12)[MODEL] == stopped_run.hashes(12)[MODEL]
    assert is_plain == (name == "recomputed")


@pytest.mark.parametrize("is_better", [True, False])
@pytest.mark.long
def test_the_average_of_checkpoints_is_best_if_it_scores_better(run: Run, is_better: bool) -> None:
    """While each checkpoint is far better than the one before, their mean is not."""
    settings = {"max_steps": 30} if is_better else {"schedule.peak_lr": 0.0003}
    run.finish(**(AVERAGED | settings | {"validation.metric": "loss"}))
    checkpoints = [load_checkpoint(path).model for _, path in run.checkpoints()[-3:]]
    for name, found in load_tensors(run.folder / AVERAGE / MODEL).items():
        expected = torch.stack([weights[name].double() for weights in checkpoints]).mean(dim=0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-9)
    assert load_model(run.folder, AVERAGE).step == run.steps()[-1]
    assert "average of the last 3 checkpoints: perplexity " in run.log()
    assert ("; now the best" in run.log()) == is_better
    best = run.folder / AVERAGE if is_better else run.checkpoints()[-1][1]
    assert read_best(run.folder) == load_model(run.folder).folder == best


@pytest.mark.long
def test_a_stop_does_not_change_the_average(run: Run, server: Server) -> None:
    """FAULT 18: the window of the mean, and an end that comes while it is validated."""
    unstopped = Run(server, f"{run.folder.name}-unstopped")
    unstopped.finish(**AVERAGED)
    assert run.train(harm=Harm("update", 12, (signal.SIGTERM,)), **AVERAGED).code == 143
    assert not (run.folder / AVERAGE).exists()
    # The validation of step 15 is made before; this one is the mean's.
    killed = run.train(harm=Harm("validation", 2, (signal.SIGKILL,)), **AVERAGED)
    assert killed.code == -signal.SIGKILL
    assert not (run.folder / AVERAGE).exists()
    run.finish("--strict-resume", **AVERAGED)
    found, expected = ((each.folder / AVERAGE / MODEL).read_bytes() for each in (run, unstopped))
    assert found == expected
    assert read_best(run.folder) is not None


@pytest.mark.long
def test_continued_training_averages_again_only_once(run: Run) -> None:
    run.finish(**(AVERAGED | {"max_steps": 10}))
    mean = run.folder / AVERAGE / MODEL
    before = mean.read_bytes()
    again = run.train("--json", **(AVERAGED | {"max_steps": 10}))
    assert run.log().count("average of the last") == 1
    best = read_best(run.folder)
    assert best is not None
    assert json.loads(again.stdout)["best"] == best.name
    run.finish(**AVERAGED)
    assert run.log().count("average of the last") == 2
    assert mean.read_bytes() != before
    assert Manifest.read(run.folder / AVERAGE).step == 15
    shutil.rmtree(run.folder / AVERAGE)
    damaged = run.checkpoints()[-2][1] / MODEL
    damaged.write_bytes(damaged.read_bytes()[:-1])
    result = run.train(**AVERAGED)
    assert result.code == 4
    assert str(damaged) in result.stderr
    assert not (run.folder / AVERAGE).exists()
