"""Ensembles and MBR as a user of ``nmt translate`` and ``nmt evaluate`` sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nmt.cli.app import app
from nmt.text.tokenizer import load_tokenizers
from tests.translation.conftest import sentences
from tests.translation.models import run_config, save_run, small_model, train_tokenizer

LINES = ["", *sentences(9, seed=4, longest=8)]
FLAGS = ("--device", "cpu", "--threads", "1", "--no-guard")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of two models over one vocabulary, and one over another."""
    place = tmp_path_factory.mktemp("runs")
    made = {"a": ("plain", 0), "b": ("modern", 0), "other": ("plain", 1)}
    found: dict[str, Path] = {}
    for seed in (0, 1):
        train_tokenizer(place / f"tokenizer-{seed}", seed)
    for name, (shape, seed) in made.items():
        words = place / f"tokenizer-{seed}"
        found[name] = save_run(
            place / name, small_model(load_tokenizers(words), shape), words, run_config()
        )
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A test set."""
    place = tmp_path_factory.mktemp("files")
    for name, seed in (("source", 4), ("reference", 5)):
        (place / name).write_text("\n".join(sentences(9, seed=seed, longest=8)) + "\n", "utf-8")
    return ("--source", str(place / "source"), "--reference", str(place / "reference"))


def call(command: str, run: Path, *arguments: object) -> Result:
    flags = [str(argument) for argument in (run, *FLAGS, *arguments)]
    text = "\n".join(LINES) if command == "translate" else None
    return CliRunner().invoke(app, [command, *flags], input=text)


def translated(run: Path, *arguments: object) -> list[str]:
    result = call("translate", run, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout.split("\n")[:-1]


def evaluated(run: Path, *arguments: object) -> tuple[list[float], str]:
    """The scores, and what was said."""
    result = call("evaluate", run, "--json", "--resamples", 0, *arguments)
    assert result.exit_code == 0, result.stderr
    (system,) = json.loads(result.stdout)["systems"]
    return [score["value"] for score in system["scores"]], result.stderr


def test_several_models_translate_together(runs: dict[str, Path]) -> None:
    alone, together = translated(runs["a"]), translated(runs["a"], "--with", runs["b"])
    assert len(together) == len(LINES)
    assert alone != together
    assert translated(runs["a"], "--with", runs["b"], "--weights", "1,0") == alone
    assert translated(runs["a"], "--with", runs["a"]) == alone
    assert translated(runs["b"], "--with", runs["a"], "--weights", "2,2") == together
    geometric = ("--ensemble-mean", "geometric")
    assert len(translated(runs["a"], "--with", runs["b"], "--with", runs["b"], *geometric)) == 10


def test_models_that_do_not_go_together_are_refused(runs: dict[str, Path]) -> None:
    result = call("translate", runs["a"], "--with", runs["other"])
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith(f"error: {runs['other']} has other languages or another voc")
    result = call("translate", runs["a"], "--with", runs["b"], "--weights", "1,2,3")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "3 weights (1,2,3) for 2 models" in result.stderr
    result = call("translate", runs["a"], "--weights", "1,2")
    assert "2 weights (1,2) for 1 model." in result.stderr


@pytest.mark.parametrize("mbr", [(), ("--mbr", "bleu", "--mbr-candidates", 8)])
def test_what_is_evaluated_is_what_translate_gives(
    runs: dict[str, Path], files: tuple[str, ...], tmp_path: Path, mbr: tuple[object, ...]
) -> None:
    flags = ("--with", runs["b"], "--weights", "1,2", *mbr)
    evaluated(runs["a"], *files, *flags, "--save-hypotheses", tmp_path / "out")
    found = (tmp_path / "out").read_text("utf-8").split("\n")[:-1]
    assert found == translated(runs["a"], *flags)[1:]
    assert found != translated(runs["a"])[1:]


@pytest.mark.parametrize("flags", [(), ("--mbr-from", "beam")])
@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_mbr_gives_a_line_for_each_line(
    runs: dict[str, Path], metric: str, flags: tuple[str, ...]
) -> None:
    found = translated(runs["a"], "--mbr", metric, "--mbr-candidates", 8, *flags)
    assert len(found) == len(LINES)
    assert found == translated(runs["a"], "--mbr", metric, "--mbr-candidates", 8, *flags)
    lines = translated(
        runs["a"], "--mbr", metric, "--mbr-candidates", 8, "--n-best", 2, "--format", "json", *flags
    )
    parsed = [json.loads(line) for line in lines]
    assert [item["translation"] for item in parsed] == found
    assert {len(item["alternatives"]) for item in parsed[1:]} <= {1, 2}  # samples may be equal
    assert len(parsed[0]["alternatives"]) == 0
    assert max(len(item["alternatives"]) for item in parsed) == 2


def test_a_metric_that_chose_is_called_optimistic(
    runs: dict[str, Path], files: tuple[str, ...]
) -> None:
    few = ("--mbr-candidates", 4)
    _, said = evaluated(runs["a"], *files, "--mbr", "chrf", *few)
    assert "nmt: warning: MBR with chrF was asked for, so chrF is optimistic" in said
    _, said = evaluated(runs["a"], *files, "--mbr", "bleu", "--metric", "chrf", *few)
    assert "optimistic" not in said
    _, said = evaluated(
        runs["a"], *files, "--mbr", "bleu", "--metric", "chrf", "--fail-under", "bleu=0", *few
    )
    assert "nmt: warning: MBR with BLEU was asked for, so BLEU is optimistic" in said


def test_files_have_no_models_to_join(files: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ["evaluate", "--hypothesis", files[3], "--reference", files[3]]
    for flags in (["--with", str(tmp_path)], ["--mbr", "chrf"]):
        result = CliRunner().invoke(app, [*arguments, *flags])
        assert result.exit_code == 2
        assert f"{flags[0]} needs a model" in result.stderr


def test_candidates_beyond_the_widest_beam_are_refused(runs: dict[str, Path]) -> None:
    flags = ("--mbr", "chrf", "--mbr-from", "beam", "--mbr-candidates", 1000)
    result = call("translate", runs["a"], *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "beam_size is 1000" in result.stderr


@pytest.mark.parametrize("flags", [(), ("--mbr-from", "beam")])
def test_the_number_of_candidates_is_not_said_as_a_beam(
    runs: dict[str, Path], flags: tuple[str, ...]
) -> None:
    result = call("translate", runs["a"], "--mbr", "chrf", "--beam-size", 7, *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--beam-size 7 does not go with --mbr" in result.stderr
    assert "--mbr-candidates" in result.stderr
