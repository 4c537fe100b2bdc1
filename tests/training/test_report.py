"""Events reach files, console and TensorBoard in the form that people and programs expect."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import ConfigError
from nmt.training.report import Console, Event, JsonLines, Reporter, RunLog, TensorBoard
from nmt.training.validation import Scores
from tests.training.small import full_disk, update_event, validation_event

EVENTS = [
    Event(0, "training"),
    update_event(10),
    Event(10, "saved step-00000010 (0.10 s)", "saved"),
    update_event(20),
    validation_event(20),
]


def give(reporter: Reporter, *events: Event) -> None:
    for event in events:
        reporter.report(event)
    reporter.close()


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_metrics_are_one_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reporter = JsonLines(path, 0, 0)
    for number, event in enumerate(EVENTS):
        reporter.report(event)
        assert len(read(path)) == [0, 1, 1, 2, 3][number]  # written at once, updates and scores
    reporter.close()
    lines = read(path)
    found = [(line["kind"], line["step"]) for line in lines]
    assert found == [("update", 10), ("update", 20), ("validation", 20)]
    assert (lines[0]["loss"], lines[2]["bleu"]) == (3.25, 21.5)
    assert lines[2]["samples"] == [["ein *Hund*", "a <b>dög</b>\u2028", "a dog"]]


@given(saved=st.integers(0, 30), cut=st.integers(0, 400), last=st.integers(0, 30))
def test_the_file_of_a_resumed_run_equals_that_of_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, saved: int, cut: int, last: int
) -> None:
    """FAULT 1: the run reached ``last``, was killed in the middle of a line, went on at ``saved``.

    Lines up to the checkpoint are on the disk, for each is flushed before the next update.
    """
    saved = min(saved, last)
    folder = tmp_path_factory.mktemp("metrics")
    whole, resumed = folder / "whole.jsonl", folder / "resumed.jsonl"

    def run(path: Path, first: int, end: int) -> None:
        reporter = JsonLines(path, first, first)
        for step in range(first + 1, end + 1):
            reporter.report(update_event(step))
            if step % 3 == 0:
                reporter.report(validation_event(step))
        reporter.close()

    run(whole, 0, 30)
    run(resumed, 0, last)
    lines = resumed.read_bytes().splitlines(keepends=True)
    keep = sum(len(line) for line in lines if json.loads(line)["step"] <= saved)
    with resumed.open("r+b") as file:
        file.truncate(max(keep, resumed.stat().st_size - cut))
    run(resumed, saved, 30)

    assert resumed.read_bytes() == whole.read_bytes()
    assert not [*folder.glob(".*.tmp-*")]


def test_the_log_has_times_all_events_and_the_warnings_of_all_rooms(tmp_path: Path) -> None:
    for _ in range(2):  # a resumed run appends to it
        with RunLog() as log:
            logging.getLogger("nmt.checkpoint").warning("early %d", 1)
            log.open(tmp_path / "log.txt")
            console = Console(0, None)
            for event in EVENTS:
                console.report(event)  # logs, and that is not written twice
                log.report(event)
            logging.getLogger("nmt.data").warning("late")
    logging.getLogger("nmt.data").warning("of no run")
    lines = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  \S", line) for line in lines)
    told = ["early 1", *(event.text for event in EVENTS), "late"]
    assert [line[21:] for line in lines] == 2 * told


@pytest.mark.parametrize("is_terminal", [True, False])
def test_on_a_terminal_a_bar_shows_step_loss_score_and_speed_elsewhere_lines_are_logged(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    terminal, warning = io.StringIO(), Event(20, "update skipped", level=logging.WARNING)
    monkeypatch.setattr(terminal, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    console, events = Console(start=10, total=40), [*EVENTS[3:], warning, update_event(30)]
    for event in events:
        console.report(event)
    console.close()
    last = re.split(r"[\r\n]+", terminal.getvalue().rstrip())[-1]
    assert ("30/40" in last) == is_terminal
    assert ("loss 3.250, BLEU 21.50, 4,000 tok/s" in last) == is_terminal
    logged = events[1:3] if is_terminal else events
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (event.level, event.text) for event in logged
    ]


def test_a_validation_says_what_was_measured_and_with_what() -> None:
    event = validation_event(5, Scores(1.0, {"bleu": 21.5, "chrf": 4.0}, "char"))
    assert "2.72, BLEU 21.50 (tokenizer char), chrF 4.00 (" in event.text
    assert (event.values["bleu"], event.values["bleu_tokenizer"]) == (21.5, "char")
    event = validation_event(5, Scores(460.6))  # of no text
    assert "perplexity 1.09e+200 (" in event.text
    assert (event.values["bleu"], event.values["bleu_tokenizer"]) == (None, None)


def test_lines_that_find_the_disk_full_wait_until_there_is_room(tmp_path: Path) -> None:
    """FAULT 8: reporting never stops a training that may go on."""
    path = tmp_path / "metrics.jsonl"
    reporter = JsonLines(path, 0, 0)
    reporter.report(update_event(1))
    with full_disk(path.stat().st_size + 20):
        for step in (2, 3):
            reporter.report(update_event(step))
        assert path.read_bytes().count(b"\n") == 1
    give(reporter, update_event(4))
    assert [line["step"] for line in read(path)] == [1, 2, 3, 4]


def accumulated(run_dir: Path) -> Any:
    """What TensorBoard reads of a run."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    found = pytest.importorskip(name).EventAccumulator(str(run_dir / "tensorboard"))
    found.Reload()
    return found


def scalars(run_dir: Path) -> dict[str, list[tuple[int, Any]]]:
    found = accumulated(run_dir)
    return {
        tag: [(each.step, pytest.approx(each.value)) for each in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.fixture
def _tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="not installed: pip install 'nmt[tensorboard]'")


@pytest.mark.usefixtures("_tensorboard")
def test_tensorboard_has_the_values_and_the_samples_as_code(tmp_path: Path) -> None:
    give(TensorBoard(tmp_path), *EVENTS[:3], update_event(20, 2.5), validation_event(20))
    of_updates = {"learning_rate": 0.0005, "gradient_norm": 0.75, "padding_waste": 0.125}
    of_updates |= {"target_tokens_per_second": 4000.0}
    of_validation = {"loss": 2.0, "perplexity": 7.38905609893065, "bleu": 21.5, "chrf": 48.0}
    assert scalars(tmp_path) == {
        "train/loss": [(10, 3.25), (20, 2.5)],
        **{f"train/{name}": [(10, value), (20, value)] for name, value in of_updates.items()},
        **{f"validation/{name}": [(20, value)] for name, value in of_validation.items()},
    }
    (text,) = accumulated(tmp_path).Tensors("sample 1/text_summary")
    code = "    ein *Hund*\n    a <b>dög</b>\n    a dog\n"  # Markdown leaves it alone
    assert (text.step, text.tensor_proto.string_val[0].decode()) == (20, code)


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
