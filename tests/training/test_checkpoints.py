"""Which checkpoint is the best, the end on a full disk, and reports of the progress."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nmt.checkpoint import files
from nmt.checkpoint.files import checkpoint_dir, list_checkpoints, read_best
from nmt.config.training import TrainingConfig
from nmt.data.loader import Position
from nmt.errors import CheckpointError
from nmt.training.checkpoints import CheckpointWriter, History, Progress
from nmt.training.events import Event
from tests.training.small import small_model, updater_of


def writer_of(run_dir: Path, events: list[Event], **training: Any) -> CheckpointWriter:
    values = {"max_steps": 100, "save_every": 10, "validate_every": 10, **training}
    config = TrainingConfig.model_validate(values)
    return CheckpointWriter(run_dir, config, updater_of(small_model()), {}, events.append)


def save(writer: CheckpointWriter, step: int, scores: Mapping[int, float]) -> None:
    writer.save(Progress(step=step, history=History(scores)))


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
    events: list[Event] = []
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


def test_a_report_is_about_the_updates_since_the_last_one() -> None:
    """Of 1200 tokens, 400 of them before a resume; 1600 with padding; in two seconds."""
    progress = Progress(step=7, position=Position(2), loss_sum=30.0, scored_tokens=20)
    progress.source_tokens, progress.target_tokens, progress.padded_tokens = 700, 500, 1600
    event = progress.report(2e-3, 0.5, 2.0, before=(100, 300))
    assert (event.step, event.kind) == (7, "update")
    assert event.values == {
        "epoch": 2,
        "loss": 30 / 20,
        "learning_rate": 2e-3,
        "gradient_norm": 0.5,
        "target_tokens_per_second": (500 - 300) / 2,
        "source_tokens_per_second": (700 - 100) / 2,
        "padding_waste": 1 - 1200 / 1600,
        "seconds": 2.0,
    }
    progress.source_tokens, progress.target_tokens, progress.padded_tokens = 30, 20, 50
    values = progress.report(1e-3, 0.5, 0.5).values
    assert (values["target_tokens_per_second"], values["padding_waste"]) == (40, 0)
    assert math.isnan(values["loss"])  # all updates were skipped
