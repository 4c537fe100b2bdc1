"""Beam search (Graves 2012; Sutskever et al. 2014) over a batch that shrinks.

Shapes: B sentences still searched, K beams, V vocabulary, t tokens so far. Only the stepper and
the ranking of its log probabilities work on the device; what to keep is decided on the CPU from
the best few of every beam, so that a step waits for the device once.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.hypothesis import Hypothesis
from nmt.search.limits import length_limits, length_penalty
from nmt.search.ranking import largest
from nmt.search.rules import forbid
from nmt.search.stepper import Stepper
from nmt.text.special import BOS_ID, EOS_ID

S = TypeVar("S")


class Expansion(NamedTuple):
    """The best ways to lengthen the hypotheses of each sentence, best first. On the CPU."""

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
    Of equals, the one of the better beam goes first, then the one with the lower id.

    Args:
        totals: Log probability of each hypothesis, best first; minus infinity for one that does
            not exist. (B, K), float32, on the CPU. K is 1 at the first step, later ``beam_size``.
        log_probs: Log probability of each next token. (B, K, V), float32, on any device.
        beam_size: Hypotheses to keep.
    """
    of_beam, tokens = largest(log_probs, 2 * beam_size)
    candidates = (totals.unsqueeze(-1) + of_beam).flatten(1)
    best, order = _ranked(candidates, 2 * beam_size)
    parents = order // of_beam.shape[-1]
    chosen = tokens.flatten(1).gather(1, order)
    short = 2 * beam_size - order.shape[1]
    if short:  # a vocabulary smaller than the beam: hypotheses that do not exist fill up
        best = F.pad(best, (0, short), value=-torch.inf)
        parents, chosen = F.pad(parents, (0, short)), F.pad(chosen, (0, short))
    return Expansion(parents, chosen, best)


def _ranked(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of short rows and where they are; of equals the first comes first."""
    best, order = torch.sort(values, dim=-1, descending=True, stable=True)
    return best[:, :count], order[:, :count]


class _Pools:
    """Finished hypotheses of each sentence, and whether better ones may still come.

    Args:
        longest: Most tokens of each output with EOS. (B,), int64.
        config: Beam size, n best and penalty.
    """

    def __init__(self, longest: Tensor, config: DecodingConfig) -> None:
        self._config, self._penalty = config, length_penalty(config)
        self._found: list[list[Hypothesis]] = [[] for _ in longest]
        self._counts = torch.zeros_like(longest)
        self._to_beat = torch.full((len(longest),), -torch.inf, dtype=torch.float64)
        penalties = [self._penalty(length) for length in longest.tolist()]
        self._largest_penalty = torch.tensor(penalties, dtype=torch.float64)

    def add(self, sentence: int, ids: list[int], log_prob: float) -> None:
        """Take in a finished hypothesis."""
        score = log_prob / self._penalty(len(ids) + 1)
        found, wanted = self._found[sentence], self._config.n_best
        found.append(Hypothesis(tuple(ids), log_prob, score))
        self._counts[sentence] += 1
        if len(found) >= wanted:
            scores = sorted((hypothesis.score for hypothesis in found), reverse=True)
            self._to_beat[sentence] = scores[wanted - 1]

    def undecided(self, alive: Tensor, best_live: Tensor) -> Tensor:
        """Rows of the sentences ``alive`` (B,) whose best live hypothesis is worth going on with.

        The others have K finished hypotheses, or no live one, or one that is hopeless.
        """
        goes_on = (self._counts[alive] < self._config.beam_size) & best_live.isfinite()
        return (goes_on & ~self._hopeless(alive, best_live)).nonzero().squeeze(1)

    def _hopeless(self, alive: Tensor, best_live: Tensor) -> Tensor:
        """Whether nothing alive can reach the n best: to stop there changes no result.

        A log probability only falls, and the penalty of the longest output is the largest: no
        continuation scores above their quotient. Of equals the one found first is kept.
        """
        return self._to_beat[alive] >= best_live.double() / self._largest_penalty[alive]

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
    one is greedy search. The search of a sentence ends with K finished hypotheses, or earlier
    when nothing alive can still reach its n best.

    Args:
        stepper: Gives probabilities.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        config: Beam size, n best, length limits and penalty.

    Returns:
        The n best hypotheses of each sentence, best first; fewer where fewer outputs are possible.
    """
    beam_size, device = config.beam_size, source.device
    shortest, longest = length_limits(source_lengths.cpu(), config)
    pools = _Pools(longest, config)
    state = stepper.start(source, source_lengths)
    alive = torch.arange(len(source))
    tokens = torch.full((len(source), 1), BOS_ID)
    totals = torch.zeros(len(source), 1)
    history = tokens.unsqueeze(-1)[..., :0]  # (B, K, t)
    length = 0
    while len(alive):
        length += 1
        log_probs, state = stepper.step(state, tokens.to(device))
        forbid(log_probs, length, shortest, longest)
        found = expand(totals, log_probs, beam_size)
        _collect(pools, alive, history, found, beam_size)

        # The best K that go on; those that ended are moved behind all others.
        live = found.log_probs.masked_fill(found.tokens == EOS_ID, -torch.inf)
        totals, order = _ranked(live, beam_size)
        parents, tokens = found.parents.gather(1, order), found.tokens.gather(1, order)
        stay = pools.undecided(alive, totals[:, 0])
        leaves = len(stay) < len(alive)
        if leaves:
            alive, totals, tokens, parents = (x[stay] for x in (alive, totals, tokens, parents))
            shortest, longest, history = shortest[stay], longest[stay], history[stay]
        if leaves or not _is_identity(parents, history.shape[1]):
            state = stepper.select(state, stay.to(device), parents.to(device))
            history = history.gather(1, parents.unsqueeze(-1).expand(-1, -1, length - 1))
        history = torch.cat((history, tokens.unsqueeze(-1)), dim=-1)
    return pools.results()


def _is_identity(parents: Tensor, num_beams: int) -> bool:
    """Whether every beam continues itself."""
    itself = torch.arange(parents.shape[1]).expand_as(parents)
    return parents.shape[1] == num_beams and torch.equal(parents, itself)


def _collect(
    pools: _Pools, alive: Tensor, history: Tensor, found: Expansion, beam_size: int
) -> None:
    """Move what ended among the best K to the pools."""
    ends = (found.tokens == EOS_ID) & found.log_probs.isfinite()
    rows, ranks = ends[:, :beam_size].nonzero(as_tuple=True)
    if not len(rows):
        return
    ids = history[rows, found.parents[rows, ranks]].tolist()
    log_probs = found.log_probs[rows, ranks].tolist()
    for sentence, prefix, log_prob in zip(alive[rows].tolist(), ids, log_probs, strict=True):
        pools.add(sentence, prefix, log_prob)
