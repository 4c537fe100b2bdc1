"""Ensembles and MBR as a user of ``nmt translate`` and ``nmt evaluate`` sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tests.cli.commands import call as call_model
from tests.cli.commands import lines_of, refused
from tests.conftest import MISSING
from tests.inference.conftest import sentences

LINES = ["", *sentences(9, seed=4, longest=8)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    place = tmp_path_factory.mktemp("files")
    for name, seed in (("source", 4), ("reference", 5)):
        (place / name).write_text("\n".join(sentences(9, seed=seed, longest=8)) + "\n", "utf-8")
    return ("--source", str(place / "source"), "--reference", str(place / "reference"))


def call(command: str, run: Path, *arguments: object) -> Result:
    return call_model(command, run, "--no-guard", *arguments, text="\n".join(LINES))


def translated(run: Path, *arguments: object) -> list[str]:
    return lines_of(call("translate", run, *arguments))


def evaluated(run: Path, *arguments: object) -> str:
    result = call("evaluate", run, "--json", "--resamples", 0, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stderr


def test_a_beam_for_mbr_and_weights_without_an_ensemble_are_refused(runs: dict[str, Path]) -> None:
    mbr = ("translate", runs["plain"], "--mbr", "chrf")
    refused(call(*mbr, "--mbr-candidates", 1000, "--mbr-from", "beam"), 2, "beam_size is 1000")
    words = ("--beam-size 7 cannot be combined with --mbr", "--mbr-candidates")
    refused(call(*mbr, "--beam-size", 7), 2, *words)
    weights = ("--weights", "1,2")  # of one model alone
    refused(call("translate", runs["plain"], *weights), 2, "2 weights (1,2) for 1 model.")


@pytest.mark.parametrize(
    "mbr", [(), ("--mbr", "bleu", "--mbr-candidates", 8), ("--mbr", "chrf", "--mbr-from", "beam")]
)
def test_what_is_evaluated_is_what_translate_gives(
    runs: dict[str, Path], files: tuple[str, ...], tmp_path: Path, mbr: tuple[object, ...]
) -> None:
    flags = ("--with", runs["learned"], "--weights", "1,2", *mbr)
    evaluated(runs["plain"], *files, *flags, "--save-hypotheses", tmp_path / "out")
    found = (tmp_path / "out").read_text("utf-8").split("\n")[:-1]
    assert found == translated(runs["plain"], *flags)[1:]
    assert found != translated(runs["plain"])[1:]


def test_a_metric_that_chose_is_optimistic(runs: dict[str, Path], files: tuple[str, ...]) -> None:
    few = ("--mbr-candidates", 4)
    model: tuple[Any, ...] = (runs["plain"], *files, *few)
    said = evaluated(*model, "--mbr", "chrf")
    assert "nmt: warning: MBR decoding optimizes chrF, so its chrF is too high" in said
    other = ("--mbr", "bleu", "--metric", "chrf")
    assert "optimistic" not in evaluated(*model, *other)
    if "analysis" not in MISSING:
        said = evaluated(*model, *other, "--fail-under", "bleu=0")
        assert "nmt: warning: MBR decoding optimizes BLEU, so its BLEU is too high" in said
