"""Robustness, contrastive pairs and confidence against hand-worked numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from nmt.commands.evaluation_set import EvaluationSet
from nmt.errors import DataError
from nmt.extras.analysis.confidence import confidence_quality, confidence_section
from nmt.extras.analysis.reports import as_markdown
from nmt.extras.analysis.robustness import (
    JOINED,
    SPLIT,
    Contrastive,
    load_scorer,
    noisy_sources,
    robustness_section,
)
from nmt.inference.request import Result
from nmt.metrics.metric import MetricOptions, MetricScorer, Score
from nmt.metrics.result import Evaluation, EvaluationReport, ReportSection, System
from nmt.metrics.scoring import Resampling
from nmt.text.noise import NOISES

LINES = [f"Sentence number {n} of a small test set, with words." for n in range(7)]


@given(st.lists(st.text("ab ", max_size=12), min_size=1, max_size=7), st.integers(0, 9))
def test_outputs_are_joined_to_the_scored_lines(lines: list[str], seed: int) -> None:
    for noisy in noisy_sources(lines, " ", seed):
        outputs = noisy.outputs(noisy.lines, " ")
        assert len(outputs) == len(noisy.scored(lines, " "))
        if noisy.noise in (JOINED, SPLIT):  # a copying model loses nothing by them
            assert list(outputs) == list(noisy.scored(lines, " "))


class Copier:
    """A model that copies its source."""

    config = SimpleNamespace(languages=("en", "de"))

    def translate(self, _name: str, lines: list[str], _test: EvaluationSet) -> System:
        return System("copy", lines)


class Joiner(Copier):
    """A model that translates into a language without spaces."""

    config = SimpleNamespace(languages=("en", "ja"))

    def __init__(self) -> None:
        self.asked: dict[str, list[str]] = {}

    def translate(self, name: str, lines: list[str], _test: EvaluationSet) -> System:
        self.asked[name] = list(lines)
        return System("copy", [line.replace(" ", "") for line in lines])


def robustness(
    metrics: tuple[str, ...] = ("chrf",), resamples: int = 50, model: Copier | None = None
) -> ReportSection:
    model = model or Copier()
    test = EvaluationSet(name="set", source=tuple(LINES), references=(tuple(LINES),))
    system = model.translate("clean", LINES, test)
    test = replace(test, references=(tuple(system.lines),))
    scored: Any = SimpleNamespace(
        test=test,
        models=[model],
        systems=[system],
        resampling=Resampling(resamples),
        make_scorers=lambda references, _: [
            MetricScorer(x, references, MetricOptions()) for x in metrics
        ],
    )
    return robustness_section(scored)


def test_a_copying_system_loses_what_the_noise_changes() -> None:
    section = robustness(("chrf", "ter"))
    losses = {each["noise"] + each["metric"]: each for each in section.values}
    assert len(losses) == 2 * (len(NOISES) + 2)
    assert losses["joinedchrf"]["loss"] == losses["splitchrf"]["loss"] == 0
    chrf, ter = losses["upper-casechrf"], losses["upper-caseter"]
    assert chrf["loss"] == pytest.approx(chrf["clean"] - chrf["noisy"])
    assert chrf["confidence"]["low"] > 0
    assert ter["loss"] == pytest.approx(ter["noisy"] - ter["clean"])
    assert losses["spacingter"]["confidence"]["low"] > 0  # more errors are a loss
    head, *rows = section.rows
    assert head == ["system", "noise", "chrF", "TER"]
    assert not any("-0.00" in cell for row in rows for cell in row)  # TER ignores case
    (shown,) = (row[2] for row in rows if row[1] == "upper-case")
    assert shown.startswith(f"100.00 -> {chrf['noisy']:.2f}, loss {chrf['loss']:.2f} ± ")
    assert "confidence" not in robustness(resamples=0).values[0]
    assert robustness() == robustness()


def test_lines_are_joined_as_their_language_joins_sentences() -> None:
    model = Joiner()
    losses = {each["noise"]: each["loss"] for each in robustness(("ter",), 0, model).values}
    assert losses["joined"] == losses["split"] == 0
    assert model.asked["set (joined)"][0] == f"{LINES[0]} {LINES[1]}"


def test_pairs_are_scored_by_the_model_that_was_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"device": "cpu", "checkpoint": "last", "threads": 2, "ensemble": None}
    model: Any = SimpleNamespace(folder="run", loading={**options, "engine": "auto", "split": True})
    scorer = SimpleNamespace(load=lambda folder, **own: (folder, own))
    monkeypatch.setattr("nmt.extras.analysis.robustness.load_attribute", lambda _: scorer)
    found: Any = load_scorer(model)
    assert found == ("run", options)


def test_accuracy_counts_higher_scores_but_not_ties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = SimpleNamespace(
        score=lambda pairs: [SimpleNamespace(score=len(target)) for _, target in pairs]
    )
    monkeypatch.setattr("nmt.extras.analysis.robustness.load_scorer", lambda _: scorer)
    path, model = tmp_path / "pairs.tsv", SimpleNamespace(name="m")
    path.write_text("a\tlonger\tx\tlength\nb\ty\tlonger\tlength\nc\tsame\tsame\ttie\nd\tzz\tz\n")
    section = Contrastive(path)([cast("Any", model)])
    assert section.rows == [
        ["system", "contrastive pairs", "number", "accuracy"],
        ["m", "all", "4", "50.0%"], ["m", "length", "2", "50.0%"], ["m", "tie", "1", "0.0%"],
    ]  # fmt: skip
    assert section.values[0]["num_correct"] == 2
    both = Contrastive(path)([cast("Any", model), cast("Any", SimpleNamespace(name="n"))])
    assert [row[0] for row in both.rows] == ["system", *["m"] * 3, *["n"] * 3]
    for wrong in ("a\tb\n", "a\t\tc\n", "a\tb\tc\td\te\n"):
        for before in range(3):
            path.write_text("a\tb\tc\n" * before + wrong)
            with pytest.raises(DataError, match=rf"pairs\.tsv, line {before + 1}:"):
                Contrastive(path)
    path.write_text("")
    with pytest.raises(DataError, match=r"pairs\.tsv"):
        Contrastive(path)


REFERENCE = "a small dog runs over the green grass"
WORDS = REFERENCE.split()
OUTPUTS = [" ".join(WORDS[: 1 + number % 8]) for number in range(40)]


def system(offset: float, num_known: int = 40) -> System:
    """Confidence is the sentence chrF itself, and so much more."""
    metric = CHRF()
    results = [
        Result(
            "s", text, 0.0,
            confidence=metric.sentence_score(text, [REFERENCE]).score + offset
            if number < num_known else None,
        )
        for number, text in enumerate(OUTPUTS)
    ]  # fmt: skip
    scores = (Score(metric="chrf", value=50.0, signature="s"),)
    return System("model", OUTPUTS, scores=scores, results=results)


def test_a_constant_error_is_the_calibration_error() -> None:
    """Lines without confidence are left out, and few say nothing."""
    found = confidence_quality(system(7.0), [[REFERENCE] * 40])
    assert found is not None
    assert [found["pearson"], found["spearman"]] == pytest.approx([1, 1])
    assert found["calibration_error"] == pytest.approx(7)
    assert [one - other for one, other in found["deciles"]] == pytest.approx([7] * 10)
    assert [one for one, _ in found["deciles"]] == sorted(one for one, _ in found["deciles"])
    for num_known, expected in ((31, 31), (29, None)):
        found = confidence_quality(system(0.0, num_known), [[REFERENCE] * 40])
        assert (found and found["num_sentences"]) == expected
    same = replace(system(0.0), lines=[REFERENCE] * 40)
    assert confidence_quality(same, [[REFERENCE] * 40]) is None


def test_confidence_is_compared_with_the_reference_of_its_own_line() -> None:
    """Every second line has no confidence, and other references."""
    references = [f"{REFERENCE} {WORDS[row % 8] * 3}" for row in range(80)]
    lines = [" ".join(text.split()[: 1 + row % 9]) for row, text in enumerate(references)]
    results = [Result("s", line, 0.0) for line in lines]
    for row in range(1, 80, 2):
        known = CHRF().sentence_score(lines[row], [references[row]]).score + 7
        results[row] = replace(results[row], confidence=known)
    found = confidence_quality(System("model", lines, results=results), [references])
    assert found is not None
    assert found["num_sentences"] == 40
    assert [found["pearson"], found["calibration_error"]] == pytest.approx([1, 7])


def test_every_output_shows_the_confidence() -> None:
    own, references = system(7.0), [[REFERENCE] * 40]
    scored: Any = SimpleNamespace(systems=[own], test=SimpleNamespace(references=references))
    section = confidence_section(scored)
    assert section is not None
    each = Evaluation(test="set", references=references, systems=(own,), sections=(section,))
    report = EvaluationReport(evaluations=(each,))
    assert "model       40         1.000    1.000     7.00 chrF" in report.as_text()
    assert "| model | 40 | 1.000 | 1.000 | 7.00 chrF |" in as_markdown(report)
    (test_set,) = json.loads(json.dumps(report.as_dict()))["test_sets"]
    (found,) = test_set["confidence"]
    assert found["calibration_error"] == pytest.approx(7)
    assert next(iter(each.sentences()))["confidence"] == own.results[0].confidence
