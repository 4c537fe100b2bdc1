"""Length limits of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.lengths import limits_of


def length_limits(source_lengths: Tensor, config: DecodingConfig) -> tuple[Tensor, Tensor]:
    """Return the shortest and longest output of each sentence, EOS included. (B,), int64 each.

    Args:
        source_lengths: Source tokens with EOS. (B,), int64.
        config: The decoding section.
    """
    limits = [limits_of(length - 1, config) for length in source_lengths.tolist()]
    shortest, longest = torch.tensor(limits, dtype=torch.int64).view(-1, 2).unbind(1)
    return shortest.clone(), longest.clone()
