"""Finished hypotheses of a beam search, and whether better ones may still come."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import Hypothesis
from nmt.search.lengths import full_size, length_penalty


class Pools:
    """One pool for each sentence, or for each group of beams of a sentence.

    Args:
        longest: Most tokens of each output with EOS. (pools,), int64.
        config: Length penalty and patience.
        beam_size: Beams K that fill a pool.
        n_best: Hypotheses wanted of it.
    """

    def __init__(
        self, longest: Tensor, config: DecodingConfig, beam_size: int, n_best: int
    ) -> None:
        self._penalty = length_penalty(config)
        self._full, self._n_best = full_size(config, beam_size), n_best
        self._found: list[list[Hypothesis]] = [[] for _ in longest]
        self._counts = torch.zeros_like(longest)
        self._is_any_found = False
        self._to_beat = torch.full((len(longest),), -torch.inf, dtype=torch.float64)
        penalties = [self._penalty(length) for length in longest.tolist()]
        self._largest_penalty = torch.tensor(penalties, dtype=torch.float64)

    def add(self, pool: int, ids: list[int], log_prob: float, extra: float = 0.0) -> None:
        """Take in a finished hypothesis. ``extra``, at most 0, is added to its score."""
        score = log_prob / self._penalty(len(ids) + 1) + extra
        found = self._found[pool]
        found.append(Hypothesis(tuple(ids), log_prob, score))
        self._counts[pool] += 1
        self._is_any_found = True
        if len(found) >= self._n_best:
            scores = sorted((hypothesis.score for hypothesis in found), reverse=True)
            self._to_beat[pool] = scores[self._n_best - 1]

    def full(self, pools: Tensor) -> Tensor:
        """Whether ``pools`` have their K, or with patience (Kasai et al. 2022) more or fewer."""
        return self._counts[pools] >= self._full

    def undecided(self, pools: Tensor, best_live: Tensor) -> Tensor:
        """Whether the best live hypothesis of each of ``pools`` is worth going on with.

        Not for a pool that is full, nor where nothing lives or what lives is hopeless.

        Args:
            pools: Which. Any shape, int64.
            best_live: Highest log probability of what is alive in each. The same shape.
        """
        lives = best_live.isfinite()
        if not self._is_any_found:
            return lives
        return lives & ~self.full(pools) & ~self._hopeless(pools, best_live)

    def _hopeless(self, pools: Tensor, best_live: Tensor) -> Tensor:
        """Whether nothing alive can reach the n best: to stop there changes no result.

        A log probability only falls, and the penalty of the longest output is the largest: no
        continuation scores above their quotient, as what is added to it is never above 0. Of
        equals the one found first is kept.
        """
        return self._to_beat[pools] >= best_live.double() / self._largest_penalty[pools]

    def ranked(self, pool: int) -> list[Hypothesis]:
        """All finished hypotheses, best first."""
        return sorted(self._found[pool], key=lambda hypothesis: -hypothesis.score)
