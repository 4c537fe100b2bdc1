"""A finished translation, how long it may be, and how its length counts. Loads no torch.

A length counts the tokens of a hypothesis with its EOS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nmt.config.decoding import DecodingConfig

LengthPenalty = Callable[[int], float]
"""Length, from 1 -> divisor of the log probability. Never falls with the length."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation of a sentence, as token ids."""

    ids: tuple[int, ...]
    """Target ids without BOS and EOS."""
    log_prob: float
    """Natural-log probability of the ids and of EOS."""
    score: float
    """``log_prob`` after length normalisation, and after the coverage penalty if there is one;
    higher is better."""


class Limits(NamedTuple):
    """Shortest and longest length of an output."""

    shortest: int
    longest: int


def limits_of(num_tokens: int, config: DecodingConfig, max_positions: int | None = None) -> Limits:
    """Return the limits of the output for so many source tokens, without their EOS.

    At least EOS may come, and the lower limit is never above the upper one.

    Args:
        num_tokens: Source tokens.
        config: The decoding section.
        max_positions: Longest output that the model can produce; None if there is no limit.

    >>> limits_of(10, DecodingConfig(max_length_factor=1.5, max_length_offset=2))
    Limits(shortest=1, longest=18)
    >>> limits_of(10, DecodingConfig(min_length_factor=1), max_positions=8)
    Limits(shortest=8, longest=8)
    """
    longest = max(1, int(num_tokens * config.max_length_factor) + config.max_length_offset) + 1
    if max_positions is not None:
        longest = min(longest, max_positions)
    shortest = int(num_tokens * config.min_length_factor) + 1
    return Limits(min(shortest, longest), longest)


def length_penalty(config: DecodingConfig) -> LengthPenalty:
    """Return the configured penalty.

    >>> length_penalty(DecodingConfig(length_penalty=1.0))(7)
    7.0
    >>> length_penalty(DecodingConfig(length_penalty=1.0, length_penalty_form="gnmt"))(7)
    2.0
    """
    exponent = config.length_penalty
    if config.length_penalty_form == "gnmt":  # Wu et al. (2016), section 7
        return lambda length: float(((5 + length) / 6) ** exponent)
    return lambda length: float(length**exponent)


def max_finished(config: DecodingConfig, beam_size: int) -> int:
    """Return how many finished hypotheses end a search: patience x beam size, rounded up.

    Source: Kasai et al. (2022), section 3.

    >>> max_finished(DecodingConfig(patience=0.28), 25)
    7
    """
    return max(1, math.ceil(round(config.patience * beam_size, 6)))  # 0.28 * 25 is above 7
