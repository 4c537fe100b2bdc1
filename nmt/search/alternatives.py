"""The most probable tokens that can follow a prefix, each completed by greedy search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.constraints import NONE, Constraints
from nmt.search.greedy import most_probable
from nmt.search.hypothesis import Hypothesis
from nmt.search.ranking import largest
from nmt.search.stepper import Stepper
from nmt.search.walk import walk

S = TypeVar("S")


def alternatives_search(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    config: DecodingConfig,
    constraints: Sequence[Constraints] | None = None,
) -> list[list[Hypothesis]]:
    """Translate B sentences in ``n_best`` ways that part right after the prefix.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Number of alternatives, length limits, penalty and rules.
        constraints: Of each sentence; required phrases are not looked at.

    Returns:
        Hypotheses of each sentence, that with the most probable token after the prefix first;
        fewer where fewer tokens are possible.
    """
    wishes = constraints or [NONE] * len(source)
    part_at = torch.tensor([len(own.prefix) + 1 for own in wishes])

    def pick(log_probs: Tensor, length: int, alive: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        best, ids = most_probable(log_probs)
        parting = (part_at[alive] == length).nonzero().squeeze(1)
        if len(parting):  # until here all walks of a sentence are the same
            first = log_probs[parting.to(log_probs.device), 0]
            values, tokens = largest(first, config.n_best)
            missing = config.n_best - values.shape[1]
            best[parting] = F.pad(values, (0, missing), value=-torch.inf)
            ids[parting] = F.pad(tokens, (0, missing))
        return best, ids

    return walk(stepper, source, source_lengths, config, constraints, pick, config.n_best)
