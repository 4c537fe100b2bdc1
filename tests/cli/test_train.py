from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config.run import RunConfig

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")


@dataclass(frozen=True)
class Summary:
    step: int = 1200
    reason: str = "budget"
    best: str | None = "step-00001000"
    best_score: float | None = 31.25


class Recorded(ModuleType):
    """Stands for `nmt.recipes.train`, without torch: keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__("nmt.recipes.train")
        self.config: RunConfig | None = None
        self.options: dict[str, Any] = {}
        self.summary = Summary()
        self.leave: BaseException | None = None

    def train(self, config: RunConfig, **options: Any) -> Summary:
        self.config, self.options = config, options
        if self.leave:
            raise self.leave
        return self.summary


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setitem(sys.modules, "nmt.recipes.train", recorded)
    return recorded


def test_the_flags_reach_the_command(command: Recorded) -> None:
    arguments = ["--set", "training.seed=9", "--run-dir", "runs/no 1: x", "--exact", "-q"]
    result = CliRunner().invoke(app, ["train", DEMO, *arguments])

    assert result.exit_code == 0
    assert result.stdout == "runs/no 1: x: 1,200 steps; best: step-00001000 (31.25)\n"  # with -q
    assert command.config is not None
    assert command.config.training.seed == 9
    assert command.config.run_dir == Path("runs/no 1: x")
    assert command.options == {"strict_resume": False, "exact": True}


@pytest.mark.usefixtures("command")
def test_json_holds_the_whole_summary() -> None:
    result = CliRunner().invoke(app, ["train", DEMO, "--json"])

    assert json.loads(result.stdout) == {
        "run_dir": "runs/demo",
        "step": 1200,
        "reason": "budget",
        "best": "step-00001000",
        "best_score": 31.25,
    }


def test_a_run_stopped_by_a_signal_keeps_its_exit_code(command: Recorded) -> None:
    """FAULTS 19 and 20, as the shell sees them."""
    command.leave = SystemExit(143)

    assert CliRunner().invoke(app, ["train", DEMO]).exit_code == 143


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dry-run", "--strict-resume"], "--strict-resume does not go with --dry-run"),
        (["--prove-resume", "--exact", "--devices=2"], "--exact, --devices do not go with --prove"),
        (["--prove-resume", "--dry-run"], "--prove-resume does not go with --dry-run"),
    ],
)
@pytest.mark.usefixtures("command")
def test_flags_without_effect_are_refused(flags: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["train", DEMO, *flags])

    assert result.exit_code == 2
    assert words in result.stderr
