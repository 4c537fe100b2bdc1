"""Results of an evaluation: tables, lines for each sentence, JSON, and missed gates."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from nmt.errors import DataError, GateError
from nmt.inference.request import Result
from nmt.metrics.metric import Comparison, ConfidenceInterval, Score
from nmt.metrics.result import (
    Evaluation,
    EvaluationReport,
    ReportSection,
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
        ["metric", "system", "news", "talks", "mean"],
        ["BLEU", "old (baseline)", "10.00", "30.00", "20.00"],
        ["BLEU", "new", "12.00", "8.00", "10.00"],
        ["BLEU", "early", "1.00", "-", "-"],
        ["BLEU", "late", "-", "3.00", "-"],
        ["chrF", "old (baseline)", "20.00", "50.00", "35.00"],
        ["chrF", "new", "24.00", "9.00", "16.50"],
        ["chrF", "early", "2.00", "-", "-"],
        ["chrF", "late", "-", "4.00", "-"],
    ]
    values = EvaluationReport(evaluations=(first, second)).as_dict()
    assert values["mean"] == {
        "old (baseline)": {"bleu": 20, "chrf": 35}, "new": {"bleu": 10, "chrf": 16.5}
    }  # fmt: skip
    assert [each["test"] for each in values["test_sets"]] == ["news", "talks"]
    assert score_rows([first])[:2] == [
        ["system", "BLEU", "chrF"], ["old (baseline)", "10.00", "20.00"]
    ]  # fmt: skip


def test_the_mean_is_of_each_metric_whatever_its_place_in_a_test_set() -> None:
    """chrF comes first in a test set of a language that is written without spaces."""
    first = evaluation("news", {"old": (10, 20), "new": (12, 24)})
    second = evaluation("shan", {"old": (30, 50), "new": (8, 9)})
    systems = [replace(each, scores=each.scores[::-1]) for each in second.named_systems().values()]
    second = replace(second, baseline=systems[0], systems=tuple(systems[1:]))
    values = EvaluationReport(evaluations=(first, second)).as_dict()
    assert values["mean"]["new"] == {"bleu": 10, "chrf": 16.5}
    assert ["chrF", "new", "24.00", "9.00", "16.50"] in score_rows([first, second])


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
    interval = ConfidenceInterval(
        mean=20.4, half_width=0.5, low=19.9, high=20.9, resamples=9, seed=1
    )
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
    met = ReportSection("gates", "Gates", [], [])
    missed = ReportSection("gates", "Gates", [], [], missed=("new: BLEU 8.00 is below 9",))
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


def row_of(*cells: str) -> list[list[str]]:
    return [[*cells]]


def test_a_report_shows_tables_then_each_note_once_then_signatures() -> None:
    """In the order of test sets; sections of no test set come last, and a note needs no table."""
    interval = ConfidenceInterval(
        mean=20.4, half_width=0.5, low=19.9, high=20.9, resamples=9, seed=1
    )
    sure = System("new", ["x"], scores=(score("bleu", 12.0, confidence=interval), score("ter", 3)))
    bare = System("file", ["x"], scores=(score("bleu", 2.0), score("ter", 4)))
    old = System("old", ["x"], {"beam_size": 5, "engine": "torch"}, scores=sure.scores)
    sections = (
        ReportSection("slices", "S", row_of("long", "1"), [{"slice": "long"}], "About slices."),
        ReportSection("gates", "G", [], [{"gate": "met"}], "Gates are met."),
    )
    whole = ReportSection(
        "languages", "L", row_of("de", "2"), [{"language": "de"}], "About languages."
    )
    first, second = (
        Evaluation(
            test=name, references=[["x"], ["y"]], systems=(sure, bare), baseline=old,
            paired_test="a test", sections=sections[:count],
        )
        for name, count in (("news", 2), ("talks", 1))
    )  # fmt: skip
    report = EvaluationReport(evaluations=(first, second), sections=(whole,))
    titles, scores, *blocks, notes, signatures = report.as_text().split("\n\n")
    assert [line.partition(":")[0] for line in titles.split("\n")] == ["news", "talks"]
    assert scores == text_table(score_rows([first, second]))
    assert blocks == ["news: long  1", "talks: long  1", "de  2"]
    said = notes.split("\n")
    assert said[:3] == ["About slices.", "Gates are met.", "About languages."]
    assert said[3].startswith("\u00b1: 95%")
    assert said[4:] == ["p: a test", "old: beam size 5, engine torch"]
    assert signatures == "BLEU  bleu|v\nTER   ter|v"

    values = report.as_dict()
    assert values["languages"] == [{"language": "de"}]
    assert [each.get("gates") for each in values["test_sets"]] == [[{"gate": "met"}], None]

    plain = Evaluation(test="news", references=[["x"]], systems=(bare,))
    assert "\u00b1" not in EvaluationReport(evaluations=(plain,)).as_text()
    alone_text = EvaluationReport(evaluations=(first,), sections=(whole,)).as_text()
    assert "\n\nlong  1\n\nde  2\n\n" in alone_text


def test_the_sentences_are_lines_of_text_and_a_list_in_json() -> None:
    system = System("file", ["caf\u00e9", "b"], scores=(score("bleu", 2.0),))
    found = Evaluation(test="news", references=[["x", "y"]], systems=(system,))
    report = EvaluationReport(evaluations=(found, found), sentence_level=True)
    objects = [*found.sentences(), *found.sentences()]
    assert [json.loads(line) for line in report.as_text().split("\n")] == objects
    assert "caf\u00e9" in report.as_text()
    assert report.as_dict()["sentences"] == objects
    quiet = EvaluationReport(evaluations=(found, found))
    assert "sentences" not in quiet.as_dict()


def test_a_title_counts_sentences_and_references() -> None:
    for references, expected in (
        ([["x"]], "t: 1 sentence, 1 reference"),
        ([["x"] * 1234] * 2, "t: 1,234 sentences, 2 references"),
    ):
        assert Evaluation(test="t", references=references, systems=()).title == expected


def test_a_system_as_data_has_what_is_known_of_it() -> None:
    system = System("model", ["a"], {"beam_size": 5}, num_in_training=0, scores=(score("ter", 3),))
    values = {
        "name": "model", "scores": [score("ter", 3).as_dict()], "beam_size": 5,
        "in_training_data": 0,
    }  # fmt: skip
    assert system.as_dict(with_texts=False) == values
    assert system.as_dict(with_texts=True) == values | {"hypotheses": ["a"]}
    assert "in_training_data" not in System("file", ["a"]).as_dict(with_texts=False)


def test_json_has_the_same_shape_for_one_and_for_several_test_sets() -> None:
    """And the texts only on request, also those of the baseline."""
    first = evaluation("news", {"old": (10, 20), "new": (12, 24)})
    second = evaluation("talks", {"old": (30, 50), "new": (8, 9)})
    one = EvaluationReport(evaluations=(first,)).as_dict()
    two = EvaluationReport(evaluations=(first, second)).as_dict()
    assert one.keys() == two.keys()
    assert one["test_sets"] == two["test_sets"][:1]
    assert one["mean"]["new"] == {"bleu": 12, "chrf": 24}
    assert "hypotheses" not in json.dumps(two)
    (complete,) = EvaluationReport(evaluations=(first,)).as_dict(with_texts=True)["test_sets"]
    assert complete["systems"][0]["hypotheses"] == complete["baseline"]["hypotheses"] == ["x"]
