"""What is measured before the first update: batches that fit, epochs, once for all starts."""

from __future__ import annotations

import copy
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.files import list_checkpoints, load_checkpoint, newest_checkpoint
from nmt.commands.prepare import prepare_data as prepare
from nmt.commands.train import _fitted, train
from nmt.config.data import BatchConfig
from nmt.config.decoding import DecodingConfig
from nmt.config.run import RunConfig
from nmt.config.training import TrainingConfig
from nmt.data.loader import Loader, Position
from nmt.data.prepared import PreparedData
from nmt.device import shared_cores
from nmt.device.distributed import Processes
from nmt.device.memory import measure_peak
from nmt.errors import ConfigError, DeviceError
from nmt.inference.torch_engine import TorchEngine
from nmt.training import measure
from nmt.training.measure import TimePlan, count_updates, time_plan, tokens_that_fit
from nmt.training.setup import TrainingSetup
from nmt.training.signals import Interrupted, SharedStop, StoppedBySignal, StopSignal
from nmt.training.trainer import Trainer
from nmt.training.validation import Validator
from tests.training.toy import CONFIG, make_config, setup_of, write_corpus

AIM = 3000


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measure, "_FIRST_PROBE", 200)
    write_corpus(tmp_path)
    values: dict[str, Any] = copy.deepcopy(CONFIG)
    values["batch"] = {"max_tokens": "auto", "tokens_per_update": AIM}
    values["training"]["max_steps"] = 3
    return RunConfig.model_validate(values)


@given(
    minutes=st.floats(0.01, 1000),
    parts=st.tuples(
        st.floats(0.001, 2), st.floats(0, 60), st.floats(0, 20), st.floats(0, 120), st.floats(0, 99)
    ),
    every=st.tuples(st.integers(1, 1000), st.integers(1, 1000)),
)
def test_a_budget_of_time_has_room_for_all_that_belongs_to_its_updates(
    minutes: float, parts: tuple[float, float, float, float, float], every: tuple[int, int]
) -> None:
    plan = TimePlan(*parts)
    training = TrainingConfig(max_minutes=minutes, validate_every=every[0], save_every=every[1])
    updates = plan.updates_in(minutes, training)

    def total(count: int) -> float:
        return count * plan.update + plan.beside(count, training)

    left = max(0.0, 60 * minutes - plan.spent)
    least = max(1, int(left / 2 / plan.update))
    assert updates == least or total(updates) <= left * (1 + 1e-9)
    assert updates >= least
    assert total(updates + 1) > left * (1 - 1e-9)
    is_long = plan.spent + total(updates) > 66 * minutes  # by a tenth of the minutes
    found = [*plan.shortage(updates, training)]
    assert bool(found) == (is_long and plan.beside(updates, training) > 30 * minutes)
    has_rarer = updates >= min(training.validate_every, training.save_every)
    assert all(("raise training.validate_every" in text) == has_rarer for text in found)
    assert not [*plan.shortage(updates - 1, training)], "another budget ends training first"


@pytest.mark.parametrize(("most_seconds", "runs", "num_updates"), [(1e9, 4, 6), (0.0, 2, 2)])
def test_estimating_the_time_leaves_no_trace_and_ends_no_output_late(
    config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    most_seconds: float,
    runs: int,
    num_updates: int,
) -> None:
    """And is done with fewer updates and smaller parts of a validation where time is short."""
    config = config.model_copy(update={"batch": BatchConfig(max_tokens=120)})
    prepare(config)
    setup = setup_of(config)
    model, factors = setup.updater.model, []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state, search = torch.get_rng_state(), TorchEngine.search_all

    def spied(engine: TorchEngine, tasks: Any, options: DecodingConfig) -> Any:
        ends_loops = vars(engine)["_end_loops"]
        factors.append((options.max_length_factor, options.max_length_offset, ends_loops))
        return search(engine, tasks, options)

    monkeypatch.setattr(TorchEngine, "search_all", spied)
    validator = Validator(setup, SharedStop(StopSignal(), Processes()))
    plan = time_plan(setup, validator, num_updates=6, most_seconds=most_seconds)
    validator()

    assert min(plan.update, plan.validation, plan.saving, plan.end) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    # Near the length of a trained model's output; in a validation at most twice the source, and no
    # loops.
    assert factors == [(1.0, 3, False)] * runs + [(2.0, 5, True)]
    assert plan.num_timed == num_updates


@pytest.mark.parametrize(
    ("used", "load", "remark"),
    [
        (0.14, 4.0, "other processes use this machine: training got 7% of 2 cores"),
        (0.14, 3.9, ""),  # a core is free: who waits does so for other reasons
        (1.1, 9.0, ""),
    ],
)
def test_other_processes_are_named_where_they_hold_the_cores(
    monkeypatch: pytest.MonkeyPatch, used: float, load: float, remark: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert shared_cores(used, 2) == remark


def test_training_on_a_loaded_machine_says_so_once(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1e9, 0.0, 0.0))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    timed = config.training.model_copy(update={"max_minutes": 0.001, "max_steps": 1})
    train(config.model_copy(update={"training": timed}))
    assert caplog.text.count("training got 0% of 1 core and is as much slower") == 1


def fit(config: RunConfig) -> BatchConfig:
    return _fitted(config, PreparedData.open(config.prepared_dir), Processes())


def give(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    monkeypatch.setattr(measure, "free_bytes", lambda _: memory)


@given(
    fixed=st.integers(0, 10**6),
    per_token=st.integers(1, 10**5),
    few=st.integers(1, 10**4),
    more=st.integers(1, 10**4),
    free=st.integers(0, 10**10),
)
def test_what_fits_fills_the_memory_and_not_more(
    fixed: int, per_token: int, few: int, more: int, free: int
) -> None:
    low, high = ((tokens, fixed + per_token * tokens) for tokens in (few, few + more))
    found = tokens_that_fit(low, high, free=free)

    assert found == 0 or fixed + per_token * (found - 1) <= free
    assert fixed + per_token * (found + 2) > free


def test_all_at_once_where_memory_is_plenty(config: RunConfig) -> None:
    prepare(config)
    batch = fit(config)

    assert (batch.max_tokens, batch.accumulate) == (AIM, 1)


def test_layers_are_not_compiled_for_a_probe(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config)
    build, found = TrainingSetup.build, []

    def recording(config: RunConfig, *arguments: Any) -> TrainingSetup:
        found.append(config.training.compile)
        return build(config, *arguments)

    monkeypatch.setattr(TrainingSetup, "build", recording)
    training = config.training.model_copy(update={"compile": True})
    fit(config.model_copy(update={"training": training}))
    assert found == [False, False]


def test_what_does_not_fit_is_accumulated(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config)
    whole = setup_of(config.model_copy(update={"batch": fit(config)}))
    needed = peak_of(whole)
    free = int(0.3 * needed)
    give(monkeypatch, free)
    batch = fit(config)
    setup = setup_of(config.model_copy(update={"batch": batch}))

    assert isinstance(batch.max_tokens, int)
    assert batch.accumulate > 1
    assert AIM <= batch.max_tokens * batch.accumulate < AIM + batch.accumulate
    assert peak_of(setup) <= free


def peak_of(setup: TrainingSetup) -> int:
    plan = setup.loader.plan(0)
    setup.update(plan[0][:1])
    largest = setup.largest_batches(plan)
    return max(measure_peak(partial(setup.update, rows), setup.device)[1] for rows in largest)


def test_memory_for_less_than_one_pair_is_told(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(config)
    give(monkeypatch, 1000)

    with pytest.raises(DeviceError, match=r"filters\.max_length \(30\)"):
        fit(config)


def test_a_run_that_goes_on_elsewhere_keeps_what_it_found(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config)
    give(monkeypatch, 1000)  # too little, if it were asked
    more = config.training.model_copy(update={"max_steps": 5})
    train(config.model_copy(update={"training": more}))
    newest = newest_checkpoint(config.run_dir, strict=True)

    assert newest is not None
    state = load_checkpoint(newest).state
    assert (state["progress"]["step"], state["batch"]["max_tokens"]) == (5, AIM)
    assert json.loads(json.dumps(state["identity"]["batch"]))["max_tokens"] == "auto"


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ({"max_tokens": "auto"}, "needs tokens_per_update"),
        ({"tokens_per_update": 100}, "needs max_tokens auto"),
        ({"max_tokens": "auto", "tokens_per_update": 100, "accumulate": 2}, "leave accumulate out"),
        ({"max_tokens": "auto", "tokens_per_update": 61}, "tokens_per_update is 61, too small"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    batch: dict[str, Any], problem: str
) -> None:
    with pytest.raises((ConfigError, ValueError), match=problem):
        RunConfig.model_validate({**CONFIG, "batch": batch})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that are planned."""
    plan, found = Loader.plan, []

    def recorded(loader: Loader, epoch: int, stage: int = 0) -> Any:
        found.append(epoch)
        return plan(loader, epoch, stage)

    monkeypatch.setattr(Loader, "plan", recorded)
    return found


@pytest.mark.usefixtures("stopped_once")
def test_the_epochs_of_a_budget_are_planned_once_for_all_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    config = make_config(max_steps=None, max_epochs=3)
    with pytest.raises(StoppedBySignal):
        train(config)
    assert planned == [0, 1, 2, 0, 0]  # to count, to advise and to train
    planned.clear()
    summary = train(config)

    assert planned == [0, 1, 2]
    state = load_checkpoint(list_checkpoints(config.run_dir)[-1][1]).state["progress"]
    assert state["epoch_updates"] == [3, summary.step]
    assert Position(**state["position"]) == Position(epoch=3)
    planned.clear()
    longer = train(make_config(max_steps=None, max_epochs=4))
    assert planned == [0, 1, 2, 3, 3]
    assert longer.step > summary.step


def test_a_start_that_was_killed_leaves_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: list[int]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    config = make_config(max_steps=None, max_epochs=2)
    for expected in ([0, 1, 0], [0]):  # the last one for advice
        planned.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "run", _killed)
            with pytest.raises(MemoryError):
                train(config)
        assert planned == expected


def _killed(*_: object) -> None:
    raise MemoryError


def test_only_the_first_process_plans() -> None:
    class SecondOfTwo(Processes):
        rank, size = 1, 2

        def gather(self, value: Any) -> list[Any]:
            return [(None, [70]), value]

    processes = SecondOfTwo()
    loader = cast(Loader, None)  # not to be asked
    assert count_updates(loader, 3, SharedStop(StopSignal(), processes), processes) == 70


def test_counting_can_be_interrupted(config: RunConfig) -> None:
    """FAULT 19."""
    prepare(config)
    loader, stop = setup_of(make_config()).loader, StopSignal()
    stop.number = 15
    with pytest.raises(Interrupted):
        count_updates(loader, 3, SharedStop(stop, Processes()), Processes())


def test_a_run_whose_rate_has_fallen_to_zero_resumes_with_more_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    schedule = {"shape": "linear", "peak_lr": 0.01, "warmup_steps": 1}
    short, long = (
        make_config(max_steps=steps, schedule=schedule, report_every=1) for steps in (2, 4)
    )
    assert [train(config).step for config in (short, long)] == [2, 4]

    assert "max_steps: was 2, is 4; from here on the learning rate follows" in caplog.text
    log = (long.run_dir / "log.txt").read_text()
    assert [text.count("max_steps: was 2, is 4") for text in (caplog.text, log)] == [1, 1]
    metrics = [
        json.loads(line) for line in (long.run_dir / "metrics.jsonl").read_text().splitlines()
    ]
    rates = [each["learning_rate"] for each in metrics if each.get("kind") == "update"]
    assert rates[-1] == 0
    assert max(rates[-3:]) > 0


def test_a_missing_device_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    before = set(tmp_path.iterdir())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(DeviceError, match="torch sees no GPU"):
        train(make_config(device="cuda"))

    assert set(tmp_path.iterdir()) == before
