"""How well confidence predicts: correlations and calibration error, against hand-worked numbers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF

from nmt.extras.analysis.confidence import (
    confidence_quality,
    confidence_section,
    correlation,
    ranks,
)
from nmt.extras.analysis.reports import as_markdown
from nmt.inference.request import Result
from nmt.metrics.metric import Score
from nmt.metrics.result import Evaluation, EvaluationReport, System

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


def test_correlations_of_four_points() -> None:
    """Deviations (-1.5, -0.5, 0.5, 1.5) and (-2, 1, -1, 2): 6.0 - 1.0 over sqrt(5 * 10)."""
    left, right = np.array([1.0, 2, 3, 4]), np.array([1.0, 4, 2, 5])
    assert correlation(left, right) == pytest.approx(5 / 50**0.5)
    assert ranks(np.array([3.0, 1, 3, 2])).tolist() == [3.5, 1, 3.5, 2]
    assert correlation(left, np.ones(4)) == 0


def test_every_output_shows_it() -> None:
    own, references = system(7.0), [[REFERENCE] * 40]
    scored: Any = SimpleNamespace(systems=[own], test=SimpleNamespace(references=references))
    section = confidence_section(scored)
    assert section is not None
    each = Evaluation(test="set", references=references, systems=(own,), sections=(section,))
    report = EvaluationReport(evaluations=(each,))
    assert "model       40         1.000    1.000     7.00 chrF" in report.as_text()
    assert "| model | 40 | 1.000 | 1.000 | 7.00 chrF |" in as_markdown(report)
    (found,) = json.loads(json.dumps(report.as_dict()))["confidence"]
    assert found["calibration_error"] == pytest.approx(7)
    assert next(iter(each.sentences()))["confidence"] == own.results[0].confidence
