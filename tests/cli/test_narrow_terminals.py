"""What commands print fits the terminal; a pipe gets each message on one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from tests.terminal import printed

COLUMNS = [60, 80]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two systems, a reference, and a configuration with a long problem."""
    for name in ("first", "second", "reference"):
        lines = (f"line {number} of the system {name}\n" for number in range(20))
        (tmp_path / f"{name}.en").write_text("".join(lines))
    (tmp_path / "wrong.yaml").write_text("training: {lr: 3}\n")
    return tmp_path


@pytest.mark.parametrize("columns", COLUMNS)
def test_an_error_is_wrapped_between_words(folder: Path, columns: int) -> None:
    rows = printed(folder, columns, "config", "check", "wrong.yaml")
    assert max(map(len, rows)) <= columns
    piped = CliRunner().invoke(app, ["config", "check", str(folder / "wrong.yaml")]).stderr
    assert max(map(len, piped.splitlines())) > columns
    assert " ".join(rows).split() == piped.replace(f"{folder}/", "").split()


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_table_of_scores_keeps_all_numbers(
    folder: Path, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    metrics = [word for name in ("bleu", "chrf", "ter") for word in ("--metric", name)]
    systems = ["--hypothesis", "first.en", "--hypothesis", "second.en", "--baseline", "first.en"]
    words = ["evaluate", *systems, "--reference", "reference.en", *metrics]
    rows = printed(folder, columns, *words)
    piped = CliRunner().invoke(app, words).stdout.splitlines()
    assert max(map(len, piped)) > columns
    tables = "\n".join(rows)
    (second,) = (row for row in piped if row.startswith("second.en"))
    for cell in second.split("  ")[1:]:
        assert cell.strip() in tables
    names = [row.split("  ")[0] for row in rows if row.startswith("second.en ")]
    assert len(names) > 1  # one row in each table
    assert max(map(len, rows)) <= columns
    signatures = [
        row.removeprefix("BLEU").strip() for row in piped if row.startswith("BLEU  nrefs")
    ]
    assert signatures[0] in "".join(row.strip() for row in rows)  # broken, but complete


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_help_of_the_program_fits(folder: Path, columns: int) -> None:
    rows = printed(folder, columns, "--help")
    assert max(map(len, rows)) <= columns
    assert "Exit codes:" in {row.strip() for row in rows}


@pytest.mark.parametrize("columns", COLUMNS)
def test_examples_of_the_help_are_commands_of_several_rows(folder: Path, columns: int) -> None:
    rows = printed(folder, columns, "prepare", "--help")
    assert max(map(len, rows)) <= columns
    text = "\n".join(rows).partition("Examples:")[2].replace("\\\n", "")
    example = "nmt prepare configs/demo.yaml --set tokenizer.vocab_size=500 --report-only"
    assert shlex.split(example) in [
        shlex.split(row)[:6] for row in text.splitlines() if "500" in row
    ]
