"""Which checkpoints go."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from nmt.checkpoint.retention import expired, newest

STEPS = st.sets(st.integers(1, 500), max_size=30)
SCORES = st.dictionaries(st.integers(1, 500), st.floats(-100, 100), max_size=30)
COUNTS = st.integers(1, 6)
ALL = [1]


@given(steps=STEPS, scores=SCORES, keep_last=COUNTS, keep_best=COUNTS)
def test_the_newest_and_the_best_stay_and_nothing_else(
    steps: set[int], scores: dict[int, float], keep_last: int, keep_best: int
) -> None:
    gone = expired(steps, scores, keep_last=keep_last, keep_best=keep_best, due_every=ALL)
    kept = steps - set(gone)

    assert set(gone) <= steps
    assert set(sorted(steps)[-keep_last:]) <= kept
    present = {step: scores[step] for step in steps if step in scores}
    for step in kept - set(sorted(steps)[-keep_last:]):
        assert sum(score > present[step] for score in present.values()) < keep_best
    if present:
        assert max(present.values()) in {present[step] for step in kept if step in present}
    assert len(kept) <= keep_last + keep_best


@given(steps=STEPS, scores=SCORES, keep_last=COUNTS, keep_best=COUNTS)
def test_what_was_kept_is_kept_again(
    steps: set[int], scores: dict[int, float], keep_last: int, keep_best: int
) -> None:
    kept = steps - set(
        expired(steps, scores, keep_last=keep_last, keep_best=keep_best, due_every=ALL)
    )

    assert expired(kept, scores, keep_last=keep_last, keep_best=keep_best, due_every=ALL) == []


def test_the_earlier_of_equals_is_the_best() -> None:
    assert expired([1, 2, 3], {1: 5.0, 2: 5.0}, keep_last=1, keep_best=1, due_every=ALL) == [2]


@given(scores=st.permutations([math.nan, math.nan, -3.0, -5.0]), keep_best=st.integers(1, 4))
def test_a_score_that_is_no_number_is_never_kept_before_one_that_is(
    scores: list[float], keep_best: int
) -> None:
    by_step = dict(enumerate(scores, start=1))
    gone = expired([1, 2, 3, 4, 9], by_step, keep_last=1, keep_best=keep_best, due_every=ALL)
    kept = [score for step, score in by_step.items() if step not in gone]

    assert len(kept) == keep_best
    assert sum(math.isnan(score) for score in kept) == max(0, keep_best - 2)
    assert -3.0 in kept


@given(
    stops=st.sets(st.integers(1, 60), max_size=8),
    every=st.integers(1, 7),
    count=COUNTS,
    total=st.integers(1, 60),
)
def test_stops_on_the_way_do_not_change_which_are_newest_at_the_end(
    stops: set[int], every: int, count: int, total: int
) -> None:
    """FAULT 18: what is averaged at the end must not depend on them, nor be gone."""
    there: set[int] = set()
    for step in range(1, total + 1):
        if step in stops or step % every == 0 or step == total:
            there.add(step)
            there -= {*expired(there, {}, keep_last=count, keep_best=1, due_every=[every])}
    due = {*range(every, total + 1, every), total}

    assert newest(there, count, due_every=[every]) == sorted(due)[-count:]
