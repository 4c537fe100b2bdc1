"""Learning rate schedules."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.training import ScheduleConfig
from nmt.training.schedule import SCHEDULES, build_schedule, inverse_sqrt, noam
from tests.examples import FEW

SHAPES = tuple(SCHEDULES.names())
ENDING = ("linear", "cosine", "wsd")
PEAKS = st.floats(1e-6, 1.0)
WARMUPS = st.integers(1, 300)
TOTALS = st.integers(1, 2000)
SHARES = st.floats(0, 1)


def schedule(shape: str, total_steps: int | None = None, **options: Any) -> Any:
    config = ScheduleConfig.model_validate({"shape": shape, **options})
    return build_schedule(config, model_dim=64, total_steps=total_steps)


@pytest.mark.parametrize("shape", SHAPES)
@FEW
@given(peak=PEAKS, warmup=WARMUPS, extra=st.integers(1, 2000))
def test_the_learning_rate_rises_linearly_to_its_peak(
    shape: str, peak: float, warmup: int, extra: int
) -> None:
    total = 2 * warmup + extra
    rate = schedule(shape, total, peak_lr=peak, warmup_steps=warmup)
    rates = [rate(step) for step in range(1, total + 1)]
    top = peak * (64 * warmup) ** -0.5 if shape == "noam" else peak
    assert max(rates) == pytest.approx(top)
    assert rates[warmup - 1] == pytest.approx(top)
    for step in range(1, warmup + 1):
        assert rates[step - 1] == pytest.approx(top * step / warmup)


@pytest.mark.parametrize("shape", SHAPES)
@FEW
@given(peak=PEAKS, warmup=st.integers(0, 300), total=TOTALS, share=SHARES)
def test_the_learning_rate_has_no_jumps_and_stays_within_bounds(
    shape: str, peak: float, warmup: int, total: int, share: float
) -> None:
    options = {"peak_lr": peak, "warmup_steps": warmup, "min_lr_ratio": share}
    rate = schedule(shape, total, **options)
    rates = [rate(step) for step in range(1, total + 1)]
    top = rates.index(max(rates))
    assert all(0 <= value <= peak * (1 + 1e-9) for value in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(rates[top:]))
    assert all(type(value) is float for value in rates)


@pytest.mark.parametrize("shape", ENDING)
@given(peak=PEAKS, warmup=WARMUPS, total=st.integers(2, 2000), share=SHARES)
def test_a_decay_ends_at_its_final_share_and_stays_there(
    shape: str, peak: float, warmup: int, total: int, share: float
) -> None:
    rate = schedule(shape, total, peak_lr=peak, warmup_steps=warmup, min_lr_ratio=share)
    for step in (total, total + 1, 10 * total):
        assert rate(step) == pytest.approx(peak * share, abs=1e-12)


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 10_000))
def test_noam_is_the_inverse_square_root_named_by_a_factor(step: int, warmup: int) -> None:
    peak = 2.0 * (256 * warmup) ** -0.5
    assert noam(step, model_dim=256, warmup_steps=warmup, factor=2.0) == pytest.approx(
        inverse_sqrt(step, peak_lr=peak, warmup_steps=warmup)
    )


def test_wsd_holds_the_peak_until_its_decay() -> None:
    rate = schedule("wsd", 100, peak_lr=1.0, warmup_steps=10, decay_ratio=0.3)
    assert {rate(step) for step in range(10, 71)} == {1.0}
    assert rate(85) == pytest.approx(0.5)
    assert rate(100) == 0


@pytest.mark.parametrize("shape", ENDING)
@pytest.mark.parametrize("total", [1, 2, 3, 10])
def test_the_peak_is_reached_however_long_the_warm_up(shape: str, total: int) -> None:
    rate = schedule(shape, total, peak_lr=1.0, warmup_steps=4000, decay_ratio=0.2)
    assert max(rate(step) for step in range(1, total + 1)) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_warm_up_starts_at_the_peak(shape: str) -> None:
    rate = schedule(shape, 1000, peak_lr=1.0, warmup_steps=0)
    assert rate(1) == pytest.approx(64**-0.5 if shape == "noam" else 1.0, rel=0.01)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("ratio", "warmup"), [(0.1, 20), (0.33, 66), (0.001, 1)])
def test_a_warm_up_may_be_a_share_of_the_planned_updates(
    shape: str, ratio: float, warmup: int
) -> None:
    """Without planned updates, the number of ``warmup_steps`` holds."""
    rate = schedule(shape, 200, warmup_ratio=ratio, warmup_steps=7)
    same = schedule(shape, 200, warmup_steps=warmup)
    assert [rate(step) for step in range(1, 201)] == [same(step) for step in range(1, 201)]
    if shape not in ENDING:
        endless = schedule(shape, None, warmup_ratio=ratio, warmup_steps=7)
        assert endless(7) == max(endless(step) for step in range(1, 201))
