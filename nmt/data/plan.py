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

_CHUNK_ROWS = 1 << 20  # rows of which temporary arrays are in memory
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
    tempered = [count ** (1 / temperature) for count in num_pairs]
    scale = sum(num_pairs) / (sum(tempered) or 1)  # 1 if all corpora are empty
    return _quotients([count * scale for count in tempered], sizes)


def _products(weights: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return the number of pairs that an epoch reads of each corpus."""
    return [weight * size for weight, size in zip(weights, sizes, strict=True)]


def _quotients(num_pairs: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return how often an epoch with ``num_pairs`` of each corpus reads it; 0 if it is empty."""
    return [count / (size or math.inf) for count, size in zip(num_pairs, sizes, strict=True)]


def replay_weights(
    weights: Sequence[float], sizes: Sequence[int], num_new: int, share: float
) -> list[float]:
    """Return how often an epoch reads each corpus, so that replay has a share of its pairs.

    Source: mixed fine-tuning of Chu et al. (2017), here with a share to choose.

    Args:
        weights: How often to read each corpus: first the new corpora, whose weights stay the same,
            then the corpora to replay, whose weights are multiplied by the same factor.
        sizes: Number of pairs of each corpus.
        num_new: Number of new corpora.
        share: Share of the pairs of an epoch that are replayed.

    >>> replay_weights([1, 2, 1], [100, 50, 200], 2, 0.2)
    [1, 2, 0.25]
    """
    num_pairs = _products(weights, sizes)
    # With N new pairs and R replayed pairs, R / (N + R) = share, so R = N * share / (1 - share).
    num_replayed = sum(num_pairs[:num_new]) * share / (1 - share)
    factor = num_replayed / (sum(num_pairs[num_new:]) or 1)  # 1 if they are empty
    replay = [weight * factor for weight in weights[num_new:]]
    return [*weights[:num_new], *replay]


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
    names = [str(corpus.name) for corpus in data.train]
    stages = []
    for config in data.stages:
        weights = [config.mix.get(name, 0.0) for name in names]
        shares = [weight / sum(weights) for weight in weights]  # of the pairs of an epoch
        # Pairs of an epoch. `compress` leaves out the corpora with the share 0.
        epoch_pairs = float(sum(itertools.compress(sizes, shares)))
        epochs = None
        updates = None
        # ``until`` has at most one item: ``steps``, or the name of a corpus, and their number.
        for unit, amount in (config.until or {}).items():
            if unit in config.mix:
                index = names.index(unit)
                epochs = math.ceil(amount)
                # An epoch reads amount / epochs of this corpus, which is the corpus's share of it.
                epoch_pairs = amount / epochs * sizes[index] / shares[index]
            elif unit == "steps":
                updates = int(amount)
        num_pairs = [share * epoch_pairs for share in shares]
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
    random = _generator(seed, epoch, 1)  # 1 for repetitions; 0 is for `epoch_random`
    readings = []  # arrays of rows, of which each is read once
    for index, weight in enumerate(weights):
        corpus_rows = np.flatnonzero(corpus == index)
        num_full = int(weight)  # how often every row is read
        num_extra = round((weight - num_full) * len(corpus_rows))
        readings += [corpus_rows] * num_full
        readings.append(np.sort(random.permutation(corpus_rows)[:num_extra]))
    return np.concatenate(readings).astype(np.int64, copy=False)


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
    num_pairs = len(source_lengths)
    if num_pairs == 0:
        return []
    order = length_order(source_lengths, target_lengths, noise=noise, random=random)
    pair_lengths = source_lengths + target_lengths
    longest = int(pair_lengths.max())
    if max_tokens is not None and longest > max_tokens:
        raise DataError(
            f"A sentence pair has {longest:,} tokens; the limit is {max_tokens:,}.",
            fix="Raise batch.max_tokens, or lower filters.max_length.",
        )
    # Total tokens of the sorted pairs up to each pair, this pair included. (n,)
    cumulative = np.cumsum(pair_lengths[order], dtype=np.int64)
    budget = max_tokens or int(cumulative[-1])
    batches = []
    start = 0  # index in ``order`` of the first pair of the next batch
    num_tokens = 0  # of all batches so far
    while start < num_pairs:
        # The first pair that does not fit into the budget of this batch.
        stop = int(np.searchsorted(cumulative, num_tokens + budget, side="right"))
        stop = min(stop, start + (max_sentences or num_pairs))
        batches.append(order[start:stop])
        num_tokens = int(cumulative[stop - 1])
        start = stop
    return [batches[index] for index in random.permutation(len(batches))]


def length_order(
    source: IntArray, target: IntArray, *, noise: float, random: np.random.Generator
) -> Rows:
    """Sort rows by the longer side with noise, then by source, by target, and at random.

    There are four sort keys: ``rint(max(source, target) * (1 + noise * spread))``, ``source``,
    ``target``, and a random float64. ``random`` draws n float32 for ``spread``, from -0.5 to 0.5,
    and then the n float64. One number of 64 bits contains all keys of a row, the first key in its
    highest bits, so rows are sorted by one array. If few bits are left for the float64, only its
    first digits count.

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
    # More than the longest side with noise. The 1 is for rounding.
    noisy_limit = max(longest_source, longest_target) * (1 + noise) + 1
    source_bits = longest_source.bit_length()
    target_bits = longest_target.bit_length()
    length_bits = int(noisy_limit).bit_length() + source_bits + target_bits
    random_bits = min(64 - length_bits, _DOUBLE_BITS)
    packed = np.empty(len(source), dtype=np.uint64)
    starts = range(0, len(source), _CHUNK_ROWS)
    for start in starts:
        rows = slice(start, start + _CHUNK_ROWS)
        chunk_source = source[rows].astype(np.int64)
        chunk_target = target[rows].astype(np.int64)
        spread = random.random(len(chunk_source), dtype=np.float32) - 0.5
        noisy = np.maximum(chunk_source, chunk_target) * (1 + noise * spread)
        key = np.rint(noisy).astype(np.int64)
        key = key << source_bits | chunk_source
        key = key << target_bits | chunk_target
        packed[rows] = key << random_bits
    # A second loop, so that all float32 are drawn before the first float64.
    for start in starts:
        chunk = packed[start : start + _CHUNK_ROWS]  # a view: changes are made in ``packed``
        fractions = random.random(len(chunk)) * 2.0**random_bits
        chunk |= fractions.astype(np.uint64)
    return np.argsort(packed)
