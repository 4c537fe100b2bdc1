from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")


@dataclass(frozen=True)
class Summary:
    step: int = 1200
    reason: str = "budget"
    best: str | None = "step-00001000"
    best_score: float | None = 31.25


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for the recipe, without torch."""
    recipe = Mock(return_value=Summary())
    monkeypatch.setitem(sys.modules, "nmt.commands.train", SimpleNamespace(train=recipe))
    return recipe


def test_the_flags_reach_the_recipe(train: Mock) -> None:
    arguments = ["--set", "training.seed=9", "--run-dir", "runs/no 1: x", "--exact", "-q"]
    result = CliRunner().invoke(app, ["train", DEMO, *arguments])

    assert result.exit_code == 0
    assert (
        result.stdout == "runs/no 1: x: 1,200 steps; best: step-00001000 (bleu 31.25)\n"
    )  # with -q
    (config,), options = train.call_args
    assert config.training.seed == 9
    assert config.run_dir == Path("runs/no 1: x")
    assert options == {"strict_resume": False, "exact": True}


@pytest.mark.usefixtures("train")
def test_the_next_command_is_printed_after_the_result() -> None:
    result = CliRunner().invoke(app, ["train", DEMO, "--run-dir", "runs/no 1"])

    assert result.stderr.splitlines()[-1] == (
        "nmt: next: nmt evaluate 'runs/no 1', nmt translate 'runs/no 1' -i FILE -o FILE"
    )


@pytest.mark.usefixtures("train")
def test_json_holds_the_whole_summary() -> None:
    result = CliRunner().invoke(app, ["train", DEMO, "--json"])

    assert json.loads(result.stdout) == {
        "run_dir": "runs/demo",
        "step": 1200,
        "reason": "budget",
        "best": "step-00001000",
        "best_score": 31.25,
    }


def test_a_run_stopped_by_a_signal_keeps_its_exit_code(train: Mock) -> None:
    """FAULTS 19 and 20, as the shell sees them."""
    train.side_effect = SystemExit(143)

    assert CliRunner().invoke(app, ["train", DEMO]).exit_code == 143


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dry-run", "--strict-resume"], "--strict-resume does not go with --dry-run"),
        (["--prove-resume", "--exact", "--devices=2"], "--exact, --devices do not go with --prove"),
        (["--prove-resume", "--dry-run"], "--prove-resume does not go with --dry-run"),
    ],
)
@pytest.mark.usefixtures("train")
def test_flags_without_effect_are_refused(flags: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["train", DEMO, *flags])

    assert result.exit_code == 2
    assert words in result.stderr
