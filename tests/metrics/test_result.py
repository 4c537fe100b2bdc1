"""Results of an evaluation: tables, lines for each sentence, JSON, and missed gates."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import pytest

from nmt.errors import DataError, GateError
from nmt.inference.request import Result
from nmt.metrics.metric import Comparison, Confidence, Score
from nmt.metrics.result import (
    Evaluation,
    EvaluationReport,
    Section,
    System,
    hash_references,
    score_rows,
    show_score,
    text_table,
)


def score(metric: str, value: float, **more: Any) -> Score:
    return Score(metric=metric, value=value, signature=f"{metric}|v", **more)


def evaluation(test: str, scores: dict[str, tuple[float, float]], **more: Any) -> Evaluation:
    """One sentence; BLEU and chrF of each system. The first one is the baseline."""
    base, *systems = (
        System(name, ["x"], scores=(score("bleu", bleu), score("chrf", chrf)))
        for name, (bleu, chrf) in scores.items()
    )
    found = {"references": [["x"]], "systems": tuple(systems), "baseline": base, **more}
    return Evaluation(test=test, **found)


def test_each_score_is_in_the_column_of_its_test_set_and_metric() -> None:
    first = evaluation("news", {"old": (10, 20), "new": (12, 24), "early": (1, 2)})
    second = evaluation("talks", {"old": (30, 50), "new": (8, 9), "late": (3, 4)})
    assert score_rows([first, second]) == [
        ["system", "news BLEU", "news chrF", "talks BLEU", "talks chrF", "mean BLEU", "mean chrF"],
        ["old (baseline)", "10.00", "20.00", "30.00", "50.00", "20.00", "35.00"],
        ["new", "12.00", "24.00", "8.00", "9.00", "10.00", "16.50"],
        ["early", "1.00", "2.00", "-", "-", "-", "-"],
        ["late", "-", "-", "3.00", "4.00", "-", "-"],
    ]
    values = EvaluationReport(evaluations=(first, second)).as_dict()
    assert values["mean"] == {
        "old (baseline)": {"bleu": 20, "chrf": 35}, "new": {"bleu": 10, "chrf": 16.5}
    }  # fmt: skip
    assert [each["test"] for each in values["evaluations"]] == ["news", "talks"]
    assert score_rows([first])[:2] == [
        ["system", "BLEU", "chrF"], ["old (baseline)", "10.00", "20.00"]
    ]  # fmt: skip


def test_columns_are_as_wide_as_their_characters_on_a_terminal() -> None:
    """A Chinese character has two cells: its column has 4, and 2 more separate it from the next."""
    rows = [["\u732b\u732b", "BLEU"], ["abc", "1"], ["", "20.00", "z"]]
    assert text_table(rows) == "\u732b\u732b  BLEU\nabc   1\n      20.00  z"


@pytest.mark.parametrize(
    ("delta", "p_value", "shown"),
    [
        (None, None, "20.46 \u00b1 0.50"),
        (-1.204, None, "20.46 \u00b1 0.50 (-1.20)"),
        (1.2, 0.0123, "20.46 \u00b1 0.50 (+1.20, p = 0.012)"),
        (1.2, 0.0006, "20.46 \u00b1 0.50 (+1.20, p = 0.001)"),
        (1.2, 0.0004, "20.46 \u00b1 0.50 (+1.20, p < 0.001)"),  # a p-value is never 0
    ],
)
def test_a_score_is_shown_with_interval_difference_and_p_value(
    delta: float | None, p_value: float | None, shown: str
) -> None:
    interval = Confidence(mean=20.4, half_width=0.5, low=19.9, high=20.9, resamples=9, seed=1)
    found = score("bleu", 20.456, confidence=interval)
    if delta is not None:
        compared = Comparison(baseline="b", delta=delta, p_value=p_value, resamples=9, seed=1)
        found = score("bleu", 20.456, confidence=interval, comparison=compared)
    assert show_score(found) == shown


def test_each_sentence_of_each_system_is_one_object() -> None:
    results = (
        Result("ein", "a", -0.5, log_prob=-1.5, alarms=("short",), confidence=40.0),
        Result("zwei", "b", -0.25, log_prob=-2.5),
    )
    one = System("model", ["a", "b"], results=results, sentence_scores={"bleu": [10.0, 20.0]})
    other = System("file", ["c", "d"])
    found = Evaluation(
        test="news", source=["ein", "zwei"], references=[["A", "B"], ["C", "D"]],
        systems=(one, other),
    )  # fmt: skip
    first, second, third, fourth = found.sentences()
    assert first == {
        "test": "news", "system": "model", "line": 1, "source": "ein", "hypothesis": "a",
        "references": ["A", "C"], "scores": {"bleu": 10.0}, "score": -0.5, "log_prob": -1.5,
        "alarms": ["short"], "confidence": 40.0,
    }  # fmt: skip
    assert second == {
        "test": "news", "system": "model", "line": 2, "source": "zwei", "hypothesis": "b",
        "references": ["B", "D"], "scores": {"bleu": 20.0}, "score": -0.25, "log_prob": -2.5,
        "alarms": [],
    }  # fmt: skip
    assert third.items() >= {"system": "file", "line": 1, "hypothesis": "c", "scores": {}}.items()
    assert fourth.items() >= {"system": "file", "line": 2, "references": ["B", "D"]}.items()
    assert "alarms" not in third


def test_the_hash_of_references_identifies_a_test_set_in_all_versions() -> None:
    """Gates compare it with the hash in a stored result."""
    expected = hashlib.sha256(b"a\nb\n\0c\n\xc3\xa4\n\0").hexdigest()
    assert hash_references([["a", "b"], ["c", "\u00e4"]]) == expected
    divided: list[list[list[str]]] = [[["a", "b"]], [["a"], ["b"]], [["ab"]], [["b", "a"]]]
    for one, other in itertools.combinations(divided, 2):
        assert hash_references(one) != hash_references(other)


def test_a_gate_missed_on_any_test_set_fails_after_the_scores_are_shown() -> None:
    met = Section("gates", "Gates", [], [])
    missed = Section("gates", "Gates", [], [], missed=("new: BLEU 8.00 is below 9",))
    scores = {"old": (10.0, 20.0), "new": (8.0, 9.0)}
    first = evaluation("news", scores, sections=(met,))
    second = evaluation("talks", scores, sections=(met, missed))
    assert EvaluationReport(evaluations=(first, first)).failure is None
    failure = EvaluationReport(evaluations=(first, second)).failure
    assert isinstance(failure, GateError)
    assert failure.exit_code == 6
    assert "new: BLEU 8.00 is below 9" in failure.problem
    lost = DataError("The page cannot be written.", fix="Choose another path.")
    assert EvaluationReport(evaluations=(second,), failures=(lost,)).failure is lost
