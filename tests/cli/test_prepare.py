from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
REPORT = {"kept": 3, "folder": "prepared/größe"}


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Mock:
    recipe = Mock()
    recipe.return_value.as_dict.return_value = REPORT
    recipe.return_value.as_text.return_value = "3 pairs kept"
    monkeypatch.setattr("nmt.recipes.prepare.prepare", recipe)
    return recipe


def test_the_flags_reach_the_recipe(prepare: Mock) -> None:
    arguments = ["--set", "name=other", "--report-only", "--force", "-q"]
    arguments += ["--report", "there", "--workers", "3", "--scheduler", "local", "--repair"]
    result = CliRunner().invoke(app, ["prepare", DEMO, *arguments])

    assert (result.exit_code, result.stdout) == (0, "3 pairs kept\n")
    (config,), options = prepare.call_args
    assert config.name == "other"
    assert options == {
        "force": True, "report_only": True, "report_dir": Path("there"),
        "workers": 3, "scheduler": "local", "repair": True,
    }  # fmt: skip


@pytest.mark.usefixtures("prepare")
def test_json_is_one_object_on_one_line() -> None:
    result = CliRunner().invoke(app, ["prepare", DEMO, "--json", "--quiet"])

    assert json.loads(result.stdout) == REPORT
    assert result.stdout.count("\n") == 1
    assert "größe" in result.stdout
