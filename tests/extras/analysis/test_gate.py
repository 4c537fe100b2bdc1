"""Gates: what ``--fail-under`` accepts and says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.errors import ConfigError, GateError
from nmt.extras.analysis.gates import check_gates, parse_gates, raise_if_missed
from nmt.metrics.metric import Score


def score(metric: str, value: float) -> Score:
    return Score(metric=metric, value=value, signature="")


def test_gates_are_read_in_order_with_spaces_and_repeats_of_the_flag() -> None:
    assert parse_gates(["chrf++=55, bleu = 27.5", "chrf=0"]) == {
        "chrf++": 55.0, "bleu": 27.5, "chrf": 0.0
    }  # fmt: skip
    assert parse_gates([]) == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("bleu", "no equals sign"),
        ("", "no equals sign"),
        ("bleu=27,", "no equals sign"),
        ("blue=27", "no metric 'blue'"),
        ("bleu=high", "'high' in 'bleu=high' is not a number between 0 and 100"),
        ("bleu=nan", "not a number between 0 and 100"),
        ("bleu=-1", "not a number between 0 and 100"),
        ("bleu=270", "not a number between 0 and 100"),
        ("bleu=27,bleu=28", "bleu is given twice"),
        ("ter=60", "counts errors"),
        ("x=1,chrf=z", "(?s)no metric 'x'.*'z' in 'chrf=z'"),  # all at once
    ],
)
def test_a_malformed_gate_says_which_part_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_gates([text])


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_gate_is_met_unless_the_full_value_is_below_it(value: float, required: float) -> None:
    (result,) = check_gates("s", [score("bleu", value)], {"bleu": required})
    assert result.met == (value >= required)
    if result.met:
        raise_if_missed([result])
    else:
        with pytest.raises(GateError, match="below"):
            raise_if_missed([result])


def test_a_missed_gate_says_which_and_by_how_much() -> None:
    results = check_gates(
        "a.en", [score("bleu", 26.5), score("chrf", 60)], {"bleu": 27, "chrf": 55}
    )
    with pytest.raises(GateError, match=r"a\.en: bleu is 26\.50, 0\.5 below 27") as raised:
        raise_if_missed(results)
    assert "chrf" not in str(raised.value)
    assert raised.value.exit_code == 6
    # A value just below a gate is not rounded up to it.
    results = check_gates("a", [score("bleu", 26.9996)], {"bleu": 27})
    with pytest.raises(GateError, match=r"bleu is 26\.9996, 0\.0004 below 27"):
        raise_if_missed(results)
