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

_CELLS = 1 << 25  # 128 MiB per table; two tables are in memory. A power of two.
_HASH = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio (Fibonacci hashing).
_ITERATIONS = 4
_MOST_COMMON = 200  # Frequent target tokens of a shortlist.
_MOST_CANDIDATES = 30  # Translations of each source token in a shortlist.
_COOCCURRENCES_AT_ONCE = 1 << 20
IN_CACHE = 1 << 17  # Co-occurrences whose arrays fit into the cache of a core.
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
        self.sides = source, target  # The s and the t tokens of P pairs.
        # Co-occurrences are ordered by source token. A source token co-occurs with all target
        # tokens of its pair, one after the other, so the index of the target token is the index of
        # the co-occurrence plus a shift, which is the same for all of them.
        num_partners = target.lengths[source.sentences]  # (s,)
        num_earlier = np.cumsum(num_partners) - num_partners  # of earlier source tokens. (s,)
        shifts = target.offsets[source.sentences] - num_earlier
        source_indices = np.repeat(np.arange(len(source.ids)), num_partners)
        target_indices = np.arange(len(source_indices)) + np.repeat(shifts, num_partners)
        # Of each co-occurrence: the indices of both tokens in ``sides``. (n,) and (n,), int64.
        self.token_indices = source_indices, target_indices
        first_keys = source.ids.astype(np.int64) * num_targets
        # Of each co-occurrence: both words in one number, source id * W + target id. (n,), int64.
        self.keys = first_keys[source_indices] + target.ids[target_indices]

    def sums(self, side: int, values: npt.NDArray[np.floating]) -> Values:
        """Return the sum of a value over all co-occurrences of each token of one side.

        Args:
            side: 0 for source tokens, 1 for target tokens.
            values: The value of each co-occurrence. (n,)

        Returns:
            The sums, float64. (s,) or (t,)
        """
        num_tokens = len(self.sides[side].ids)
        return np.bincount(self.token_indices[side], values, num_tokens).astype(np.float64)


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

    keys: Rows  # Of each co-occurrence: source id * W + target id. (n,).
    probs: Probabilities  # Of each co-occurrence: the probability of a link. (n,).
    totals: tuple[Values, Values]  # Sums for each source and each target word. (V,) and (W,).


@dataclass(frozen=True)
class Lexicon:
    """Translation probabilities of words. Pickled as the paths of the tables."""

    lines: Lines
    sizes: tuple[int, int]  # V and W.
    frequencies: tuple[Values, Values]  # Relative frequencies of the words. (V,) and (W,).
    table: _Table | None = None
    previous_table: _Table | None = None  # The table of the iteration before ``table``.

    def cells_of(self, keys: Rows) -> Rows:
        """Return the table cells of word pairs.

        If there are not more word pairs than cells, each of them is its own cell. A large
        vocabulary has more; then a hash selects the cell.

        Args:
            keys: Source id * W + target id, any shape.
        """
        if math.prod(self.sizes) <= _CELLS:
            return keys
        hashes = keys.astype(np.uint64) * _HASH  # wraps around at 2**64
        # The highest bits of the product are the best mixed ones, so they are the index of the
        # cell.
        index_bits = _CELLS.bit_length() - 1
        hashes >>= np.uint64(64 - index_bits)
        return hashes.view(np.int64)

    def links(self, pairs: Pairs) -> _Links:
        """Return the expected counts of a batch (E-step)."""
        keys = []
        probs = []
        totals = np.zeros(self.sizes[0]), np.zeros(self.sizes[1])
        for part in batches(self.lines, pairs, IN_CACHE):
            joint = Cooccurrences(self.lines, part, self.sizes[1])
            link_probs = self.posterior(joint, self.table)
            keys.append(joint.keys)
            probs.append(link_probs)
            for side, flat in enumerate(joint.sides):
                np.add.at(totals[side], flat.ids, joint.sums(side, link_probs))
        return _Links(np.concatenate(keys), np.concatenate(probs), totals)

    def posterior(self, joint: Cooccurrences, table: _Table | None) -> Probabilities:
        """Return the probability of a link at each co-occurrence.

        In one direction, each token is generated by one token of the other side of its pair, or by
        the empty word. The probability of a link is the probability that this one token generated
        it, divided by the sum over all tokens and the empty word. The result is the product of both
        directions.

        Args:
            joint: The co-occurrences.
            table: Counts of links; None before the first iteration, when all tokens of a pair are
                equally likely.

        Returns:
            Probabilities, float32. (n,)
        """
        link_probs = np.ones(len(joint.keys), np.float32)
        counts = link_probs  # without a table, all counts are 1
        if table is not None:
            counts = table.cells[self.cells_of(joint.keys)]
        for side, flat in enumerate(joint.sides):  # the side that generates
            generated = 1 - side
            # Count / total of the word is its translation probability. Each of the l tokens of a
            # line is the generating one with probability 1/l, if the empty word is not.
            scale = (1 - _EMPTY_WORD) / flat.lengths[flat.sentences]
            # Without a table, all totals are equal, and the division below cancels them out.
            if table is not None:
                scale /= np.maximum(table.totals[side][flat.ids], 1e-9)
            joint_probs = counts * scale.astype(np.float32)[joint.token_indices[side]]
            token_probs = joint.sums(generated, joint_probs)
            if table is not None:
                words = joint.sides[generated].ids
                token_probs += _EMPTY_WORD * self.frequencies[generated][words]
            inverse = (1 / np.maximum(token_probs, 1e-30)).astype(np.float32)
            link_probs *= joint_probs * inverse[joint.token_indices[generated]]
        return link_probs


def batches(lines: Lines, pairs: Pairs, at_once: int | None = None) -> Iterator[Pairs]:
    """Cut pairs into batches of about ``at_once`` co-occurrences; None for a million."""
    costs = lines.source.lengths[pairs.sources].astype(np.int64)
    # The constant limits the number of pairs in a batch, even if all of them are blank.
    costs = costs * lines.target.lengths[pairs.targets] + 8
    batch_indices = np.cumsum(costs) // (at_once or _COOCCURRENCES_AT_ONCE)
    # Item i of the difference compares pair i + 1, where a batch may start, with pair i.
    starts = np.flatnonzero(np.diff(batch_indices)) + 1
    sources = np.split(pairs.sources, starts)
    targets = np.split(pairs.targets, starts)
    for batch in map(Pairs, sources, targets):
        if len(batch.sources):  # without pairs there is one empty batch
            yield batch


def sample_step(lines: Lines, num_lines: int) -> int:
    """Return the step k: every k-th of ``num_lines`` gives enough data to learn a lexicon."""
    num_cooccurrences = 0
    for start in range(0, num_lines, _PAIRS_AT_ONCE):
        rows = slice(start, start + _PAIRS_AT_ONCE)
        source_lengths = lines.source.lengths[rows].astype(np.int64)
        # A pair has source length times target length co-occurrences: summed, a dot product.
        num_cooccurrences += int(source_lengths @ lines.target.lengths[rows])
    return max(1, math.ceil(num_cooccurrences / _MOST_COOCCURRENCES))


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
    # Words that do not occur get half an occurrence, so that no frequency is zero.
    source_counts = np.full(num_sources, 0.5)
    target_counts = np.full(num_targets, 0.5)
    for batch in batches(lines, pairs):
        source_ids = lines.source.ids(batch.sources).ids
        target_ids = lines.target.ids(batch.targets).ids
        source_counts += np.bincount(source_ids, minlength=num_sources)
        target_counts += np.bincount(target_ids, minlength=num_targets)
    frequencies = source_counts / source_counts.sum(), target_counts / target_counts.sum()
    lexicon = Lexicon(lines, vocab_sizes, frequencies)
    for _ in range(iterations):
        lexicon = replace(lexicon, previous_table=None)  # frees memory
        cells = np.zeros(min(_CELLS, num_sources * num_targets), np.float32)
        totals = np.zeros(num_sources), np.zeros(num_targets)
        for links in workers.map(lexicon.links, batches(lines, pairs)):
            # The dtype of an array from another process is another object, with which np.add.at of
            # numpy 2.4 is twenty times slower. A view has the dtype of this process.
            keys = links.keys.view(np.int64)
            probs = links.probs.view(np.float32)
            np.add.at(cells, lexicon.cells_of(keys), probs)
            for total, batch_total in zip(totals, links.totals, strict=True):
                total += batch_total  # in place, for the source words and for the target words
        table = _Table(cells, totals)
        if folder is not None:
            table = replace(table, path=folder / f"{uuid4().hex}.cells")
            cells.tofile(str(table.path))
        lexicon = replace(lexicon, table=table, previous_table=lexicon.table)
    return lexicon


def likely_translations(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    max_translations: int,
    lexicon: Lexicon | None = None,
) -> npt.NDArray[np.int32]:
    """Return the most probable target tokens for each source token, most probable first.

    Args:
        lines: Sentence pairs; source and target of a pair have the same row. Of a large corpus, an
            evenly spaced sample is used.
        vocab_sizes: V and W.
        max_translations: Maximum number of translations per source token.
        lexicon: A lexicon of the same text; None learns a lexicon here, which takes most of the
            time.

    Returns:
        Token ids, padded with -1. (V, max_translations).
    """
    num_lines = len(lines.source.lengths)
    rows = np.arange(0, num_lines, sample_step(lines, num_lines))
    pairs = Pairs(rows, rows)
    if lexicon is None:  # counting the links below is one more iteration
        lexicon = learn_lexicon(lines, vocab_sizes, pairs, iterations=_ITERATIONS - 1)
    lexicon = replace(lexicon, lines=lines, previous_table=None)
    num_sources, num_targets = vocab_sizes
    dtype: npt.DTypeLike = np.int64
    if num_sources * num_targets < 1 << 31:
        dtype = np.int32  # half the memory
    # Several word pairs may share a cell of the table, so links are counted again, by the words
    # themselves. Each item has the distinct keys of some batches, and the count of each key. They
    # are merged from time to time, to save memory. A merge keeps four times the wanted number,
    # because a link that is rare so far may become frequent.
    unmerged = [(np.empty(0, dtype), np.empty(0))]
    num_unmerged = 0  # keys since the last merge
    for links in map(lexicon.links, batches(lines, pairs)):
        keys, counts = summed(links.keys.astype(dtype), links.probs)
        unmerged.append((keys, counts))
        num_unmerged += len(keys)
        if num_unmerged > _MERGED_AT_ONCE:
            keys, counts, _ = _likeliest(unmerged, num_targets, 4 * max_translations)
            unmerged = [(keys, counts)]
            num_unmerged = 0
    keys, _, ranks = _likeliest(unmerged, num_targets, max_translations)
    table = np.full((num_sources, max_translations), -1, np.int32)
    sources, targets = np.divmod(keys, num_targets)  # key = source * W + target
    table[sources, ranks] = targets
    return table


def write_shortlist(
    path: Path,
    store: ParallelStore,
    vocab_sizes: tuple[int, int],
    lexicon: Lexicon | None = None,
    *,
    vocab_hash: str,
) -> None:
    """Write a shortlist: the target tokens that a decoder considers for each source token.

    The safetensors file has ``common``, the most frequent target tokens, and ``candidates``, the
    most probable translations of each source token, padded with -1. (V, most). Its metadata have
    the hash of the tokenizers.
    """
    counts = store.target.counts(vocab_sizes[1])
    common = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    candidates = likely_translations(store, vocab_sizes, _MOST_CANDIDATES, lexicon)
    metadata = {"vocab_hash": vocab_hash}
    path.write_bytes(save({"common": common, "candidates": candidates}, metadata))


def summed(keys: IntArray, values: npt.NDArray[np.floating]) -> tuple[IntArray, Values]:
    """Return the distinct keys in rising order, and the sum of the values of each key."""
    # keys == distinct[indices]. With ``return_index``, numpy merges runs of sorted keys quickly.
    distinct, _, indices = np.unique(keys, return_index=True, return_inverse=True)
    return distinct, np.bincount(indices, values).astype(np.float64)


def _likeliest(
    unmerged: Sequence[tuple[IntArray, Values]], num_targets: int, max_links: int
) -> tuple[IntArray, Values, Rows]:
    """Merge counts of links, and keep the most frequent links of each source token.

    Args:
        unmerged: Arrays of keys (source id * W + target id), each with the counts of the keys.
        num_targets: Size of the target vocabulary, W.
        max_links: Maximum number of links of a source token.

    Returns:
        Keys in rising order, their counts, and their ranks within the source token, from 0. Equal
        counts are ranked by key.
    """
    repeated_keys = np.concatenate([keys for keys, _ in unmerged])
    partial_counts = np.concatenate([counts for _, counts in unmerged])
    keys, counts = summed(repeated_keys, partial_counts)
    sources = keys // num_targets
    # numpy sorts 16-bit integers by radix sort, which is faster.
    smallest_dtype = np.min_scalar_type(int(sources.max(initial=0)))
    order = np.lexsort((-counts, sources.astype(smallest_dtype)))
    # Keys are in rising order, so the keys of a source are neighbours. ``order`` sorts by source
    # first, so it only moves keys within their source, which starts at the same index as before.
    all_sources = np.arange(sources.max(initial=0) + 1)
    first_keys = np.searchsorted(sources, all_sources)
    starts = first_keys[sources]
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - starts
    is_frequent = ranks < max_links
    return keys[is_frequent], counts[is_frequent], ranks[is_frequent]
