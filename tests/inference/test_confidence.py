"""Confidence: fitted when training ends, kept in the model folder, written beside translations."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.checkpoint.model_folder import CONFIDENCE
from nmt.commands.evaluation_set import rows_in_training
from nmt.commands.options import TranslateOptions
from nmt.commands.train import fit
from nmt.commands.translate import translate
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError
from nmt.inference import confidence
from nmt.inference.confidence import (
    ConfidenceModel,
    Term,
    calibrate_confidence,
    features,
    fit_confidence,
    read_confidence,
)
from nmt.inference.request import Request, Result
from nmt.inference.translator import Translator
from tests.training.toy import make_config, write_corpus


def result(mean: float = -0.5, tokens: int = 8, source: int = 30, text: int = 30) -> Result:
    log_prob = mean * tokens
    return Result("s" * source, "t" * text, mean, log_prob=log_prob, num_tokens=tokens)


def drawn(count: int) -> list[Result]:
    draw = random.Random(1)
    return [
        result(-draw.random(), draw.randint(2, 30), draw.randint(5, 90), draw.randint(5, 90))
        for _ in range(count)
    ]


def test_a_score_linear_in_the_features_is_predicted() -> None:
    """90 + 40 times the mean log probability, with noise of deviation 5, from 500 lines."""
    results, noise = drawn(1000), np.random.default_rng(1).normal(0, 5, 1000)
    scores = [90 + 40 * each.score + x for each, x in zip(results, noise, strict=True)]
    fitted = fit_confidence(results[:500], scores[:500])
    pairs = [(fitted.rate(each).confidence, 90 + 40 * each.score) for each in results[500:]]
    errors = np.array([found - wanted for found, wanted in pairs if found is not None])
    assert fitted.num_lines == 500
    assert len(errors) > 470
    assert np.sqrt((errors**2).mean()) < 2
    alike = fit_confidence([result()] * 100, [40.0] * 100)  # which is no fault
    assert alike.rate(result()).confidence == pytest.approx(40)


LINEAR = ConfidenceModel(
    intercept=10.0,
    log_prob=Term(weight=20.0, low=-2.0, high=0.0),
    probability=Term(weight=50.0, low=0.0, high=1.0),
    length=Term(weight=3.0, low=0.0, high=4.0),
    ratio=Term(weight=-5.0, low=-1.0, high=1.0),
    num_lines=100,
)


def test_the_estimate_is_the_sum_of_its_terms() -> None:
    """10 - 20 * 0.5 + 50 * exp(-0.5) + 3 * ln 8 - 5 * ln(40 / 20)."""
    expected = 10 - 10 + 50 * math.exp(-0.5) + 3 * math.log(8) - 5 * math.log(2)
    rated = LINEAR.rate(result(-0.5, 8, source=10, text=30))
    assert (rated.confidence, rated.unrated) == (round(expected, 2), None)
    assert LINEAR.rate(Result("", "", 0.0)) == Result("", "", 0.0)
    for intercept, most in ((500.0, 100), (-500.0, 0)):
        assert replace(LINEAR, intercept=intercept).rate(result()).confidence == most


@pytest.mark.parametrize("name", ["log_prob", "probability", "length", "ratio"])
def test_a_translation_is_rated_up_to_the_hard_end_of_each_range(name: str) -> None:
    """The ends belong to the range. Beyond the easy end, a line is rated like the easiest one."""
    easy = {"log_prob": "high", "probability": "high", "length": "low"}.get(name)
    given, names = result(), ("log_prob", "probability", "length", "ratio")
    (value,) = [x for x, each in zip(features(given), names, strict=True) if each == name]
    for low, high, beyond in (
        (value, value + 1, None), (value - 1, value, None),
        (value + 1e-3, value + 1, "low"), (value - 1, value - 1e-3, "high"),
    ):  # fmt: skip
        term = Term(weight=1e3, low=round(low, 6), high=round(high, 6))
        changed: Any = {name: term}
        rated = replace(LINEAR, intercept=50 - 1e3 * value, **changed).rate(given)
        if beyond in (None, easy):
            assert rated.unrated is None
            end = {"low": low, "high": high, None: value}[beyond]
            expected = (LINEAR.rate(given).confidence or 0) - 10 + 50
            own = getattr(LINEAR, name).weight * value
            assert rated.confidence == pytest.approx(expected - own + 1e3 * (end - value), abs=0.02)
        else:
            assert (rated.confidence, rated.unrated) == (None, name)
            assert rated.as_dict()["unrated"] == name


def test_a_file_is_read_as_written_and_a_damaged_file_is_reported(tmp_path: Path) -> None:
    assert read_confidence(tmp_path) is None
    path = tmp_path / CONFIDENCE
    path.write_text(LINEAR.text())
    assert read_confidence(tmp_path) == LINEAR
    values = json.loads(LINEAR.text())
    for text in ("{", "[]", json.dumps(values | {"intercept": "1"}), json.dumps({"a": 1})):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=r"confidence\.json is damaged"):
            read_confidence(tmp_path)


def test_confidence_is_fitted_to_lines_of_all_validation_sets(tmp_path: Path) -> None:
    """At most 1,000, evenly spread, and at least 100; blank lines and outputs do not count."""
    asked: list[str] = []

    def answer(lines: Sequence[Request], progress: Callable[[int], object]) -> list[Result]:
        if not asked:
            asked[:] = [line.text for line in lines]
        progress(len(lines))
        draw = random.Random(3)
        said = [replace(result(-draw.random()), text=line.text) for line in lines]
        return [Result("\u200b", "", 0.0), *said[1:]]

    for count, num_asked in ((99, 0), (100, 100), (2500, 1000)):
        sources = [text for row in range(count) for text in (f"line {row}", " ")]
        folder = tmp_path / str(count)
        folder.mkdir()
        asked.clear()
        calibrate_confidence(folder, list(map(Request, sources)), [sources], answer)
        assert len(asked) == num_asked
        fitted = read_confidence(folder)
        assert (fitted is not None) == bool(num_asked)
        if fitted is not None:
            assert fitted.num_lines == num_asked - 1
            rows = [int(text.removeprefix("line ")) for text in asked]
            assert (rows[0], rows[-1]) == (0, count - 1)
            steps = set(np.diff(rows).tolist())
            assert steps <= {count // num_asked, -(-count // num_asked)}


def test_confidence_is_fitted_to_all_references(tmp_path: Path) -> None:
    """Each output agrees with the second reference, as far as there is one."""
    texts = [f"line number {row}" for row in range(100)]

    def answer(lines: Sequence[Request], _: Callable[[int], object]) -> list[Result]:
        return [replace(result(-1.0), text=line.text) for line in lines]

    others = ["xyz"] * 100
    half = [*texts[:50], *[""] * 50]
    for references, expected in (([others, texts], 100.0), ([others, half], 50.0)):
        calibrate_confidence(tmp_path, list(map(Request, texts)), references, answer)
        fitted = read_confidence(tmp_path)
        assert fitted is not None
        results = answer(list(map(Request, texts)), lambda _: None)
        found = [fitted.rate(each).confidence for each in results]
        assert np.mean([each for each in found if each is not None]) == pytest.approx(
            expected, 1e-3
        )


@pytest.mark.parametrize("learned", [True, False])
def test_the_validation_set_decides_how_capitals_are_translated(
    tmp_path: Path, *, learned: bool
) -> None:
    """A model that has not learned capitals answers nonsense to them."""
    texts = [f"line number {row}" for row in range(100)]

    def answer(lines: Sequence[Request], _: Callable[[int], object]) -> list[Result]:
        said = ["???" if line.text.isupper() and not learned else line.text for line in lines]
        return [replace(result(-1.0), text=text) for text in said]

    calibrate_confidence(tmp_path, list(map(Request, texts)), [texts], answer)
    fitted = read_confidence(tmp_path)
    assert fitted is not None
    assert fitted.lower_capitals == (not learned)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run of a few updates that validates on its training lines, in a folder of its own."""
    folder = tmp_path_factory.mktemp("confidence")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_corpus(folder)
        for side in ("de", "en"):
            (folder / f"valid.{side}").write_bytes((folder / f"train.{side}").read_bytes())
        patch.setattr(confidence, "_MAX_TRANSLATED", 120)
        config = make_config(run_dir=str(folder / "run"))
        config = config.model_copy(update={"prepared_dir": folder / "prepared"})
        fit(config)
    return config


def test_the_end_of_training_fits_confidence(run: RunConfig) -> None:
    fitted = read_confidence(run.run_dir)
    assert fitted is not None
    assert fitted.num_lines == 120
    for result in Translator.load(run.run_dir, threads=1).translate(["ab cd", "", "abc"]):
        assert result.source or result.confidence is None
        assert result == fitted.rate(replace(result, confidence=None, unrated=None))


def test_lines_below_the_least_confidence_are_marked(run: RunConfig, tmp_path: Path) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    known_lines = [*dict.fromkeys((run.run_dir.parent / "valid.de").read_text().splitlines())][:9]
    source.write_text("\n".join([*known_lines, "", "j" * 60, ""]))

    def written(**options: Any) -> list[str]:
        files: dict[str, Any] = {"model": run.run_dir, "input": source, "output": output}
        translate(TranslateOptions(**files, threads=1, **options))
        return output.read_text().splitlines()

    lines = [json.loads(line) for line in written(format="json")]
    known = sorted(line["confidence"] for line in lines if line["confidence"] is not None)
    assert None in [line["confidence"] for line in lines if line["source"]]  # letters of no word
    assert "low_confidence" not in lines[0]
    limit = (known[0] + known[1]) / 2
    marked = [json.loads(x)["low_confidence"] for x in written(format="json", min_confidence=limit)]
    rows = [(line["source"], line["confidence"]) for line in lines]
    assert marked == [bool(source) and (x is None or x < limit) for source, x in rows]
    for text, line, mark in zip(written(min_confidence=limit), lines, marked, strict=True):
        assert text == line["translation"] + " ||| low confidence" * mark


def test_min_confidence_that_cannot_be_applied_is_refused(run: RunConfig, tmp_path: Path) -> None:
    options: Any
    for options in ({"alignments": True}, {"n_best": 2}, {"min_confidence": 101.0}):
        with pytest.raises(ConfigError, match="`min_confidence`"):
            TranslateOptions(**{"model": run.run_dir, "min_confidence": 50.0, **options})
    plain, source = Path(shutil.copytree(run.run_dir, tmp_path / "plain")), tmp_path / "in.txt"
    (plain / CONFIDENCE).unlink()
    source.write_text("ab\n")
    with pytest.raises(ConfigError, match=r"no confidence\.json"):
        translate(TranslateOptions(model=plain, input=source, min_confidence=50.0))


def test_lines_of_the_training_data_are_counted_exactly(run: RunConfig) -> None:
    """Of 40 lines 15 are in it, 5 more with a word changed; the rest are of other letters."""
    training = (run.run_dir.parent / "train.de").read_text().splitlines()
    whole = [line for line in dict.fromkeys(training) if len(line.split()) == 5]
    others = ["x" * number + " yy zz vv" for number in range(1, 21)]
    changed = [" ".join(["new", *line.split()[1:]]) for line in whole[15:20]]
    assert rows_in_training(run.run_dir, [*whole[:15], *changed, *others]) == {*range(15)}
