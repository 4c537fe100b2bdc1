from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.commands.prepare_options import PrepareOptions
from tests.cli.commands import refused

DEMO = str(Path(__file__).parents[2] / "configs" / "demo.yaml")
REPORT = {"kept": 3, "folder": "prepared/größe"}


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Mock:
    recipe = Mock()
    recipe.return_value.as_dict.return_value = REPORT
    recipe.return_value.as_text.return_value = "3 pairs kept"
    recipe.return_value.failure = None
    monkeypatch.setattr("nmt.commands.prepare.prepare", recipe)
    return recipe


def test_the_flags_become_options(prepare: Mock) -> None:
    arguments = ["--set", "name=other", "--report-only", "--force", "-q"]
    arguments += ["--report", "there", "--workers", "3", "--scheduler", "local"]
    arguments += ["--score-with", "runs/a,runs/b"]
    result = CliRunner().invoke(app, ["prepare", DEMO, *arguments])

    assert (result.exit_code, result.stdout) == (0, "3 pairs kept\n")
    prepare.assert_called_once_with(
        PrepareOptions(
            config=Path(DEMO), set_=("name=other",), report_only=True, force=True,
            report=Path("there"), workers=3, scheduler="local",
            score_with=(Path("runs/a"), Path("runs/b")),
        )
    )  # fmt: skip


@pytest.mark.usefixtures("prepare")
def test_json_is_one_object_on_one_line() -> None:
    result = CliRunner().invoke(app, ["prepare", DEMO, "--json", "--quiet"])
    assert json.loads(result.stdout) == REPORT
    assert result.stdout.count("\n") == 1
    assert "größe" in result.stdout


def test_verify_is_done_alone(tmp_path: Path) -> None:
    refused(CliRunner().invoke(app, ["prepare", DEMO, "--verify", "--force"]), 2, "--verify")
    arguments = ["prepare", DEMO, "--verify", "--set", f"prepared_dir={tmp_path / 'none'}"]
    refused(CliRunner().invoke(app, arguments), 3, "no prepared data")


def test_standard_input_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("".join(f"{n} eins\t{n} one\n" for n in range(60)))
    flags = [f"{part}_dir={tmp_path / part}" for part in ("prepared", "run")]
    flags += ["data={train: [{tsv: -}], valid: {tsv: train.tsv}}", "tokenizer.vocab_size=40"]
    flags += ["tokenizer.byte_fallback=false", "training.max_steps=1"]
    arguments = [word for each in flags for word in ("--set", each)]
    text = (tmp_path / "train.tsv").read_bytes()

    early = CliRunner().invoke(app, ["train", DEMO, *arguments], input=text)
    refused(early, 2, "standard input", "nmt prepare CONFIG < FILE")
    result = CliRunner().invoke(app, ["prepare", DEMO, *arguments], input=text)
    assert result.exit_code == 0, result.stderr
    assert "standard input: 60 pairs read, 60 kept" in result.stdout
