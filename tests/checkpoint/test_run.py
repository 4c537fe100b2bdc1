"""Whether a configuration may resume a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.files import save_checkpoint
from nmt.checkpoint.run import (
    changed_settings,
    check_resumable,
    identity,
    machine,
    reshared,
    trained_on,
    write_run_files,
)
from nmt.config.loader import load_config
from nmt.data.prepared import PreparedManifest
from nmt.errors import CheckpointError, ConfigError
from tests.checkpoint.faults import toy_config


def record(
    changes: dict[str, Any] | None = None, data_hash: str = "d1", vocab_hash: str = "v1"
) -> dict[str, Any]:
    own = identity(toy_config(changes), data_hash=data_hash, vocab_hash=vocab_hash)
    return {"identity": own, "machine": machine(torch.device("cpu"))}


def resumed(was: dict[str, Any], now: dict[str, Any], *, exact: bool = False) -> list[str]:
    """Warnings of going on with a run."""
    return check_resumable(was, now, run_dir=Path("runs/toy"), exact=exact)


def refused(was: dict[str, Any], now: dict[str, Any], *, exact: bool = False) -> str:
    """The problem and its fix."""
    with pytest.raises(CheckpointError) as caught:
        resumed(was, now, exact=exact)
    return f"{caught.value.problem}\n{caught.value.fix}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.model_dim", 256),
        ("batch.gradient_accumulation", 2),
        ("training.seed", 2),
        ("training.precision", "float32"),
        ("training.optimizer.betas", [0.9, 0.99]),
        ("training.schedule.peak_lr", 1e-3),
        ("source_language", "fr"),
    ],
)
def test_a_setting_that_makes_other_updates_is_refused_and_named(key: str, value: Any) -> None:
    """FAULT 12."""
    said = refused(record(), record({key: value}))
    assert all(text in said for text in (key, "was "))
    assert str(value[-1] if isinstance(value, list) else value) in said
    assert "a new run_dir" in said


def test_other_data_and_another_vocabulary_are_refused_together() -> None:
    """FAULT 12: all differing keys are listed."""
    said = refused(record(), record({"model.model_dim": 256}, data_hash="d2", vocab_hash="v2"))
    for text in ("data_hash: was d1, is d2", "vocab_hash: was v1, is v2", "model.model_dim: was"):
        assert text in said


def test_a_run_with_other_keys_is_refused_with_all_of_them() -> None:
    was = record()
    was["identity"]["batch"]["accumulate"] = was["identity"]["batch"].pop("gradient_accumulation")
    said = refused(was, record())
    assert "runs/toy was trained by a different version of nmt" in said
    assert "batch.accumulate, batch.gradient_accumulation" in said
    assert "set a new run_dir" in said
    was["identity"]["batch"] |= {"a": {"b": 1}, "b": 1, "c": 1}
    assert "batch.a, batch.accumulate, batch.b, batch.c and 1 more." in refused(was, record())


def test_corpora_are_compared_one_by_one() -> None:
    was, now = ([{"weight": weight, "noise": {"typos": 0}} for weight in x] for x in ([1, 2], [3]))
    sections = {"data": {"train": was, "test": {}}}, {"data": {"train": now, "test": {"a": {}}}}
    assert changed_settings(*sections) == [
        "data.train: was a list of 2, is a list of 1",
        "data.train.0.weight: was 1, is 3",
        "data.test.a: was null, is {...}",
    ]


def test_harmless_settings_may_change() -> None:
    """FAULT 13."""
    changes: dict[str, Any] = {
        **{f"training.{name}_every": 7 for name in ("log", "save", "validate")},
        "training.max_steps": 200,
        **dict.fromkeys(("training.keep_last", "training.keep_best"), 5),
        "training.patience": 3,
        "training.threads": 2,
        "training.validation.beam_size": 4,
        "decoding.beam_size": 9,
        "run_dir": "elsewhere",
        "name": "other",
    }
    assert resumed(record(), record(changes), exact=True) == []


NOISY = {"source": "train.de", "target": "train.en", "noise": {"typos": 0.1}}


@pytest.mark.parametrize("redrawn", [{"batch.bpe_dropout": 0.1}, {"data.train": [NOISY]}])
def test_the_longest_pair_may_change_unless_pairs_are_drawn_again(redrawn: dict[str, Any]) -> None:
    """FAULTS 12 and 13: pairs that were kept may get longer than it then."""
    longer = {"filters.max_length": 77}
    was, now = (record({**redrawn, **changes})["identity"] for changes in ({}, longer))
    assert changed_settings(record()["identity"], record(longer)["identity"]) == []
    assert [line.split(": ")[0] for line in changed_settings(was, now)] == ["filters.max_length"]


@pytest.mark.parametrize(
    "schedule",
    [
        {"shape": "linear"},
        {"shape": "cosine"},
        {"shape": "wsd"},
        {"shape": "constant", "warmup_ratio": 0.1},
    ],
)
def test_another_length_of_a_schedule_that_depends_on_it_gives_a_warning(
    schedule: dict[str, Any],
) -> None:
    """FAULTS 12 and 13: the learning rate of every update from the start would be another."""
    was = record({"training.schedule": schedule})
    now = record({"training.schedule": schedule, "training.max_steps": 200})
    assert resumed(was, was, exact=True) == []
    (warning,) = resumed(was, now)
    assert warning.startswith("resuming is not bit-exact: training.max_steps: was 100, is 200; ")
    assert "max_steps: was 100, is 200" in refused(was, now, exact=True)


def test_another_machine_gives_a_warning_or_an_error_with_exact() -> None:
    """FAULT 14."""
    was, now = record(), record()
    now["machine"] = now["machine"] | {"threads": 99, "torch": "9.9.9"}
    warnings = resumed(was, now)
    assert len(warnings) == 2
    assert all("not bit-exact" in warning for warning in warnings)
    assert any("threads: was" in warning and "is 99" in warning for warning in warnings)
    said = refused(was, now, exact=True)
    assert ("is 99" in said, "`exact`" in said) == (True, True)


def test_another_number_of_processes_needs_the_same_number_of_batches() -> None:
    """FAULT 31."""
    was, now, other = (record({"batch.gradient_accumulation": count}) for count in (6, 2, 3))
    was["identity"]["num_processes"] = 1
    for each in (now, other):
        each["identity"]["num_processes"] = 3
    (warning,) = resumed(was, now)
    changed = "not bit-exact: processes x batch.gradient_accumulation: was 1 x 6, is 3 x 2"
    assert warning.endswith(changed)
    assert "was 1 x 6, is 3 x 2" in refused(was, now, exact=True)
    said = refused(was, other)
    assert "num_processes: was 1, is 3" in said
    assert "`nmt train CONFIG --devices 3 --set batch.gradient_accumulation=2`" in said
    other["identity"]["num_processes"] = 4  # which cannot share 6 batches
    assert "`nmt train CONFIG --devices 3 --set batch" in refused(was, other)


def test_measured_batches_are_shared_evenly_or_refused() -> None:
    measured = {"identity": {"num_processes": 2}, "batch": {"gradient_accumulation": 3}}
    assert [reshared(measured, number) for number in (1, 2, 3, 6)] == [6, 3, 2, 1]
    with pytest.raises(
        CheckpointError, match="6 batches, which cannot be shared evenly by 4"
    ) as caught:
        reshared(measured, 4)
    assert "`nmt train CONFIG --devices 3`" in caught.value.fix


@pytest.mark.parametrize(("first", "then"), [(True, False), (False, True), (False, False)])
def test_sums_in_any_order_are_not_exact(first: bool, then: bool) -> None:
    """Of a GPU: not even on the machine that began the run."""
    was, now = record(), record()
    was["machine"]["deterministic"], now["machine"]["deterministic"] = first, then
    (warning,) = resumed(was, now)
    assert "deterministic" in warning
    assert "deterministic" in refused(was, now, exact=True)


def test_a_run_folder_gets_configuration_and_tokenizer(tmp_path: Path) -> None:
    """FAULT 13: changed settings are returned and recorded. An older tokenizer is replaced."""
    run_dir, tokenizer = tmp_path / "run", tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "joint.model").write_bytes(b"one")
    for _ in range(2):
        assert write_run_files(run_dir, toy_config(), tokenizer) == []
    found = sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*"))
    assert found == ["config.yaml", "tokenizer", "tokenizer/joint.model"]
    (tokenizer / "joint.model").unlink()
    for name in ("source.model", "target.model"):
        (tokenizer / name).write_bytes(b"two")
    changed = toy_config({"training.log_every": 7, "training.max_steps": 200})
    assert write_run_files(run_dir, changed, tokenizer) == [
        "training.max_steps: was 100, is 200",
        "training.log_every: was 50, is 7",
    ]
    assert load_config(run_dir / "config.yaml") == changed
    names = {path.name for path in (run_dir / "tokenizer").iterdir()}
    assert names == {"source.model", "target.model"}


def prepare(folder: Path, data_hash: str) -> None:
    """The manifest of prepared data."""
    folder.mkdir(exist_ok=True)
    manifest = PreparedManifest(
        config_hash="", sources={}, data_hash=data_hash, vocab_hash="v1", source_vocab_size=30,
        target_vocab_size=30, counts={}, files={},
    )  # fmt: skip
    manifest.write(folder)


def test_data_are_those_of_a_run_only_if_their_hash_is_recorded(tmp_path: Path) -> None:
    """They may be deleted or prepared again for another run."""
    config = toy_config({"prepared_dir": "prepared"})
    prepare(config.prepared_dir, "d1")
    assert trained_on(tmp_path, config.prepared_dir) is None  # there is no checkpoint
    save_checkpoint(tmp_path, 10, model={}, optimizer={}, state=record(data_hash="d1"))
    found = trained_on(tmp_path, config.prepared_dir)
    assert found is not None
    assert found.data_hash == "d1"
    prepare(config.prepared_dir, "d2")
    assert trained_on(tmp_path, config.prepared_dir) is None
    (config.prepared_dir / "manifest.json").unlink()
    assert trained_on(tmp_path, config.prepared_dir) is None


def test_a_configuration_of_a_newer_version_is_not_replaced(tmp_path: Path) -> None:
    """A newer version may have stopped before its first checkpoint."""
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "joint.model").write_bytes(b"x")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    path = run_dir / "config.yaml"
    path.write_text("{format: 99, name: theirs}")
    with pytest.raises(ConfigError, match="format 99"):
        write_run_files(run_dir, toy_config(), tokenizer)
    assert path.read_text() == "{format: 99, name: theirs}"
