"""Searches without a beam: greedy search, alternatives and sampling.

Hypotheses grow independently. They are not ranked or reordered, so a step is cheaper than a step of
beam search.

Shapes: B active sentences, n hypotheses of each, V vocabulary, t tokens generated so far, C
candidate tokens.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from math import inf, isfinite

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.search.hypothesis import Hypothesis, LengthPenalty, NBestLists
from nmt.search.rules import delay_end, end_at_limit, renormalize
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
from nmt.text import EOS_ID, NUM_NEVER_CHOSEN

# Checking in every step which sentences have ended leaves the GPU idle while the host decides.
# Checking rarely wastes steps on sentences that have ended.
_STEPS_BETWEEN_CHECKS = 4
# SplitMix64 (Steele et al. 2014) instead of torch.Generator, whose numbers depend on earlier draws
# and so on the batch. The constants are signed, because torch integers are; they wrap around.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_NUM_BITS = 32  # random bits of each exponentially distributed number
_MOST_POSITIONS = 1 << 32
_FIRST_NUCLEUS_SIZE = 256  # tokens that `nucleus` sorts first; most nuclei are smaller


Choice = tuple[Tensor, Tensor]  # Log probability and id of a token.


class IndependentSelector(Selector):
    """Continues each hypothesis with the token that `pick` returns.

    The first step has one hypothesis for each sentence, which is then copied. Ended hypotheses
    leave the batch.

    Args:
        inputs: The batch.
        num_hypotheses: Hypotheses of each sentence, numbered from 0.
    """

    def __init__(self, inputs: SearchInputs, num_hypotheses: int = 1) -> None:
        self._num_hypotheses = num_hypotheses
        self._finished = FinishedHypotheses(
            inputs, beam_size=1, n_best=1, pools_per_sentence=num_hypotheses
        )
        numbers = torch.arange(num_hypotheses)
        # Number of each hypothesis that is in the batch. (B, n), int64; n decreases later.
        self._numbers = numbers.expand(len(inputs.source), -1)
        # Whether it has not ended. (B, n).
        self._is_open = torch.ones_like(self._numbers, dtype=torch.bool)

    @abstractmethod
    def pick(self, log_probs: Tensor, beams: BeamState) -> Choice:
        """Choose the next token of each hypothesis.

        Args:
            log_probs: Log probabilities of all tokens. (B, n, V), float32, on the stepper's device.
            beams: The hypotheses; one for each sentence at the first step.

        Returns:
            Log probabilities (B, n), float32, and token ids (B, n), int64, on the CPU. A hypothesis
            with minus infinity or NaN is dropped.
        """

    @override
    def select(self, beams: BeamState, log_probs: Tensor, coverage: Tensor) -> Selection:
        width = self._numbers.shape[1]
        # At the first step, the one hypothesis of each sentence becomes `width` copies.
        is_copied = log_probs.shape[1] < width
        log_probs = log_probs.expand(-1, width, -1)
        token_log_probs, ids = self.pick(log_probs, beams)
        totals = beams.totals + token_log_probs
        # No hypothesis ends in most steps. Lists detect this much faster than tensor operations. A
        # sum is finite only if all its terms are.
        has_end = EOS_ID in ids.flatten().tolist()
        all_finite = isfinite(sum(token_log_probs.flatten().tolist()))
        if all_finite and not (is_copied or has_end):
            return Selection(ids, totals)
        # A hypothesis without a possible token also ends. `>` is false for NaN too.
        ends_now = (ids == EOS_ID) | ~(token_log_probs > -inf)
        ends_now &= self._is_open
        rows, columns = (ends_now & totals.isfinite()).nonzero(as_tuple=True)
        if len(rows):
            first_pools = beams.sentences[rows] * self._num_hypotheses
            pools = first_pools + self._numbers[rows, columns]
            history = beams.history.expand(-1, width, -1)
            self._finished.add(pools, history[rows, columns], totals[rows, columns])
        self._is_open &= ~ends_now
        active = self._is_open.any(1)
        # Move the open hypotheses of each sentence to the front.
        is_closed = (~self._is_open).int()
        order = is_closed.argsort(dim=1, stable=True)
        # Drop columns without an open hypothesis. Tensors are rectangular: sentences with fewer
        # open hypotheses are filled up with ended ones at the end, which are not counted again.
        num_open = self._is_open.sum(1)
        parents = order[:, : int(num_open.max())]
        ids = ids.gather(1, parents)
        totals = totals.gather(1, parents)
        self._numbers = self._numbers.gather(1, parents)[active]
        self._is_open = self._is_open.gather(1, parents)[active]
        if is_copied:  # all continue the one hypothesis
            parents = torch.zeros_like(parents)
        return Selection(ids, totals, parents, active)

    @override
    def results(self) -> NBestLists:
        """Return the hypotheses of each sentence, by number, without the dropped hypotheses."""
        return [list(chain(*pools)) for pools in self._finished.by_sentence()]


class GreedySelector(IndependentSelector):
    """Greedy search: always the most probable token; of equal tokens the one with the lowest id.

    The result equals that of beam search with one beam.
    """

    @override
    def pick(self, log_probs: Tensor, beams: BeamState) -> Choice:
        best, ids = first_largest(log_probs)
        return best.cpu(), ids.cpu()


class AlternativesSelector(GreedySelector):
    """Alternatives: the most probable tokens after the prefix, each completed by greedy search.

    Results are in the order of these tokens, most probable first. There are fewer than ``n_best``
    if fewer tokens are possible.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        super().__init__(inputs, inputs.options.n_best)
        # Length of the prefix of each sentence, start token included. (sentences,), int64.
        self._prefix_lengths = torch.tensor([len(entry.first_ids) for entry in inputs.constraints])

    @override
    def pick(self, log_probs: Tensor, beams: BeamState) -> Choice:
        best, ids = super().pick(log_probs, beams)
        has_prefix_only = self._prefix_lengths[beams.sentences] == beams.history.shape[2]
        rows = has_prefix_only.nonzero().squeeze(1)
        # All hypotheses of these sentences are equal so far, so the first one serves all. From here
        # on, each continues with another token.
        if len(rows):
            values, tokens = largest(log_probs[rows, 0], self._num_hypotheses)
            # If fewer tokens exist, the other hypotheses are dropped.
            padding = (0, self._num_hypotheses - values.shape[1])
            best[rows] = F.pad(values, padding, value=-inf)
            ids[rows] = F.pad(tokens, padding)
        return best, ids


def greedy_without_waiting(
    stepper: Stepper[S], state: S, beams: BeamState, limits: Tensor, penalty: LengthPenalty
) -> NBestLists:
    """Run greedy search without waiting for the device in every step.

    The result equals that of `GreedySelector`, which waits in every step. Here tokens are chosen on
    the device, and the host checks every few steps which sentences have ended.

    Args:
        stepper: Computes log probabilities.
        state: State of the stepper for B sentences.
        beams: Beginning of each output. Its tensors are on the device.
        limits: Minimum and maximum output length of each sentence, EOS included. (2, B), int64, on
            the CPU.
        penalty: Length penalty, the divisor of log probabilities.

    Returns:
        One hypothesis for each sentence; an empty list if no token was possible.
    """
    device = beams.tokens.device
    sentences = torch.arange(limits.shape[1])
    results = [list[Hypothesis]() for _ in sentences]
    limits_on_device = limits.to(device)
    # A sentence has one hypothesis, so tensors of the batch have one column, except the history.
    tokens = beams.tokens
    history = beams.history[:, 0]  # Ids up to the last check. (B, t).
    totals = beams.totals
    is_done = torch.zeros_like(totals, dtype=torch.bool)
    length = history.shape[1]
    new_tokens = list[Tensor]()  # Tokens of each step since the last check. (B, 1) each.
    while len(sentences):
        log_probs, state = stepper.step(state, tokens)
        log_probs.narrow(-1, 0, NUM_NEVER_CHOSEN).fill_(-inf)
        length += 1
        # Limits are compared on the host, because reading them from the device would wait for it.
        min_lengths, max_lengths = limits.tolist()
        if length < max(min_lengths):
            is_early = limits_on_device[0] > length
            delay_end(log_probs, is_early)
            renormalize(log_probs, is_early)
        if length >= min(max_lengths):
            end_at_limit(log_probs, limits_on_device[1] <= length)
        # `max` returns the first of equal values, as `first_largest` does, which is faster on CPUs.
        best, tokens = log_probs.max(dim=-1)  # (B, 1)
        # Ended sentences stay in the batch until the next check; their totals must not change.
        totals = totals.where(is_done, totals + best)
        is_done |= tokens == EOS_ID
        is_done |= ~(best > -inf)  # not `best == -inf`: NaN also ends a sentence
        new_tokens.append(tokens)
        if len(new_tokens) < _STEPS_BETWEEN_CHECKS and length < max(max_lengths):
            continue
        history = torch.cat((history, *new_tokens), dim=1)
        new_tokens = []
        is_ended = is_done.squeeze(1).cpu()  # waits for the device
        if not is_ended.any():
            continue
        columns = [tensor.cpu()[is_ended].tolist() for tensor in (sentences, history, totals)]
        for sentence, ids, (total,) in zip(*columns, strict=True):
            if total > -inf:
                ids = ids[: ids.index(EOS_ID)]  # without EOS and tokens of later steps
                score = total / penalty(len(ids) + 1)
                results[sentence].append(Hypothesis(tuple(ids), total, score))
        active = (~is_ended).nonzero().squeeze(1)
        sentences = sentences[active]
        limits = limits[:, active]
        active = active.to(device)
        limits_on_device = limits_on_device[:, active]
        tokens = tokens[active]
        history = history[active]
        totals = totals[active]
        is_done = is_done[active]
        if len(sentences):  # keep these sentences, each with its only beam, number 0
            state = stepper.select(state, active, torch.zeros_like(tokens))
    return results


class SamplingSelector(IndependentSelector):
    """Sampling: draws ``n_best`` translations of each sentence. Results are in order of number.

    Every draw is a pure function of seed, source ids, sample number and position. So a sentence
    gets the same samples in every batch and on every device. Log probabilities of hypotheses do not
    depend on the temperature.
    """

    def __init__(self, inputs: SearchInputs) -> None:
        options = inputs.options
        super().__init__(inputs, options.n_best)
        self._options = options
        self._tokens = inputs.tokens
        keys = [source_key(options.seed, ids) for ids in inputs.source.rows()]
        self._source_keys = torch.tensor(keys)  # (sentences,), int64

    @override
    def pick(self, log_probs: Tensor, beams: BeamState) -> Choice:
        source_keys = self._source_keys[beams.sentences].unsqueeze(1)
        position = beams.history.shape[2] + 1
        keys = sample_keys(source_keys, self._numbers, position)
        ids = draw(log_probs, keys.to(log_probs.device), self._options, self._tokens)
        token_log_probs = log_probs.gather(-1, ids.unsqueeze(-1))
        return token_log_probs.squeeze(-1).cpu(), ids.cpu()


def source_key(seed: int, ids: Sequence[int]) -> int:
    """Hash the seed and the source ids of a sentence to a signed 64-bit integer."""
    text = f"{seed}:{','.join(map(str, ids))}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def sample_keys(keys: Tensor, numbers: Tensor, position: int) -> Tensor:
    """Return a random 64-bit key for each sample at one position: (B, n), int64.

    Args:
        keys: Keys of the sentences, from `source_key`. (B, 1), int64.
        numbers: Numbers of the samples. (B, n), int64.
        position: Position in the output, from 1.
    """
    # SplitMix64 adds an odd constant for each draw, then mixes. Here the number of the draw is
    # computed from sample and position, so that every draw is independent of earlier draws.
    draws = numbers * _MOST_POSITIONS + position
    return _mixed(keys + draws * _GOLDEN)


def exponential(keys: Tensor, ids: Tensor) -> Tensor:
    """Return exponentially distributed numbers with mean 1, a pure function of the arguments.

    Args:
        keys: Keys of the samples, from `sample_keys`. (B, n, 1), int64.
        ids: Token ids. (C,) or (B, n, C), int64.

    Returns:
        (B, n, C), float32.
    """
    bits = _mixed(keys + (ids + 1) * _GOLDEN)
    integers = _shift(bits, 64 - _NUM_BITS).float()  # from 0 to 2**32 - 1
    # Uniformly distributed between 0 and 1. Adding 0.5 excludes 0.
    uniform = integers.add_(0.5).mul_(2.0**-_NUM_BITS)
    # Below 1 in float32, because log(1 - 1) is infinite.
    uniform.clamp_(max=1 - 2**-24)
    # -log(1 - uniform): the inverse of the exponential distribution function.
    return uniform.neg_().log1p_().neg_()


def _mixed(bits: Tensor) -> Tensor:
    """Mix the bits of each number (SplitMix64), in place."""
    bits.bitwise_xor_(_shift(bits, 30)).mul_(_MIX_1)
    bits.bitwise_xor_(_shift(bits, 27)).mul_(_MIX_2)
    return bits.bitwise_xor_(_shift(bits, 31))


def _shift(bits: Tensor, count: int) -> Tensor:
    """Shift 64-bit integers right by ``count``, filling with zeros (logical shift).

    ``>>`` fills with copies of the sign bit, so only the lower 64 - ``count`` bits are kept.
    """
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1)


def draw(
    log_probs: Tensor, keys: Tensor, config: DecodingConfig, tokens: Tensor | None = None
) -> Tensor:
    """Draw one token of each row, after temperature, top k, top p and epsilon cutoff.

    Each token gets an exponentially distributed number. The token with the largest ratio of
    probability to number is drawn, so each token is drawn with its probability. Probabilities are
    rounded differently in other batches, but this only changes the result if two ratios are almost
    equal. With cumulative sums it would change results more often.

    Args:
        log_probs: (B, n, V), float32. Minus infinity for tokens that are not allowed.
        keys: Keys from `sample_keys`. (B, n), int64.
        config: Options of sampling.
        tokens: Vocabulary ids of the V columns; see `nmt.search.selector.Stepper.tokens`.

    Returns:
        Column of each drawn token. (B, n), int64. Undefined in a row without allowed tokens.
    """
    scores = log_probs / config.temperature
    # Column of each candidate in `log_probs`: (V,), or (B, n, C) after top k.
    columns = torch.arange(scores.shape[-1], device=scores.device)
    if 0 < config.top_k < len(columns):  # 0 keeps all tokens
        columns = scores.topk(config.top_k, dim=-1).indices
        scores = scores.gather(-1, columns)
    vocabulary_ids = columns
    if tokens is not None:
        vocabulary_ids = tokens[columns]
    probs = scores.softmax(dim=-1)  # (B, n, C)
    if config.top_p < 1:
        probs = nucleus(probs, config.top_p)
    if config.epsilon_cutoff:
        # The most probable token is always kept.
        largest_prob = probs.amax(-1, keepdim=True)
        threshold = largest_prob.clamp(max=config.epsilon_cutoff)
        probs *= probs >= threshold
    # The "exponential race": of clocks with rates p, each rings first with probability p. There is
    # no sum over the vocabulary, so shortlists and other batches draw the same token.
    times = exponential(keys.unsqueeze(-1), vocabulary_ids)
    winners = (probs / times).argmax(-1, keepdim=True)  # indices of candidates
    drawn = columns.expand_as(probs).gather(-1, winners)
    return drawn.squeeze(-1)


def nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Zero all probabilities outside the smallest set with mass ``top_p`` (Holtzman et al. 2020).

    Tokens as probable as the last token of the set are also kept.

    >>> nucleus(torch.tensor([0.1, 0.4, 0.2, 0.3]), 0.6)
    tensor([0.0000, 0.4000, 0.0000, 0.3000])
    """
    vocab_size = probs.shape[-1]
    count = min(_FIRST_NUCLEUS_SIZE, vocab_size)
    # Look at a few of the most probable tokens. If their mass is too small, look at more.
    while True:
        best = probs.topk(count).values
        mass = best.cumsum(-1)
        is_enough = mass[..., -1] >= top_p
        if count == vocab_size or is_enough.all():
            break
        count = min(8 * count, vocab_size)
    # The last token of the set is the one with which the mass reaches `top_p`. If rounding keeps
    # the mass of all tokens below it, it is the last of all.
    last_index = (mass < top_p).sum(-1, keepdim=True)
    last_index = last_index.clamp(max=count - 1)
    # Compare by value, so that the set does not depend on the order of equal values in `topk`.
    return probs * (probs >= best.gather(-1, last_index))
