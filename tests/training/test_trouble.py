"""Out of memory, numbers that are not finite, and diverged training: FAULTS 22 to 25."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.checkpoint.files import list_checkpoints, load_checkpoint
from nmt.commands.train import fit
from nmt.config.run import RunConfig
from nmt.data.loader import Batch
from nmt.errors import CheckpointError, DeviceError, DivergedError
from nmt.files.json_file import Manifest
from nmt.training.losses import LossSum
from nmt.training.update import Updater
from nmt.training.validation import Scores, Validator
from tests.training.small import batch_of, hold_pairs
from tests.training.toy import CONFIG, write_corpus

STEPS = 8


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    values = copy.deepcopy(CONFIG)
    values["model"]["dropout"] = 0.0  # halves would draw other random numbers
    values["training"] |= {"max_steps": STEPS, "log_every": 1, "save_every": 3}
    return values


def run(values: dict[str, Any], name: str = "run") -> Path:
    config = RunConfig.model_validate({**values, "run_dir": name})
    fit(config)
    return config.run_dir


def updates(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "update"]


def last_weights(run_dir: Path) -> dict[str, Tensor]:
    return load_checkpoint(list_checkpoints(run_dir)[-1][1]).model


def test_batches_too_large_for_memory_are_halved_and_no_update_is_lost(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 22: float32 sums in another order, so equal to 1e-5 and not to the bit."""
    whole = run(values, "whole")
    hold_pairs(monkeypatch, 8)
    halved = run(values, "halved")
    assert (
        "out of memory: batches were halved 1 times (data.train.0 lines "
        in (halved / "log.txt").read_text()
    )
    for found, expected in zip(updates(halved), updates(whole), strict=True):
        for key in ("loss", "gradient_norm", "padding_waste"):
            assert found[key] == pytest.approx(expected[key], rel=1e-4), key
    expected_weights = last_weights(whole)
    for name, found_weights in last_weights(halved).items():
        if "key" not in name:  # a key bias has no gradient but rounding, which Adam blows up
            torch.testing.assert_close(
                found_weights, expected_weights[name], rtol=1e-3, atol=2e-3, msg=name
            )


def test_training_ends_with_a_fix_if_halved_batches_are_still_too_large(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 22."""
    run_dir = run(values)
    before = list_checkpoints(run_dir)
    hold_pairs(monkeypatch, 0)
    values["training"]["max_steps"] = 2 * STEPS
    with pytest.raises(DeviceError, match="after it was halved 3 times") as caught:
        run(values)
    assert "batch.max_tokens" in caught.value.fix
    assert list_checkpoints(run_dir) == before


def test_a_run_of_another_version_is_refused_before_it_is_continued(values: dict[str, Any]) -> None:
    for step, folder in list_checkpoints(run(values)):
        state, names = folder / "state.json", Manifest.read(folder).files
        state.write_text(
            state.read_text("utf-8").replace("gradient_accumulation", "accumulate"), "utf-8"
        )
        (folder / "manifest.json").write_text(Manifest.of(folder, names, step).text())
    with pytest.raises(CheckpointError, match=r"a different version of nmt.* batch\.accumulate"):
        run(values)


def test_without_room_for_a_checkpoint_no_update_is_made(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 70. With room, the same command trains."""
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
        patch.setattr(Updater, "__call__", lambda *_, **__: pytest.fail("an update"))
        with pytest.raises(CheckpointError, match="no room for a checkpoint"):
            run(values)
    assert len(updates(run(values))) == STEPS


def test_training_ends_with_a_fix_if_the_model_is_too_large(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **_options: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("nmt.commands.train_setup.ModelOptimizer", full)
    with pytest.raises(DeviceError, match="while building the model") as caught:
        run(values)
    assert "model.preset" in caught.value.fix


@given(lengths=st.lists(st.integers(1, 12), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_halves_have_every_pair_once_without_extra_padding(lengths: list[int], seed: int) -> None:
    batch = batch_of(lengths, seed)
    halves = batch.halves()
    assert sum(half.num_source_tokens for half in halves) == batch.num_source_tokens
    assert sum(half.num_target_tokens for half in halves) == batch.num_target_tokens
    assert np.array_equal(np.concatenate([half.rows for half in halves]), batch.rows)
    for half in halves:
        own = [lengths[row] for row in half.rows]
        for side in (half.source, half.target):
            assert side.lengths.tolist() == own
            assert side.max_length == max(own)
            assert side.cu_seqlens[0] == 0
    assert torch.equal(torch.cat([half.source.ids for half in halves]), batch.source.ids)
    assert torch.equal(torch.cat([half.target.ids for half in halves]), batch.target.ids)
    assert torch.equal(torch.cat([half.gold for half in halves]), batch.gold)


def poison(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> list[None]:
    """Make the loss of some updates, from 1, not a number; return as many as were begun."""
    made: list[None] = []
    call, objective = Updater.__call__, Updater.objective_loss

    def counted(updater: Updater, *arguments: Any, **options: Any) -> Any:
        made.append(None)
        return call(updater, *arguments, **options)

    def poisoned(updater: Updater, batch: Batch) -> LossSum:
        factor = math.nan if first <= len(made) <= last else 1.0
        loss, tokens = objective(updater, batch)
        return LossSum(loss * factor, tokens)

    monkeypatch.setattr(Updater, "__call__", counted)
    monkeypatch.setattr(Updater, "objective_loss", poisoned)
    return made


def test_an_update_with_nan_loss_is_skipped_counted_and_logged(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 23."""
    poison(monkeypatch, 5, 5)
    run_dir = run(values)
    assert load_checkpoint(list_checkpoints(run_dir)[-1][1]).state["progress"]["skipped"] == 1
    note = "update skipped: loss or gradient is not finite (data.train.0 lines "
    assert (run_dir / "log.txt").read_text().count(note) == 1
    assert all(tensor.isfinite().all() for tensor in last_weights(run_dir).values())


def test_repeated_nan_losses_end_training_with_checkpoint_and_lines_named(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 24."""
    values["training"]["max_steps"] = 100
    poison(monkeypatch, 8, 1000)
    with pytest.raises(DivergedError) as caught:
        run(values)
    assert caught.value.exit_code == 5
    assert "not finite in 20 updates in a row" in caught.value.problem
    assert "Last checkpoint: step " in caught.value.problem
    assert "the last batch was data.train.0 lines " in caught.value.problem
    assert "peak_lr" in caught.value.fix
    assert all(tensor.isfinite().all() for tensor in last_weights(Path("run")).values())
    *_, end = map(json.loads, Path("run/starts.jsonl").read_text().splitlines())
    assert (end["kind"], end["reason"]) == ("end", str(caught.value))
    assert end["reason"] in Path("run/log.txt").read_text()


def test_a_model_may_be_worse_than_guessing_while_it_warms_up(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULT 25: tied, scaled embeddings without a norm at the end begin so."""
    monkeypatch.setattr(Validator, "__call__", lambda _: Scores(loss=20.0))
    values["training"] |= {"validate_every": 1}
    values["training"]["schedule"] |= {"warmup_steps": 1, "warmup_ratio": 5 / STEPS}
    with pytest.raises(DivergedError, match="at step 6, more than"):
        run(values)


def test_validation_far_worse_than_guessing_ends_training(values: dict[str, Any]) -> None:
    """FAULT 25, for real: steps a thousand times too long."""
    values["training"] |= {"max_steps": 200, "optimizer": {"clip_norm": 0.0}}
    values["training"]["schedule"] = {"shape": "constant", "peak_lr": 5.0, "warmup_steps": 1}
    with pytest.raises(DivergedError) as caught:
        run(values)
    assert "more than at the start (60) and than twice the lowest" in caught.value.problem
    last_step, last = list_checkpoints(Path("run"))[-1]
    assert f"at step {last_step:,}, " in caught.value.problem
    assert f"Last checkpoint: step {last_step:,}." in caught.value.problem
    assert load_checkpoint(last).state["progress"]["history"][-1][0] == last_step


@pytest.mark.parametrize(
    ("losses", "last_step"),
    [
        ([9.0, 8.0, 8.8, 7.0], None),  # it begins worse than a guess, with a loss of log(60) = 4.1
        ([9.0, 8.0, 9.1, 7.0], 3),  # worse than at the start, and than 8 + log(2)
        ([9.0, 8.5, 9.1, 7.0], None),  # but not than twice the best
        ([2.0, 1.0, 4.0, 1.0], None),  # twice the best, but better than a guess
        ([2.0, 1.0, 4.2, 1.0], 3),
        ([math.nan, 8.0, 8.8, 7.0], 1),
    ],
)
@pytest.mark.long
def test_a_run_that_starts_from_a_model_may_begin_worse_than_guessing(
    values: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    losses: list[float],
    last_step: int | None,
) -> None:
    """FAULT 25: it has diverged if it is worse than at its start and than twice its best."""
    values["training"]["max_steps"] = 1
    run(values)
    values["training"] |= {"init_from": "run", "max_steps": 4, "validate_every": 1}
    values["training"]["schedule"]["warmup_steps"] = 0
    coming = iter(losses)
    monkeypatch.setattr(Validator, "__call__", lambda _: Scores(loss=next(coming)))
    if last_step is None:
        run(values, "child")
        return
    with pytest.raises(DivergedError, match=f"at step {last_step}, more than at the start"):
        run(values, "child")
    assert list_checkpoints(Path("child"))[-1][0] == last_step


def test_what_a_killed_save_has_left_takes_no_room_of_the_next_start(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = run(values)
    left = run_dir / "checkpoints" / ".step-00000009.tmp-1-0"
    left.mkdir()
    usage = shutil.disk_usage
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: SimpleNamespace(free=0) if left.exists() else usage(path)
    )
    values["training"]["max_steps"] += 1
    run(values)
    assert list_checkpoints(run_dir)[-1][0] == STEPS + 1
