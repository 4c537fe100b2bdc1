"""Which search the options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.errors import ConfigError
from nmt.search.alternatives import alternatives_search
from nmt.search.beam import beam_search
from nmt.search.constraints import Constraints
from nmt.search.diverse import diverse_search
from nmt.search.greedy import greedy_search
from nmt.search.hypothesis import Hypothesis
from nmt.search.required import constrained_search
from nmt.search.sampling import sample_search
from nmt.search.stepper import Stepper

S = TypeVar("S")


def search(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    config: DecodingConfig,
    constraints: Sequence[Constraints] | None = None,
) -> list[list[Hypothesis]]:
    """Translate B sentences as ``config`` says.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: How to search.
        constraints: Of each sentence.

    Raises:
        ConfigError: There are required phrases, and this search cannot see to them.
    """
    name, other = "", None
    if config.sampling:
        name, other = "sampling", sample_search
    elif config.return_alternatives:
        name, other = "return_alternatives", alternatives_search
    elif config.diverse_beam_groups > 1:
        name, other = "diverse_beam_groups", diverse_search
    if constraints is not None and any(wishes.required for wishes in constraints):
        if other is not None:
            raise ConfigError(
                f"decoding.{name} does not go with required phrases.",
                fix="Search for them with beam search: leave the option out.",
            )
        return constrained_search(stepper, source, source_lengths, config, constraints)
    if other is None:
        # A beam of one finds the same as greedy search, and can have a coverage penalty.
        is_greedy = config.beam_size == 1 and not config.coverage_penalty
        other = greedy_search if is_greedy else beam_search
    return other(stepper, source, source_lengths, config, constraints)
