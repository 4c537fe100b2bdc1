"""A pair is kept, or there is a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import FilterConfig
from nmt.data.filters import BLANK, BLANK_SOURCE, BLANK_TARGET, length_problem, text_problem


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a", "b", None), (" ", "\t", BLANK), ("", "b", BLANK_SOURCE),
        ("a", "\u3000", BLANK_TARGET),
    ],
)  # fmt: skip
def test_blank_sides_have_a_reason_each(source: str, target: str, reason: str | None) -> None:
    """FAULTS 36."""
    assert text_problem(source, target) == reason


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ((256, 256), None), ((257, 256), "too many subwords"), ((5, 300), "too many subwords"),
        ((0, 5), "too few subwords"), ((1, 13), None), ((1, 14), "length ratio"),
    ],
)  # fmt: skip
def test_limits_are_inclusive(lengths: tuple[int, int], reason: str | None) -> None:
    assert length_problem(*lengths, FilterConfig()) == reason


@given(left=st.integers(0, 400), right=st.integers(0, 400))
def test_no_side_is_special(left: int, right: int) -> None:
    config = FilterConfig()

    assert length_problem(left, right, config) == length_problem(right, left, config)
