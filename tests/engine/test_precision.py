"""The scale of the loss against a plain count on the host."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.engine import precision as module
from nmt.engine.precision import LossScale, Precision

CPU, FLOAT16 = torch.device("cpu"), Precision("float16", "cpu")


@given(
    outcomes=st.lists(st.booleans(), max_size=60),
    first=st.sampled_from([1.0, 2.0, 1024.0, 2.0**126]),
)
def test_the_scale_halves_at_each_overflow_and_doubles_after_many_good_updates(
    outcomes: list[bool], first: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_GROWTH_INTERVAL", 7)
        scale, expected, good = LossScale(FLOAT16, CPU), first, 0
        scale.load_counters({"loss_scale": first, "good_in_a_row": 0})
        for skipped in outcomes:
            scale.adapt(torch.tensor(float(skipped)))
            good = 0 if skipped else good + 1
            if skipped:
                expected = max(expected / 2, 1.0)
            elif good % 7 == 0:
                expected = min(expected * 2, 2.0**127)
            assert scale.factor == expected
            other = LossScale(FLOAT16, CPU)  # resumed here
            other.load_counters(scale.counters())
            scale = other


def test_counters_of_another_precision_say_nothing() -> None:
    fixed, adaptive = (LossScale(Precision(name, "cpu"), CPU) for name in ("bfloat16", "float16"))
    adaptive.load_counters(fixed.counters())
    fixed.load_counters(adaptive.counters())

    assert (fixed.factor, adaptive.factor) == (1.0, 2.0**15)
