"""The file of short lists: which target tokens each source token may become. Loads no torch.

Likely translations are those of IBM model 1 (Brown et al. 1993, section 4.2), found in the training
data by expectation maximisation, a part of the corpus at a time, so that memory does not grow with
it.

Shapes: V source and W target vocabulary, n pairs of a source and a target token in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from nmt.checkpoint.model_folder import SHORTLIST, write_extra
from nmt.data.prepared import PreparedData
from nmt.data.store import ParallelStore
from nmt.errors import CheckpointError, ConfigError
from nmt.extras.exchange.ctranslate2 import ShortlistParts
from nmt.files.progress import progress_bar

_MOST_CANDIDATES = 50
_MOST_COMMON = 200
_ITERATIONS = 4
_PAIRS_AT_ONCE = 1 << 23
_MOST_PARTS = 16  # some two seconds each

Counts = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


class ShortlistFile:
    """The file of one folder. What is wrong with it matters to nobody who does not need it.

    Args:
        folder: Run or model folder where it is looked for.
        vocab_sizes: Entries of the source and of the target vocabulary.
    """

    def __init__(self, folder: Path, vocab_sizes: tuple[int, int]) -> None:
        self.path, self.vocab_sizes = folder / SHORTLIST, vocab_sizes

    def require(self) -> ShortlistParts:
        """Return what it holds.

        Raises:
            ConfigError: There is no such file.
            CheckpointError: It is damaged.
        """
        if self.parts is None:
            raise ConfigError(
                f"decoding.shortlist is on, but {self.path.parent} has no {SHORTLIST}.",
                fix="Start `nmt train CONFIG` again: a finished run only writes it. Or add "
                "--no-shortlist.",
            )
        return self.parts

    @cached_property
    def parts(self) -> ShortlistParts | None:
        """What it holds; None if there is no such file.

        Raises:
            CheckpointError: It is damaged.
        """
        if not self.path.is_file():
            return None
        try:
            found = load_file(self.path)
            parts = ShortlistParts(found["common"], found["candidates"])
            if (parts.common.ndim, parts.candidates.ndim) != (1, 2) or not parts.candidates.size:
                raise ValueError("its parts have other shapes")
            if any(part.dtype.kind != "i" for part in parts):
                raise ValueError("its parts are no whole numbers")
            source_size, target_size = self.vocab_sizes
            largest = max(part.max(initial=-1) for part in parts)
            if len(parts.candidates) != source_size or largest >= target_size:
                raise ValueError("it is of another vocabulary")
            if parts.common.min(initial=0) < 0 or parts.candidates.min() < -1:
                raise ValueError("it holds numbers that are no tokens")
        except (OSError, SafetensorError, LookupError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} is damaged: {error}.",
                fix="Remove it; a finished run gets it again when its training is started again.",
            ) from error
        return parts


def shortlist_bytes(common: Any, candidates: Any) -> bytes:
    """Return the content of a file. Arguments as in `ShortlistParts`, as arrays or tensors."""
    parts = {"common": common, "candidates": candidates}
    return save({name: np.asarray(part, order="C") for name, part in parts.items()})


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
    common = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    candidates = likely_translations(data.train, sizes, _MOST_CANDIDATES)
    write_extra(run_dir / SHORTLIST, shortlist_bytes(common, candidates))


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
    parts = list(_parts(store))
    with progress_bar("making short lists", unit="parts", total=len(parts), leave=False) as bar:
        for rows in parts:
            found = _expected_counts(*_meetings(store, rows, num_targets), num_targets)
            keys, which = np.unique(np.concatenate((keys, found[0])), return_inverse=True)
            counts = np.bincount(which, np.concatenate((counts, found[1]))).astype(np.float64)
            kept = _ranks(keys // num_targets, counts) < 4 * most
            keys, counts = keys[kept], counts[kept]
            bar.update()
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


def _ranks(sources: Ids, counts: Counts) -> Ids:
    """Rank the entries of each source token by count, from 0; of equals the first goes first.

    ``sources`` ascend.
    """
    order = np.lexsort((-counts, sources))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.searchsorted(sources, sources)
    return ranks
