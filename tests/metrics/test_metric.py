"""The registry of metrics: a new one works in evaluation, gates and validation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from nmt.errors import ConfigError
from nmt.metrics.metric import (
    METRICS,
    Floats,
    Metric,
    MetricOptions,
    References,
    as_quality,
    requested_metrics,
)
from nmt.training.validation import Scores


class ExactMatch(Metric):
    """The share of sentences that equal a reference, in percent. sacrebleu has no part in it."""

    label, signature, decimals = "Exact match", "exact|version:1", 3

    def __init__(self, references: References, options: MetricOptions) -> None:
        self._lowercase = options.lowercase
        self._references = [set(map(self._form, each)) for each in zip(*references, strict=True)]

    def _form(self, text: str) -> str:
        return text.lower() if self._lowercase else text

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        pairs = zip(hypotheses, self._references, strict=True)
        return np.array([(self._form(line) in right, 1) for line, right in pairs], np.float64)

    def score(self, sums: Floats) -> Floats:
        return 100 * sums[:, 0] / sums[:, 1]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METRICS, "_entries", {})
    METRICS.register("exact", ExactMatch)


def test_a_registered_metric_is_scored_resampled_and_compared(tmp_path: Path) -> None:
    flags = ["evaluate", "--json", "--metric", "exact"]
    for flag, lines in (
        ("reference", "one two three four"),
        ("hypothesis", "one two three FOUR"),
        ("baseline", "one x y z"),
    ):
        (tmp_path / flag).write_text(lines.replace(" ", "\n") + "\n")
        flags += [f"--{flag}", str(tmp_path / flag)]
    result, folded = (CliRunner().invoke(app, [*flags, *more]) for more in ((), ("--lowercase",)))
    (score,) = json.loads(result.stdout)["test_sets"][0]["systems"][0]["scores"]
    assert (score["value"], score["signature"]) == (75, "exact|version:1")
    assert score["comparison"]["delta"] == 50
    assert score["confidence"]["low"] <= 75 <= score["confidence"]["high"]
    assert json.loads(folded.stdout)["test_sets"][0]["systems"][0]["scores"][0]["value"] == 100


def test_a_registered_metric_chooses_the_best_checkpoint() -> None:
    scores = Scores(1.5, {"bleu": 20.0, "ter": 60.0, "exact": 75.0}, "13a")
    assert scores.value("exact") == 75
    assert scores.value("ter") == as_quality("ter", 60.0) == -60  # it counts errors
    assert scores.value("loss") == -1.5
    assert "BLEU 20.00, TER 60.00, Exact match 75.000" in scores.event(3, 0, 0.5).text


class Judge(ExactMatch):
    """A metric whose name can have an argument."""

    argument = "MODEL"


def test_each_metric_is_requested_once() -> None:
    METRICS.register("judge", Judge)
    texts = ["BLEU, JUDGE:M", "bleu,exact,", "judge:M"]
    found = requested_metrics(texts)
    # In the order asked: the first one is the first column.
    assert [*found.items()] == [("bleu", "bleu"), ("judge", "judge:M"), ("exact", "exact")]
    assert requested_metrics([]) == {}  # a command scores in place of them
    for wrong in (["judge:A", "judge:B"], ["judge,judge:A"], [","], ["bleu,blue"]):
        with pytest.raises(ConfigError):
            requested_metrics(wrong)
