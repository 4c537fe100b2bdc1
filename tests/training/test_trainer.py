"""What the loop does beside updates, on a stand-in for the data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.data.batch import Batch
from nmt.data.loader import Loader, Position
from nmt.device.device import random_state
from nmt.device.precision import Precision
from nmt.training.measure import measure_update_seconds
from nmt.training.optimizer import ModelOptimizer
from nmt.training.optimizers import build_optimizer
from nmt.training.progress import Progress
from nmt.training.signals import Interrupted
from nmt.training.update import Updater, UpdateStats
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizer import assert_same
from tests.training.test_optimizer import everything as optimizer_and_weights

CPU = torch.device("cpu")


class Batches:
    """Gives the same few batches for ever."""

    def updates(self, _start: Position) -> Iterator[tuple[list[Batch], Position]]:
        while True:
            yield [batch_of([3, 5, 4]), batch_of([2, 2], seed=1)], Position()


LOADER = cast(Loader, Batches())


def updater_in(precision: Precision) -> tuple[Updater, ModelOptimizer]:
    model = small_model(dropout=0.1)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.1), precision.weight_dtype)
    return updater_of(model, optimizer, precision), optimizer


def everything(updater: Updater, optimizer: ModelOptimizer) -> dict[str, Tensor]:
    counters = {name: torch.tensor(value) for name, value in updater.loss_scale.counters().items()}
    parts = optimizer_and_weights(updater.model, optimizer)
    return parts | counters | {name: t.clone() for name, t in random_state(CPU).items()}


def test_measuring_ends_early_where_updates_are_slow() -> None:
    updater, _ = updater_in(FLOAT32)
    calls: list[None] = []
    measure_update_seconds(updater, LOADER, check=lambda: calls.append(None), most_seconds=0.0)
    assert len(calls) == 2


@pytest.mark.parametrize(("precision", "updates_before"), [(FLOAT32, 0), (BF16, 2)], ids=str)
def test_measuring_leaves_no_trace(precision: Precision, updates_before: int) -> None:
    updater, optimizer = updater_in(precision)
    batches, _ = next(LOADER.updates(Position()))
    for _ in range(updates_before):
        updater(batches, 0.01)
    before = everything(updater, optimizer)
    seconds, number = measure_update_seconds(updater, LOADER, num_updates=4)
    after = everything(updater, optimizer)

    assert seconds > 0
    assert number == 4
    assert_same(after, before)
    updater.optimizer.parameters.accumulate()  # of a pass without any gradient
    assert not updater.optimizer.parameters.shared.any()
    # The next update is the one that would have been made without measuring, too.
    torch.manual_seed(3)
    updater(batches, 0.01)
    twin, twin_optimizer = updater_in(updater.precision)
    twin_optimizer.load(
        {name: before[f"weights:{name}"] for name in optimizer.weights()},
        {name: before[f"state:{name}"] for name in optimizer.state()},
    )
    torch.manual_seed(3)
    twin(batches, 0.01)
    expected = twin_optimizer.weights()
    assert all(torch.equal(t, expected[name]) for name, t in optimizer.weights().items())


def test_measuring_can_be_interrupted() -> None:
    """FAULT 19."""
    updater, optimizer = updater_in(FLOAT32)
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Interrupted(15)

    with pytest.raises(Interrupted):
        measure_update_seconds(updater, LOADER, check=check)
    assert optimizer.state()["step"] == 2


def test_progress_reads_back_as_it_was_written() -> None:
    progress = Progress(
        step=7, position=Position(1, 3), timed=(0.5, 70), total_steps=70, loss_sum=1.5
    )
    progress.history[5] = 21.0
    back = Progress.from_dict(json.loads(json.dumps(progress.as_dict())))

    assert back.as_dict() == progress.as_dict() | {"timed": [0.5, 70], "history": [(5, 21.0)]}
    assert (back.position, back.history) == (progress.position, progress.history)


def test_progress_counts_what_is_skipped_in_all_and_in_a_row() -> None:
    progress, counts = Progress(), []
    for nats in (1.0, math.nan, math.inf, 2.0, math.nan):
        progress.add_outcome(UpdateStats([], 0.1, (1, 2, 3), torch.tensor([nats, 0, 0.5])))
        counts.append((progress.skipped, progress.skipped_in_a_row))

    assert counts == [(0, 0), (1, 1), (2, 2), (2, 0), (3, 1)]
    assert Progress.from_dict(progress.as_dict()).skipped_in_a_row == 1
