"""The history of validations."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.training.progress import Entry, History

SCORES = st.lists(st.floats(allow_nan=False), max_size=20)


def history_of(scores: list[float]) -> History:
    history = History()
    for number, score in enumerate(scores, start=1):
        history = history.add(10 * number, score)
    return history


@given(scores=SCORES)
def test_the_best_is_the_first_of_the_highest(scores: list[float]) -> None:
    best = history_of(scores).best

    if not scores:
        assert best is None
    else:
        assert best == Entry(10 * (scores.index(max(scores)) + 1), max(scores))


@given(scores=SCORES, patience=st.integers(1, 6))
def test_training_stops_after_as_many_validations_without_a_new_best(
    scores: list[float], patience: int
) -> None:
    best, since = -math.inf, 0
    for number, score in enumerate(scores):
        if number == 0 or score > best:
            best, since = score, 0
        else:
            since += 1
    expected = bool(scores) and since >= patience

    assert history_of(scores).should_stop(patience) == expected
    assert not history_of(scores).should_stop(None)


@given(scores=st.lists(st.floats(), max_size=20))
def test_a_history_survives_json(scores: list[float]) -> None:
    """FAULT 18."""
    history = history_of(scores)
    back = History.from_dict(json.loads(json.dumps(history.as_dict())))

    # Compared as text, for NaN is not equal to itself.
    assert repr(back) == repr(history)
    assert repr(back.best) == repr(history.best)
    assert back.should_stop(2) == history.should_stop(2)


def test_adding_leaves_the_history_before_as_it_was() -> None:
    before = history_of([1.0])
    after = before.add(20, 2.0)

    assert before.entries == (Entry(10, 1.0),)
    assert after.entries == (Entry(10, 1.0), Entry(20, 2.0))


@pytest.mark.parametrize("scores", [[math.nan, 1.0], [1.0, math.nan], [math.nan, 1.0, math.nan]])
def test_a_score_that_is_no_number_is_never_the_best(scores: list[float]) -> None:
    best = history_of(scores).best

    assert best is not None
    assert best.score == 1.0


def test_losses_are_compared_by_their_negative() -> None:
    """Higher is better everywhere: a loss goes in with a minus sign."""
    best = history_of([-4.2, -3.1, -3.3]).best

    assert best == Entry(20, -3.1)
