"""A bilingual lexicon, learned from sentence pairs with IBM model 1.

The model (Brown et al. 1993, section 4.2) is trained in both directions by agreement (Liang et al.
2006, section 3.1): the probability of a link (an aligned source and target token) is the product of
both directions. Both directions share one table of expected counts. A hash of both words selects
the cell, so memory does not grow with the corpus, and collisions do little harm.

Shapes: V and W source and target vocabulary sizes, P pairs, n co-occurrences of a
source token and a target token in a pair, s and t source and target tokens of all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from nmt.data.store import IntArray, Lines, ParallelStore, Rows, Values
from nmt.data.workers import HERE, Workers

Probabilities = npt.NDArray[np.float32]

_CELLS = 1 << 25  # 128 MiB per table; two tables are in memory
_HASH = np.uint64(0x9E3779B97F4A7C15)
_ITERATIONS = 4
_MOST_COMMON = 200
_MOST_CANDIDATES = 30
_COOCCURRENCES_AT_ONCE = 1 << 20
_MERGED_AT_ONCE = 1 << 21
_PAIRS_AT_ONCE = 1 << 16
_MOST_COOCCURRENCES = 1 << 26  # More data takes longer, with little effect on the lexicon.
_EMPTY_WORD = 0.1  # Probability that a token is not a translation of any token (the empty word).


class Pairs(NamedTuple):
    """Sentence pairs, as row numbers of a source line and a target line."""

    sources: Rows  # In rising order. (P,).
    targets: Rows  # (P,).


class Cooccurrences:
    """All combinations of a source token and a target token within each pair."""

    def __init__(self, lines: Lines, pairs: Pairs, num_targets: int) -> None:
        source = lines.source.ids(pairs.sources)
        target = lines.target.ids(pairs.targets)
        self.sides = source, target  # s and t tokens of P pairs.
        widths = target.lengths[source.sentences]  # co-occurrences of each source token
        first = target.offsets[source.sentences] - (np.cumsum(widths) - widths)
        source_places = np.repeat(np.arange(len(source.ids)), widths)
        target_places = np.arange(len(source_places)) + np.repeat(first, widths)
        # Source and target token of each meeting. (n,) and (n,).
        self.places = source_places, target_places
        rows = source.ids.astype(np.int64) * num_targets
        # Both words of each meeting: source * W + target. (n,).
        self.keys = rows[source_places] + target.ids[target_places]

    def sums(self, side: int, values: npt.NDArray[np.floating]) -> Values:
        """Sum values (n,) over all co-occurrences of each token of one side. (s,) or (t,)."""
        num_tokens = len(self.sides[side].ids)
        return np.bincount(self.places[side], values, num_tokens).astype(np.float64)


def cells_of(keys: Rows) -> Rows:
    """Return the table cells of word pairs. Keys: source id * W + target id, any shape."""
    if keys.size and int(keys.max()) < _CELLS:
        return keys
    shift = np.uint64(64 - (_CELLS.bit_length() - 1))
    hashes = keys.astype(np.uint64) * _HASH
    return (hashes >> shift).astype(np.int64)


@dataclass(frozen=True)
class _Table:
    """Expected counts of links between source and target words."""

    cells: npt.NDArray[np.float32]  # Counts of word pairs. (cells,).
    totals: tuple[Values, Values]  # Counts of source and of target words. (V,) and (W,).
    path: Path | None = None  # File of the cells, for other processes.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the path: the table is large, and is sent with every batch."""
        return _table_of, (self.path, self.totals)


def _table_of(path: Path, totals: tuple[Values, Values]) -> _Table:
    cells = np.memmap(path, np.float32, "r")
    return _Table(cells, totals, path)


class _Links(NamedTuple):
    """The expected counts of a batch, to be added to a table."""

    keys: Rows  # Of each meeting. (n,).
    values: Probabilities  # Probability of a link there. (n,).
    totals: tuple[Values, Values]  # Sums for each source and each target word. (V,) and (W,).


@dataclass(frozen=True)
class Lexicon:
    """Translation probabilities of words. Pickled as the paths of the tables."""

    lines: Lines
    sizes: tuple[int, int]  # V and W.
    frequencies: tuple[Values, Values]  # Relative frequencies of the words. (V,) and (W,).
    table: _Table | None = None
    before: _Table | None = None  # The table of the iteration before ``table``.

    def links(self, pairs: Pairs) -> _Links:
        """Return the expected counts of a batch (E-step)."""
        joint = Cooccurrences(self.lines, pairs, self.sizes[1])
        links = self.posterior(joint, self.table)
        source, target = (self._totals(joint, side, links) for side in (0, 1))
        return _Links(joint.keys, links, (source, target))

    def _totals(self, joint: Cooccurrences, side: int, links: Probabilities) -> Values:
        sums = joint.sums(side, links)
        totals = np.bincount(joint.sides[side].ids, sums, self.sizes[side])
        return totals.astype(np.float64)

    def posterior(self, joint: Cooccurrences, table: _Table | None) -> Probabilities:
        """Return the probability of a link at each co-occurrence (both directions). (n,)."""
        result = np.ones(len(joint.keys), np.float32)
        # Before the first iteration, factors that are equal within a pair cancel out.
        counts = result
        if table is not None:
            counts = table.cells[cells_of(joint.keys)]
        for side, flat in enumerate(joint.sides):
            # Probability that each token of this side generates the token of the other side.
            scale = (1 - _EMPTY_WORD) / flat.lengths[flat.sentences]
            if table is not None:
                scale /= np.maximum(table.totals[side][flat.ids], 1e-9)
            likely = counts * scale.astype(np.float32)[joint.places[side]]
            other = 1 - side
            whole = joint.sums(other, likely)
            if table is not None:
                whole += _EMPTY_WORD * self.frequencies[other][joint.sides[other].ids]
            share = (1 / np.maximum(whole, 1e-30)).astype(np.float32)
            result *= likely * share[joint.places[other]]
        return result


def batches(lines: Lines, pairs: Pairs) -> Iterator[Pairs]:
    """Cut pairs into batches of about `_COOCCURRENCES_AT_ONCE` co-occurrences."""
    weights = lines.source.lengths[pairs.sources].astype(np.int64)
    weights = weights * lines.target.lengths[pairs.targets] + 8
    batch_numbers = np.cumsum(weights) // _COOCCURRENCES_AT_ONCE
    cuts = np.flatnonzero(np.diff(batch_numbers)) + 1
    sources = np.split(pairs.sources, cuts)
    targets = np.split(pairs.targets, cuts)
    for part in map(Pairs, sources, targets):
        if len(part.sources):
            yield part


def sample_step(lines: Lines, num: int) -> int:
    """Return the step k: every k-th of ``num`` lines gives enough data to learn a lexicon."""
    total = 0
    for start in range(0, num, _PAIRS_AT_ONCE):
        rows = slice(start, start + _PAIRS_AT_ONCE)
        source_lengths = lines.source.lengths[rows].astype(np.int64)
        total += int(source_lengths @ lines.target.lengths[rows])
    return max(1, math.ceil(total / _MOST_COOCCURRENCES))


def learn_lexicon(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    pairs: Pairs,
    *,
    workers: Workers = HERE,
    folder: Path | None = None,
    iterations: int = _ITERATIONS,
) -> Lexicon:
    """Learn a lexicon by expectation maximization.

    Counts are added in the order of the batches, so the result does not depend on the number of
    workers.

    Args:
        lines: Token ids.
        vocab_sizes: Sizes of the source and of the target vocabulary, V and W.
        pairs: Pairs to learn from.
        workers: Processes for batches.
        folder: Temporary folder for tables that the workers read, one for each iteration; None if
            all work is in this process.
        iterations: Number of iterations of expectation maximization.
    """
    num_sources, num_targets = vocab_sizes
    counts = np.full(num_sources, 0.5), np.full(num_targets, 0.5)
    for batch in batches(lines, pairs):
        for side, rows, count in zip((lines.source, lines.target), batch, counts, strict=True):
            count += np.bincount(side.ids(rows).ids, minlength=len(count))
    source_counts, target_counts = counts
    frequencies = source_counts / source_counts.sum(), target_counts / target_counts.sum()
    lexicon = Lexicon(lines, vocab_sizes, frequencies)
    for _ in range(iterations):
        lexicon = replace(lexicon, before=None)  # frees memory
        cells = np.zeros(min(_CELLS, num_sources * num_targets), np.float32)
        totals = np.zeros(num_sources), np.zeros(num_targets)
        for links in workers.map(lexicon.links, batches(lines, pairs)):
            # The dtype of an array from another process is another object, with which np.add.at of
            # numpy 2.4 is twenty times slower. A view has the dtype of this process.
            keys = links.keys.view(np.int64)
            values = links.values.view(np.float32)
            np.add.at(cells, cells_of(keys), values)
            for total, part in zip(totals, links.totals, strict=True):
                total += part
        table = _Table(cells, totals)
        if folder is not None:
            table = replace(table, path=folder / f"{uuid4().hex}.cells")
            cells.tofile(str(table.path))
        lexicon = replace(lexicon, table=table, before=lexicon.table)
    return lexicon


def likely_translations(
    lines: Lines, vocab_sizes: tuple[int, int], most: int, lexicon: Lexicon | None = None
) -> npt.NDArray[np.int32]:
    """Return the most probable target tokens for each source token, most probable first.

    Args:
        lines: Sentence pairs; source and target of a pair have the same row. Of a large corpus, an
            evenly spaced sample is used.
        vocab_sizes: V and W.
        most: Maximum number of translations per source token.
        lexicon: A lexicon of the same text; None learns a lexicon here, which takes most of the
            time.

    Returns:
        Token ids, padded with -1. (V, most).
    """
    num = len(lines.source.lengths)
    rows = np.arange(0, num, sample_step(lines, num))
    pairs = Pairs(rows, rows)
    if lexicon is None:  # counting the links below is one more iteration
        lexicon = learn_lexicon(lines, vocab_sizes, pairs, iterations=_ITERATIONS - 1)
    lexicon = replace(lexicon, lines=lines, before=None)
    num_sources, num_targets = vocab_sizes
    dtype: npt.DTypeLike = np.int64
    if num_sources * num_targets < 1 << 31:
        dtype = np.int32  # half the memory
    waiting = [(np.empty(0, dtype), np.empty(0))]
    num_waiting = 0  # since the last merge
    # Several word pairs may share a cell, so links are counted by the words themselves.
    for links in map(lexicon.links, batches(lines, pairs)):
        keys, counts = _summed(links.keys.astype(dtype), links.values)
        waiting.append((keys, counts))
        num_waiting += len(keys)
        if num_waiting > _MERGED_AT_ONCE:
            keys, counts, _ = _likeliest(waiting, num_targets, 4 * most)
            waiting = [(keys, counts)]
            num_waiting = 0
    keys, _, ranks = _likeliest(waiting, num_targets, most)
    table = np.full((num_sources, most), -1, np.int32)
    sources, targets = np.divmod(keys, num_targets)
    table[sources, ranks] = targets
    return table


def write_shortlist(
    path: Path, store: ParallelStore, vocab_sizes: tuple[int, int], lexicon: Lexicon | None = None
) -> None:
    """Write a shortlist: the target tokens that a decoder considers for each source token.

    The safetensors file has ``common``, the most frequent target tokens, and ``candidates``, the
    most probable translations of each source token, padded with -1. (V, most).
    """
    counts = store.target.counts(vocab_sizes[1])
    common = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    candidates = likely_translations(store, vocab_sizes, _MOST_CANDIDATES, lexicon)
    path.write_bytes(save({"common": common, "candidates": candidates}))


def _summed(keys: IntArray, values: npt.NDArray[np.floating]) -> tuple[IntArray, Values]:
    """Return the distinct keys in rising order, and the sum of the values of each key."""
    distinct, places = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(places, values).astype(np.float64)


def _likeliest(
    parts: Sequence[tuple[IntArray, Values]], num_targets: int, most: int
) -> tuple[IntArray, Values, Rows]:
    """Merge counts of links, and keep the ``most`` frequent links of each source token.

    Returns:
        Keys in rising order, their counts, and their ranks within the source token, from 0. Equal
        counts are ranked by key.
    """
    all_keys = np.concatenate([keys for keys, _ in parts])
    all_counts = np.concatenate([counts for _, counts in parts])
    keys, counts = _summed(all_keys, all_counts)
    sources = keys // num_targets
    # numpy sorts 16-bit integers by radix sort, which is faster.
    smallest_dtype = np.min_scalar_type(int(sources.max(initial=0)))
    order = np.lexsort((-counts, sources.astype(smallest_dtype)))
    ranks = np.empty(len(order), np.int64)
    firsts = np.searchsorted(sources, sources)
    ranks[order] = np.arange(len(order)) - firsts
    kept = ranks < most
    return keys[kept], counts[kept], ranks[kept]
