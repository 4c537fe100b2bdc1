"""Events reach files and console in the form that people and programs expect."""

from __future__ import annotations

import io
import json
import logging
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.training.report import (
    Console,
    Event,
    JsonLines,
    NoteReport,
    RunLog,
    SavedReport,
    UpdateReport,
    ValidationReport,
)


def update(step: int, seconds: float = 1.5) -> UpdateReport:
    return UpdateReport(
        step=step,
        epoch=1,
        loss=3.25,
        learning_rate=5e-4,
        gradient_norm=0.7,
        target_tokens_per_second=4000.0,
        source_tokens_per_second=3900.0,
        padding_waste=0.02,
        seconds=seconds,
    )


def validation(step: int) -> ValidationReport:
    return ValidationReport(
        step=step,
        epoch=1,
        loss=2.0,
        perplexity=7.39,
        scores={"bleu": 21.5, "chrf": 48.0},
        seconds=3.0,
        samples=(("ein Hund", "a dög", "a dog\u2028"),),
    )


EVENTS: list[Event] = [
    NoteReport(0, "training"),
    update(10),
    SavedReport(10, "step-00000010", 0.1),
    update(20),
    validation(20),
]


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_metrics_are_one_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reporter = JsonLines(path, resume_step=0)
    for number, event in enumerate(EVENTS):
        reporter.report(event)
        assert len(read(path)) == [0, 1, 1, 2, 3][number]  # written at once, updates and scores
    reporter.close()
    lines = read(path)

    assert [(line["kind"], line["step"]) for line in lines] == [
        ("update", 10),
        ("update", 20),
        ("validation", 20),
    ]
    assert lines[0]["loss"] == 3.25
    assert lines[2]["bleu"] == 21.5
    assert lines[2]["samples"] == [["ein Hund", "a dög", "a dog\u2028"]]


@given(
    saved=st.integers(0, 30),
    cut=st.integers(0, 400),
    last=st.integers(0, 30),
)
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
        reporter = JsonLines(path, first)
        for step in range(first + 1, end + 1):
            reporter.report(update(step))
            if step % 3 == 0:
                reporter.report(validation(step))
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
    told = ["early 1", *(event.line() for event in EVENTS), "late"]
    assert [line[21:] for line in lines] == 2 * told


def test_without_a_terminal_the_console_logs_plain_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    console = Console(start=0, total=20)
    warning = NoteReport(20, "update skipped", logging.WARNING)
    for event in [*EVENTS, warning]:
        console.report(event)
    console.close()

    assert caplog.messages == [event.line() for event in [*EVENTS, warning]]
    assert [record.levelname for record in caplog.records] == ["INFO"] * 5 + ["WARNING"]


class Terminal(io.StringIO):
    """Standard error of someone who watches."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_shows_step_loss_score_and_speed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    console = Console(start=10, total=40)
    for event in [*EVENTS[3:], update(30)]:
        console.report(event)
    console.close()
    last = re.split(r"[\r\n]+", terminal.getvalue().rstrip())[-1]

    assert "30/40" in last
    assert "loss 3.250, BLEU 21.50, 4,000 tok/s" in last
    assert caplog.messages == [EVENTS[4].line()]


def test_scores_that_were_not_measured_are_left_out() -> None:
    plain = ValidationReport(
        step=5, epoch=0, loss=1.0, perplexity=2.72, scores={"bleu": None}, seconds=0.5
    )

    assert plain.line() == "validation at step 5: perplexity 2.72 (0.5 s)"


@pytest.mark.parametrize(
    ("tokenizer", "shown"),
    [("13a", "BLEU 21.50, chrF"), ("char", "BLEU 21.50 (tokenizer char), c")],
)
def test_bleu_says_with_what_it_is_counted(tmp_path: Path, tokenizer: str, shown: str) -> None:
    event = replace(validation(20), bleu_tokenizer=tokenizer)
    reporter = JsonLines(tmp_path / "metrics.jsonl", 0)
    reporter.report(event)
    reporter.close()

    assert shown in event.line()
    assert [line["bleu_tokenizer"] for line in read(tmp_path / "metrics.jsonl")] == [tokenizer]


def test_lines_that_find_the_disk_full_wait_until_there_is_room(tmp_path: Path) -> None:
    """FAULT 8: reporting never stops a training that may go on."""
    path = tmp_path / "metrics.jsonl"
    reporter = JsonLines(path, resume_step=0)
    reporter.report(update(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
    try:
        for step in (2, 3):
            reporter.report(update(step))
        assert path.read_bytes().count(b"\n") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    reporter.report(update(4))
    reporter.close()

    assert [line["step"] for line in read(path)] == [1, 2, 3, 4]
