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
DEMO_IS_GOOD = (
    f"{DEMO}: good\n  no open key follows the size of the training text, because model.preset is"
    " set: open keys have the general defaults\n"
)


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
    assert result.stdout == DEMO_IS_GOOD
    assert result.stderr.count("unknown key naem; did you mean name?") == 2
    for override in ("training.sead=5", "training.seed=abc", "nonsense"):  # FAULTS 49
        result = CliRunner().invoke(app, ["config", "check", str(DEMO), "--set", override])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"error: --set {override}: " in result.stderr


@pytest.mark.parametrize(
    ("parts", "unknown"), [("encoder.0", ""), ("encoder.0,encoder.99,head", "'encoder.99', 'head'")]
)
def test_check_knows_the_parts_that_can_be_frozen(parts: str, unknown: str) -> None:
    override = f"training.freeze=[{parts}]"
    result = CliRunner().invoke(app, ["config", "check", str(DEMO), "--set", override])
    assert result.exit_code == (2 if unknown else 0)
    assert unknown in result.stderr


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
    for key in ("train.0.source", "train.1.source", "valid.source", "test.t.path"):
        assert f"data.{key}: {tmp_path}" in result.stderr
    is_good = not others and bool(training)  # they may be on the machine that trains
    assert result.exit_code == (0 if is_good else 2)
    assert result.stdout.endswith(DEMO_IS_GOOD)
    assert result.stdout.startswith(f"{path}: good\n") == is_good
    assert (f"{path}: " in result.stdout) == is_good
    if others:
        assert "unknown key tokenizer.vocab;" in result.stderr
        assert "model.dropout is 3" in result.stderr
        assert "6 problems in the configuration" in result.stderr


@pytest.mark.parametrize("key", ["tokenizer.from", "training.init_from"])
def test_check_names_a_model_that_does_not_exist(tmp_path: Path, key: str) -> None:
    override = f"{key}={tmp_path / 'own.model'}"
    result = CliRunner().invoke(app, ["config", "check", str(DEMO), "--set", override])
    assert result.exit_code == 0  # it may be on the machine that prepares the data or trains
    assert f"{key}: {tmp_path / 'own.model'} does not exist." in result.stderr


def test_check_says_what_is_chosen_for_the_text_and_why(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    (tmp_path / "a.de").write_text("ein Haus\nja\n", "utf-8")
    (tmp_path / "a.en").write_text("a house\nyes\n", "utf-8")
    corpus = "{source: '@config/a.de', target: '@config/a.en'}"
    path.write_text(
        "{name: c, source_language: de, target_language: en, training: {max_minutes: 3},"
        f" data: {{train: [{corpus}], valid: {corpus}}}}}", "utf-8"
    )  # fmt: skip
    result = CliRunner().invoke(app, ["config", "check", str(path), "--set", "model.dropout=0.2"])
    good, reason, *values = result.stdout.splitlines()
    assert good == f"{path}: good"
    assert "2 pairs with 24 characters (size 1 of 4: up to 1,000,000 characters)" in reason
    assert "    model.preset: tiny" in values
    assert "    tokenizer.vocab_size: 2000" in values
    # The keys that the user sets are not listed.
    assert not [line for line in values if "dropout" in line or "max_minutes" in line]
    # Where the values are used, they are logged.
    shown = CliRunner().invoke(app, ["config", "show", str(path)])
    assert "24 characters (size 1 of 4" in shown.stderr
    assert "model.preset tiny" in shown.stderr
    config = yaml.safe_load(shown.stdout)
    for line in values:
        key, value = line.strip().split(": ")
        found = config
        for name in key.split("."):
            found = found[name]
        assert str(found) == value


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
