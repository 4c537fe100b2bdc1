"""Which checkpoint is the best, the end on a full disk, and reports of the progress."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.checkpoint import files
from nmt.checkpoint.files import (
    ValidationScore,
    checkpoint_bytes,
    checkpoint_dir,
    checkpoint_name,
    list_checkpoints,
    read_best,
)
from nmt.checkpoint.model_folder import EXTRAS
from nmt.config.training import TrainingConfig
from nmt.data.loader import Position
from nmt.device.distributed import Processes
from nmt.errors import CheckpointError
from nmt.training import checkpoints
from nmt.training.checkpoints import (
    CheckpointWriter,
    History,
    Progress,
    TrainingSummary,
    average_at_end,
    check_room,
    load_newest,
    tidy_run_folder,
)
from nmt.training.events import TrainingEvent
from nmt.training.update import Updater
from nmt.training.validation import Scores
from tests.training.small import small_model, updater_of


def writer_of(
    run_dir: Path, events: list[TrainingEvent], *, in_thread: bool = False, **training: Any
) -> CheckpointWriter:
    values = {"max_steps": 100, "save_every": 10, "validate_every": 10, **training}
    config = TrainingConfig.model_validate(values)
    updater = updater_of(small_model())
    updater.pace = replace(updater.pace, uses_threads=in_thread)
    return CheckpointWriter(run_dir, config, updater, {}, events.append)


def save(writer: CheckpointWriter, step: int, scores: Mapping[int, float]) -> None:
    history = History({step: ValidationScore(score) for step, score in scores.items()})
    writer.save(Progress(step=step, history=history))


def test_the_best_is_a_checkpoint_that_exists_and_has_a_score(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, [], keep_last=3)
    scores = {10: 5.0, 20: 3.0, 30: 4.0}
    best = []
    for step in scores:
        save(writer, step, {each: scores[each] for each in scores if each <= step})
        best.append(read_best(tmp_path))
    assert best == [checkpoint_dir(tmp_path, 10)] * 3
    shutil.rmtree(checkpoint_dir(tmp_path, 10))
    # Step 35 was validated, and not saved: the disk was full. Step 40 has no score.
    save(writer, 40, {**scores, 35: 9.0, 40: math.nan})
    assert (tmp_path / "best").read_text() == "step-00000030\n"


def test_the_end_is_an_error_if_a_full_disk_keeps_the_last_step_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT 8: training went on, and would be lost without a word."""
    events: list[TrainingEvent] = []
    writer = writer_of(tmp_path, events, on_full_disk="continue")
    save(writer, 10, {})

    def full(*_: Any, **_options: Any) -> Path:
        raise CheckpointError("the disk is full", fix="free it")

    with monkeypatch.context() as patch:
        patch.setattr(files, "save_checkpoint", full)
        save(writer, 20, {})
        assert len(caplog.messages) == 1
        with pytest.raises(CheckpointError, match="20") as caught:
            writer.save_the_end(Progress(step=20))
    assert "step 10" in caught.value.fix
    writer.save_the_end(Progress(step=20))
    writer.save_the_end(Progress(step=20))  # it is saved already
    assert [event.step for event in events] == [10, 20]
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10, 20]


def free_space(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    """Let every disk have so many bytes left."""
    usage = SimpleNamespace(free=int(size))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def test_room_for_the_checkpoints_to_come_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FAULT 70: two last ones, the best one, and one that is written before another is removed."""
    training = TrainingConfig.model_validate({"max_steps": 100, "keep_last": 2, "keep_best": 1})
    optimizer = updater_of(small_model()).optimizer
    size = checkpoint_bytes(optimizer.weights(), optimizer.state())
    progress = Progress(total_steps=100)
    for room, num_warnings in ((4, 0), (3.9, 1), (1, 2)):
        free_space(monkeypatch, room * size)
        check_room(tmp_path, training, optimizer, progress)
        assert len(caplog.messages) == num_warnings
    checkpoint_dir(tmp_path, 10).mkdir(parents=True)
    free_space(monkeypatch, 3 * size)
    check_room(tmp_path, training, optimizer, progress)
    assert len(caplog.messages) == 2
    free_space(monkeypatch, size - 1)
    with pytest.raises(CheckpointError, match="no room for a checkpoint: each needs") as caught:
        check_room(tmp_path, training, optimizer, progress)
    assert "run_dir" in caught.value.fix
    check_room(tmp_path, training, optimizer, Progress(step=100, total_steps=100))  # complete


@pytest.mark.parametrize("in_thread", [False, True])
def test_each_save_is_an_event_that_names_its_checkpoint(
    tmp_path: Path, *, in_thread: bool
) -> None:
    events: list[TrainingEvent] = []
    writer = writer_of(tmp_path, events, in_thread=in_thread)
    with writer:
        for step in (10, 20):
            save(writer, step, {})
        writer.save_the_end(Progress(step=20))
    assert [(event.step, event.kind) for event in events] == [(10, "saved"), (20, "saved")]
    assert all(checkpoint_dir(tmp_path, event.step).name in event.text for event in events)
    assert writer.saved_step == 20


def test_a_new_start_removes_the_extras_of_an_earlier_run_and_a_resumed_one_keeps_them(
    tmp_path: Path,
) -> None:
    save(writer_of(tmp_path, []), 10, {})
    for name in EXTRAS:
        (tmp_path / name).write_text("old")
    newest = load_newest(tmp_path, Processes(), strict=True)
    tidy_run_folder(tmp_path, newest)
    assert all((tmp_path / name).exists() for name in EXTRAS)
    tidy_run_folder(tmp_path, None)
    assert not any((tmp_path / name).exists() for name in EXTRAS)


def test_a_resumed_run_moves_newer_checkpoints_that_are_damaged_aside(tmp_path: Path) -> None:
    """FAULT 10: otherwise they would count as the newest, and new ones would expire first."""
    writer = writer_of(tmp_path, [])
    for step in (10, 20):
        save(writer, step, {})
    (checkpoint_dir(tmp_path, 20) / "model.safetensors").write_bytes(b"")
    newest = load_newest(tmp_path, Processes(), strict=False)
    assert newest is not None
    assert newest.step == 10
    tidy_run_folder(tmp_path, newest)
    names = {path.name for path in checkpoint_dir(tmp_path, 10).parent.iterdir()}
    assert names == {checkpoint_name(10), f"damaged-{checkpoint_name(20)}"}


class FixedValidator:
    """Gives one score, and remembers the weights that it was called with."""

    def __init__(self, updater: Updater, score: float) -> None:
        self.updater = updater
        self.weights: list[Tensor] = []
        self._score = score

    def __call__(self) -> Scores:
        self.weights.append(self.updater.model.source_vectors.detach().clone())
        return Scores(2.0, {"bleu": self._score})


@pytest.mark.parametrize(
    ("was_best", "best_score", "score", "expected"),
    [
        ("step-00000020", 5.0, 6.0, "average"),
        ("step-00000020", 5.0, 5.0, "step-00000020"),  # a tie keeps the checkpoint
        ("step-00000020", 5.0, 4.0, "step-00000020"),
        ("step-00000020", 5.0, math.nan, "step-00000020"),
        ("step-00000030", None, 0.5, "average"),  # no checkpoint has a score
        # The average of an earlier end was the best; this one is no more.
        ("average", 5.0, 4.0, "step-00000020"),
        ("average", 5.0, 6.0, "average"),
    ],
)
def test_the_average_is_the_best_only_if_it_scores_better(
    was_best: str,
    best_score: float | None,
    score: float,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[list[str]] = []
    recorded: list[float] = []

    def write(folder: Path, _run: Path, paths: list[Path], validation: dict[str, Any]) -> None:
        assert not folder.exists()
        folder.mkdir()
        recorded.append(validation["score"])
        made.append([path.name for path in paths])

    monkeypatch.setattr(checkpoints, "write_average", write)
    writer = writer_of(tmp_path, [], keep_last=3)
    weight = writer._updater.optimizer.parameters.weights
    for step in (10, 20, 30):
        weight.fill_(step)
        save(writer, step, {})
    if was_best == "average":
        (tmp_path / "average").mkdir()
    (tmp_path / "best").write_text(f"{was_best}\n")
    best = "step-00000020" if was_best == "average" else was_best
    summary = TrainingSummary(tmp_path, 30, "budget", best, best_score, "bleu", 1.0)
    config = TrainingConfig(max_steps=100, save_every=10, validate_every=10, average_last=2)
    validator: Any = FixedValidator(writer._updater, score)
    events: list[TrainingEvent] = []
    reporter: Any = SimpleNamespace(report=events.append)
    result = average_at_end(config, summary, validator, reporter)
    assert result.best == expected
    assert result.best_score == (score if expected == "average" else best_score)
    assert (tmp_path / "best").read_text().strip() == expected
    assert made == [["step-00000020", "step-00000030"]]
    assert recorded == [pytest.approx(score, nan_ok=True)]
    assert torch.equal(validator.weights[0], torch.full_like(validator.weights[0], 25.0))
    assert [event.step for event in events] == [30]


@pytest.mark.parametrize(("steps", "average_last"), [((10, 20), None), ((10,), 3)])
def test_without_two_checkpoints_or_the_option_nothing_is_averaged(
    steps: tuple[int, ...], average_last: int | None, tmp_path: Path
) -> None:
    writer = writer_of(tmp_path, [])
    for step in steps:
        save(writer, step, {})
    summary = TrainingSummary(tmp_path, 30, "budget", "step-00000010", 5.0, "bleu", 1.0)
    config = TrainingConfig(max_steps=100, keep_last=3, average_last=average_last)
    validator: Any = FixedValidator(writer._updater, 9.0)
    assert average_at_end(config, summary, validator, validator) == summary
    assert not validator.weights


def test_a_report_is_about_the_updates_since_the_last_one() -> None:
    """Of 1200 tokens, 400 of them before a resume; 1600 with padding; in two seconds."""
    progress = Progress(step=7, position=Position(1, 4), loss_sum=30.0, scored_tokens=20)
    progress.source_tokens, progress.target_tokens, progress.padded_tokens = 700, 500, 1600
    event = progress.report(2e-3, 0.5, 2.0, tokens_before=(100, 300))
    assert (event.step, event.kind) == (7, "update")
    assert event.text.startswith("step 7  epoch 2  loss 1.500  ")
    assert event.values == {
        "epoch": 2,  # the second one has begun
        "loss": 30 / 20,
        "learning_rate": 2e-3,
        "gradient_norm": 0.5,
        "target_tokens": 500,
        "target_tokens_per_second": (500 - 300) / 2,
        "source_tokens_per_second": (700 - 100) / 2,
        "padding_waste": 1 - 1200 / 1600,
        "seconds": 2.0,
    }
    progress.source_tokens, progress.target_tokens, progress.padded_tokens = 30, 20, 50
    values = progress.report(1e-3, 0.5, 0.5).values
    assert (values["target_tokens_per_second"], values["padding_waste"]) == (40, 0)
    assert math.isnan(values["loss"])  # all updates were skipped


@pytest.mark.parametrize(
    ("step", "total", "start", "part"),
    [
        (0, 1400, "training", "until step 1,400"),
        (0, None, "training", "patience"),
        (80, 1400, "resuming at step 80,", "until step 1,400"),  # in the first epoch
        (80, None, "resuming at step 80,", "patience"),
        (1400, 1400, "resuming at step 1,400,", "last"),
    ],
)
def test_a_start_says_where_it_begins_and_ends(
    step: int, total: int | None, start: str, part: str
) -> None:
    text = Progress(step=step, total_steps=total).describe()
    assert text.startswith(start)
    assert part in text
