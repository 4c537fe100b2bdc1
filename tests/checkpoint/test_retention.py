"""Which checkpoints expire, and the exact and atomic averaging of checkpoints."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.checkpoint.files import (
    ValidationScore,
    expired,
    load_tensors,
    newest_steps,
    save_checkpoint,
)
from nmt.checkpoint.model_folder import (
    CONFIDENCE,
    average_weights,
    load_folder_document,
    write_average,
)
from nmt.errors import CheckpointError
from nmt.files.json_file import Manifest
from nmt.version import __version__
from tests.checkpoint.faults import contents, fail_writes

COUNTS = st.integers(1, 6)
ALL = [1]
# Of every kind: both zeros, the smallest and largest float32, neighbours of one.
HARD = torch.tensor([0.0, -0.0, 2**-149, -(2**-126), 3.4028235e38, 1 + 2**-23, 0.1, -7e-30])


def save(run_dir: Path, step: int, model: dict[str, Tensor]) -> Path:
    return save_checkpoint(run_dir, step, model=model, optimizer={}, state={})


def save_random(run_dir: Path, count: int) -> list[Path]:
    """Checkpoints whose weights differ widely in size and cancel in part."""
    paths = []
    for step in range(1, count + 1):
        generator = torch.Generator().manual_seed(step)
        scales = torch.logspace(-30, 30, 61)[:, None]
        model = {
            "matrix": torch.randn(61, 40, generator=generator) * scales,
            "bias": torch.randn(9, generator=generator),
        }
        paths.append(save(run_dir, step, model))
    return paths


def same_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first.view(torch.int32), second.view(torch.int32))


def test_the_mean_of_equal_checkpoints_is_that_checkpoint(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, {"weight": HARD}) for step in range(1, 11)]
    for count in (1, 3, 10):
        found = average_weights(paths[:count])
        assert found.keys() == {"weight"}
        assert same_bits(found["weight"], HARD)


@pytest.mark.parametrize("count", [2, 7])
def test_the_mean_equals_the_float64_mean_of_numpy_rounded_once(tmp_path: Path, count: int) -> None:
    """Within half a float32 unit in the last place, and the rounding of the float64 sums."""
    paths = save_random(tmp_path, count)
    every = [load_tensors(path / "model.safetensors") for path in paths]
    found = average_weights(paths)
    assert found.keys() == {"matrix", "bias"}
    for name, tensor in found.items():
        assert tensor.dtype == torch.float32
        stack = np.stack([each[name].numpy() for each in every]).astype(np.float64)
        expected = stack.mean(axis=0)
        allowed = 2.0**-24 * np.abs(expected) + 2 * count * 2.0**-53 * np.abs(stack).mean(axis=0)
        allowed += 2.0**-150  # half of the smallest float32
        assert (np.abs(tensor.numpy().astype(np.float64) - expected) <= allowed).all()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": 2}, "missing: b"),
        ({"a": 2, "b": 3, "c": 1}, "unexpected: c"),
        ({"a": 2, "b": 1}, r"b: shape \(1,\), expected \(3,\)"),
        ({f"x{i:02}": 1 for i in range(20)}, r"unexpected: x07\n  \.\.\. and 12 more\n"),
    ],
)
def test_checkpoints_of_different_models_are_refused(
    tmp_path: Path, other: dict[str, int], message: str
) -> None:
    paths = [
        save(tmp_path, step, {name: torch.ones(size) for name, size in sizes.items()})
        for step, sizes in ((10, {"a": 2, "b": 3}), (20, other))
    ]
    with pytest.raises(CheckpointError, match=message) as caught:
        average_weights(paths)
    assert "step-00000020 does not match " in caught.value.problem


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_checkpoint_that_diverged_is_named(tmp_path: Path, value: float) -> None:
    good = save(tmp_path, 10, {"weight": torch.ones(2)})
    bad = save(tmp_path, 20, {"weight": torch.tensor([1.0, value])})
    with pytest.raises(CheckpointError, match=r"step-00000020.*weight.*not finite"):
        average_weights([good, bad])


def test_a_damaged_checkpoint_is_not_averaged(tmp_path: Path) -> None:
    """One bit of a weight is wrong: the file can still be read, and the weight is finite."""
    good = save(tmp_path, 10, {"weight": torch.ones(2)})
    damaged = save(tmp_path, 20, {"weight": torch.ones(2)})
    weights = damaged / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    for paths in ([good, damaged], [damaged, good], [damaged]):
        with pytest.raises(CheckpointError, match=r"step-00000020"):
            average_weights(paths)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with checkpoints of steps 10 and 20, which hold 1 and 2."""
    run_dir = tmp_path / "run"
    (run_dir / "tokenizer").mkdir(parents=True)
    config = "{name: Größe, source_language: de, target_language: en, data: {train: [{}]}}"
    (run_dir / "config.yaml").write_text(config, "utf-8")
    for side, content in (("source", b"\x00source"), ("target", b"\xfftarget")):
        (run_dir / "tokenizer" / f"{side}.model").write_bytes(content)
    for step in (10, 20):
        save(run_dir, step, {"weight": torch.full((3,), step / 10)})
    return run_dir


def average(folder: Path, run_dir: Path) -> None:
    write_average(folder, run_dir, sorted((run_dir / "checkpoints").iterdir()))


def test_the_folder_is_complete_and_its_manifest_has_all_of_it(
    run_dir: Path, tmp_path: Path
) -> None:
    """An empty folder is filled, and another left alone."""
    folder = tmp_path / "models" / "mean"
    folder.mkdir(parents=True)
    (run_dir / CONFIDENCE).write_text("{}")
    before = contents(run_dir)
    average(folder, run_dir)
    found, manifest = contents(folder), Manifest.read(folder)
    assert found.keys() == {*manifest.files, "manifest.json"}
    manifest.verify(folder)
    assert manifest.step == 20
    assert load_tensors(folder / "model.safetensors")["weight"].tolist() == [1.5] * 3
    for name in ("tokenizer/source.model", "tokenizer/target.model", CONFIDENCE):
        assert found[name] == before[name]
    assert load_folder_document(folder) == load_folder_document(run_dir)
    assert [path.name for path in folder.parent.iterdir()] == ["mean"]
    assert len({(folder / name).stat().st_mode for name in found}) == 1
    for taken in (folder, run_dir, run_dir / "config.yaml"):
        with pytest.raises(CheckpointError, match="was not written"):
            average(taken, run_dir)
    assert (contents(folder), contents(run_dir)) == (found, before)


@pytest.mark.parametrize("score", [None, 0.0, -2.5])
def test_the_record_of_an_average_says_of_what_it_is(run_dir: Path, score: float | None) -> None:
    """And its score, if it was validated: a BLEU of 0 is one."""
    paths = sorted((run_dir / "checkpoints").iterdir())
    validation = {} if score is None else {"score": score}
    write_average(run_dir / "average", run_dir, paths, validation)
    record = json.loads((run_dir / "average" / "average.json").read_text())
    weights = [(path / "model.safetensors").read_bytes() for path in paths]
    hashes = [hashlib.sha256(content).hexdigest() for content in weights]
    assert record.pop("package_version") == __version__
    parts = zip((10, 20), hashes, strict=True)
    expected: dict[str, object] = {"steps": [10, 20]}
    expected["checkpoints"] = [{"step": step, "sha256": sha256} for step, sha256 in parts]
    if score is not None:
        expected["score"] = score
    assert record == expected


@pytest.mark.parametrize("call", [0, 3, 8])
def test_a_failing_write_leaves_no_trace(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """FAULT 8: the disk fills up at any point of the write."""
    before = contents(tmp_path)
    fail_writes(monkeypatch, call)
    with pytest.raises(CheckpointError, match="mean was not written") as caught:
        average(tmp_path / "mean", run_dir)
    assert os.strerror(errno.ENOSPC) in caught.value.problem
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@st.composite
def scored_checkpoints(draw: st.DrawFn) -> tuple[set[int], dict[int, ValidationScore]]:
    """Steps that exist, and scores of most of them and of deleted ones. Some are equal or NaN."""
    steps = draw(st.sets(st.integers(1, 60), min_size=8, max_size=14))
    deleted = draw(st.sets(st.integers(1, 60), max_size=4))
    unscored = draw(st.sets(st.sampled_from(sorted(steps)), max_size=2))
    values = st.sampled_from([math.nan, -7.5, 0.0, 1.0, 2.5, 21.5, 30.0])
    scored = sorted((steps | deleted) - unscored)
    return steps, {step: ValidationScore(draw(values)) for step in scored}


@given(found=scored_checkpoints(), keep_last=st.integers(1, 3), keep_best=st.integers(1, 3))
def test_only_the_newest_and_the_best_checkpoints_are_kept(
    found: tuple[set[int], dict[int, ValidationScore]], keep_last: int, keep_best: int
) -> None:
    """The best of those that exist; of equal ones the first. NaN is no score."""
    steps, scores = found
    values = {step: scores[step].score for step in steps & scores.keys()}
    left = {step: score for step, score in values.items() if not math.isnan(score)}
    kept = set(sorted(steps)[-keep_last:])
    for _ in range(min(keep_best, len(left))):
        best = min(step for step in left if left[step] == max(left.values()))
        kept.add(best)
        del left[best]
    gone = expired(steps, scores, keep_last=keep_last, keep_best=keep_best, due_every=ALL)
    assert gone == sorted(steps - kept)


@given(
    stops=st.sets(st.integers(1, 60), max_size=8),
    every=st.integers(1, 7),
    count=COUNTS,
    total=st.integers(1, 60),
)
def test_stops_do_not_change_which_checkpoints_are_newest_at_the_end(
    stops: set[int], every: int, count: int, total: int
) -> None:
    """FAULT 18: what is averaged at the end must not depend on them, nor be gone."""
    there: set[int] = set()
    for step in range(1, total + 1):
        if step in stops or step % every == 0 or step == total:
            there.add(step)
            there -= {*expired(there, {}, keep_last=count, keep_best=1, due_every=[every])}
    due = {*range(every, total + 1, every), total}
    assert newest_steps(there, count, due_every=[every]) == sorted(due)[-count:]
