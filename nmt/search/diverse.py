"""Diverse beam search: groups of beams that avoid each other (Vijayakumar et al. 2016).

Shapes: B sentences still searched, K beams in G groups of k, V vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.beam import Beams, Expansion, Live, collect, expand, search_beams, unfinished
from nmt.search.constraints import Constraints
from nmt.search.hypothesis import Hypothesis
from nmt.search.pools import Pools
from nmt.search.rules import Rules
from nmt.search.stepper import Stepper

S = TypeVar("S")


class DiverseBeams(Beams):
    """Lets the groups choose one after the other; the first is plain beam search with k beams.

    For a later group a token loses ``diverse_beam_strength`` for each beam of an earlier one that
    went on with it in this step (Hamming diversity). That decides what is kept, and is not part of
    the log probability of a hypothesis. A group that has its finished hypotheses goes on no more.

    Args:
        longest: Most tokens of each output with EOS. (sentences,), int64.
        config: Beam size, groups, strength, n best, patience and penalty.
    """

    def __init__(self, longest: Tensor, config: DecodingConfig) -> None:
        self._num_groups, self._n_best = config.diverse_beam_groups, config.n_best
        self._size = config.beam_size // self._num_groups
        self._strength = config.diverse_beam_strength
        every = longest.repeat_interleave(self._num_groups)
        self._pools = Pools(every, config, self._size, min(self._size, config.n_best))
        self._count = len(longest)

    def choose(
        self, alive: Tensor, history: Tensor, totals: Tensor, log_probs: Tensor, extras: Tensor
    ) -> Live:
        """Take one step. See `nmt.search.beam.Beams`."""
        pools = alive.unsqueeze(1) * self._num_groups + torch.arange(self._num_groups)  # (B, G)
        full = self._pools.full(pools)
        taken = torch.zeros_like(log_probs[:, 0])  # (B, V)
        groups = []
        for group in range(self._num_groups):
            first = group * self._size if history.shape[1] > 1 else 0
            own = slice(first, first + self._size)
            before = totals[:, own].masked_fill(full[:, group, None], -torch.inf)
            chosen = self._expand(before, log_probs[:, own], taken)
            ways = (pools[:, group], history[:, own], extras[:, own])
            collect(self._pools, *ways, chosen, self._size)
            parents, tokens, after = unfinished(chosen, self._size)
            groups.append((parents + first, tokens, after))
            votes = after.isfinite().to(taken)
            taken.scatter_add_(1, tokens.to(taken.device), votes)
        parents, tokens, after = (torch.cat(parts, dim=1) for parts in zip(*groups, strict=True))
        best = after.unflatten(1, (self._num_groups, -1)).amax(-1)
        return Live(parents, tokens, after, self._pools.undecided(pools, best).any(1))

    def results(self) -> list[list[Hypothesis]]:
        """The n best: of every group the best, then the second, and so on; sorted by score."""
        return [self._of_groups(sentence) for sentence in range(self._count)]

    def _expand(self, totals: Tensor, log_probs: Tensor, taken: Tensor) -> Expansion:
        """Rank as if tokens were less likely the more often they are ``taken`` (B, V)."""
        penalized = log_probs - self._strength * taken.unsqueeze(1)
        found = expand(totals, penalized, self._size)
        parents, tokens = (x.to(log_probs.device) for x in (found.parents, found.tokens))
        rows = torch.arange(len(parents), device=log_probs.device).unsqueeze(1)
        own = totals.gather(1, found.parents) + log_probs[rows, parents, tokens].cpu()
        return found._replace(log_probs=own)

    def _of_groups(self, sentence: int) -> list[Hypothesis]:
        first = sentence * self._num_groups
        ranked = [self._pools.ranked(first + group) for group in range(self._num_groups)]
        # Groups may meet: each output once.
        rounds = zip_longest(*ranked)
        found = {h.ids: h for hypotheses in rounds for h in hypotheses if h is not None}
        return sorted(list(found.values())[: self._n_best], key=lambda h: -h.score)


def diverse_search(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    config: DecodingConfig,
    constraints: Sequence[Constraints] | None = None,
) -> list[list[Hypothesis]]:
    """Translate B sentences by groups of beams. See `DiverseBeams`.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Beam size, groups, strength, n best, length limits, penalties and rules.
        constraints: Of each sentence; required phrases are not looked at.

    Returns:
        The n best hypotheses of each sentence, best first; fewer where the groups found fewer.
    """
    rules = Rules(source_lengths, config, constraints)
    beams = DiverseBeams(rules.longest, config)
    return search_beams(stepper, source, source_lengths, rules, beams, config.coverage_penalty)
