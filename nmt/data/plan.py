"""The plan of an epoch: which rows it reads, how they form batches, and the order of batches.

Corpora are mixed by weight, by temperature, and in stages. Plans of 100 million pairs fit in
memory, because each pair is sorted by one packed 64-bit number instead of four keys. In addition to
the lengths, a plan needs about 16 bytes per pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.config.data import DataConfig
from nmt.data.store import IntArray, Rows
from nmt.errors import DataError

_CHUNK_ROWS = 1 << 20
_DOUBLE_BITS = 53  # random bits of a float64 in [0, 1)


@dataclass(frozen=True, slots=True)
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
    wanted = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    shares = [pairs ** (1 / temperature) for pairs in wanted]
    each = sum(wanted) / (sum(shares) or 1)
    return [share * each / size if size else 0.0 for share, size in zip(shares, sizes, strict=True)]


def replay_weights(
    weights: Sequence[float], sizes: Sequence[int], num_others: int, share: float
) -> list[float]:
    """Return how often an epoch reads each corpus, so that replay has a share of its pairs.

    The weights of the other corpora, which are the first ones, stay the same.

    Source: mixed fine-tuning of Chu et al. (2017), here with a share to choose.

    >>> replay_weights([1, 2, 1], [100, 50, 200], 2, 0.2)
    [1, 2, 0.25]
    """
    pairs = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    wanted = sum(pairs[:num_others]) * share / (1 - share)
    factor = wanted / (sum(pairs[num_others:]) or 1)
    return [*weights[:num_others], *(weight * factor for weight in weights[num_others:])]


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
    names, stages = [corpus.name for corpus in data.train], list[Stage]()
    for config in data.stages:
        shares = [config.mix.get(str(name), 0.0) for name in names]
        length = float(sum(size for size, share in zip(sizes, shares, strict=True) if share))
        what, until = next(iter((config.until or {}).items()), ("", 0.0))
        epochs = None
        if what in config.mix:
            index, epochs = names.index(what), math.ceil(until)
            length = until / epochs * sizes[index] / (shares[index] / sum(shares))
        pairs = [share / sum(shares) * length for share in shares]
        weights = [own / size if size else 0.0 for own, size in zip(pairs, sizes, strict=True)]
        updates = int(until) if what == "steps" else None
        stages.append(Stage(weights, epochs, updates))
    return stages


def epoch_rows(
    corpus: npt.NDArray[np.integer], weights: Sequence[float], *, seed: int, epoch: int
) -> Rows | None:
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
    random = np.random.Generator(np.random.PCG64([seed, epoch, 1]))
    parts = []
    for index, weight in enumerate(weights):
        rows = np.flatnonzero(corpus == index)
        extra = round((weight - int(weight)) * len(rows))
        parts += [rows] * int(weight) + [np.sort(random.permutation(rows)[:extra])]
    return np.concatenate(parts).astype(np.int64, copy=False)


def epoch_random(seed: int, epoch: int) -> np.random.Generator:
    """Return the random generator for the order of an epoch, numbered from 0."""
    return np.random.Generator(np.random.PCG64([seed, epoch, 0]))


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
    borders, done = [0], 0
    while borders[-1] < count:
        stop = int(np.searchsorted(ends, done + (max_tokens or int(ends[-1])), side="right"))
        stop = min(stop, borders[-1] + (max_sentences or count))
        borders.append(stop)
        done = int(ends[stop - 1])
    return [order[borders[i] : borders[i + 1]] for i in random.permutation(len(borders) - 1)]


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
    count = len(source)
    longest = [int(side.max(initial=0)) for side in (source, target)]
    source_bits, target_bits = (most.bit_length() for most in longest)
    key_bits = int(max(longest) * (1 + noise) + 1).bit_length()
    spare = min(64 - key_bits - source_bits - target_bits, _DOUBLE_BITS)
    packed = np.empty(count, dtype=np.uint64)
    parts = [slice(start, start + _CHUNK_ROWS) for start in range(0, count, _CHUNK_ROWS)]
    for part in parts:
        left, right = (side[part].astype(np.int64) for side in (source, target))
        spread = random.random(len(left), dtype=np.float32) - 0.5
        key = np.rint(np.maximum(left, right) * (1 + noise * spread)).astype(np.int64)
        packed[part] = ((key << source_bits | left) << target_bits | right) << spare
    for part in parts:
        packed[part] |= (random.random(len(packed[part])) * 2.0**spare).astype(np.uint64)
    return np.argsort(packed)
