"""Beam search (Graves 2012; Sutskever et al. 2014) over a batch that shrinks.

The loop is the same for all kinds of beam search; they differ in which continuations they keep.

Shapes: B sentences still searched, K beams, V vocabulary, t tokens so far. Only the stepper and
the ranking of its log probabilities work on the device; what to keep is decided on the CPU from
the best few of every beam, so that a step waits for the device once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config.decoding import DecodingConfig
from nmt.search.constraints import Constraints
from nmt.search.coverage import coverage_penalty
from nmt.search.hypothesis import Hypothesis
from nmt.search.pools import Pools
from nmt.search.ranking import largest
from nmt.search.rules import Rules
from nmt.search.stepper import Stepper
from nmt.text import BOS_ID, EOS_ID

S = TypeVar("S")


class Live(NamedTuple):
    """The hypotheses of each sentence that go on. All on the CPU."""

    parents: Tensor
    """Which beam each one continues. (B, K), int64."""
    tokens: Tensor
    """The id it appends. (B, K), int64."""
    totals: Tensor
    """Its log probability; minus infinity for one that does not exist. (B, K), float32."""
    undecided: Tensor
    """Whether the sentence is worth going on with. (B,), bool."""


class Beams(Protocol):
    """Chooses the continuations that are kept, and keeps those that are finished."""

    def choose(
        self, alive: Tensor, history: Tensor, totals: Tensor, log_probs: Tensor, extras: Tensor
    ) -> Live:
        """Take one step.

        Args:
            alive: Which of all sentences each is. (B,), int64.
            history: Ids so far. (B, K, t), int64. K is 1 at the first step, here and below.
            totals: Log probability of each hypothesis. (B, K), float32.
            log_probs: Of each next token. (B, K, V), float32, on any device; the others are not.
            extras: Added to the score of what ends here, by the hypothesis that it continues; at
                most 0. (B, K), float32.
        """
        ...

    def results(self) -> list[list[Hypothesis]]:
        """The n best of every sentence, best first."""
        ...


@torch.inference_mode()
def search_beams(
    stepper: Stepper[S],
    source: Tensor,
    source_lengths: Tensor,
    rules: Rules,
    beams: Beams,
    coverage_weight: float,
) -> list[list[Hypothesis]]:
    """Translate B sentences; finished ones leave the batch. See `beam_search`."""
    device = source.device
    state = stepper.start(source, source_lengths)
    alive = torch.arange(len(source))
    tokens = torch.full((len(source), 1), BOS_ID)
    totals = torch.zeros(len(source), 1)
    history = tokens.unsqueeze(-1)[..., :0]
    while len(alive):
        log_probs, state = stepper.step(state, tokens.to(device))
        rules(log_probs, alive, history)
        extras = torch.zeros_like(totals)
        if coverage_weight:
            lengths = source_lengths[alive.to(device)]
            extras = coverage_penalty(stepper.coverage(state), lengths, coverage_weight).cpu()
        parents, tokens, totals, undecided = beams.choose(alive, history, totals, log_probs, extras)
        stay = undecided.nonzero().squeeze(1)
        leaves = len(stay) < len(alive)
        if leaves:
            alive, totals, tokens, parents = (x[stay] for x in (alive, totals, tokens, parents))
            history = history[stay]
        if leaves or not _is_identity(parents, history.shape[1]):
            state = stepper.select(state, stay.to(device), parents.to(device))
            history = history.gather(1, parents.unsqueeze(-1).expand(-1, -1, history.shape[2]))
        history = torch.cat((history, tokens.unsqueeze(-1)), dim=-1)
    return beams.results()


def _is_identity(parents: Tensor, num_beams: int) -> bool:
    """Whether every beam continues itself."""
    itself = torch.arange(parents.shape[1]).expand_as(parents)
    return parents.shape[1] == num_beams and torch.equal(parents, itself)


class PlainBeams(Beams):
    """Keeps the K best continuations.

    A continuation may finish only if it ends in EOS *and* stands among the best K: so a beam of
    one is greedy search. The search of a sentence ends with K finished hypotheses, or earlier
    when nothing alive can still reach its n best.

    Args:
        longest: Most tokens of each output with EOS. (sentences,), int64.
        config: Beam size, n best, patience and penalty.
    """

    def __init__(self, longest: Tensor, config: DecodingConfig) -> None:
        self._pools = Pools(longest, config, config.beam_size, config.n_best)
        self._beam_size, self._n_best, self._count = config.beam_size, config.n_best, len(longest)

    def choose(
        self, alive: Tensor, history: Tensor, totals: Tensor, log_probs: Tensor, extras: Tensor
    ) -> Live:
        """Take one step. See `Beams`."""
        found = self._expand(alive, totals, log_probs)
        collect(self._pools, alive, history, extras, found, self._beam_size)
        parents, tokens, totals = unfinished(found, self._beam_size)
        return Live(parents, tokens, totals, self._pools.undecided(alive, totals[:, 0]))

    def _expand(
        self,
        alive: Tensor,  # noqa: ARG002 - for other kinds of search
        totals: Tensor,
        log_probs: Tensor,
    ) -> Expansion:
        """Continuations of which the first K may end and the first K others go on."""
        return expand(totals, log_probs, self._beam_size)

    def results(self) -> list[list[Hypothesis]]:
        """The n best of every sentence, best first."""
        return [self._pools.ranked(sentence)[: self._n_best] for sentence in range(self._count)]


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
    return merge(totals, of_beam, tokens, beam_size)


def merge(totals: Tensor, of_beam: Tensor, tokens: Tensor, beam_size: int) -> Expansion:
    """Merge the best continuations of each beam, (B, K, n) each. See `expand`. It can be recorded.

    Args:
        totals: Log probability of each hypothesis. (B, K), float32.
        of_beam: Log probabilities of the next tokens, best first. float32.
        tokens: Their ids. int64.
        beam_size: Hypotheses to keep.
    """
    candidates = (totals.unsqueeze(-1) + of_beam).flatten(1)
    # Equals keep their order.
    best, order = torch.sort(candidates, stable=True, dim=-1, descending=True)
    best, order = best[:, : 2 * beam_size], order[:, : 2 * beam_size]
    parents = order // of_beam.shape[-1]
    chosen = tokens.flatten(1).gather(1, order)
    short = 2 * beam_size - order.shape[1]
    if short:  # a vocabulary smaller than the beam: hypotheses that do not exist fill up
        best = F.pad(best, (0, short), value=-math.inf)
        parents, chosen = F.pad(parents, (0, short)), F.pad(chosen, (0, short))
    return Expansion(parents, chosen, best)


def collect(
    pools: Pools,
    indices: Tensor,
    history: Tensor,
    extras: Tensor,
    found: Expansion,
    beam_size: int,
) -> None:
    """Move what ended among the best K to the pools of these ``indices`` (B,)."""
    ends = found.tokens[:, :beam_size] == EOS_ID
    if not bool(ends.any()):
        return
    ends &= found.log_probs[:, :beam_size].isfinite()
    rows, ranks = ends.nonzero(as_tuple=True)
    parents = found.parents[rows, ranks]
    for pool, ids, log_prob, extra in zip(
        indices[rows].tolist(),
        history[rows, parents].tolist(),
        found.log_probs[rows, ranks].tolist(),
        extras[rows, parents].tolist(),
        strict=True,
    ):
        pools.add(pool, ids, log_prob, extra)


def unfinished(found: Expansion, beam_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Parents, tokens and totals of the best K that go on. (B, K) each.

    The order stays; those that ended stand behind all others.
    """
    return going_on(found, found.tokens == EOS_ID, beam_size)


def going_on(found: Expansion, ends: Tensor, beam_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """`unfinished`, given which end. (B, 2K), bool. It can be recorded."""
    if not bool(ends.any()):
        parents, tokens, totals = found
        return parents[:, :beam_size], tokens[:, :beam_size], totals[:, :beam_size]
    order = ends.int().argsort(dim=1, stable=True)[:, :beam_size]
    totals = found.log_probs.masked_fill(ends, -math.inf)
    return found.parents.gather(1, order), found.tokens.gather(1, order), totals.gather(1, order)


def beam_search(
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
        config: Beam size, n best, length limits, penalties and rules.
        constraints: Of each sentence; required phrases are not looked at.

    Returns:
        The n best hypotheses of each sentence, best first; fewer where fewer outputs are possible.
    """
    rules = Rules(source_lengths, config, constraints)
    beams = PlainBeams(rules.longest, config)
    return search_beams(stepper, source, source_lengths, rules, beams, config.coverage_penalty)
