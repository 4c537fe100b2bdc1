"""Time budgets and batch sizes that are measured with updates."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.checkpoint.files import list_checkpoints, load_checkpoint, newest_checkpoint
from nmt.commands.prepare import prepare_data as prepare
from nmt.commands.train import fit
from nmt.config.data import BatchConfig
from nmt.config.run import RunConfig
from nmt.data.loader import Batch, Loader, Position
from nmt.device.device import measure_peak, random_state
from nmt.device.precision import Precision
from nmt.errors import DeviceError
from nmt.inference.torch_engine import TorchEngine
from nmt.training import timing
from nmt.training.processes import StoppedBySignal
from nmt.training.timing import (
    TrainingSetup,
    fit_batches,
    largest_batches,
    measure_costs,
    time_updates,
    tokens_that_fit,
)
from nmt.training.update import Updater
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizer import assert_same
from tests.training.test_optimizer import everything as optimizer_and_weights
from tests.training.test_optimizers import optimizer_of
from tests.training.toy import CONFIG, make_config, setup_of, write_corpus

AIM = 3000
CPU = torch.device("cpu")


class Batches:
    """Gives the same few batches for ever."""

    def updates(self, _start: Position) -> Iterator[tuple[list[Batch], Position]]:
        while True:
            yield [batch_of([3, 5, 4]), batch_of([2, 2], seed=1)], Position()


LOADER = cast(Loader, Batches())


def updater_in(precision: Precision) -> Updater:
    model = small_model(dropout=0.1)
    return updater_of(model, optimizer_of(model, dtype=precision.weight_dtype), precision)


def everything(updater: Updater) -> dict[str, Tensor]:
    counters = {name: torch.tensor(value) for name, value in updater.counters().items()}
    parts = optimizer_and_weights(updater.model, updater.optimizer)
    return parts | counters | {name: t.clone() for name, t in random_state(CPU).items()}


@pytest.mark.parametrize(("most_seconds", "expected"), [(0.0, 2), (1e9, 4)])
@pytest.mark.parametrize(
    ("precision", "before"), [(FLOAT32, 0), (BF16, 2), (Precision("float16", "cpu"), 1)], ids=str
)
def test_timing_changes_nothing_and_stops_early_if_updates_are_slow(
    precision: Precision, before: int, most_seconds: float, expected: int
) -> None:
    updater = updater_in(precision)
    batches, _ = next(LOADER.updates(Position()))
    for _ in range(before):
        updater(batches, 0.01)
    saved = everything(updater)
    seconds, number = time_updates(updater, LOADER, num_updates=4, most_seconds=most_seconds)
    assert seconds > 0
    assert number == expected
    assert_same(everything(updater), saved)
    updater.optimizer.parameters.accumulate()  # of a pass without any gradient
    assert not updater.optimizer.parameters.shared.any()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(timing, "_FIRST_SIZE", 200)
    write_corpus(tmp_path)
    values: dict[str, Any] = copy.deepcopy(CONFIG)
    values["batch"] = {"max_tokens": "auto", "tokens_per_update": AIM}
    values["training"]["max_steps"] = 3
    return RunConfig.model_validate(values)


@pytest.mark.parametrize(("most_seconds", "runs"), [(1e9, 2), (0.0, 1)])
def test_planning_the_time_changes_nothing_and_limits_outputs(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, most_seconds: float, runs: int
) -> None:
    """And is done with smaller parts of a validation where time is short."""
    config = config.model_copy(update={"batch": BatchConfig(max_tokens=120)})
    prepare(config)
    setup = setup_of(config)
    model, factors = setup.updater.model, []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, search = torch.get_rng_state(), TorchEngine.search_all

    def spied(engine: TorchEngine, tasks: Any, *check: Any) -> Any:
        options = tasks[0].options
        factors.append((options.max_length_factor, options.max_length_offset))
        return search(engine, tasks, *check)

    monkeypatch.setattr(TorchEngine, "search_all", spied)
    costs = measure_costs(setup, most_seconds=most_seconds)
    setup.validator()
    assert min(costs.update, costs.validation, costs.saving) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    # Near the length of a trained model's output; in a validation at most twice the source.
    # The first line is a warm-up.
    assert factors == [(1.0, 3)] * (1 + runs) + [(2.0, 5)]


@given(
    fixed=st.integers(0, 10**6),
    per_token=st.integers(1, 10**5),
    few=st.integers(1, 10**4),
    more=st.integers(1, 10**4),
    free=st.integers(0, 10**10),
)
def test_automatic_batches_fill_the_memory_but_not_more(
    fixed: int, per_token: int, few: int, more: int, free: int
) -> None:
    low, high = ((tokens, fixed + per_token * tokens) for tokens in (few, few + more))
    found = tokens_that_fit(low, high, free=free)
    assert found == 0 or fixed + per_token * (found - 1) <= free
    assert fixed + per_token * (found + 2) > free


def peak_of(setup: TrainingSetup) -> int:
    loader, updater = setup.loader, setup.updater
    plan = loader.plan(0)
    updater([loader.batch(plan[0][:1])], 0.0)
    batches = [loader.batch(rows) for rows in largest_batches(loader, plan)]
    return max(measure_peak(partial(updater, [batch], 0.0), CPU)[1] for batch in batches)


def test_batches_are_accumulated_only_if_memory_is_too_small(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config)
    whole = setup_of(config)
    batch = whole.loader.config
    assert (batch.max_tokens, batch.gradient_accumulation) == (AIM, 1)
    # Measuring changes no update.
    plain = setup_of(config.model_copy(update={"batch": batch}))
    assert_same(everything(whole.updater), everything(plain.updater))
    assert fit_batches(plain.updater, plain.loader, 30) is plain.loader
    free = int(0.3 * peak_of(whole))
    monkeypatch.setattr(timing, "free_bytes", lambda _: free)
    setup = setup_of(config)
    batch = setup.loader.config
    assert isinstance(batch.max_tokens, int)
    assert batch.gradient_accumulation > 1
    assert AIM <= batch.max_tokens * batch.gradient_accumulation < AIM + batch.gradient_accumulation
    assert peak_of(setup) <= free


@pytest.mark.parametrize(
    ("fits", "num_batches", "max_tokens"),
    # AIM tokens an update, in equal parts that fit: 600 = 1 x 600 = 2 x 300 = 3 x 200 (of 201).
    [(AIM, 1, AIM), (AIM - 1, 2, AIM // 2), (AIM // 2, 2, AIM // 2), (AIM // 3 + 1, 3, AIM // 3)],
)
def test_an_update_is_divided_into_as_few_batches_as_fit(
    config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    fits: int,
    num_batches: int,
    max_tokens: int,
) -> None:
    prepare(config)
    monkeypatch.setattr(timing, "measure_batches", lambda *_: (1, 1, 1, 1))
    monkeypatch.setattr(timing, "tokens_that_fit", lambda *_, **__: fits)
    batch = setup_of(config).loader.config
    assert (batch.gradient_accumulation, batch.max_tokens) == (num_batches, max_tokens)


def test_a_resumed_run_keeps_its_measured_batch_size_with_less_memory(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(config)
    monkeypatch.setattr(timing, "free_bytes", lambda _: 1000)  # for less than one pair
    fit(config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 5})}))
    newest = newest_checkpoint(config.run_dir, strict=True)
    assert newest is not None
    state = load_checkpoint(newest).state
    assert (state["progress"]["step"], state["batch"]["max_tokens"]) == (5, AIM)
    assert state["identity"]["batch"]["max_tokens"] == "auto"
    with pytest.raises(DeviceError, match="but a pair can have 30 tokens"):
        setup_of(config)


@pytest.mark.usefixtures("stopped_once")
@pytest.mark.long
def test_the_epochs_of_a_budget_are_planned_once_for_all_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_corpus(tmp_path)
    config, plan, planned = make_config(max_steps=None, max_epochs=3), Loader.plan, list[int]()

    def recorded(loader: Loader, epoch: int, stage: int = 0) -> Any:
        planned.append(epoch)
        return plan(loader, epoch, stage)

    monkeypatch.setattr(Loader, "plan", recorded)
    with pytest.raises(StoppedBySignal):
        fit(config)
    assert planned == [0, 1, 2, 0]  # to count and to train
    planned.clear()
    summary = fit(config)
    assert planned == [0, 1, 2]
    state = load_checkpoint(list_checkpoints(config.run_dir)[-1][1]).state["progress"]
    assert state["epoch_updates"] == [3, summary.step]
    assert Position(**state["position"]) == Position(epoch=3)
    planned.clear()
    longer = fit(make_config(max_steps=None, max_epochs=4))
    assert planned == [0, 1, 2, 3, 3]
    assert longer.step > summary.step
