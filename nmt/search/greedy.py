"""Searches without a beam: greedy search, its variant that does not wait, alternatives, samples.

Hypotheses grow independently: there is nothing to rank or to reorder, so a step costs less than one
of beam search.

Shapes: B sentences still active, n hypotheses of each, V vocabulary, t tokens so far, C
tokens to choose from.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.packed import Packed
from nmt.search.hypothesis import Hypothesis, LengthPenalty
from nmt.search.rules import renormalize
from nmt.search.selector import (
    BeamState,
    FinishedHypotheses,
    S,
    SearchInputs,
    Selection,
    Selector,
    Stepper,
    first_largest,
    largest,
)
from nmt.text import BOS_ID, EOS_ID, NUM_NEVER_CHOSEN

# Waiting in each step leaves a GPU idle while the host decides; waiting rarely computes steps for
# sentences that have ended.
_STEPS_BETWEEN_LOOKS = 4
# SplitMix64 (Steele et al. 2014) instead of a torch.Generator: what a generator draws depends on
# what was drawn before it, hence on the batch. As signed numbers: torch's integers wrap around.
_GOLDEN, _MIX_1, _MIX_2 = (
    x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_BITS = 32
_MOST_POSITIONS = 1 << 32
_FIRST_LOOK = 256  # tokens: most nuclei are smaller


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
        count = self._numbers.shape[1]
        are_one = log_probs.shape[1] < count
        best, ids = self.pick(log_probs.expand(-1, count, -1), beams, self._numbers)
        totals = beams.totals + best
        # Most steps end nothing. That is found out on lists: tensors would take most of a step.
        has_end = EOS_ID in ids.flatten().tolist()
        may_end = has_end or not math.isfinite(sum(best.flatten().tolist()))
        if not are_one and not may_end:
            return Selection(ids, totals)
        ends = self._is_open & ((ids == EOS_ID) | ~(best > -torch.inf))
        rows, slots = (ends & totals.isfinite()).nonzero(as_tuple=True)
        if len(rows):
            pools = beams.sentences[rows] * self._num_hypotheses + self._numbers[rows, slots]
            history = beams.history.expand(-1, count, -1)[rows, slots]
            self._finished.add(pools, history, totals[rows, slots])
        self._is_open = self._is_open & ~ends
        # Tensors are rectangles: sentences with fewer open hypotheses keep some that have ended,
        # which stand behind the open ones and are not counted again.
        active, width = self._is_open.any(1), int(self._is_open.sum(1).max())
        if not width:
            return Selection(ids, totals, active=active)
        slots = (~self._is_open).int().argsort(dim=1, stable=True)[:, :width]
        self._numbers, self._is_open = (
            x.gather(1, slots)[active] for x in (self._numbers, self._is_open)
        )
        parents = torch.zeros_like(slots) if are_one else slots
        return Selection(ids.gather(1, slots), totals.gather(1, slots), parents, active)

    @override
    def results(self) -> list[list[Hypothesis]]:
        """In the order of their numbers, without those that could not end."""
        n = self._num_hypotheses
        pools = (range(first, first + n) for first in range(0, self._count * n, n))
        return [[h for pool in own for h in self._finished.ranked(pool)] for own in pools]


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


def greedy_without_waiting(
    stepper: Stepper[S], source: Packed, limits: Tensor, penalty: LengthPenalty
) -> list[list[Hypothesis]]:
    """Append the most probable token until EOS, or until EOS alone may come.

    Finds what `GreedySelector` finds, which waits for the device in each step: here tokens are
    chosen on the device, and the host looks every few steps at what has ended.

    Args:
        stepper: Gives probabilities.
        source: Source ids, each sentence ending in EOS.
        limits: Shortest and longest output of each sentence with EOS. (2, B), int64, on the CPU.
        penalty: Divides the log probability of an output.

    Returns:
        One hypothesis of each sentence; none where no token was possible.
    """
    device, count = source.ids.device, limits.shape[1]
    results: list[list[Hypothesis]] = [[] for _ in range(count)]
    sentences, state, length, new = torch.arange(count), stepper.start(source), 0, list[Tensor]()
    tokens = torch.full((count, 1), BOS_ID, device=device)
    history, own_limits = tokens[:, :0], limits.to(device)
    totals = torch.zeros(count, device=device)
    is_done = torch.zeros_like(totals, dtype=torch.bool)
    while len(sentences):
        log_probs, state = stepper.step(state, tokens)
        length += 1
        # Limits are lists on the host: to ask the device whether one is near would wait for it.
        shortest, longest = limits.tolist()
        early = own_limits[0] > length if length < max(shortest) else None
        last = own_limits[1] <= length if length >= min(longest) else None
        tokens, best = _choose(log_probs, early, last)
        # Sentences that have ended run along until the next look; their totals must not change.
        totals = torch.where(is_done, totals, totals + best)
        # Not `best == -inf`: NaN is not an output either.
        is_done = is_done | (tokens == EOS_ID).squeeze(1) | ~(best > -torch.inf)
        new.append(tokens)
        if len(new) < _STEPS_BETWEEN_LOOKS and length < max(longest):
            continue
        history, new = torch.cat((history, *new), dim=1), []
        ended = is_done.cpu()
        if not bool(ended.any()):
            continue
        found = (x.cpu()[ended].tolist() for x in (sentences, history, totals))
        for sentence, ids, total in zip(*found, strict=True):
            if total > -torch.inf:
                ids = ids[: ids.index(EOS_ID)]
                score = total / penalty(len(ids) + 1)
                results[sentence] = [Hypothesis(tuple(ids), total, score)]
        active = (~ended).nonzero().squeeze(1)
        sentences, limits = sentences[active], limits[:, active]
        active = active.to(device)
        history, tokens, totals, is_done = (
            x.index_select(0, active) for x in (history, tokens, totals, is_done)
        )
        own_limits = own_limits.index_select(1, active)
        if len(sentences):
            state = stepper.select(state, active, torch.zeros_like(tokens))
    return results


def _choose(log_probs: Tensor, early: Tensor | None, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the first of the most probable tokens, (B, 1), int64, and its log probability, (B,).

    Overwrites ``log_probs`` (B, 1, V), float32. EOS may not come where ``early`` (B,), and nothing
    else where ``last`` (B,).
    """
    log_probs.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-torch.inf)
    ends = log_probs[..., EOS_ID]  # (B, 1), a view
    if early is not None:
        ends.masked_fill_(early.unsqueeze(1), -torch.inf)
        renormalize(log_probs, early)
    if last is not None:
        kept = ends.clone()
        log_probs.masked_fill_(last[:, None, None], -torch.inf)
        ends.copy_(kept)
    # Of equals `max` finds the first; `first_largest` is a shortcut for CPUs.
    best, tokens = log_probs.squeeze(1).max(dim=-1, keepdim=True)
    return tokens, best.squeeze(1)


class SamplingSelector(IndependentSelector):
    """Draws ``n_best`` translations of each sentence; results are in the order of their numbers.

    Every draw is a pure function of seed, source ids, number of the sample and position: a sentence
    gets the same samples in whatever batch and order, on every device. The log probability of a
    hypothesis is the model's, whatever the temperature.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs, inputs.options.n_best)
        self._options, self._tokens = inputs.options, inputs.tokens
        seed = inputs.options.seed
        self._keys = torch.tensor([source_key(seed, ids) for ids in inputs.source.rows()])

    @override
    def pick(self, log_probs: Tensor, beams: BeamState, numbers: Tensor) -> tuple[Tensor, Tensor]:
        keys = self._keys[beams.sentences].unsqueeze(1)
        own = sample_keys(keys, numbers, beams.history.shape[2] + 1).to(log_probs.device)
        ids = draw(log_probs, own, self._options, self._tokens)
        return log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1).cpu(), ids.cpu()


def source_key(seed: int, ids: Sequence[int]) -> int:
    """Hash seed and source ids to 64 bits."""
    digest = hashlib.blake2b(f"{seed}:{','.join(map(str, ids))}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def sample_keys(keys: Tensor, numbers: Tensor, position: int) -> Tensor:
    """Return 64 bits for each sample of a sentence at one position: (B, n), int64.

    Args:
        keys: Of the sentences. (B, 1), int64.
        numbers: Of the samples. (B, n), int64.
        position: In the output, from 1.
    """
    # SplitMix64 adds an odd constant for each number drawn, and mixes: here the count is made of
    # sample and position, so that any number can be drawn without those before it.
    return _mixed(keys + (numbers * _MOST_POSITIONS + position) * _GOLDEN)


def exponential(keys: Tensor, ids: Tensor) -> Tensor:
    """Return numbers above 0, exponentially distributed with mean 1: a pure function.

    Args:
        keys: Of the samples. (B, n, 1), int64.
        ids: Tokens. (C,) or (B, n, C), int64.

    Returns:
        (B, n, C), float32.
    """
    bits = _shift(_mixed(keys + (ids + 1) * _GOLDEN), 64 - _BITS)
    # At most the largest float32 below 1, as log(1 - 1) is infinite.
    chances = bits.float().add_(0.5).mul_(2.0**-_BITS).clamp_(max=1 - 2**-24)
    return chances.neg_().log1p_().neg_()


def _mixed(bits: Tensor) -> Tensor:
    """Mix all bits of each number, in place."""
    bits.bitwise_xor_(_shift(bits, 30)).mul_(_MIX_1)
    bits.bitwise_xor_(_shift(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_shift(bits, 31))


def _shift(bits: Tensor, count: int) -> Tensor:
    """Shift right, zeros coming in on the left."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def draw(
    log_probs: Tensor, keys: Tensor, config: DecodingConfig, tokens: Tensor | None = None
) -> Tensor:
    """Choose one token of each row, by its temperature, then top k, top p and epsilon.

    Each token has an exponential number of its own, and the largest ratio of probability to number
    wins: each token as often as it is probable. Probabilities are rounded otherwise in other
    batches, which matters only where two ratios are all but equal. On a scale of sums it would
    wherever one token ends and the next begins.

    Args:
        log_probs: (B, n, V), float32. Minus infinity for what may not come.
        keys: Of `sample_keys`. (B, n), int64.
        config: How to sample.
        tokens: What V stands for; see `nmt.search.selector.Stepper`.

    Returns:
        (B, n), int64. Any id in a row that has nothing to draw.
    """
    scores = log_probs / config.temperature
    ids = torch.arange(scores.shape[-1], device=scores.device)
    if 0 < config.top_k < len(ids):
        ids = scores.topk(config.top_k, dim=-1).indices
        scores = scores.gather(-1, ids)
    names = ids if tokens is None else tokens[ids]
    probs = scores.softmax(dim=-1)  # (B, n, C)
    if config.top_p < 1:
        probs = nucleus(probs, config.top_p)
    if config.epsilon_cutoff:
        least = probs.amax(-1, keepdim=True).clamp(max=config.epsilon_cutoff)
        probs = probs * (probs >= least)
    # The "exponential race": of clocks with rates p the first rings with probability p. Nothing is
    # summed over the vocabulary, so shortlists and other batches draw the same token.
    places = (probs / exponential(keys.unsqueeze(-1), names)).argmax(-1, keepdim=True)
    return ids.expand_as(probs).gather(-1, places).squeeze(-1)


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of tokens with a mass of ``top_p`` (Holtzman et al. 2020), and ties.

    Most of the probability is in few tokens: more are sorted only where that is not so.

    >>> nucleus(torch.tensor([0.1, 0.4, 0.2, 0.3]), 0.6)
    tensor([0.0000, 0.4000, 0.0000, 0.3000])
    """
    count, size = min(_FIRST_LOOK, probs.shape[-1]), probs.shape[-1]
    while True:
        best = probs.topk(count, dim=-1).values
        mass = best.cumsum(-1)
        if count == size or bool((mass[..., -1] >= top_p).all()):
            break
        count = min(8 * count, size)
    # The last one needed is compared by its value: tokens as probable as it stay as well, so that
    # the set does not depend on how `topk` orders equals.
    needed = (mass < top_p).sum(-1, keepdim=True).clamp(max=count - 1)
    return probs * (probs >= best.gather(-1, needed))
