"""Length penalties and length limits. Pure.

A length counts the tokens of a hypothesis with its EOS.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig

LengthPenalty = Callable[[int], float]
"""Length, from 1 -> what the log probability is divided by. Never falls with the length."""


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


def length_limits(source_lengths: Tensor, config: DecodingConfig) -> tuple[Tensor, Tensor]:
    """Return the shortest and longest output of each sentence, EOS included. (B,), int64 each.

    Args:
        source_lengths: Source tokens with EOS. (B,), int64.
        config: The decoding section.
    """
    words = source_lengths - 1
    longest = (words * config.max_length_factor).long() + config.max_length_offset
    shortest = (words * config.min_length_factor).long().clamp(min=0)
    # At least EOS, and a lower limit never above the upper one.
    longest = longest.clamp(min=1) + 1
    return torch.minimum(shortest + 1, longest), longest
