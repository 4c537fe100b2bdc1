"""Plans of a time budget, and the learning rate under them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.training import ScheduleConfig
from nmt.training.plan import Plan, place_in_schedule, share_of_validation
from nmt.training.schedule import build_schedule

PLAN = Plan(
    step=0,
    total_steps=100,
    validate_every=10,
    minutes=1.0,
    update_seconds=0.5,
    validation_seconds=1.0,
    at_end=1.0,
)
STEPS = st.integers(1, 300)


@st.composite
def plans_of_a_run(draw: st.DrawFn) -> list[Plan]:
    """Each is made while the one before it holds."""
    plans = [replace(PLAN, total_steps=draw(st.integers(2, 300)))]
    for _ in range(draw(st.integers(0, 4))):
        last = plans[-1]
        if last.total_steps <= last.step + 1:
            break
        step = draw(st.integers(last.step + 1, last.total_steps - 1))
        plans.append(replace(last, step=step, total_steps=step + draw(STEPS)))
    return plans


@given(
    plans=plans_of_a_run(),
    shape=st.sampled_from(["linear", "cosine", "wsd"]),
    lowest=st.sampled_from([0.0, 0.1]),
    warmup=st.integers(0, 40),
)
def test_the_rate_is_continuous_at_each_plan_and_ends_with_the_last_update(
    plans: list[Plan], shape: str, lowest: float, warmup: int
) -> None:
    config = ScheduleConfig(shape=shape, peak_lr=1.0, warmup_steps=warmup, min_lr_ratio=lowest)
    length = plans[0].total_steps
    schedule = build_schedule(config, model_dim=8, total_steps=length)
    for number, plan in enumerate(plans[1:], start=1):
        # The update before the new plan is the same with it and without it.
        before = place_in_schedule(plan.step, plans[:number])
        assert place_in_schedule(plan.step, plans[: number + 1]) == before
        # And the next one is as far from it as all that follow.
        places = [
            place_in_schedule(step, plans[: number + 1])
            for step in range(plan.step, plan.total_steps + 1)
        ]
        steps = [after - at for at, after in pairwise(places)]
        assert steps == pytest.approx([steps[0]] * len(steps))
        assert places[0] == before
    end = plans[-1].total_steps
    assert place_in_schedule(end, plans) == pytest.approx(length)
    assert schedule(place_in_schedule(end, plans)) == pytest.approx(lowest, abs=1e-9)


@given(plans=plans_of_a_run(), step=STEPS)
def test_the_rate_depends_on_earlier_plans_only(plans: list[Plan], step: int) -> None:
    """So a resumed run, which knows later ones, repeats the updates."""
    earlier = [plan for plan in plans if plan.step < step]
    assert place_in_schedule(step, plans) == place_in_schedule(step, earlier)


@given(total=st.integers(1, 300), step=STEPS, limit=st.none() | STEPS)
def test_without_another_plan_the_schedule_is_that_of_the_updates(
    total: int, step: int, limit: int | None
) -> None:
    plans = [replace(PLAN, total_steps=total)]
    end = total if limit is None else min(total, limit)
    assert place_in_schedule(step, plans, limit) == min(step, end)


@given(
    step=st.integers(0, 1000),
    left=st.floats(0, 1e5),
    update=st.floats(0.001, 5),
    validation=st.floats(0, 100),
    at_end=st.floats(1, 10),
    every=st.integers(1, 1000),
)
def test_a_plan_fills_the_time_and_validation_takes_a_twentieth_of_it(
    step: int, left: float, update: float, validation: float, at_end: float, every: int
) -> None:
    costs = replace(PLAN, update_seconds=update, validation_seconds=validation, at_end=at_end)
    plan = costs.rest(step, left, every)
    num_left = plan.total_steps - step

    def seconds(updates: int) -> float:
        return updates * (update + validation / plan.validate_every) + at_end * validation

    assert num_left == 0 or seconds(num_left) <= left * (1 + 1e-9) + 1e-9
    assert seconds(num_left + 1) > left * (1 - 1e-9) - 1e-9
    assert plan.validate_every % every == 0
    assert validation <= 0.05 * update * plan.validate_every * (1 + 1e-9)
    rarer = plan.validate_every - every  # one step less would be too often
    assert not rarer or validation > 0.05 * update * rarer * (1 - 1e-9)
    assert (plan.step, plan.minutes, plan.share) == (step, costs.minutes, costs.share)


@given(updates=st.integers(0, 1000), update=st.floats(0.01, 10))
def test_measured_costs_replace_the_assumed_ones_as_updates_are_made(
    updates: int, update: float
) -> None:
    plan = replace(PLAN, total_steps=200, update_seconds=1.0)
    found = plan.measured(updates, updates * update, None)
    # A fifth of the minute that is planned: 12 seconds, in 12 updates.
    assert found.update_seconds == pytest.approx((12 + updates * update) / (12 + updates))
    # On a busy machine, both are slow.
    assert found.validation_seconds == plan.validation_seconds * found.update_seconds
    assert plan.measured(updates, 1.0, 7.0).validation_seconds == 4.0  # 1 was assumed


@given(
    seconds=st.floats(0.01, 1e5),
    minutes=st.floats(0.01, 1000),
    num_lines=st.integers(0, 10_000),
)
def test_one_validation_takes_a_fiftieth_of_the_budget_or_has_few_lines(
    seconds: float, minutes: float, num_lines: int
) -> None:
    share = share_of_validation(seconds, minutes, num_lines)
    most = 60 * minutes / 50
    assert share * seconds <= most * (1 + 1e-9) or share * num_lines < 200
    assert share == 1 or share * seconds > most / 2 * (1 - 1e-9)
    assert share == 1 or share * num_lines >= 100 - 1e-9
