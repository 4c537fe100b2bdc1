"""What somebody sees who watches a training, and who resumes or interrupts one."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from nmt.commands.train import train
from nmt.files import progress
from nmt.training.signals import StoppedBySignal, StopSignal
from nmt.training.update import Updater
from nmt.training.validation import Validator
from tests.terminal import terminal
from tests.training.toy import make_config, write_corpus


def updates(run_dir: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "update"]


def test_training_and_validation_show_each_step_between_two_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_FOLLOW_SECONDS", 0.0005)
    write_corpus(tmp_path)
    with terminal(monkeypatch) as frames:
        train(make_config(report_every=100, validate_every=10))
    shown = frames.counts("training")
    assert (shown[0], shown[-1]) == ("0/10", "10/10")
    assert len(shown) > 3
    assert frames.counts("validating: translation")[-1] == "8/8"


@pytest.mark.usefixtures("stopped_once")
def test_the_first_report_of_a_resumed_run_is_of_its_own_time_and_of_all_losses(
    tmp_path: Path,
) -> None:
    """Stopped in the third update, resumed; tokens a second are of the seven since."""
    write_corpus(tmp_path)
    with pytest.raises(StoppedBySignal):
        train(make_config("resumed", report_every=10))
    train(make_config("resumed", report_every=10))
    train(make_config("whole", report_every=10))
    train(make_config("single", report_every=1))
    (resumed,), (whole,), single = (updates(tmp_path / x) for x in ("resumed", "whole", "single"))

    for side in ("source", "target"):
        rate = f"{side}_tokens_per_second"
        tokens = [line[rate] * line["seconds"] for line in single]
        assert resumed[rate] * resumed["seconds"] == pytest.approx(sum(tokens[3:]))
        assert whole[rate] * whole["seconds"] == pytest.approx(sum(tokens))
    for name in ("loss", "padding_waste", "gradient_norm"):
        assert resumed[name] == whole[name]


def test_an_interrupt_is_answered_at_once_with_what_a_second_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path)
    call, answers = Updater.__call__, []

    def interrupted(updater: Updater, *arguments: Any, **options: Any) -> Any:
        if "stop_requested" in options:
            answers.append("")
        if len(answers) == 8:
            signal.raise_signal(signal.SIGINT)
            answers.append(capfd.readouterr().err)
        return call(updater, *arguments, **options)

    monkeypatch.setattr(Updater, "__call__", interrupted)
    with pytest.raises(StoppedBySignal):
        train(make_config())
    assert answers[-1].endswith(
        "nmt: finishing the update, then saving. Ctrl-C again ends at once and loses 3 updates "
        "since step 5.\n"
    )


def test_an_interrupt_of_a_validation_counts_no_update_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path)
    call = Validator.__call__

    def interrupted(validator: Validator) -> Any:
        signal.raise_signal(signal.SIGINT)
        return call(validator)

    monkeypatch.setattr(Validator, "__call__", interrupted)
    config = make_config()
    with pytest.raises(StoppedBySignal):
        train(config)
    every = config.training.validate_every
    assert (
        "nmt: stopping here, then saving. Ctrl-C again ends at once and loses "
        f"{every} updates since the start.\n"
    ) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "again"), [(signal.SIGINT, "Ctrl-C again"), (signal.SIGTERM, "SIGINT")]
)
def test_the_answer_names_the_signal_that_ends_at_once(
    number: signal.Signals, again: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopSignal() as stop:
        stop.unsaved = lambda: "3 updates"
        signal.raise_signal(number)
    assert f"saving. {again} ends at once and loses 3 updates." in capfd.readouterr().err


def test_a_trial_training_says_nothing_of_saving(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("nmt").setLevel(logging.ERROR)  # as `nmt doctor` does
    try:
        with StopSignal() as stop:
            stop.unsaved = lambda: "3 updates"
            signal.raise_signal(signal.SIGINT)
    finally:
        logging.getLogger("nmt").setLevel(logging.NOTSET)
    assert stop.requested
    assert not capfd.readouterr().err


def test_a_second_interrupt_says_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os._exit", lambda _: None)
    with StopSignal() as stop:
        stop.unsaved = lambda: "3 updates since step 5"
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "nmt: ended at once. Lost: 3 updates since step 5."
