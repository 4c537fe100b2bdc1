"""Sentence lengths -> the order of an epoch: which pairs share a batch, and which batch comes when.

The plan is a pure function of (lengths, settings, seed, epoch, rank): nothing is remembered between
epochs, so a resumed run makes the plan again and skips to its position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nmt.errors import DataError

IntArray = npt.NDArray[np.integer]


def _generator(seed: int, epoch: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, epoch, purpose]))


def epoch_rows(
    corpus: IntArray, weights: Sequence[float], *, seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """Return the rows that one epoch reads, each as often as its corpus' weight says.

    A weight of 2.5 reads every row twice and a random half of the rows, another one each epoch,
    a third time.

    Args:
        corpus: Corpus of each row, an index into ``weights``. (n,)
        weights: How often an epoch reads each corpus.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
    """
    if all(weight == 1 for weight in weights):
        return np.arange(len(corpus), dtype=np.int64)
    random = _generator(seed, epoch, 1)
    parts = []
    for index, weight in enumerate(weights):
        rows = np.flatnonzero(corpus == index)
        extra = round((weight - int(weight)) * len(rows))
        parts += [rows] * int(weight) + [np.sort(random.permutation(rows)[:extra])]
    return np.concatenate(parts).astype(np.int64)


def plan_batches(
    source_lengths: IntArray,
    target_lengths: IntArray,
    *,
    max_tokens: int,
    noise: float,
    seed: int,
    epoch: int,
    rank: int = 0,
    num_ranks: int = 1,
) -> list[npt.NDArray[np.int64]]:
    """Group pairs of like length under a budget of real tokens; shuffle the groups.

    Pairs are sorted by the longer side, with noise so that epochs differ, then by the target, and
    cut where the budget is full: neither side is padded far. (Multi30k, 4096 tokens: 7% padding.)

    Args:
        source_lengths: Tokens of each source, EOS included. (n,)
        target_lengths: Tokens of each target, EOS included. (n,)
        max_tokens: Most source and target tokens in a batch, together, without padding.
        noise: Spread of the sort key, as a share of the length.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        rank: Which process asks; each gets another part of the same plan.
        num_ranks: Processes; each gets equally many batches (a few are read twice to make it even).

    Returns:
        Rows of each batch, in the order of training. Without ranks, each row is in one batch.

    Raises:
        DataError: A pair is longer than a batch.
    """
    sizes = source_lengths.astype(np.int64) + target_lengths
    if len(sizes) == 0:
        return []
    if int(sizes.max()) > max_tokens:
        row = int(sizes.argmax())
        raise DataError(
            f"Pair {row} has {sizes[row]:,} tokens, but a batch holds {max_tokens:,}.",
            fix="Raise batch.max_tokens, or lower filters.max_length and prepare again.",
        )
    random = _generator(seed, epoch, 0)
    longest = np.maximum(source_lengths, target_lengths)
    spread = random.random(len(sizes), dtype=np.float32) - 0.5
    key = np.rint(longest * (1 + noise * spread))
    order = np.lexsort((random.random(len(sizes)), target_lengths, source_lengths, key))
    ends = np.cumsum(sizes[order])
    batches, start, done = [], 0, 0
    while start < len(order):
        stop = int(np.searchsorted(ends, done + max_tokens, side="right"))
        batches.append(order[start:stop])
        start, done = stop, int(ends[stop - 1])
    shuffled = [batches[i] for i in random.permutation(len(batches))]
    short = -len(shuffled) % num_ranks
    even = (shuffled * (1 + short))[: len(shuffled) + short]
    return even[rank::num_ranks]


def padding_waste(
    batches: Sequence[npt.NDArray[np.int64]], source_lengths: IntArray, target_lengths: IntArray
) -> float:
    """Return the share of padding in the rectangles of both sides, in [0, 1)."""
    real = padded = 0
    for rows in batches:
        for lengths in (source_lengths[rows], target_lengths[rows]):
            real += int(lengths.sum())
            padded += len(rows) * int(lengths.max())
    return 1 - real / max(padded, 1)
