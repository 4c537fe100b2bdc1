"""An output file never replaces a text that the command or its model needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.config.loader import dump_config
from tests.inference.models import run_config

SOURCE, TARGET = Path("a.de"), Path("a.en")  # what the configuration of the models names
LINES = "w1 w2\nw3\n"


@pytest.fixture
def run(runs: dict[str, Path]) -> Path:
    for path in (SOURCE, TARGET, Path("in.txt"), Path("old.txt")):
        path.write_text(LINES)
    return runs["plain"]


def refused(*arguments: object) -> str:
    """What is said; the texts are as before."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert {path.read_text() for path in (SOURCE, TARGET, Path("in.txt"))} == {LINES}
    return result.stderr


def writing(run: Path) -> dict[str, list[object]]:
    """Commands without their output."""
    usual = [run, "--device", "cpu", "--threads", 1]
    return {
        "translate": ["translate", *usual, "in.txt", "--beam-size", 1, "--output"],
        "score": ["score", *usual, "--source", "in.txt", "--target", "in.txt", "--output"],
        "evaluate": [
            "evaluate", *usual, "--source", "in.txt", "--reference", "in.txt", "--beam-size", 1,
            "--resamples", 0, "--save-hypotheses",
        ],
        "augment": ["augment", "in.txt", "--model", run, "--output"],
        "distill": ["distill", run, "in.txt", "--valid", "in.txt", "in.txt", "--output"],
        "export": ["export", run, "--output"],
        "average": ["average", run, "--output"],
    }  # fmt: skip


@pytest.mark.parametrize("command", ["translate", "score", "evaluate"])
def test_no_output_is_a_text_that_the_configuration_of_a_model_names(
    run: Path, command: str
) -> None:
    for text in (SOURCE, TARGET):
        said = refused(*writing(run)[command], text)
        assert f"{text} is a text of the corpora or test sets in {run / 'config.yaml'}" in said
        assert "Choose another output file" in said


@pytest.mark.parametrize("command", ["translate", "score", "evaluate"])
def test_any_other_file_is_replaced(run: Path, command: str) -> None:
    result = CliRunner().invoke(app, list(map(str, [*writing(run)[command], "old.txt"])))
    assert result.exit_code == 0, result.stderr
    assert Path("old.txt").read_text() not in ("", LINES)


def test_the_texts_of_all_models_of_an_ensemble_are_safe(run: Path) -> None:
    other = [*writing(Path("imported"))["translate"][2:-1], "--with", run]
    Path("imported").mkdir()
    assert "a text of the corpora" in refused("translate", "imported", *other, "-o", SOURCE)


def test_the_texts_of_a_configuration_are_safe() -> None:
    pytest.importorskip("nmt.extras.inspection")
    Path("a.txt").write_text(LINES)
    text = dump_config(run_config()).replace("a.de", "a.txt")
    Path("mine.yaml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["inspect", "mine.yaml", "parameters", "-o", "a.txt"])
    assert result.exit_code == 2
    assert "a.txt is a text of the corpora or test sets in mine.yaml" in result.stderr
    assert Path("a.txt").read_text() == LINES


@pytest.mark.parametrize("command", ["augment", "distill", "export", "average"])
def test_no_folder_replaces_a_file(run: Path, command: str) -> None:
    extra = {"distill": "nmt.extras.distillation", "export": "nmt.extras.exchange"}
    pytest.importorskip(extra.get(command, "nmt"))
    for text in (SOURCE, Path("in.txt")):
        assert str(text) in refused(*writing(run)[command], text)
