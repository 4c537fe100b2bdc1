"""Hypotheses that grow independently of each other, a token at a time.

Greedy search, sampling and alternatives differ only in how a token is picked.

Shapes: B sentences still worked on, n walks of each, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.search.lengths import length_penalty
from nmt.search.rules import Rules
from nmt.search.stepper import Stepper
from nmt.text import BOS_ID, EOS_ID

S = TypeVar("S")


Picker = Callable[[Tensor, int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Says which token comes next, given
- the log probabilities of all, which it must not change: (B, n, V), float32, on any device;
- the length of the hypotheses with this token;
- which of all sentences each row is: (B,), int64, on the CPU;
- which of its sentence's walks each is, from 0: (B, n), int64, on the CPU.

Returns log probabilities (B, n), float32, and ids, int64, on the CPU. A walk ends without a
hypothesis where its log probability is not above minus infinity."""


@torch.inference_mode()
def walk(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    config: DecodingConfig,
    constraints: Sequence[Constraints] | None,
    pick: Picker,
    num_walks: int = 1,
) -> list[list[Hypothesis]]:
    """Translate B sentences, each ``num_walks`` times; what is finished leaves the batch.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Length limits, penalty and rules.
        constraints: Of each sentence.
        pick: Picks the next token.
        num_walks: Hypotheses of each sentence.

    Returns:
        Hypotheses of each sentence in the order of their numbers, without those that could not end.
    """
    device = source.device
    rules = Rules(source_lengths, config, constraints)
    found = _Found(len(source), config)
    state = stepper.start(source, source_lengths)
    alive = torch.arange(len(source))
    numbers = torch.arange(num_walks).expand(len(source), -1)
    is_open = torch.ones_like(numbers, dtype=torch.bool)
    totals = torch.zeros(len(source), num_walks)
    history = torch.empty(len(source), num_walks, 0, dtype=torch.int64)
    tokens = torch.full((len(source), 1), BOS_ID)  # all walks of a sentence begin as one
    while len(alive):
        log_probs, state = stepper.step(state, tokens.to(device))
        are_one = tokens.shape[1] < numbers.shape[1]
        rules(log_probs, alive, history[:, :1] if are_one else history)
        if are_one:
            log_probs = log_probs.expand(-1, numbers.shape[1], -1)
        best, ids = pick(log_probs, history.shape[2] + 1, alive, numbers)
        totals = totals + best
        leave = are_one
        if _may_end(best, ids):
            ends = is_open & ((ids == EOS_ID) | ~(best > -torch.inf))
            found.add(alive, numbers, history, totals, ends)
            leave = leave or bool(ends.any())
            is_open = is_open & ~ends
        if leave:
            stay, slots = _open_ones(is_open)
            parents = torch.zeros_like(slots) if are_one else slots
            state = stepper.select(state, stay.to(device), parents.to(device))
            alive = alive[stay]
            numbers, is_open, totals, ids = (
                x[stay].gather(1, slots) for x in (numbers, is_open, totals, ids)
            )
            history = history[stay].gather(1, slots.unsqueeze(-1).expand(-1, -1, history.shape[2]))
        tokens = ids
        history = torch.cat((history, ids.unsqueeze(-1)), dim=2)
    return found.results()


def _may_end(best: Tensor, ids: Tensor) -> bool:
    """Whether any walk ends with these; without tensors, which would take most of a step."""
    return EOS_ID in ids.flatten().tolist() or not math.isfinite(sum(best.flatten().tolist()))


def _open_ones(is_open: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with open walks, and in each the places to keep: open ones first, (B', n').

    Where others have more open walks, some that have ended come along to fill the rectangle.
    """
    stay = is_open.any(1).nonzero().squeeze(1)
    most = int(is_open.sum(1).max())
    order = (~is_open[stay]).int().argsort(dim=1, stable=True)
    return stay, order[:, :most]


class _Found:
    """Finished hypotheses.

    Args:
        count: Of all sentences.
        config: The length penalty.
    """

    def __init__(self, count: int, config: DecodingConfig) -> None:
        self._penalty = length_penalty(config)
        self._of: list[dict[int, Hypothesis]] = [{} for _ in range(count)]

    def add(
        self, alive: Tensor, numbers: Tensor, history: Tensor, totals: Tensor, ends: Tensor
    ) -> None:
        """Take in the walks that end here; those that could not go on are left out."""
        rows, slots = ends.nonzero(as_tuple=True)
        penalty = self._penalty(history.shape[2] + 1)
        for sentence, number, ids, total in zip(
            alive[rows].tolist(),
            numbers[rows, slots].tolist(),
            history[rows, slots].tolist(),
            totals[rows, slots].tolist(),
            strict=True,
        ):
            if math.isfinite(total):
                self._of[sentence][number] = Hypothesis(tuple(ids), total, total / penalty)

    def results(self) -> list[list[Hypothesis]]:
        """In the order of their numbers."""
        return [[own[number] for number in sorted(own)] for own in self._of]
