"""Precisions are compared before the first update of a long training, once for all its starts."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.files import load_checkpoint, newest_checkpoint
from nmt.commands import train as recipe
from nmt.commands.prepare import prepare_data as prepare
from nmt.commands.train import dry_run, prove_resume, train
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.training import probe
from nmt.training.probe import Comparison, compare, compare_precisions, to_compare
from nmt.training.setup import Rows, TrainingSetup
from nmt.training.signals import StoppedBySignal
from nmt.training.trainer import Trainer
from tests.training.toy import make_config, write_corpus

NAMES = ["bfloat16", "bf16-products", "float32"]
PAIRS, LENGTH = 40, 5


@dataclass
class Imitation:
    """A setup whose updates take what they are said to; the clock is theirs alone."""

    clock: list[float]
    per_pair: float
    per_update: float

    @property
    def loader(self) -> Any:
        return self

    @property
    def updater(self) -> Any:
        return self

    pace = loader

    def plan(self, _epoch: int) -> list[Rows]:
        return [np.arange(PAIRS), np.arange(PAIRS)]

    def lengths(self, rows: Rows) -> tuple[Rows, Rows]:
        return np.full(len(rows), LENGTH), np.full(len(rows), LENGTH)

    def update(self, rows: Rows) -> None:
        self.clock[0] += self.per_update + len(rows) * self.per_pair

    def wait(self) -> None:
        pass


costs = st.tuples(st.floats(1e-4, 0.2), st.floats(0, 0.5))


@given(costs=st.lists(costs, min_size=1, max_size=3), seconds=st.floats(1, 20))
def test_the_fastest_is_found_within_the_time(
    costs: list[tuple[float, float]], seconds: float
) -> None:
    clock = [0.0]
    setups = {n: Imitation(clock, *cost) for n, cost in zip(NAMES, costs, strict=False)}
    found = compare(cast(Any, setups), seconds=seconds, clock=lambda: clock[0])

    whole = {name: PAIRS * each.per_pair + each.per_update for name, each in setups.items()}
    part = {name: PAIRS / 8 * each.per_pair + each.per_update for name, each in setups.items()}
    assert clock[0] <= max(seconds, 2 * sum(part.values())) + 1e-6
    assert found.rates.keys() == setups.keys()
    fastest_by_pair = min(setups.values(), key=lambda each: each.per_pair)
    if all(each.per_update == 0 for each in setups.values()):
        assert setups[found.chosen].per_pair <= fastest_by_pair.per_pair * (1 + 1e-6)
    if 16 * sum(whole.values()) < seconds and all(
        e.per_update < e.per_pair for e in setups.values()
    ):
        assert whole[found.chosen] == min(whole.values())


def test_rates_count_the_tokens_of_both_sides() -> None:
    clock = [0.0]
    setups = {name: Imitation(clock, 0.01, 0.0) for name in NAMES}
    found = compare(cast(Any, setups), clock=lambda: clock[0])
    assert found.rates == pytest.approx(dict.fromkeys(NAMES, 2 * LENGTH / 0.01))
    assert str(found).startswith("bfloat16 1,000, bf16-products 1,000, ")


def long(**training: Any) -> RunConfig:
    return make_config(precision="auto", **training)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedData:
    """Of a training that counts as long, on a CPU with the instructions for all precisions."""
    monkeypatch.chdir(tmp_path)
    found = {"avx512_bf16": True, "avx512_bw": True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    monkeypatch.setattr(probe, "_LEAST_FLOPS", 1.0)
    write_corpus(tmp_path)
    prepare(long())
    return PreparedData.open(long().prepared_dir)


@pytest.fixture
def compared(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was compared: the second is the fastest, which the CPU's kind would not tell."""
    calls: list[list[str]] = []
    assert len(data.train) > 0

    def imitate(names: list[str], *_: object) -> Comparison:
        calls.append(names)
        return Comparison(names[1], dict.fromkeys(names, 1000.0))

    monkeypatch.setattr(recipe, "compare_precisions", imitate)
    return calls


def test_it_is_left_out_where_a_precision_is_named_or_training_is_short(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert to_compare(long(), data) == NAMES
    assert to_compare(long(max_steps=None, patience=1), data) == NAMES
    assert to_compare(make_config(precision="float32"), data) == []
    monkeypatch.setattr(probe, "_LEAST_FLOPS", 2e14)
    assert to_compare(long(), data) == []
    assert to_compare(long(max_steps=None, max_minutes=9), data) == []
    assert to_compare(long(max_steps=None, max_minutes=11), data) == NAMES
    assert to_compare(long(max_steps=None, patience=1), data) == NAMES
    assert to_compare(long(max_steps=10**9), data) == NAMES
    monkeypatch.setattr(probe, "free_bytes", lambda _: 1 << 20)
    assert to_compare(long(max_steps=10**9), data) == []


def test_a_real_comparison_measures_all_and_leaves_training_as_it_is(data: PreparedData) -> None:
    found = compare_precisions(to_compare(long(), data), long(), data)
    assert found.rates.keys() == {*NAMES}
    assert min(found.rates.values()) > 0
    assert found.chosen in NAMES

    train(make_config("named", precision=found.chosen))
    expected = load_checkpoint(newest_checkpoint(Path("named")) or Path())
    train(long())
    start = json.loads(Path("run/measured.json").read_text())["found"]["precision"]
    if start["chosen"] == found.chosen:
        weights = load_checkpoint(newest_checkpoint(Path("run")) or Path()).model
        assert all(torch.equal(weights[name], expected.model[name]) for name in weights)


def test_what_was_chosen_is_repeated_by_later_starts(
    compared: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda _: exit(9))
    for _ in range(2):  # killed before the first checkpoint
        with pytest.raises(SystemExit):
            train(long(max_steps=5))
    assert compared == [NAMES]
    record = tmp_path / "run" / "measured.json"
    values = json.loads(record.read_text())
    for damage in ({"chosen": "float8", "rates": {}}, {"chosen": "float32"}, 3, None):
        values["found"]["precision"] = damage
        record.write_text(json.dumps(values))
        with pytest.raises(SystemExit):
            train(long(max_steps=5))
        assert len(compared) == 2
        compared.pop()
    monkeypatch.setattr(Trainer, "run", run)
    train(long(max_steps=5))
    train(long(max_steps=10))
    assert compared == [NAMES]

    checkpoints = [newest_checkpoint(tmp_path / name) for name in ("run", "one-go")]
    assert checkpoints == [newest_checkpoint(tmp_path / "run"), None]
    train(make_config("one-go", precision=NAMES[1]))
    first, second = (
        load_checkpoint(newest_checkpoint(tmp_path / name) or Path()) for name in ("run", "one-go")
    )
    assert first.state["machine"]["precision"] == NAMES[1]
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)
    assert all(torch.equal(first.optimizer[n], second.optimizer[n]) for n in first.optimizer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_comparison_at_once(
    data: PreparedData, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Nothing of it is kept, and the next start compares again."""
    assert len(data.train) > 0
    update, calls = TrainingSetup.update, 0

    def met_by_a_signal(self: TrainingSetup, rows: Rows) -> None:
        nonlocal calls
        update(self, rows)
        calls += 1
        signal.raise_signal(number)

    monkeypatch.setattr(TrainingSetup, "update", met_by_a_signal)
    with pytest.raises(StoppedBySignal) as caught:
        train(long())
    assert (caught.value.code, calls) == (128 + number, 1)
    assert not Path("run/measured.json").exists()


@pytest.mark.usefixtures("compared")
def test_a_proof_repeats_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(long().model_dump_json())
    commands: list[list[str]] = []
    monkeypatch.setattr(recipe, "prove", lambda command, *_, **__: commands.append(command))
    prove_resume(tmp_path / "c.yaml")
    train(long(max_steps=5))
    monkeypatch.setattr(recipe, "to_compare", lambda *_: pytest.fail("compared again"))
    prove_resume(tmp_path / "c.yaml")
    prove_resume(tmp_path / "c.yaml", ["training.precision=float32"])

    flag = f"--set=training.precision={NAMES[1]}"
    assert [flag in command for command in commands] == [True, True, False]


@pytest.mark.usefixtures("compared")
def test_on_another_machine_the_choice_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    train(long(max_steps=5))
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    train(long(max_steps=10))
    newest = load_checkpoint(newest_checkpoint(Path("run")) or Path())
    assert newest.state["machine"]["precision"] == "float32"


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("has_amx", [False, True])
def test_a_dry_run_prints_what_was_compared(has_amx: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"avx512_bw": True, "avx512_bf16": True, "amx_bf16": has_amx}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    report = dry_run(long(), num_updates=2)
    assert report.precision == NAMES[1]
    lines = report.as_text().splitlines()
    rows = [line.split() for line in lines if "tokens of both sides per second" in line]
    assert [(row[0], row[-1]) for row in rows] == [
        ("bfloat16", "second"),
        ("bf16-products", "chosen"),
        ("float32", "second"),
    ]
    exact = [line.split()[0] for line in lines if "float32 arithmetic on this CPU" in line]
    assert exact == ([] if has_amx else ["bf16-products"])
    assert dry_run(make_config(), num_updates=2).compared_rates is None


def test_setups_are_those_of_training(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, TrainingSetup] = {}

    def recorded(setups: dict[str, TrainingSetup]) -> Comparison:
        seen.update(setups)
        return Comparison("float32", {})

    monkeypatch.setattr(probe, "compare", recorded)
    config = long()
    auto = config.batch.model_copy(
        update={"max_tokens": "auto", "tokens_per_update": 9000, "accumulate": 1}
    )
    compare_precisions(["float32"], config.model_copy(update={"batch": auto}), data)
    assert seen["float32"].batch.max_tokens == 4096
    compare_precisions(["bf16-products"], config, data)
    assert seen["bf16-products"].batch == config.batch
    assert seen["bf16-products"].updater.precision.name == "bf16-products"
