"""Beam search (Graves 2012; Sutskever et al. 2014), plain or in groups that avoid each other.

Shapes: B sentences still active, K beams in G groups of k, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.search.hypothesis import Hypothesis
from nmt.search.selector import (
    BeamState,
    FinishedHypotheses,
    SearchInputs,
    Selection,
    Selector,
    largest,
)
from nmt.text import EOS_ID


class Candidates(NamedTuple):
    """The best continuations of the hypotheses of each sentence, best first. On the CPU."""

    parents: Tensor  # Which beam each one continues. (B, 2K), int64.
    tokens: Tensor  # The id it appends. (B, 2K), int64.
    log_probs: Tensor  # Log probability of the whole longer hypothesis. (B, 2K), float32.

    def active(self, beam_size: int) -> Candidates:
        """Return the best ``beam_size`` that do not end, in the same order.

        Those that end stand behind all others, as hypotheses that do not exist.
        """
        ends = self.tokens == EOS_ID
        if not bool(ends.any()):
            return Candidates(*(x[:, :beam_size] for x in self))
        order = ends.int().argsort(dim=1, stable=True)[:, :beam_size]
        totals = self.log_probs.masked_fill(ends, -math.inf)
        return Candidates(*(x.gather(1, order) for x in (self.parents, self.tokens, totals)))


def expand(totals: Tensor, log_probs: Tensor, beam_size: int) -> Candidates:
    """Rank all continuations of every sentence and keep the best 2 x ``beam_size``.

    Twice as many as beams, because at most one for each beam can end in EOS, and so enough
    unfinished ones are sure to remain. Each beam's best are found first: none below can matter.
    Of equals, the one of the better beam goes first, then the one with the lower id.

    Args:
        totals: Log probability of each hypothesis, best first; minus infinity for one that does
            not exist. (B, K), float32, on the CPU. K is 1 at the first step, later ``beam_size``.
        log_probs: Log probability of each next token. (B, K, V), float32, on any device.
        beam_size: Hypotheses to keep.
    """
    # Ranking each beam first looks at 2K instead of K x V sums on the host.
    of_beam, tokens = largest(log_probs, 2 * beam_size)
    sums = (totals.unsqueeze(-1) + of_beam).flatten(1)
    best, order = torch.sort(sums, stable=True, dim=-1, descending=True)
    best, order = best[:, : 2 * beam_size], order[:, : 2 * beam_size]
    found = Candidates(order // of_beam.shape[-1], tokens.flatten(1).gather(1, order), best)
    short = 2 * beam_size - order.shape[1]
    if not short:
        return found
    # A vocabulary smaller than the beam: hypotheses that do not exist fill up.
    fillings = zip(found, (0, 0, -math.inf), strict=True)
    return Candidates(*(F.pad(x, (0, short), value=filling) for x, filling in fillings))


class BeamSelector(Selector):
    """Keeps the K best continuations.

    A continuation may finish only if it ends in EOS *and* stands among the best K: so a beam of
    one is greedy search. The search of a sentence ends with K finished hypotheses, or earlier
    when no unfinished one can still reach its n best.
    """

    def __init__(self, inputs: SearchInputs, num_groups: int = 1) -> None:
        options, self._count = inputs.options, len(inputs.source)
        self._num_groups, self._n_best = num_groups, options.n_best
        self._beam_size = options.beam_size // num_groups  # of a group
        self._finished = FinishedHypotheses(
            inputs,
            beam_size=self._beam_size,
            n_best=min(self._beam_size, self._n_best),
            pools_per_sentence=num_groups,
        )

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        found = self._expand(beams, log_probs)
        self._finish(found, beams.sentences, beams.history, coverage)
        parents, tokens, totals = found.active(self._beam_size)
        active = self._finished.active(beams.sentences, totals[:, 0])
        return Selection(tokens, totals, parents, active)

    def _expand(self, beams: BeamState, log_probs: Tensor) -> Candidates:
        """Continuations: the first K may end, and the first K others continue."""
        return expand(beams.totals, log_probs, self._beam_size)

    def _finish(
        self, found: Candidates, pools: Tensor, history: Tensor, coverage: Tensor | None
    ) -> None:
        """Add to the ``pools`` (B,) what ends among the best K."""
        ends = found.tokens[:, : self._beam_size] == EOS_ID
        if not bool(ends.any()):
            return
        ends &= found.log_probs[:, : self._beam_size].isfinite()
        rows, ranks = ends.nonzero(as_tuple=True)
        if len(rows):
            parents, log_probs = found.parents[rows, ranks], found.log_probs[rows, ranks]
            lost = None if coverage is None else coverage[rows, parents]
            self._finished.add(pools[rows], history[rows, parents], log_probs, lost)

    @override
    def results(self) -> list[list[Hypothesis]]:
        """The n best of every sentence: of each group the best, then the second; by score."""
        found, groups = [], self._num_groups
        for first in range(0, self._count * groups, groups):
            rounds = zip_longest(*map(self._finished.ranked, range(first, first + groups)))
            # Groups may meet: each output once.
            unique = {h.ids: h for round_ in rounds for h in round_ if h is not None}
            best = list(unique.values())[: self._n_best]
            found.append(sorted(best, key=lambda hypothesis: -hypothesis.score))
        return found


class DiverseSelector(BeamSelector):
    """Groups of beams that avoid each other's tokens (Vijayakumar et al. 2016).

    The groups choose one after the other; the first is plain beam search with k beams. For a later
    group a token loses ``diverse_beam_strength`` for each beam of an earlier one that continued
    with it in this step (Hamming diversity). That decides what is kept, and is not part of the log
    probability of a hypothesis. A group that has its finished hypotheses stops.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs, inputs.options.diverse_beam_groups)
        self._strength = inputs.options.diverse_beam_strength

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor | None) -> Selection:
        pools = beams.sentences.unsqueeze(1) * self._num_groups + torch.arange(self._num_groups)
        full = self._finished.full(pools)  # (B, G)
        taken = torch.zeros_like(log_probs[:, 0])  # (B, V)
        rows, groups = torch.arange(len(taken), device=taken.device).unsqueeze(1), []
        for group in range(self._num_groups):
            first = group * self._beam_size if beams.history.shape[1] > 1 else 0
            own = slice(first, first + self._beam_size)
            # A full group goes on as hypotheses that do not exist: groups stay equally wide.
            before = beams.totals[:, own].masked_fill(full[:, group, None], -torch.inf)
            # Ranked as if tokens were less likely the more often they are taken; the totals that
            # are kept below come from `log_probs`, without the penalty.
            ranked = log_probs[:, own] - self._strength * taken.unsqueeze(1)
            found = expand(before, ranked, self._beam_size)
            where = rows, *(x.to(rows.device) for x in (found.parents + first, found.tokens))
            own_total = before.gather(1, found.parents) + log_probs[where].cpu()
            found = found._replace(log_probs=own_total)
            lost = None if coverage is None else coverage[:, own]
            self._finish(found, pools[:, group], beams.history[:, own], lost)
            parents, tokens, totals = found.active(self._beam_size)
            groups.append((parents + first, tokens, totals))
            taken.scatter_add_(1, tokens.to(taken.device), totals.isfinite().to(taken))
        parents, tokens, totals = (torch.cat(parts, dim=1) for parts in zip(*groups, strict=True))
        best = totals.unflatten(1, (self._num_groups, -1)).amax(-1)
        return Selection(tokens, totals, parents, self._finished.active(pools, best).any(1))
