from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config.run import RunConfig

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")


class Recorded:
    """Stands for the command: keeps what it was called with, and gives a small result."""

    def __init__(self) -> None:
        self.config: RunConfig | None = None
        self.options: dict[str, Any] = {}

    def __call__(self, config: RunConfig, **options: Any) -> Recorded:
        self.config, self.options = config, options
        return self

    def as_dict(self) -> dict[str, Any]:
        return {"kept": 3, "folder": "prepared/größe"}

    def as_text(self) -> str:
        return "3 pairs kept"


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr("nmt.recipes.prepare.prepare", recorded)
    return recorded


def test_the_flags_reach_the_command(prepare: Recorded) -> None:
    result = CliRunner().invoke(
        app, ["prepare", DEMO, "--set", "name=other", "--report-only", "--force", "-q"]
    )

    assert result.exit_code == 0
    assert result.stdout == "3 pairs kept\n"
    assert prepare.config is not None
    assert prepare.config.name == "other"
    assert prepare.options == {"force": True, "report_only": True}


def test_json_is_one_object_on_one_line(prepare: Recorded) -> None:
    result = CliRunner().invoke(app, ["prepare", DEMO, "--json", "--quiet"])

    assert json.loads(result.stdout) == prepare.as_dict()
    assert result.stdout.count("\n") == 1
    assert "größe" in result.stdout
