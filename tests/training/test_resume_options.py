"""Whatever a run trains with, a stop and a new process leave its end the same to the bit."""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

import pytest
import torch

from nmt.checkpoint.files import AVERAGE, MODEL, load_checkpoint, load_tensors, read_best
from nmt.checkpoint.model_folder import load_model
from nmt.files.json_file import Manifest
from tests.training.runs import Harm, Run, Server

OPTIONS: dict[str, dict[str, Any]] = {
    # Stopped in the middle of an epoch, and of three batches to an update: FAULT 2.
    "muon, bpe-dropout and r-drop": {
        "training.optimizer.kind": "muon",
        "batch.bpe_dropout": 0.2,
        "training.r_drop": 1.0,
    },
    "noise": {"data.train.0.augment": {"upper_case": 0.3, "typos": 0.5, "spacing": 0.5}},
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
AVERAGED: dict[str, Any] = {"keep_last": 3, "average_last": 3, "max_steps": 15}


def flags(settings: dict[str, Any]) -> list[str]:
    return [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]


@pytest.mark.parametrize("name", OPTIONS)
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
def test_the_mean_of_the_last_checkpoints_is_best_if_it_validates_better(
    run: Run, is_better: bool
) -> None:
    """While each checkpoint is far better than the one before, their mean is not."""
    settings = {"max_steps": 30} if is_better else {"schedule.peak_lr": 0.0003}
    run.finish(**(AVERAGED | settings | {"validation.metric": "loss"}))
    checkpoints = [load_checkpoint(path).model for _, path in run.checkpoints()[-3:]]
    mean = load_tensors(run.folder / AVERAGE / MODEL)
    for name, found in mean.items():
        expected = torch.stack([weights[name].double() for weights in checkpoints]).mean(dim=0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-9)
    assert load_model(run.folder, AVERAGE).step == run.steps()[-1]
    assert "mean of the last 3 checkpoints: perplexity " in run.log()
    assert ("; now the best" in run.log()) == is_better
    best = run.folder / AVERAGE if is_better else run.checkpoints()[-1][1]
    assert read_best(run.folder) == load_model(run.folder).folder == best


def test_a_stop_costs_the_mean_nothing(run: Run, server: Server) -> None:
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


def test_training_that_goes_on_makes_the_mean_again_and_once_only(run: Run) -> None:
    run.finish(**(AVERAGED | {"max_steps": 10}))
    mean = run.folder / AVERAGE / MODEL
    before = mean.read_bytes()
    again = run.train("--json", **(AVERAGED | {"max_steps": 10}))
    assert run.log().count("mean of the last") == 1
    best = read_best(run.folder)
    assert best is not None
    assert json.loads(again.stdout)["best"] == best.name
    run.finish(**AVERAGED)
    assert run.log().count("mean of the last") == 2
    assert mean.read_bytes() != before
    assert Manifest.read(run.folder / AVERAGE).step == 15
    shutil.rmtree(run.folder / AVERAGE)
    damaged = run.checkpoints()[-2][1] / MODEL
    damaged.write_bytes(damaged.read_bytes()[:-1])
    result = run.train(**AVERAGED)
    assert result.code == 4
    assert str(damaged) in result.stderr
    assert not (run.folder / AVERAGE).exists()
