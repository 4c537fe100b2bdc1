"""Whether a configuration may go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.run import (
    changed_settings,
    check_resumable,
    identity,
    machine,
    reshared,
    write_run_files,
)
from nmt.config.loader import load_config
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError

CONFIG: dict[str, Any] = {
    "name": "toy",
    "source_language": "de",
    "target_language": "en",
    "data": {
        "train": [{"source": "train.de", "target": "train.en"}],
        "valid": {"source": "valid.de", "target": "valid.en"},
    },
    "training": {"max_steps": 100},
}


def config_with(changes: dict[str, Any]) -> RunConfig:
    """The configuration with ``section.key`` set otherwise."""
    values: dict[str, Any] = {**CONFIG, "training": dict(CONFIG["training"])}
    for dotted, value in changes.items():
        place = values
        *sections, key = dotted.split(".")
        for section in sections:
            place[section] = dict(place.get(section, {}))
            place = place[section]
        place[key] = value
    return RunConfig.model_validate(values)


def record(
    changes: dict[str, Any] | None = None, data_hash: str = "d1", vocab_hash: str = "v1"
) -> dict[str, Any]:
    return {
        "identity": identity(
            config_with(changes or {}), data_hash=data_hash, vocab_hash=vocab_hash
        ),
        "machine": machine(torch.device("cpu")),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"model.model_dim": 256},
        {"model.num_heads": 4},
        {"model.dropout": 0.2},
        {"batch.max_tokens": 5000},
        {"batch.accumulate": 2},
        {"training.seed": 2},
        {"training.precision": "float32"},
        {"training.label_smoothing": 0.2},
        {"training.optimizer.betas": [0.9, 0.99]},
        {"training.optimizer.clip_norm": 0.5},
        {"training.schedule.peak_lr": 1e-3},
        {"training.schedule.warmup_steps": 10},
        {"source_language": "fr"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_setting_that_makes_other_updates_is_refused_and_named(changes: dict[str, Any]) -> None:
    """FAULT 12."""
    (key, value), was = next(iter(changes.items())), record()

    with pytest.raises(CheckpointError) as caught:
        check_resumable(was, record(changes), run_dir=Path("runs/toy"), exact=False)

    assert key in caught.value.problem
    assert "was " in caught.value.problem
    assert str(value[-1] if isinstance(value, list) else value) in caught.value.problem
    assert "another run_dir" in caught.value.fix


def test_other_data_and_another_vocabulary_are_refused_together() -> None:
    """FAULT 12: all differing keys are listed."""
    now = record({"model.model_dim": 256}, data_hash="d2", vocab_hash="v2")

    with pytest.raises(CheckpointError) as caught:
        check_resumable(record(), now, run_dir=Path("runs/toy"), exact=False)

    for text in ("data_hash: was d1, is d2", "vocab_hash: was v1, is v2", "model.model_dim: was"):
        assert text in caught.value.problem


@pytest.mark.parametrize(
    "changes",
    [
        {"training.report_every": 7},
        {"training.save_every": 7},
        {"training.validate_every": 7},
        {"training.max_steps": 200},
        {"training.keep_last": 5},
        {"training.keep_best": 5},
        {"training.patience": 3},
        {"training.threads": 2},
        {"training.validation.beam_size": 4},
        {"decoding.beam_size": 9},
        {"run_dir": "elsewhere"},
        {"name": "other"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_harmless_setting_may_change(changes: dict[str, Any]) -> None:
    """FAULT 13."""
    assert check_resumable(record(), record(changes), run_dir=Path("x"), exact=True) == []


def test_the_longest_pair_may_change_unless_bpe_dropout_is_on() -> None:
    """FAULTS 12 and 13: pairs that were kept may get longer than it then."""
    longer = {"filters.max_length": 77}
    dropout = {"batch.bpe_dropout": 0.1}
    was, now = (record({**dropout, **changes})["identity"] for changes in ({}, longer))

    assert changed_settings(record()["identity"], record(longer)["identity"]) == []
    assert [line.split(": ")[0] for line in changed_settings(was, now)] == ["filters.max_length"]


@pytest.mark.parametrize("shape", ["linear", "cosine", "wsd"])
def test_another_budget_of_a_schedule_that_ends_with_it_is_warned_about(shape: str) -> None:
    """FAULTS 12 and 13: the learning rate of every update from the start would be another."""
    was = record({"training.schedule.shape": shape})
    now = record({"training.schedule.shape": shape, "training.max_steps": 200})
    (warning,) = check_resumable(was, now, run_dir=Path("x"), exact=False)

    assert check_resumable(was, was, run_dir=Path("x"), exact=True) == []
    assert warning == (
        "resumed run is not bit-exact: training.max_steps: was 100, is 200; "
        "from here on the learning rate follows the schedule of the new length"
    )
    with pytest.raises(CheckpointError, match="max_steps: was 100, is 200"):
        check_resumable(was, now, run_dir=Path("x"), exact=True)


def test_another_machine_is_warned_about_and_refused_if_exactness_is_asked_for() -> None:
    """FAULT 14."""
    was, now = record(), record()
    now["machine"] = now["machine"] | {"threads": 99, "torch": "9.9.9"}
    warnings = check_resumable(was, now, run_dir=Path("x"), exact=False)

    assert len(warnings) == 2
    assert all("not bit-exact" in warning for warning in warnings)
    assert any("threads: was" in warning and "is 99" in warning for warning in warnings)
    with pytest.raises(CheckpointError, match="is 99") as caught:
        check_resumable(was, now, run_dir=Path("x"), exact=True)
    assert "`exact`" in caught.value.fix


def test_processes_that_make_the_same_updates_are_noted_and_others_refused() -> None:
    was, now, other = (record({"batch.accumulate": count}) for count in (6, 2, 3))
    was["identity"]["num_processes"] = 1
    for each in (now, other):
        each["identity"]["num_processes"] = 3
    (warning,) = check_resumable(was, now, run_dir=Path("x"), exact=False)

    assert warning.endswith("not bit-exact: processes x batch.accumulate: was 1 x 6, is 3 x 2")
    with pytest.raises(CheckpointError, match="was 1 x 6, is 3 x 2"):
        check_resumable(was, now, run_dir=Path("x"), exact=True)
    with pytest.raises(CheckpointError, match=r"num_processes: was 1, is 3"):
        check_resumable(was, other, run_dir=Path("x"), exact=False)


def test_measured_batches_are_shared_again_where_that_is_even() -> None:
    measured = {"identity": {"num_processes": 2}, "batch": {"accumulate": 3}}

    assert [reshared(measured, number) for number in (1, 2, 3, 6)] == [6, 3, 2, 1]
    with pytest.raises(CheckpointError, match="6 batches, which 4 processes"):
        reshared(measured, 4)


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True), (False, False)])
def test_sums_in_any_order_are_not_exact(first: bool, then: bool) -> None:
    """Of a GPU: not even on the machine that began the run."""
    was, now = record(), record()
    was["machine"]["deterministic"], now["machine"]["deterministic"] = first, then
    warnings = check_resumable(was, now, run_dir=Path("x"), exact=False)

    assert ["deterministic" in warning for warning in warnings] == [True]
    with pytest.raises(CheckpointError, match="deterministic"):
        check_resumable(was, now, run_dir=Path("x"), exact=True)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "prepared" / "tokenizer"
    folder.mkdir(parents=True)
    (folder / "joint.model").write_bytes(b"one")
    return folder


def test_a_run_folder_gets_configuration_and_tokenizer(tmp_path: Path, tokenizer: Path) -> None:
    run_dir, config = tmp_path / "run", config_with({"model.preset": "tiny"})

    assert write_run_files(run_dir, config, tokenizer) == []
    assert write_run_files(run_dir, config, tokenizer) == []
    assert load_config(run_dir / "config.yaml") == config
    assert sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*")) == [
        "config.yaml",
        "tokenizer",
        "tokenizer/joint.model",
    ]


def test_changed_settings_are_returned_and_recorded(tmp_path: Path, tokenizer: Path) -> None:
    """FAULT 13."""
    write_run_files(tmp_path / "run", config_with({}), tokenizer)
    changed = config_with({"training.report_every": 7, "training.max_steps": 200})

    assert write_run_files(tmp_path / "run", changed, tokenizer) == [
        "training.max_steps: was 100, is 200",
        "training.report_every: was 50, is 7",
    ]
    assert load_config(tmp_path / "run" / "config.yaml") == changed


def test_a_tokenizer_left_by_a_start_with_other_data_is_replaced(
    tmp_path: Path, tokenizer: Path
) -> None:
    write_run_files(tmp_path / "run", config_with({}), tokenizer)
    (tokenizer / "joint.model").unlink()
    (tokenizer / "source.model").write_bytes(b"two")
    (tokenizer / "target.model").write_bytes(b"three")
    write_run_files(tmp_path / "run", config_with({}), tokenizer)

    found = {path.name for path in (tmp_path / "run" / "tokenizer").iterdir()}
    assert found == {"source.model", "target.model"}
