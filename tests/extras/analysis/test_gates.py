"""Gates: what ``--fail-under`` accepts, when a score is significantly worse, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import ConfigError
from nmt.extras.analysis.gates import check_gates, parse_gates
from nmt.metrics.metric import Score
from tests.commands.test_evaluate import invoke, write
from tests.extras.analysis.conftest import LINES, flags, found


def score(metric: str, value: float) -> Score:
    return Score(metric=metric, value=value, signature="")


def test_gates_are_parsed_in_order_and_all_malformed_parts_are_reported() -> None:
    expected = {"chrf++": 55.0, "bleu": 27.5, "chrf": 0.0}
    assert parse_gates(["chrf++=55, bleu = 27.5", "chrf=0"]) == expected
    no_number = "is not a number between 0 and 100"
    for text, complaint in (
        ("", "no equals sign"),
        ("bleu=27,", "no equals sign"),
        ("blue=27", "'blue' is not a metric"),
        ("bleu=high", f"'high' in 'bleu=high' {no_number}"),
        ("bleu=nan", no_number),
        ("bleu=-1", no_number),
        ("bleu=270", no_number),
        ("bleu=27,bleu=28", "bleu occurs twice"),
        ("ter=60", "is an error rate"),
        ("x=1,chrf=z", "(?s)'x' is not a metric.*'z' in 'chrf=z'"),  # all at once
    ):
        with pytest.raises(ConfigError, match=complaint):
            parse_gates([text])


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_gate_is_met_unless_the_full_value_is_below_it(value: float, required: float) -> None:
    (result,) = check_gates("s", [score("bleu", value)], {"bleu": required})
    assert result.met == (value >= required)
    # One just below is not rounded up in words, either.
    scores, gates = [score("bleu", 26.9996), score("chrf", 60)], {"bleu": 27, "chrf": 60}
    missed, met = map(str, check_gates("a", scores, gates))
    assert missed == "a: BLEU is 26.9996, 0.0004 below 27"
    assert met == "a: chrF is 60.00, not below 60"


def test_a_missed_gate_prints_the_scores_and_exits_with_6(files: dict[str, Path]) -> None:
    """Every system must pass, but not the baseline; a metric of a gate need not be asked for."""
    under = ("--metric", "chrf", "--fail-under")
    result = invoke(*flags(files), *under, "bleu=99.5,chrf=50", "--json")
    assert result.exit_code == 6
    (values,) = json.loads(result.stdout)["test_sets"]
    assert [(x["metric"], x["met"]) for x in values["gates"]] == [("bleu", False), ("chrf", True)]
    value = values["systems"][0]["scores"][1]["value"]
    assert f"bad.en: BLEU is {value:.2f}, {99.5 - value:.2g} below 99.5" in result.stderr
    result = invoke(*flags(files), *under, "bleu=50")
    assert result.exit_code == 0
    assert f"gate met: bad.en: BLEU is {value:.2f}, not below 50" in result.stdout
    assert invoke(*flags(files, "same", files["bad"]), *under, "bleu=100").exit_code == 0
    both = ("--hypothesis", files["same"], *flags(files)[:-2])
    assert invoke(*both, *under, "bleu=100").exit_code == 6


def test_a_significant_loss_exits_with_6_and_anything_else_does_not(files: dict[str, Path]) -> None:
    for kind in ("bs", "ar"):
        gate = ("--fail-if-worse", "--significance", kind, "--resamples", 200)
        result = invoke(*flags(files), *gate)
        assert result.exit_code == 6
        assert "bad.en: BLEU is" in result.stderr
        assert "against same.en: significantly worse (p = " in result.stderr
        assert invoke(*flags(files, "same", files["bad"]), *gate).exit_code == 0  # better
        assert invoke(*flags(files, "same"), *gate).exit_code == 0
        ter = (*gate, "--metric", "ter")  # more errors are worse
        assert invoke(*flags(files), *ter).exit_code == 6
        assert invoke(*flags(files, "same", files["bad"]), *ter).exit_code == 0
    assert invoke(*flags(files), "--fail-if-worse", "--alpha", 0).exit_code == 0


def test_identical_systems_and_few_different_lines_raise_no_alarm(
    files: dict[str, Path], tmp_path: Path
) -> None:
    for count, least in ((0, 1.0), (1, 1.0), (3, 0.25), (5, 1 / 16)):
        lines = ["a wrong line" if n < count else line for n, line in enumerate(LINES)]
        files["few"] = write(tmp_path / "few.en", lines)
        for kind in ("bs", "ar"):
            gate = ("--significance", kind, "--fail-if-worse", "--json")
            result = invoke(*flags(files, "few"), *gate)
            assert result.exit_code == 0
            for each in json.loads(result.stdout)["test_sets"][0]["systems"][0]["scores"]:
                assert each["comparison"]["p_value"] >= least


def test_only_requested_metrics_are_checked_for_regressions(files: dict[str, Path]) -> None:
    more = ("--fail-if-worse", "--metric", "chrf", "--fail-under", "bleu=1")
    values = found(*flags(files), *more)
    gates = values["gates"]
    kinds = [(each["metric"], each["kind"], each["met"]) for each in gates]
    assert kinds == [("bleu", "fail-under", True), ("chrf", "fail-if-worse", False)]
    # The required score is that of the baseline.
    base, own = values["baseline"]["scores"][0], values["systems"][0]["scores"][0]
    decided = gates[1]["required"], gates[1]["value"], gates[1]["p_value"]
    assert decided == pytest.approx((base["value"], own["value"], own["comparison"]["p_value"]))


def test_a_missed_gate_still_prints_the_score_alone(files: dict[str, Path]) -> None:
    gate = ("--score-only", "chrf", "--fail-under", "chrf=100")
    missed = invoke(*flags(files), *gate)
    assert missed.exit_code == 6
    assert 0 < float(missed.stdout.splitlines()[-1]) < 100


def test_a_gate_on_a_part_of_the_test_set_says_so(files: dict[str, Path]) -> None:
    """The first two lines have one wrong word, so chrF is between 50 and 99."""
    junit = files["bad"].with_name("junit.xml")
    gates = (*flags(files), "--fail-under", "chrf=50,bleu=99", "--report", junit)
    part = invoke(*gates, "--limit", 2)
    assert "met: bad.en, first 2 of 60 sentences: chrF is" in part.stdout
    assert "bad.en, first 2 of 60 sentences: BLEU is" in part.stderr
    assert "bleu fail-under 99, first 2 of 60 sentences" in junit.read_text("utf-8")
    whole = invoke(*gates, "--limit", 60)
    assert "first" not in whole.stdout + whole.stderr + junit.read_text("utf-8")
