"""What training takes is said before it begins, and nothing else happens."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.commands.prepare import prepare_data as prepare
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.config.training import OptimizerConfig
from nmt.data.loader import Batch, Loader, Position
from nmt.data.prepared import PreparedData
from nmt.extras.planning.dry_run import (
    DryRunReport,
    estimate,
    explain_made_up,
    resident_bytes,
    write_data,
)
from nmt.extras.planning.plan import LengthSums, training_flops
from nmt.files.atomic import run_lock
from nmt.model.transformer import build_model, count_parameters
from nmt.training.optimizer import ModelOptimizer, freeze
from nmt.training.timing import Costs, TrainingSetup
from nmt.training.update import Updater
from tests.terminal import terminal
from tests.training.toy import CONFIG, write_corpus

SUMS = 8
"""Bytes of the two numbers at the gradient's end."""


def values_in(folder: Path, **training: Any) -> dict[str, Any]:
    """A configuration whose corpora and folders are in ``folder``."""
    corpus = {"source": str(folder / "train.de"), "target": str(folder / "train.en")}
    return CONFIG | {
        "prepared_dir": str(folder / "prepared"),
        "run_dir": str(folder / "run"),
        "data": {"train": [corpus], "valid": {**corpus, "max_pairs": 5}},
        "training": CONFIG["training"] | {"max_steps": 45} | training,
    }


def config_in(folder: Path, **training: Any) -> RunConfig:
    return RunConfig.model_validate(values_in(folder, **training))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dry_run")
    write_corpus(folder)
    prepare(config_in(folder))
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> DryRunReport:
    return estimate(config_in(folder))


def test_the_epoch_is_the_one_that_training_reads(folder: Path, report: DryRunReport) -> None:
    config = config_in(folder)
    store = PreparedData.open(folder / "prepared").train
    updates = []
    for batches, after in Loader(store, config.batch, weights=[1], seed=1).updates(Position()):
        updates.append(batches)
        if after.epoch:
            break
    batches = [batch for update in updates for batch in update]
    source, target, padded = (
        sum(getattr(batch, f"num_{kind}_tokens") for batch in batches)
        for kind in ("source", "target", "padded")
    )
    assert len(updates) < len(batches)
    expected = {
        "updates": len(updates),
        "batches": len(batches),
        "pairs": 300,
        "source_tokens": source,
        "target_tokens": target,
        "padding_waste": pytest.approx(1 - (source + target) / padded),
        "tokens_per_batch": pytest.approx((source + target) / len(batches)),
        "tokens_per_update": pytest.approx((source + target) / len(updates)),
    }
    assert {name: report.epoch[name] for name in expected} == expected


def test_flops_are_those_of_the_epoch(folder: Path, report: DryRunReport) -> None:
    config, epoch = config_in(folder), report.epoch
    data = PreparedData.open(folder / "prepared")
    lengths = (data.train.source.lengths + 1, data.train.target.lengths + 1)
    flops = training_flops(config.model, 60, LengthSums.of_pairs(*lengths))
    assert report.flops["update"] * epoch["updates"] == pytest.approx(flops.total)
    assert report.flops["per_target_token"] == pytest.approx(flops.total / epoch["target_tokens"])
    assert report.flops["attention_share"] == pytest.approx(flops.attention / flops.total)
    assert report.flops["training"] == pytest.approx(45 * report.flops["update"])


def test_each_of_several_devices_reads_its_part(folder: Path, report: DryRunReport) -> None:
    two = estimate(config_in(folder), devices=2)
    assert two.devices == 2
    assert two.epoch["updates"] == pytest.approx(report.epoch["updates"] / 2, abs=1)
    assert two.epoch["pairs"] == pytest.approx(150, abs=30)
    assert "each of 2 processes" in two.as_text()


def test_times_and_rates_follow_from_the_time_of_an_update(report: DryRunReport) -> None:
    epoch = report.epoch
    update = report.seconds["update"]
    of_epoch = epoch["updates"] * update
    expected = {
        "epoch": of_epoch,
        "training": 45 * update,
        "target_tokens_per_second": epoch["target_tokens"] / of_epoch,
    }
    for name, value in expected.items():
        assert report.seconds[name] == pytest.approx(value), name
    assert report.flops["per_second"] == pytest.approx(report.flops["update"] / update)
    assert report.budget["epochs"] == pytest.approx(45 / epoch["updates"])


def test_memory_is_that_of_the_buffers_and_of_the_largest_batch(report: DryRunReport) -> None:
    memory, number = report.memory_bytes, report.parameters["total"]
    assert (memory["weights"], memory["master_weights"]) == (4 * number, 0)
    assert memory["gradients"] == 4 * number + SUMS
    assert 1 <= len(memory["largest_batches"]) <= 2
    # At the very least, the encoder keeps the input of each layer's matrices for the way back.
    pairs, source, _target = memory["largest_batches"][0]
    assert memory["activations"] > 4 * pairs * source * (32 + 96 + 32)
    others = memory["activations"] + (memory["optimizer"] - 8 * number)
    assert memory["total"] == 16 * number + SUMS + others


@pytest.mark.parametrize(("changes", "held"), [
    ({}, (4, 0, 4, 8)),
    ({"ema_decay": 0.9}, (4, 0, 4, 12)),
    ({"dtype": torch.bfloat16}, (2, 4, 4, 8)),
    ({"dtype": torch.bfloat16, "ema_decay": 0.9}, (2, 4, 4, 12)),
    # z and the squares: the weights to be used are made of y and z when needed.
    ({"kind": "schedule-free"}, (4, 0, 4, 8)),
    ({"frozen": ["encoder"]}, (4, 0, 4, 8)),  # which has no gradient and no moments
])  # fmt: skip
def test_bytes_for_each_parameter(changes: dict[str, Any], held: tuple[int, ...]) -> None:
    given = {"dtype": torch.float32, "kind": "adamw", "frozen": [], "ema_decay": None, **changes}
    model = build_model(ModelConfig.model_validate(CONFIG["model"]), 40, 40)
    freeze(model, given["frozen"])
    sizes = count_parameters(model)
    idle = sum(sizes[part] for part in given["frozen"])
    optimizer = ModelOptimizer(
        model, OptimizerConfig(kind=given["kind"]), given["dtype"], ema_decay=given["ema_decay"]
    )
    found = resident_bytes(optimizer, model)
    counter = 4  # of updates
    weights, master, gradients, moments = (size * (sum(sizes.values()) - idle) for size in held)
    expected = [weights + 4 * idle, master, gradients + SUMS, moments + counter]
    assert list(found.values())[:3] == expected[:3]
    rest = 28 if given["kind"] == "schedule-free" else 0
    assert found["optimizer"] == pytest.approx(expected[3], abs=rest)


def test_the_limit_that_comes_first_ends_training(folder: Path, report: DryRunReport) -> None:
    two_epochs = 2 * report.epoch["updates"]
    for name, limits, updates in (
        ("max_steps", {"max_steps": 3}, 3),
        ("max_epochs", {"max_steps": 10_000, "max_epochs": 2}, two_epochs),
        ("max_minutes", {"max_steps": 10_000, "max_minutes": 1e-6}, 1),
    ):
        found = estimate(config_in(folder, **limits))
        assert found.budget["limit"] == f"training.{name}"
        assert found.budget["updates"] == pytest.approx(updates, abs=2)


def test_two_passes_double_the_flops_and_patience_alone_makes_the_length_unknown(
    folder: Path, report: DryRunReport
) -> None:
    twice = estimate(config_in(folder, max_steps=None, patience=3, r_drop_weight=5.0))
    assert twice.flops["update"] == pytest.approx(2 * report.flops["update"])
    assert "2 passes (training.r_drop_weight)" in twice.as_text()
    assert twice.budget["updates"] is twice.budget["epochs"] is None
    assert twice.seconds["training"] is twice.flops["training"] is None
    assert twice.seconds["validation_and_saving"] is None
    assert twice.seconds["epoch"] > 0
    assert "per update, number of updates unknown" in twice.as_text().splitlines()[1]


def test_a_time_too_short_for_r_drop_is_planned_without_it(
    folder: Path, report: DryRunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour is less than two passes over the data; what updates leave is for the rest."""
    slow = Costs(update=100.0, validation=36.0, saving=0.0)
    monkeypatch.setattr("nmt.extras.planning.dry_run.measure_costs", lambda *_, **__: slow)
    found = estimate(config_in(folder, max_steps=None, max_minutes=60.0, r_drop_weight=5.0))
    assert (found.flops["passes"], found.seconds["update"]) == (1, 50.0)
    assert found.flops["update"] == pytest.approx(report.flops["update"])
    seconds = found.seconds
    assert seconds["training"] + seconds["validation_and_saving"] == 3600
    assert 36 <= seconds["validation_and_saving"] < 360


def test_text_of_standard_input_is_not_read(folder: Path) -> None:
    values = values_in(folder) | {"prepared_dir": "elsewhere"}
    values["data"] = {**values["data"], "train": [{"tsv": "-"}]}
    assert "standard input is not prepared" in explain_made_up(RunConfig.model_validate(values))


def test_too_large_batches_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Updater.objective_loss

    def small_only(self: Updater, batch: Batch) -> Any:
        if self.model.training and len(batch.rows) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss(self, batch)

    monkeypatch.setattr(Updater, "objective_loss", small_only)
    report = estimate(config_in(folder))
    splits = report.memory_bytes["splits"]
    assert splits > 0
    assert f"HALVED {splits} times to fit" in report.as_text()


def test_a_run_in_progress_is_not_disturbed(folder: Path) -> None:
    config = config_in(folder)
    config.run_dir.mkdir()
    with run_lock(config.run_dir):
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        estimate(config)
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_from_the_shell_it_prepares_first_and_makes_no_run_folder(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(values_in(tmp_path)))
    first = CliRunner().invoke(app, ["train", str(path), "--dry-run", "--json"])
    second = CliRunner().invoke(app, ["train", str(path), "--dry-run", "-q"])
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert json.loads(first.stdout)["budget"]["updates"] == 45
    assert f"Prepared the data in {tmp_path / 'prepared'}" in first.stderr
    pattern = r"45 updates, [\d.]+ epochs \(limit: training\.max_\w+\), [\d.]+ m?s, [\d.]+ MiB"
    assert re.fullmatch(pattern, second.stdout.splitlines()[1])
    assert second.stderr == ""
    assert (tmp_path / "prepared").is_dir()
    assert not (tmp_path / "run").exists()


def test_absent_files_are_replaced_by_made_up_lengths(tmp_path: Path) -> None:
    """Marked as such. What depends on the number of pairs is unknown, and nothing is written."""
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(values_in(tmp_path)))
    result = CliRunner().invoke(app, ["train", str(path), "--dry-run", "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert f"data.train.0.source: {tmp_path / 'train.de'} does not exist" in found["made_up"]
    assert "median 15 subwords" in found["made_up"]  # half of the toy's filters.max_length
    assert (found["budget"]["updates"], found["budget"]["epochs"]) == (45, None)
    assert found["seconds"]["epoch"] is found["epoch"]["pairs"] is None
    assert 0 < found["epoch"]["tokens_per_batch"] <= 400
    assert [*tmp_path.iterdir()] == [path]


def test_data_of_a_hub_are_not_downloaded(
    folder: Path, report: DryRunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and its cost are the same as with text: the vocabulary size is configured."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.create_connection", refuse)
    remote = {"huggingface": "org/pairs", "noise": {"typos": 0.5}}
    values = values_in(folder, max_steps=None, max_epochs=3)
    values |= {
        "prepared_dir": "elsewhere",
        "data": {"train": [remote], "valid": {"sacrebleu": "wmt14"}},
        "batch": {**CONFIG["batch"], "bpe_dropout": 0.1},
    }
    found = estimate(RunConfig.model_validate(values))
    assert "org/pairs, wmt14 is not prepared" in found.made_up
    assert found.parameters == report.parameters
    assert found.flops["attention_share"] == pytest.approx(report.flops["attention_share"], rel=0.9)
    assert found.budget["updates"] is None
    assert "made-up lengths: " in found.as_text()
    assert report.made_up == ""


def seconds_of_tokens(setup: TrainingSetup, **_: float) -> Costs:
    """The time of updates that take a microsecond for each token."""
    loader = setup.loader
    tokens = sum(int(side.sum()) for side in loader.lengths(slice(None)))
    updates = -(-len(loader.plan(0)) // loader.config.gradient_accumulation)
    return Costs(update=1e-6 * tokens / updates, validation=0.0, saving=0.0)


def test_memory_and_time_of_large_batches_are_extrapolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To what a batch of that size needs."""
    monkeypatch.setattr("nmt.extras.planning.dry_run.measure_costs", seconds_of_tokens)
    values = values_in(tmp_path) | {"batch": {"max_tokens": 16_000, "gradient_accumulation": 2}}
    config, found = RunConfig.model_validate(values), []
    for few in (1024, 8000):  # measured are batches of up to twice as many tokens
        monkeypatch.setattr("nmt.extras.planning.dry_run._FEW_TOKENS", few)
        found.append(estimate(config))
    small, whole = found
    assert small.epoch == whole.epoch
    assert small.seconds["update"] == pytest.approx(whole.seconds["update"])
    assert small.memory_bytes == {
        **whole.memory_bytes,
        "activations": pytest.approx(whole.memory_bytes["activations"], rel=0.1),
        "total": pytest.approx(whole.memory_bytes["total"], rel=0.1),
    }


@pytest.mark.parametrize(("longest", "median"), [(256, 24), (8, 4)])
def test_made_up_lengths_have_the_stated_distribution(
    longest: int, median: int, tmp_path: Path
) -> None:
    values = values_in(tmp_path) | {
        "filters": {"max_length": longest},
        "tokenizer": {"joint": False, "vocab_size": {"source": 900, "target": 300}},
        "model": {**CONFIG["model"], "embeddings": "separate"},
        "batch": {"max_tokens": 1000},
    }
    data = write_data(RunConfig.model_validate(values), tmp_path)
    sides = data.train.source.lengths, data.train.target.lengths
    assert (data.manifest.source_vocab_size, data.manifest.target_vocab_size) == (900, 300)
    for lengths in sides:
        assert np.median(lengths) == pytest.approx(median, abs=1)
        assert 1 <= lengths.min() < lengths.max() <= longest
    if longest == 256:  # pairs that are too long hardly change the spread
        logs = np.log(sides[0])
        assert logs.std() == pytest.approx(0.6, abs=0.02)
        assert (logs - np.log(sides[1])).std() == pytest.approx(0.2, abs=0.02)


def test_it_shows_progress_and_ends_within_its_time_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt.extras.planning.dry_run.MOST_SECONDS", 0.0)
    with terminal(monkeypatch) as frames:
        report = estimate(config_in(folder, max_steps=2))
    assert frames.counts("timing")[-1] == "2/20"
    assert report.seconds["probe_updates"] == 2
    assert any("an epoch has " in text for text in report.warnings)


def test_the_table(report: DryRunReport) -> None:
    seconds = {
        "probe_updates": 12, "update": 0.25, "epoch": 0.25, "training": 25_000.0,
        "target_tokens_per_second": 240.0, "validation_and_saving": 5000.0,
    }  # fmt: skip
    budget = {"updates": 100_000, "limit": "training.max_steps", "has_patience": True, "epochs": 9}
    flops = report.flops | {"per_target_token": 21_526_364_160 / 60}
    memory = report.memory_bytes | {"weights": 3 << 29, "gradients": 1 << 29}
    shown = replace(report, seconds=seconds, budget=budget, flops=flops, memory_bytes=memory)
    lines = shown.as_text().splitlines()
    cells = [line.split("  ") for line in lines]
    rows = {row[1]: [cell.strip() for cell in row[2:] if cell.strip()] for row in cells
            if len(row) > 1}  # fmt: skip
    assert rows["per target token"][0] == "359 M"
    assert rows["weights"][0] == "1.50 GiB"  # 3 x 2^29 bytes
    assert rows["gradients"][0] == "512.0 MiB"
    assert rows["all updates"] == ["6.9 h"]  # 25,000 s
    assert rows["validation, saving, end"][0] == "83.3 min"
    assert rows["validation, saving, end"][1].startswith("17% of the time")  # 5,000 of 30,000 s
    assert rows["updates"][0] == "100,000"
    lines = [line for line in lines if line[:2] == "  "]
    assert all(line[36:50].strip() and line[49] != " " for line in lines)
