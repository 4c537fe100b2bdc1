"""The training data -> which target tokens a sentence may need: the short list.

Likely translations are those of IBM model 1 (Brown et al. 1993, section 4.2), found by expectation
maximisation, a part of the corpus at a time, so that memory does not grow with it.

Shapes: V source and W target vocabulary, n pairs of a source and a target token in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nmt.checkpoint.model_folder import SHORTLIST, write_extra
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore
from nmt.errors import CheckpointError
from nmt.runtime.shortlist import shortlist_bytes
from nmt.runtime.shortlist_file import ShortlistFile

_CANDIDATES = 50
_COMMON = 200
_ITERATIONS = 4
_PAIRS_AT_ONCE = 1 << 23
_MOST_PARTS = 16  # some two seconds each

Counts = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def make_shortlist(run_dir: Path, data: PreparedData) -> None:
    """Write ``shortlist.safetensors`` if there is no whole one: a run has one set of data.

    The bytes are the same for the same data, however the training went.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    manifest = data.manifest
    sizes = manifest.source_vocab_size, manifest.target_vocab_size
    with suppress(CheckpointError):
        if ShortlistFile(run_dir, sizes).parts is not None:
            return
    counts = data.train.token_counts("target", manifest.target_vocab_size)
    common = np.argsort(-counts, kind="stable")[:_COMMON]
    candidates = likely_translations(data.train, sizes, _CANDIDATES)
    content = shortlist_bytes(torch.from_numpy(common.copy()), torch.from_numpy(candidates))
    write_extra(run_dir / SHORTLIST, content)


def likely_translations(
    store: ParallelStore, vocab_sizes: tuple[int, int], most: int
) -> npt.NDArray[np.int32]:
    """Return the target tokens that most often translate each source token, the likeliest first.

    A large corpus is represented by parts of it, spread evenly.

    Args:
        store: Sentence pairs.
        vocab_sizes: V and W.
        most: Translations of each.

    Returns:
        (V, most); -1 where there are fewer.
    """
    num_sources, num_targets = vocab_sizes
    keys, counts = np.empty(0, np.int64), np.empty(0)
    for rows in _parts(store):
        found = _expected_counts(*_meetings(store, rows, num_targets), num_targets)
        keys, counts = _add((keys, counts), found)
        kept = _ranks(keys // num_targets, counts) < 4 * most
        keys, counts = keys[kept], counts[kept]
    sources, ranks = keys // num_targets, _ranks(keys // num_targets, counts)
    table = np.full((num_sources, most), -1, np.int32)
    kept = ranks < most
    table[sources[kept], ranks[kept]] = keys[kept] % num_targets
    return table


def _parts(store: ParallelStore) -> Iterator[Ids]:
    """Yield rows whose tokens meet some `_PAIRS_AT_ONCE` times."""
    meetings = store.source_lengths.astype(np.int64) * store.target_lengths
    ends = np.cumsum(meetings)
    count = max(1, -(-int(meetings.sum()) // _PAIRS_AT_ONCE))
    part = np.minimum(ends // _PAIRS_AT_ONCE, count - 1)
    for chosen in np.unique(np.linspace(0, count - 1, min(count, _MOST_PARTS)).astype(int)):
        yield np.flatnonzero(part == chosen)


def _meetings(store: ParallelStore, rows: Ids, num_targets: int) -> tuple[Ids, Ids]:
    """Let each source token meet each target token of its sentence.

    Returns:
        A key for each pair of ids, source * W + target, and the place of the target token. (n,)
    """
    sources, source_offsets = store.source_ids(rows)
    targets, target_offsets = store.target_ids(rows)
    widths = np.diff(target_offsets)
    sentence = np.repeat(np.arange(len(rows)), np.diff(source_offsets))  # of each source token
    repeats = widths[sentence]
    first = np.repeat(target_offsets[sentence], repeats)
    places = first + np.arange(len(first)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    keys = np.repeat(sources.astype(np.int64), repeats) * num_targets + targets[places]
    return keys, places


def _expected_counts(keys: Ids, places: Ids, num_targets: int) -> tuple[Ids, Counts]:
    """Return the different keys, ascending, and how often each is a translation, by model 1."""
    if not len(keys):
        return keys, np.empty(0)
    unique, which = np.unique(keys, return_inverse=True)
    sources = unique // num_targets
    weights, counts = np.ones(len(unique)), np.empty(0)
    for _ in range(_ITERATIONS):
        shares = weights[which]
        shares /= np.bincount(places, shares)[places]
        counts = np.bincount(which, shares).astype(np.float64)
        weights = counts / np.bincount(sources, counts)[sources]
    return unique, counts


def _add(some: tuple[Ids, Counts], more: tuple[Ids, Counts]) -> tuple[Ids, Counts]:
    keys, which = np.unique(np.concatenate((some[0], more[0])), return_inverse=True)
    return keys, np.bincount(which, np.concatenate((some[1], more[1]))).astype(np.float64)


def _ranks(sources: Ids, counts: Counts) -> Ids:
    """Rank the entries of each source token by count, from 0; of equals the first goes first.

    ``sources`` ascend.
    """
    order = np.lexsort((-counts, sources))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.searchsorted(sources, sources)
    return ranks
