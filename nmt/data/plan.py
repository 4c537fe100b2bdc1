"""The plan of an epoch: which rows it reads, how they form batches, and the order of batches.

Corpora are mixed by weight, by temperature, and in stages. Plans of 100 million pairs fit in
memory, because each pair is sorted by one packed 64-bit number instead of four keys. In addition to
the lengths, a plan needs about 16 bytes per pair.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nmt.config.data import DataConfig
from nmt.data.store import IntArray, Rows
from nmt.errors import DataError

_CHUNK_ROWS = 1 << 20
_DOUBLE_BITS = 53  # random bits of a float64 in [0, 1)


@dataclass(frozen=True)
class Stage:
    """A stage of training: its mixture of the corpora, and its end. The last stage has no end."""

    weights: Sequence[float]  # How often an epoch reads each corpus.
    epochs: int | None = None  # The stage ends after this number of epochs,
    updates: int | None = None  # or after this number of updates.

    def is_over(self, epochs: int, updates: int) -> bool:
        """Whether the stage ends after this number of its epochs or updates."""
        return epochs == self.epochs or updates == self.updates


def tempered_weights(
    weights: Sequence[float], sizes: Sequence[int], temperature: float
) -> list[float]:
    """Return how often an epoch reads each corpus with temperature sampling.

    Corpus i gets a share proportional to (w_i n_i)^(1/T). The number of pairs of an epoch stays the
    same.

    Source: Arivazhagan et al. (2019), section 4.2, with corpora instead of languages.

    >>> tempered_weights([1, 1], [900, 100], temperature=2)
    [0.8333333333333334, 2.5]
    """
    if temperature == 1:
        return list(weights)
    num_pairs = _products(weights, sizes)
    shares = [count ** (1 / temperature) for count in num_pairs]
    scale = sum(num_pairs) / (sum(shares) or 1)
    return _quotients([share * scale for share in shares], sizes)


def _products(weights: Sequence[float], sizes: Sequence[int]) -> list[float]:
    return [weight * size for weight, size in zip(weights, sizes, strict=True)]


def _quotients(num_pairs: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return how often an epoch with ``num_pairs`` of each corpus reads it; 0 if it is empty."""
    return [count / (size or math.inf) for count, size in zip(num_pairs, sizes, strict=True)]


def replay_weights(
    weights: Sequence[float], sizes: Sequence[int], num_others: int, share: float
) -> list[float]:
    """Return how often an epoch reads each corpus, so that replay has a share of its pairs.

    The weights of the other corpora, which are the first ones, stay the same.

    Source: mixed fine-tuning of Chu et al. (2017), here with a share to choose.

    >>> replay_weights([1, 2, 1], [100, 50, 200], 2, 0.2)
    [1, 2, 0.25]
    """
    num_pairs = _products(weights, sizes)
    num_replayed = sum(num_pairs[:num_others]) * share / (1 - share)
    factor = num_replayed / (sum(num_pairs[num_others:]) or 1)
    replayed = [weight * factor for weight in weights[num_others:]]
    return [*weights[:num_others], *replayed]


def epoch_weights(data: DataConfig, sizes: Sequence[int]) -> list[float]:
    """Return how often an epoch without stages reads each training corpus, by its ``sizes``."""
    weights = [corpus.weight for corpus in data.training]
    if data.replay:
        return replay_weights(weights, sizes, len(data.train), data.replay.share)
    return tempered_weights(weights, sizes, data.temperature)


def build_stages(data: DataConfig, sizes: Sequence[int]) -> list[Stage]:
    """Return the stages of training; an empty list if ``data.stages`` is empty.

    An epoch of a stage has as many pairs as the corpora that the stage mixes. If the stage ends
    after epochs of one corpus, each epoch reads this corpus once. If the number of epochs is not
    whole, it is rounded up, and each epoch reads an equal part of the corpus.

    Args:
        data: The data section of the configuration.
        sizes: Number of pairs of each training corpus.
    """
    names = [corpus.name for corpus in data.train]
    stages = []
    for config in data.stages:
        weights = [config.mix.get(str(name), 0.0) for name in names]
        shares = [weight / sum(weights) for weight in weights]
        length = float(sum(itertools.compress(sizes, shares)))
        epochs = None
        updates = None
        for unit, number in (config.until or {}).items():  # at most one
            if unit in config.mix:
                index = names.index(unit)
                epochs = math.ceil(number)
                length = number / epochs * sizes[index] / shares[index]
            elif unit == "steps":
                updates = int(number)
        num_pairs = [share * length for share in shares]
        stages.append(Stage(_quotients(num_pairs, sizes), epochs, updates))
    return stages


def epoch_rows(corpus: IntArray, weights: Sequence[float], *, seed: int, epoch: int) -> Rows | None:
    """Return the rows that one epoch reads, repeated according to the weights of their corpora.

    With a weight of 2.5, an epoch reads every row twice, and a random half of the rows a third
    time. The half differs between epochs.

    Args:
        corpus: Corpus of each row, an index into ``weights``. (n,)
        weights: How often an epoch reads each corpus.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.

    Returns:
        Rows; None if every row is read once.
    """
    if all(weight == 1 for weight in weights):
        return None
    random = _generator(seed, epoch, 1)
    parts = []
    for index, weight in enumerate(weights):
        rows = np.flatnonzero(corpus == index)
        times = int(weight)
        num_extra = round((weight - times) * len(rows))
        parts += [rows] * times
        parts.append(np.sort(random.permutation(rows)[:num_extra]))
    return np.concatenate(parts).astype(np.int64, copy=False)


def epoch_random(seed: int, epoch: int) -> np.random.Generator:
    """Return the random generator for the order of an epoch, numbered from 0."""
    return _generator(seed, epoch, 0)


def _generator(*seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def plan_batches(
    source_lengths: IntArray,
    target_lengths: IntArray,
    *,
    max_tokens: int | None,
    max_sentences: int | None = None,
    noise: float,
    random: np.random.Generator,
) -> list[Rows]:
    """Group pairs of similar length into batches with a token budget, and shuffle the batches.

    Pairs are sorted by the longer side, then by source and target, and cut where the budget is
    full, so there is little padding (7% for Multi30k with 4,096 tokens). Noise in the sort key
    makes epochs differ.

    Args:
        source_lengths: Tokens of each source, including EOS. (n,)
        target_lengths: Tokens of each target, including EOS. (n,)
        max_tokens: Maximum source plus target tokens per batch, without padding; None: no limit.
        max_sentences: Maximum pairs per batch; None: no limit.
        noise: Spread of the sort key, relative to the length.
        random: Source of random numbers for noise and shuffling.

    Returns:
        Rows of each batch, in the order of training. Each row is in exactly one batch.

    Raises:
        DataError: A pair has more than ``max_tokens`` tokens.
    """
    count = len(source_lengths)
    if count == 0:
        return []
    order = length_order(source_lengths, target_lengths, noise=noise, random=random)
    sizes = source_lengths + target_lengths
    longest = int(sizes.argmax())
    if max_tokens is not None and sizes[longest] > max_tokens:
        problem = f"A sentence pair has {sizes[longest]:,} tokens; the limit is {max_tokens:,}."
        raise DataError(problem, fix="Raise batch.max_tokens, or lower filters.max_length.")
    ends = np.cumsum(sizes[order], dtype=np.int64)
    budget = max_tokens or int(ends[-1])
    batches = []
    start = 0
    num_tokens = 0  # of all batches so far
    while start < count:
        stop = int(np.searchsorted(ends, num_tokens + budget, side="right"))
        stop = min(stop, start + (max_sentences or count))
        batches.append(order[start:stop])
        num_tokens = int(ends[stop - 1])
        start = stop
    return [batches[number] for number in random.permutation(len(batches))]


def length_order(
    source: IntArray, target: IntArray, *, noise: float, random: np.random.Generator
) -> Rows:
    """Sort rows by the longer side with noise, then by source, by target, and at random.

    The result equals ``np.lexsort((float64, target, source, rint(max(source, target) * (1 + noise *
    spread))))``, with n float32 (``spread``, from -0.5 to 0.5) and then n float64 drawn from
    ``random``. All keys are packed into 64 bits. If few bits are left for the float64, the order of
    pairs with equal lengths may differ.

    Args:
        source: Tokens of each source. (n,)
        target: Tokens of each target. (n,)
        noise: Spread of the first key, relative to the length.
        random: Source of random numbers.

    Returns:
        Rows. (n,), int64.
    """
    longest_source = int(source.max(initial=0))
    longest_target = int(target.max(initial=0))
    longest_key = max(longest_source, longest_target) * (1 + noise) + 1
    source_bits = longest_source.bit_length()
    target_bits = longest_target.bit_length()
    length_bits = int(longest_key).bit_length() + source_bits + target_bits
    random_bits = min(64 - length_bits, _DOUBLE_BITS)
    packed = np.empty(len(source), dtype=np.uint64)
    starts = range(0, len(source), _CHUNK_ROWS)
    for start in starts:
        rows = slice(start, start + _CHUNK_ROWS)
        sources = source[rows].astype(np.int64)
        targets = target[rows].astype(np.int64)
        spread = random.random(len(sources), dtype=np.float32) - 0.5
        noisy = np.maximum(sources, targets) * (1 + noise * spread)
        key = np.rint(noisy).astype(np.int64)
        key = key << source_bits | sources
        key = key << target_bits | targets
        packed[rows] = key << random_bits
    for start in starts:
        part = packed[start : start + _CHUNK_ROWS]
        drawn = random.random(len(part)) * 2.0**random_bits
        part |= drawn.astype(np.uint64)
    return np.argsort(packed)
