"""Events reach TensorBoard's files with their values, and a missing extra is told."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from nmt.errors import ConfigError
from nmt.training.dashboards import TensorBoard
from nmt.training.report import NoteReport, SavedReport, UpdateReport, ValidationReport


def update(step: int, loss: float = 3.25) -> UpdateReport:
    return UpdateReport(
        step=step,
        epoch=1,
        loss=loss,
        learning_rate=0.0005,
        gradient_norm=0.75,
        target_tokens_per_second=4000.0,
        source_tokens_per_second=3900.0,
        padding_waste=0.125,
        seconds=1.5,
    )


def validation(step: int, bleu: float | None = 21.5) -> ValidationReport:
    return ValidationReport(
        step=step,
        epoch=1,
        loss=2.0,
        perplexity=7.389,
        scores={"bleu": bleu, "chrf": bleu and 48.0},
        seconds=3.0,
        samples=(("ein *Hund*", "a <b>dög</b>\u2028", "a dog"),),
    )


def read(run_dir: Path) -> Any:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="tensorboard is not installed: pip install 'nmt[tensorboard]'",
    )
    found = events.EventAccumulator(str(run_dir / "tensorboard"))
    found.Reload()
    return found


def scalars(run_dir: Path) -> dict[str, list[tuple[int, Any]]]:
    found = read(run_dir)
    return {
        tag: [(each.step, pytest.approx(each.value)) for each in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.fixture
def _installed() -> None:
    pytest.importorskip(
        "tensorboard", reason="tensorboard is not installed: pip install 'nmt[tensorboard]'"
    )


@pytest.mark.usefixtures("_installed")
def test_values_can_be_read_back(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    for event in (NoteReport(0, "x"), update(10), SavedReport(10, "a", 0.1), update(20, 2.5)):
        board.report(event)
    board.report(validation(20))
    board.close()

    assert scalars(tmp_path) == {
        "train/loss": [(10, 3.25), (20, 2.5)],
        "train/learning_rate": [(10, 0.0005), (20, 0.0005)],
        "train/gradient_norm": [(10, 0.75), (20, 0.75)],
        "train/target_tokens_per_second": [(10, 4000.0), (20, 4000.0)],
        "train/padding_waste": [(10, 0.125), (20, 0.125)],
        "validation/loss": [(20, 2.0)],
        "validation/perplexity": [(20, 7.389)],
        "validation/bleu": [(20, 21.5)],
        "validation/chrf": [(20, 48.0)],
    }


@pytest.mark.usefixtures("_installed")
def test_samples_are_code_so_that_markdown_leaves_them_alone(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.report(validation(20))
    board.close()
    (text,) = read(tmp_path).Tensors("sample 1/text_summary")

    assert text.step == 20
    assert text.tensor_proto.string_val[0].decode() == (
        "    ein *Hund*\n    a <b>dög</b>\n    a dog\n"
    )


@pytest.mark.usefixtures("_installed")
def test_values_are_on_the_disk_at_once(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.report(update(20))
    found = scalars(tmp_path)
    board.close()

    assert found["train/loss"] == [(20, 3.25)]


@pytest.mark.usefixtures("_installed")
def test_scores_that_were_not_measured_are_left_out(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.report(validation(20, bleu=None))
    board.close()

    assert set(scalars(tmp_path)) == {"validation/loss", "validation/perplexity"}


@pytest.mark.usefixtures("_installed")
def test_a_resumed_run_hides_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path)
    for step in (10, 20, 30):
        first.report(update(step, loss=9.0))
    first.close()
    second = TensorBoard(tmp_path, resume_step=20)
    second.report(update(25, loss=1.0))
    second.close()

    assert scalars(tmp_path)["train/loss"] == [(10, 9.0), (20, 9.0), (25, 1.0)]


@pytest.mark.usefixtures("_installed")
def test_a_run_resumed_twice_within_a_second_keeps_the_order(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        board = TensorBoard(tmp_path, resume_step=step - 10)
        board.report(update(step))
        board.report(update(step + 5))
        board.close()

    assert [step for step, _ in scalars(tmp_path)["train/loss"]] == [10, 20, 30, 35]


@pytest.mark.usefixtures("_installed")
def test_events_that_find_the_disk_full_wait_until_there_is_room(tmp_path: Path) -> None:
    """FAULT 8: reporting never stops a training that may go on."""
    board = TensorBoard(tmp_path)
    board.report(update(1))
    (path,) = (tmp_path / "tensorboard").iterdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        for step in (2, 3):
            board.report(update(step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [step for step, _ in scalars(tmp_path)["train/loss"]] == [1]
    board.report(update(4))
    board.close()

    assert [step for step, _ in scalars(tmp_path)["train/loss"]] == [1, 2, 3, 4]


def test_without_tensorboard_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # importing it fails

    with pytest.raises(ConfigError, match=r"tensorboard is set, but tensorboard is not") as caught:
        TensorBoard(tmp_path)
    assert "pip install 'nmt[tensorboard]'" in caught.value.fix
    assert not [*tmp_path.iterdir()]
