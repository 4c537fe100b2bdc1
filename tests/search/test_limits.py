"""Length penalties and limits, by numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import length_penalty
from nmt.search.rules import length_limits


@pytest.mark.parametrize(
    ("form", "exponent", "length", "expected"),
    [
        ("power", 0.0, 9, 1.0),
        ("power", 1.0, 9, 9.0),
        ("power", 0.5, 9, 3.0),
        ("power", 2.0, 3, 9.0),
        ("gnmt", 0.0, 9, 1.0),
        ("gnmt", 1.0, 1, 1.0),
        ("gnmt", 1.0, 7, 2.0),  # (5 + 7) / 6
        ("gnmt", 0.5, 19, 2.0),  # sqrt(24 / 6)
        ("gnmt", 0.6, 7, 1.515717),  # 2 ^ 0.6
    ],
)
def test_penalties_are_what_the_papers_say(
    form: str, exponent: float, length: int, expected: float
) -> None:
    values = {"length_penalty": exponent, "length_penalty_form": form}
    penalty = length_penalty(DecodingConfig.model_validate(values))
    assert penalty(length) == pytest.approx(expected, abs=1e-6)


def test_penalties_never_fall_with_the_length() -> None:
    for form in ("power", "gnmt"):
        for exponent in (0.0, 0.3, 1.0, 2.5):
            values = {"length_penalty": exponent, "length_penalty_form": form}
            penalty = length_penalty(DecodingConfig.model_validate(values))
            numbers = [penalty(length) for length in range(1, 200)]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("words", "low", "high", "offset", "expected"),
    [
        (10, 0.0, 2.0, 20, (1, 41)),  # EOS alone; 10 * 2 + 20 words and EOS
        (10, 0.5, 1.0, 3, (6, 14)),
        (7, 0.5, 1.5, 1, (4, 12)),  # 3.5 and 10.5 words are 3 and 10
        (0, 0.5, 2.0, 5, (1, 6)),
        (10, 3.0, 1.0, 2, (13, 13)),  # a lower limit above the upper one
    ],
)
def test_limits_count_eos_and_never_cross(
    words: int, low: float, high: float, offset: int, expected: tuple[int, int]
) -> None:
    config = DecodingConfig(min_length_factor=low, max_length_factor=high, max_length_offset=offset)
    shortest, longest = length_limits(torch.tensor([words + 1]), config)
    assert (int(shortest), int(longest)) == expected
