"""How long an output may be, what its length counts for, and how many outputs are enough.

Pure, and without torch.

A length counts the tokens of a hypothesis with its EOS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from nmt.config.decoding import DecodingConfig

LengthPenalty = Callable[[int], float]
"""Length, from 1 -> what the log probability is divided by. Never falls with the length."""


class Limits(NamedTuple):
    """Tokens of an output, EOS included."""

    shortest: int
    longest: int


def limits_of(num_tokens: int, config: DecodingConfig) -> Limits:
    """Return the limits of the output for so many source tokens, without their EOS.

    At least EOS may come, and the lower limit is never above the upper one.

    >>> limits_of(10, DecodingConfig(max_length_factor=1.5, max_length_offset=2))
    Limits(shortest=1, longest=18)
    """
    longest = max(1, int(num_tokens * config.max_length_factor) + config.max_length_offset) + 1
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


def full_size(config: DecodingConfig, beam_size: int) -> int:
    """Finished hypotheses that fill a pool: patience x beam size, rounded up.

    >>> full_size(DecodingConfig(patience=0.28), 25)
    7
    """
    return max(1, math.ceil(round(config.patience * beam_size, 6)))  # 0.28 * 25 is above 7
