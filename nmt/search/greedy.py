"""The simplest search: always the most probable token. The yardstick of a beam of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.search.ranking import first_largest
from nmt.search.stepper import Stepper
from nmt.search.walk import walk

S = TypeVar("S")


def greedy_search(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    config: DecodingConfig,
    constraints: Sequence[Constraints] | None = None,
) -> list[list[Hypothesis]]:
    """Translate B sentences; finished ones leave the batch.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Length limits, penalty and rules.
        constraints: Of each sentence; required phrases are not looked at.

    Returns:
        One hypothesis in a list of its own for each sentence; none where no output is possible.
    """
    return walk(stepper, source, source_lengths, config, constraints, most_probable)


def most_probable(log_probs: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Pick the most probable token; of equals the lowest id. A `nmt.search.walk.Picker`."""
    best, ids = first_largest(log_probs)
    return best.cpu(), ids.cpu()
