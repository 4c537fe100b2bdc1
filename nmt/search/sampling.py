"""Sampling: translations drawn from the model's distribution, reproducible in any batch.

Shapes: B sentences still active, n samples of each, V vocabulary, C tokens to choose from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from nmt.config.model import DecodingConfig
from nmt.search.greedy import IndependentSelector
from nmt.search.selector import BeamState, SearchInputs

# SplitMix64 (Steele et al. 2014) instead of a torch.Generator: what a generator draws depends on
# what was drawn before it, hence on the batch. As signed numbers: torch's integers wrap around.
_GOLDEN, _MIX_1, _MIX_2 = (
    x - 2**64 for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_BITS = 32
_MOST_POSITIONS = 1 << 32
_FIRST_LOOK = 256  # tokens: most nuclei are smaller


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
        tokens: What V stands for; see `nmt.search.stepper.Stepper`.

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
    # summed over the vocabulary, so short lists and other batches draw the same token.
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
