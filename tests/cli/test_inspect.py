"""The command ``nmt inspect``."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest
from typer.testing import CliRunner, Result

from nmt.cli.app import app
from nmt.extras.exchange.ctranslate2 import MODEL
from nmt.extras.inspection.options import NOT_IN_PAGE, VIEWS
from tests.cli.commands import refused

HELLO = Path(__file__).parents[2] / "configs" / "hello.yaml"
SENTENCE = "Ein Hund läuft."
ATTACK = "<img src=x onerror=a()>"


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def shown(*arguments: object) -> str:
    result = inspect(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_page_has_every_part_of_one_sentence(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    printed = shown(runs["plain"], "--source", ATTACK, "-o", page)
    text = page.read_text(encoding="utf-8")
    assert printed == ""
    for name in VIEWS:
        assert (f'<section id="{name}">' in text) == (name not in NOT_IN_PAGE)
    assert f"nmt inspect {runs['plain']} heads" in text
    assert "<img" not in text
    assert "&lt;img src=x onerror=a()&gt;" in text


def test_the_ending_of_the_file_sets_the_format(runs: dict[str, Path], tmp_path: Path) -> None:
    for name, start in {"a.svg": "<svg ", "a.json": '{"title"', "a.htm": "<!DOCTYPE html>"}.items():
        shown(runs["plain"], "flow", "--source", SENTENCE, "-o", tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_without_a_sentence_the_command_mentions_source(runs: dict[str, Path]) -> None:
    note = "nmt: for more views, add --source SENTENCE; for a page, add --output page.html\n"
    assert inspect(runs["plain"]).stderr.endswith(note)
    for more in (("positions",), ("--source", SENTENCE), ("--format", "json")):
        assert note not in inspect(runs["plain"], *more).stderr
    assert note not in inspect(HELLO).stderr


def test_a_configuration_and_worked_examples_are_shown_without_a_model() -> None:
    assert "width 6" in shown(HELLO, "positions", "--set", "model.model_dim=6")
    assert "1,050,624" in shown("--worked-examples")
    refused(inspect("--worked-examples", "--source", SENTENCE), 2, "--source has no effect")
    refused(inspect(HELLO, "positions", "--checkpoint", "best"), 2, "--checkpoint has no effect")
    assert "(1, 2, 3, 2)" in shown(HELLO, "shapes", "--source", "je suis")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["attention"], 2, "--source"),
        (["attention", "--source", SENTENCE, "--layer", "99"], 2, "1 to 1"),
        (["score", "--source", SENTENCE, "--head", "7"], 2, "1 to "),
        (["parameters", "--limit", "3"], 2, "--limit has no effect in parameters"),
        (["heads", "--source", SENTENCE], 2, "--source has no effect in heads"),
        (["diagram", "--set", "decoding.beam_size=2"], 2, "--set has no effect in diagram"),
        (["--limit", "3"], 2, "--limit has no effect on this page"),
        (["--head", "1"], 2, "--head has no effect on this page"),  # there is no sentence
        (["--worked-examples"], 2, "MODEL cannot be combined"),
        (["parameters", "-o", "p.svg", "--format", "html"], 2, "the ending .svg does not match"),
        (["atention", "--source", SENTENCE], 2, "attention"),
        (["trace", "--source", "Hund " * 200], 2, "at most 32"),
        (["shapes", "--source", SENTENCE, "--target", ""], 2, "--target has no tokens"),
        (["shapes", "--source", SENTENCE, "--set", "model.model_dim=8"], 2, "has no effect"),
        (["distributions", "--source", SENTENCE, "--checkpoint", "step-7"], 4, "has step-00000001"),
    ],
)
def test_wrong_arguments_are_errors(
    runs: dict[str, Path], arguments: list[str], exit_code: int, words: str
) -> None:
    refused(inspect(runs["plain"], *arguments), exit_code, words)


def test_a_ctranslate2_export_has_only_structure(runs: dict[str, Path], tmp_path: Path) -> None:
    export = tmp_path / "export"
    copytree(runs["plain"], export)
    (export / MODEL).touch()
    refused(inspect(export, "attention", "--source", SENTENCE), 4, "CTranslate2")
    assert "parameters" in shown(export, "parameters")


def test_the_model_is_required(tmp_path: Path) -> None:
    refused(inspect(), 2, "MODEL is missing")
    refused(inspect(tmp_path, "parameters"), 4, "config.yaml")
