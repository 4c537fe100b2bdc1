"""The plan of an epoch: which rows it reads, which share a batch, and which batch comes when.

Corpora are mixed by weight, by temperature, and in stages. Plans of 100 million pairs fit in
memory: one packed number a pair is sorted instead of its four keys, and keys are made a chunk at a
time. Beside the lengths there are about two numbers of 64 bits for each pair.
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
_DOUBLE_BITS = 53  # random bits of a number in [0, 1)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of training that mixes the corpora in its own way, and when it ends, if it does."""

    weights: Sequence[float]  # How often an epoch reads each corpus.
    epochs: int | None = None  # Ends after so many epochs.
    updates: int | None = None  # Ends after so many updates.
    score: float | None = None  # Ends with a validation score that is no lower.

    def is_over(self, epochs: int, updates: int) -> bool:
        """Whether it ends after so many epochs and updates of it."""
        return epochs == self.epochs or updates == self.updates


def tempered_weights(
    weights: Sequence[float], sizes: Sequence[int], temperature: float
) -> list[float]:
    """Return how often an epoch reads each corpus if p_i ~ (w_i n_i)^(1/T), and as many pairs.

    Source: temperature sampling of Arivazhagan et al. (2019), section 4.2, of corpora in place of
    languages.

    >>> tempered_weights([1, 1], [900, 100], temperature=2)
    [0.8333333333333334, 2.5]
    """
    if temperature == 1:
        return list(weights)
    wanted = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    shares = [pairs ** (1 / temperature) for pairs in wanted]
    each = sum(wanted) / (sum(shares) or 1)
    return [share * each / size if size else 0.0 for share, size in zip(shares, sizes, strict=True)]


def build_stages(data: DataConfig, sizes: Sequence[int], *, lower_is_better: bool) -> list[Stage]:
    """Return the stages of training; none if it has no stages.

    An epoch of a stage has as many pairs as the corpora that it mixes; of one that ends with epochs
    of a corpus it has that corpus once, or an equal part of it where these are no whole number.

    Args:
        data: The section of the configuration.
        sizes: Pairs of each training corpus.
        lower_is_better: Of the validation metric.
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
        score = (-until if lower_is_better else until) if what == "score" else None
        stages.append(Stage(weights, epochs, updates, score))
    return stages


def epoch_rows(
    corpus: npt.NDArray[np.integer], weights: Sequence[float], *, seed: int, epoch: int
) -> Rows | None:
    """Return the rows that one epoch reads, each as often as its corpus' weight says.

    A weight of 2.5 reads every row twice and a random half of the rows, another one each epoch,
    a third time.

    Args:
        corpus: Corpus of each row, an index into ``weights``. (n,)
        weights: How often an epoch reads each corpus.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.

    Returns:
        Rows; None where it is every row once.
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
    """Return what draws the order of an epoch, from 0."""
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
    """Group pairs of like length under a budget of real tokens; shuffle the groups.

    Pairs are sorted by the longer side, with noise so that epochs differ, then by the target, and
    cut where the budget is full: neither side is padded far. (Multi30k, 4096 tokens: 7% padding.)

    Args:
        source_lengths: Tokens of each source, EOS included. (n,)
        target_lengths: Tokens of each target, EOS included. (n,)
        max_tokens: Most source and target tokens in a batch, together, without padding; None: any.
        max_sentences: Most pairs in a batch; None: any.
        noise: Spread of the sort key, as a share of the length.
        random: Draws the noise and the order of the batches.

    Returns:
        Rows of each batch, in the order of training. Each row is in one batch.

    Raises:
        DataError: A pair is longer than a batch.
    """
    count = len(source_lengths)
    if count == 0:
        return []
    order = length_order(source_lengths, target_lengths, noise=noise, random=random)
    sizes = source_lengths + target_lengths
    longest = int(sizes.argmax())
    if max_tokens is not None and sizes[longest] > max_tokens:
        problem = f"Pair {longest} has {sizes[longest]:,} tokens, but a batch holds {max_tokens:,}."
        fix = "Raise batch.max_tokens, or lower filters.max_length and prepare again."
        raise DataError(problem, fix=fix)
    ends = np.cumsum(sizes[order], dtype=np.int64)
    borders, done = [0], 0
    while borders[-1] < count:
        stop = int(np.searchsorted(ends, done + (max_tokens or int(ends[-1])), side="right"))
        stop = min(stop, borders[-1] + (max_sentences or count))
        borders.append(stop)
        done = int(ends[stop - 1])
    shuffled = random.permutation(len(borders) - 1)
    return [order[borders[i] : borders[i + 1]] for i in shuffled]


def length_order(
    source: IntArray, target: IntArray, *, noise: float, random: np.random.Generator
) -> Rows:
    """Return all rows by the longer side with noise, then source, then target, then at random.

    Draws ``n`` float32 and ``n`` float64 from ``random``, in this order. Equal to
    ``np.lexsort((float64, target, source, rint(max(source, target) * (1 + noise * spread))))``
    as long as 64 bits hold the lengths and enough of the chance: two pairs of the same lengths may
    change places where the bits of chance that fit are the same.

    Args:
        source: Tokens of each source. (n,)
        target: Tokens of each target. (n,)
        noise: Spread of the first key, as a share of the length.
        random: Where noise and chance come from.

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
        chance = random.random(len(packed[part])) * 2.0**spare
        packed[part] |= chance.astype(np.uint64)
    return np.argsort(packed)
