"""Searches whose hypotheses grow independently of each other: greedy search and alternatives.

Without a beam there is nothing to rank or to reorder, so a step costs less than one of beam search.

Shapes: B sentences still active, n hypotheses of each, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.search.hypothesis import Hypothesis
from nmt.search.ranking import first_largest, largest
from nmt.search.selector import (
    BeamState,
    FinishedHypotheses,
    SearchInputs,
    Selection,
    Selector,
    register_selector,
)
from nmt.text import EOS_ID


class IndependentSelector(Selector):
    """Continues each hypothesis with one token that `pick` returns.

    All hypotheses of a sentence begin as one; those that have ended leave the batch.

    Args:
        inputs: The batch.
        num_hypotheses: Of each sentence, numbered from 0.
    """

    def __init__(self, inputs: SearchInputs, num_hypotheses: int) -> None:
        self._count, self._num_hypotheses = len(inputs.source), num_hypotheses
        self._finished = FinishedHypotheses(
            inputs, beam_size=1, n_best=1, pools_per_sentence=num_hypotheses
        )
        self._numbers = torch.arange(num_hypotheses).expand(self._count, -1)
        self._is_open = torch.ones_like(self._numbers, dtype=torch.bool)

    @abstractmethod
    def pick(self, log_probs: Tensor, beams: BeamState, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next token of each hypothesis.

        Args:
            log_probs: Of all tokens. (B, n, V), float32, on the device of the stepper.
            beams: The hypotheses; at the first step they are one.
            numbers: Of the hypotheses. (B, n), int64, on the CPU.

        Returns:
            Log probabilities (B, n), float32, and ids, int64, on the CPU. A hypothesis is dropped
            where its log probability is not above minus infinity.
        """

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        are_one = log_probs.shape[1] < self._numbers.shape[1]
        if are_one:
            log_probs = log_probs.expand(-1, self._numbers.shape[1], -1)
        best, ids = self.pick(log_probs, beams, self._numbers)
        totals = beams.totals + best
        if not are_one and not _may_end(best, ids):
            return Selection(ids, totals)
        ends = self._is_open & ((ids == EOS_ID) | ~(best > -torch.inf))
        self._finish(beams, totals, ends)
        self._is_open = self._is_open & ~ends
        # Open ones first. Where other sentences have more of them, some that have ended stay, to
        # fill the rectangle.
        active, width = self._is_open.any(1), int(self._is_open.sum(1).max())
        if not width:
            return Selection(ids, totals, active=active)
        slots = (~self._is_open).int().argsort(dim=1, stable=True)[:, :width]
        self._numbers, self._is_open = (
            x.gather(1, slots)[active] for x in (self._numbers, self._is_open)
        )
        parents = torch.zeros_like(slots) if are_one else slots
        return Selection(ids.gather(1, slots), totals.gather(1, slots), parents, active)

    def _finish(self, beams: BeamState, totals: Tensor, ends: Tensor) -> None:
        rows, slots = (ends & totals.isfinite()).nonzero(as_tuple=True)
        if len(rows):
            pools = beams.sentences[rows] * self._num_hypotheses + self._numbers[rows, slots]
            history = beams.history.expand(-1, ends.shape[1], -1)[rows, slots]
            self._finished.add(pools, history, totals[rows, slots])

    @override
    def results(self) -> list[list[Hypothesis]]:
        """In the order of their numbers, without those that could not end."""
        n = self._num_hypotheses
        pools = (range(first, first + n) for first in range(0, self._count * n, n))
        return [[h for pool in own for h in self._finished.ranked(pool)] for own in pools]


def _may_end(best: Tensor, ids: Tensor) -> bool:
    """Whether any hypothesis ends; without tensors, which would take most of a step."""
    return EOS_ID in ids.flatten().tolist() or not math.isfinite(sum(best.flatten().tolist()))


@register_selector("greedy")
class GreedySelector(IndependentSelector):
    """The most probable token, again and again; of equals the lowest id.

    Finds what a beam of one finds.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs, num_hypotheses=1)

    @override
    def pick(self, log_probs: Tensor, beams: BeamState, numbers: Tensor) -> tuple[Tensor, Tensor]:
        best, ids = first_largest(log_probs)
        return best.cpu(), ids.cpu()


@register_selector("alternatives")
class AlternativesSelector(IndependentSelector):
    """The most probable tokens that can follow the prefix, each completed by greedy search.

    Results are in the order of these tokens, the most probable first; fewer than ``n_best`` where
    fewer tokens are possible.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        self._n_best = inputs.options.n_best
        super().__init__(inputs, self._n_best)
        self._part_at = torch.tensor([len(own.prefix) for own in inputs.constraints])

    @override
    def pick(self, log_probs: Tensor, beams: BeamState, numbers: Tensor) -> tuple[Tensor, Tensor]:
        best, ids = (x.cpu() for x in first_largest(log_probs))
        parting = self._part_at[beams.sentences] == beams.history.shape[2]
        rows = parting.nonzero().squeeze(1)
        if len(rows):  # until here all hypotheses of a sentence are the same
            values, tokens = largest(log_probs[rows.to(log_probs.device), 0], self._n_best)
            missing = self._n_best - values.shape[1]
            best[rows] = F.pad(values, (0, missing), value=-torch.inf)
            ids[rows] = F.pad(tokens, (0, missing))
        return best, ids
