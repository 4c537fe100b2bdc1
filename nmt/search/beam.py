"""Beam search (Graves 2012; Sutskever et al. 2014) over a batch that shrinks.

Shapes: B sentences still searched, K beams, V vocabulary, t tokens so far.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import LengthPenalty, length_limits, length_penalty
from nmt.search.rules import forbid
from nmt.search.stepper import Stepper
from nmt.text.special import BOS_ID, EOS_ID

S = TypeVar("S")


class Expansion(NamedTuple):
    """The best ways to lengthen the hypotheses of each sentence, best first."""

    parents: Tensor
    """Which beam each one continues. (B, 2K), int64."""
    tokens: Tensor
    """The id it appends. (B, 2K), int64."""
    log_probs: Tensor
    """Log probability of the whole longer hypothesis. (B, 2K), float32."""


def expand(totals: Tensor, log_probs: Tensor, beam_size: int) -> Expansion:
    """Rank all continuations of every sentence and keep the best 2 x ``beam_size``.

    Twice as many as beams, because at most one for each beam can end in EOS, and so enough
    unfinished ones are sure to remain. Each beam's best are found first: none below can matter.

    Args:
        totals: Log probability of each hypothesis; minus infinity for one that does not exist.
            (B, K), float32. K is 1 at the first step and ``beam_size`` later.
        log_probs: Log probability of each next token. (B, K, V), float32.
        beam_size: Hypotheses to keep.
    """
    of_beam, tokens = log_probs.topk(min(2 * beam_size, log_probs.shape[-1]), dim=-1)
    candidates = (totals.unsqueeze(-1) + of_beam).flatten(1)
    wanted = min(2 * beam_size, candidates.shape[1])
    best, flat = candidates.topk(wanted, dim=-1)
    parents = flat // of_beam.shape[-1]
    chosen = tokens.flatten(1).gather(1, flat)
    short = 2 * beam_size - wanted
    if short:  # a vocabulary smaller than the beam: hypotheses that do not exist fill up
        best = torch.nn.functional.pad(best, (0, short), value=-torch.inf)
        parents, chosen = (torch.nn.functional.pad(x, (0, short)) for x in (parents, chosen))
    return Expansion(parents, chosen, best)


class _Pools:
    """Finished hypotheses of each sentence, and whether better ones may still come."""

    def __init__(self, size: int, config: DecodingConfig, penalty: LengthPenalty) -> None:
        self._found: list[list[Hypothesis]] = [[] for _ in range(size)]
        self._config, self._penalty = config, penalty

    def add(self, sentence: int, ids: list[int], log_prob: float) -> None:
        score = log_prob / self._penalty(len(ids) + 1)
        self._found[sentence].append(Hypothesis(tuple(ids), log_prob, score))

    def is_done(self, sentence: int, best_live: float, longest: int) -> bool:
        """Whether K hypotheses are finished, or nothing alive can reach the n best of them.

        A log probability only falls, and the penalty of the longest output is the largest: no
        continuation of ``best_live`` can score above their quotient.
        """
        found = self._found[sentence]
        if len(found) >= self._config.beam_size or not math.isfinite(best_live):
            return True  # also where broken weights give no numbers
        if len(found) < self._config.n_best:
            return False
        worst_kept = sorted((h.score for h in found), reverse=True)[self._config.n_best - 1]
        return worst_kept >= best_live / self._penalty(longest)

    def results(self) -> list[list[Hypothesis]]:
        """The n best of each sentence, best first."""
        wanted = self._config.n_best
        return [sorted(found, key=lambda h: -h.score)[:wanted] for found in self._found]


@torch.inference_mode()
def beam_search(
    stepper: Stepper[S], source: Tensor, source_lengths: Tensor, config: DecodingConfig
) -> list[list[Hypothesis]]:
    """Translate B sentences; finished ones leave the batch.

    A continuation may finish only if it ends in EOS *and* stands among the best K: so a beam of
    one is greedy search. A sentence is done with K finished hypotheses, or when nothing alive can
    still reach its n best.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Beam size, n best, length limits and penalty.

    Returns:
        The n best hypotheses of each sentence, best first; fewer where fewer outputs are possible.
    """
    beam_size, device = config.beam_size, source.device
    shortest, longest = length_limits(source_lengths, config)
    pools = _Pools(len(source), config, length_penalty(config))
    state = stepper.start(source, source_lengths)
    alive = torch.arange(len(source), device=device)
    tokens = torch.full((len(source), 1), BOS_ID, device=device)
    totals = torch.zeros(len(source), 1, device=device)
    history = tokens.unsqueeze(-1)[..., :0]  # (B, K, t)
    length = 0
    while len(alive):
        length += 1
        log_probs, state = stepper.step(state, tokens)
        forbid(log_probs, length, shortest, longest)
        found = expand(totals, log_probs, beam_size)
        ends = (found.tokens == EOS_ID) & found.log_probs.isfinite()
        _collect(pools, alive, history, found, ends, beam_size)

        # The best K that go on; those that ended are moved behind all others.
        live = found.log_probs.masked_fill(found.tokens == EOS_ID, -torch.inf)
        totals, order = live.topk(beam_size, dim=-1)
        parents, tokens = found.parents.gather(1, order), found.tokens.gather(1, order)
        stay = _undecided(pools, alive, totals, longest, ends)
        if len(stay) < len(alive):
            alive, totals, tokens, parents = (x[stay] for x in (alive, totals, tokens, parents))
            shortest, longest, history = shortest[stay], longest[stay], history[stay]
        elif _is_identity(parents, history):
            history = torch.cat((history, tokens.unsqueeze(-1)), dim=-1)
            continue
        state = stepper.select(state, stay, parents)
        history = history.gather(1, parents.unsqueeze(-1).expand(-1, -1, history.shape[-1]))
        history = torch.cat((history, tokens.unsqueeze(-1)), dim=-1)
    return pools.results()


def _is_identity(parents: Tensor, history: Tensor) -> bool:
    """Whether every beam continues itself."""
    size = parents.shape[1]
    return size == history.shape[1] and bool(
        (parents == torch.arange(size, device=parents.device)).all()
    )


def _collect(
    pools: _Pools,
    alive: Tensor,
    history: Tensor,
    found: Expansion,
    ends: Tensor,
    beam_size: int,
) -> None:
    """Move what ended among the best K to the pools."""
    rows, ranks = ends[:, :beam_size].nonzero(as_tuple=True)
    if not len(rows):
        return
    ids = history[rows, found.parents[rows, ranks]].tolist()
    log_probs = found.log_probs[rows, ranks].tolist()
    for sentence, prefix, log_prob in zip(alive[rows].tolist(), ids, log_probs, strict=True):
        pools.add(sentence, prefix, log_prob)


def _undecided(
    pools: _Pools, alive: Tensor, totals: Tensor, longest: Tensor, ends: Tensor
) -> Tensor:
    """Rows of the sentences that are not done."""
    best_live = totals[:, 0]
    if not bool(ends.any()) and bool(best_live.isfinite().all()):
        return torch.arange(len(alive), device=alive.device)
    facts = zip(alive.tolist(), best_live.tolist(), longest.tolist(), strict=True)
    stay = [row for row, fact in enumerate(facts) if not pools.is_done(*fact)]
    return torch.tensor(stay, dtype=torch.int64, device=alive.device)
