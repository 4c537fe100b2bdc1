from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.commands.config import load_config

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


def test_show_prints_a_configuration_that_loads_to_the_same(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["config", "show", str(DEMO), "--set", "training.seed=5"])
    again = tmp_path / "again.yaml"
    again.write_text(result.stdout, encoding="utf-8")
    assert load_config(again) == load_config(DEMO, ["training.seed=5"])


def test_check_reports_every_file(tmp_path: Path) -> None:
    bad = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in bad:
        path.write_text("naem: x\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["config", "check", str(bad[0]), str(DEMO), str(bad[1])])
    assert result.exit_code == 2
    assert result.stdout == f"{DEMO}: good\n"
    assert result.stderr.count("unknown key naem; did you mean name?") == 2
    for override in ("training.sead=5", "training.seed=abc", "nonsense"):  # FAULTS 49
        result = CliRunner().invoke(app, ["config", "check", str(DEMO), "--set", override])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"error: --set {override}: " in result.stderr


_TRAINING = "training: {max_steps: 5}\n"
_OTHERS = "tokenizer: {vocab: 3}\nmodel: {dropout: 3}\n"


@pytest.mark.parametrize("training", ["", _TRAINING])
@pytest.mark.parametrize("others", ["", _OTHERS])
def test_check_names_missing_files_alone_and_beside_other_problems(
    tmp_path: Path, others: str, training: str
) -> None:
    path, there = tmp_path / "c.yaml", "target: '@config/c.yaml'"
    path.write_text(
        "name: c\nsource_language: de\ntarget_language: en\ndata:\n"
        f"  train: [{{source: '@config/a.de', {there}}}, {{source: '@config/b.de', {there}}}]\n"
        f"  valid: {{source: '@config/v.de', {there}}}\n  test: {{t: {{tsv: '@config/t.tsv'}}}}\n"
        + others + training, "utf-8",
    )  # fmt: skip
    result = CliRunner().invoke(app, ["config", "check", str(path), str(DEMO)])
    for key in ("train.0.source", "train.1.source", "valid.source", "test.t.tsv"):
        assert f"data.{key}: {tmp_path}" in result.stderr
    is_good = not others and bool(training)  # they may be on the machine that trains
    assert result.exit_code == (0 if is_good else 2)
    assert result.stdout == f"{path}: good\n" * is_good + f"{DEMO}: good\n"
    if others:
        assert "unknown key tokenizer.vocab;" in result.stderr
        assert "model.dropout is 3" in result.stderr
        assert "6 problems in the configuration" in result.stderr


@pytest.mark.parametrize("command", [["config", "check"], ["prepare", "--report-only"]])
def test_a_country_is_no_language(command: list[str]) -> None:
    """Also where a run of that name is in the working directory, as after `make demo`."""
    Path("runs/demo/checkpoints").mkdir(parents=True)
    result = CliRunner().invoke(app, [*command, str(DEMO), "--set", "target_language=cz"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "target_language: cz is a country; the code of Czech is cs" in result.stderr


@pytest.mark.parametrize(
    ("languages", "setting", "metric"),
    [
        (["de"], None, "bleu"),
        (["zho_Hans"], None, "chrf"),
        (["jpn"], "bleu", "bleu"),
        (["de", "th"], None, "chrf"),  # one of several validation sets
        (["de", "th"], "loss", "loss"),
    ],
)
def test_show_has_the_metric_that_suits_the_validation_sets_or_that_the_user_sets(
    tmp_path: Path, languages: list[str], setting: str | None, metric: str
) -> None:
    corpora = [{"source": "a", "target": "b", "target_language": code} for code in languages]
    training = {"max_steps": 1, "validation": {"metric": setting}}
    config: dict[str, Any] = {"name": "x", "source_language": "en", "target_language": languages[0]}
    config |= {"data": {"train": corpora, "valid": corpora}, "training": training}
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    result = CliRunner().invoke(app, ["config", "show", str(path)])
    assert yaml.safe_load(result.stdout)["training"]["validation"]["metric"] == metric
