"""Which words translate each other, learned from pairs of lines: IBM model 1.

Brown et al. (1993), section 4.2, in both directions, trained to agree (Liang et al. 2006, section
3.1): a link counts as much as both directions believe in it. Both share one table of expected
counts, in cells that a hash of both words chooses, so that memory does not grow with the corpus;
two pairs of words in one cell disturb each other little.

Shapes: V and W source and target vocabulary, P pairs, n meetings of a source and a target token of
one pair, s and t source and target tokens of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from nmt.data.store import IntArray, Lines, ParallelStore, Rows
from nmt.data.workers import HERE, Workers

Values = npt.NDArray[np.float64]

_CELLS = 1 << 25  # 128 MiB a table, and two are held
_HASH = np.uint64(0x9E3779B97F4A7C15)
_ITERATIONS = 4
_MOST_COMMON = 200
_MOST_CANDIDATES = 30
_MEETINGS_AT_ONCE = 1 << 20
_MERGED_AT_ONCE = 1 << 21
_PAIRS_AT_ONCE = 1 << 16
_MOST_MEETINGS = 1 << 26  # More to learn from takes time, and teaches little.
_EMPTY_WORD = 0.1  # Probability that a token translates nothing, as it would stand anywhere.


class Pairs(NamedTuple):
    """Rows of lines that stand beside each other."""

    sources: Rows  # Rising. (P,).
    targets: Rows  # (P,).


class Meetings:
    """Every source token of some pairs beside every target token of its pair."""

    def __init__(self, lines: Lines, pairs: Pairs, num_targets: int) -> None:
        (source, source_offsets) = lines.source_ids(pairs.sources)
        (target, target_offsets) = lines.target_ids(pairs.targets)
        self.ids = source, target  # Tokens of both sides. (s,) and (t,).
        # Tokens of both sides of each pair. (P,) and (P,).
        self.lengths = np.diff(source_offsets), np.diff(target_offsets)
        numbers = np.arange(len(pairs.sources))
        # The pair of each token. (s,) and (t,).
        self.pairs = tuple(np.repeat(numbers, lengths) for lengths in self.lengths)
        widths = self.lengths[1][self.pairs[0]]  # meetings of each source token
        first = target_offsets[self.pairs[0]] - (np.cumsum(widths) - widths)
        source_places = np.repeat(np.arange(len(source)), widths)
        target_places = np.arange(len(source_places)) + np.repeat(first, widths)
        # Source and target token of each meeting. (n,) and (n,).
        self.places = source_places, target_places
        rows = source.astype(np.int64) * num_targets
        # Words that meet: source * W + target. (n,).
        self.keys = rows[source_places] + target[target_places]

    def sums(self, side: int, values: npt.NDArray[np.floating]) -> Values:
        """Add up values of meetings for each token of a side. (s,) or (t,)."""
        sums = np.bincount(self.places[side], values, len(self.ids[side]))
        return sums.astype(np.float64)


def cells_of(keys: Rows) -> Rows:
    """Return the cell of each pair of words, given as source * W + target; keys of any shape."""
    if keys.size and int(keys.max()) < _CELLS:
        return keys
    shift = np.uint64(64 - (_CELLS.bit_length() - 1))
    return ((keys.astype(np.uint64) * _HASH) >> shift).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Table:
    """Expected links."""

    cells: npt.NDArray[np.float32]  # Of each pair of words. (cells,).
    totals: tuple[Values, Values]  # Of each source and of each target word. (V,) and (W,).
    path: Path | None = None  # File with the cells, if other processes need them.

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the name of the file: it is large, and sent with every batch."""
        return _table_of, (self.path, self.totals)


def _table_of(path: Path, totals: tuple[Values, Values]) -> _Table:
    return _Table(np.memmap(path, np.float32, "r"), totals, path)


class _Links(NamedTuple):
    """What a batch adds to a table."""

    keys: Rows  # Of each meeting. (n,).
    values: npt.NDArray[np.float32]  # Probability of a link there. (n,).
    totals: tuple[Values, Values]  # Sums for each source and each target word. (V,) and (W,).


@dataclass(frozen=True, slots=True)
class Lexicon:
    """What is known of words; may be sent to processes that see its files."""

    lines: Lines
    sizes: tuple[int, int]  # V and W.
    frequencies: tuple[Values, Values]  # Shares of all tokens. (V,) and (W,).
    table: _Table | None = None
    before: _Table | None = None  # The table from which ``table`` was made.

    def links(self, pairs: Pairs) -> _Links:
        """Return the expected links of a batch."""
        meetings = Meetings(self.lines, pairs, self.sizes[1])
        links = self.posterior(meetings, self.table)
        source, target = (
            np.bincount(ids, meetings.sums(side, links), self.sizes[side]).astype(np.float64)
            for side, ids in enumerate(meetings.ids)
        )
        return _Links(meetings.keys, links, (source, target))

    def posterior(self, meetings: Meetings, table: _Table | None) -> npt.NDArray[np.float32]:
        """Return the probability of a link at each meeting: that of both directions. (n,)."""
        result = np.ones(len(meetings.keys), np.float32)
        counts = result if table is None else table.cells[cells_of(meetings.keys)]
        for side, ids in enumerate(meetings.ids):
            # How likely each token of this side makes the token of the other side.
            scale = (1 - _EMPTY_WORD) / meetings.lengths[side][meetings.pairs[side]]
            if table is not None:
                scale /= np.maximum(table.totals[side][ids], 1e-9)
            likely = counts * scale.astype(np.float32)[meetings.places[side]]
            whole = meetings.sums(1 - side, likely)
            if table is not None:
                whole += _EMPTY_WORD * self.frequencies[1 - side][meetings.ids[1 - side]]
            share = (1 / np.maximum(whole, 1e-30)).astype(np.float32)
            result *= likely * share[meetings.places[1 - side]]
        return result


def batches(lines: Lines, pairs: Pairs) -> Iterator[Pairs]:
    """Yield pairs in order, about `_MEETINGS_AT_ONCE` meetings at a time."""
    weights = lines.source_lengths[pairs.sources].astype(np.int64)
    weights = weights * lines.target_lengths[pairs.targets] + 8
    cuts = np.flatnonzero(np.diff(np.cumsum(weights) // _MEETINGS_AT_ONCE)) + 1
    for part in map(Pairs, *(np.split(rows, cuts) for rows in pairs)):
        if len(part.sources):
            yield part


def sample_step(lines: Lines, num: int) -> int:
    """Return of how many of ``num`` lines one is enough to learn from: 1 for all of them."""
    parts = (slice(start, start + _PAIRS_AT_ONCE) for start in range(0, num, _PAIRS_AT_ONCE))
    meetings = sum(
        int(lines.source_lengths[part].astype(np.int64) @ lines.target_lengths[part])
        for part in parts
    )
    return max(1, -(-meetings // _MOST_MEETINGS))


def learn_lexicon(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    pairs: Pairs,
    *,
    workers: Workers = HERE,
    folder: Path | None = None,
    iterations: int = _ITERATIONS,
) -> Lexicon:
    """Learn a lexicon by expectation maximisation.

    Links are added up in the order of the batches, whoever has found them: the result is the same.

    Args:
        lines: Token ids.
        vocab_sizes: Sizes of the source and of the target vocabulary, V and W.
        pairs: To learn from.
        workers: Work on batches.
        folder: For tables that these read; None if there are none.
        iterations: Of expectation maximisation.
    """
    counts = [np.full(size, 0.5) for size in vocab_sizes]
    for sources, targets in batches(lines, pairs):
        counts[0] += np.bincount(lines.source_ids(sources)[0], minlength=vocab_sizes[0])
        counts[1] += np.bincount(lines.target_ids(targets)[0], minlength=vocab_sizes[1])
    source, target = (count / count.sum() for count in counts)
    lexicon = Lexicon(lines, vocab_sizes, (source, target))
    for _ in range(iterations):
        if lexicon.before is not None and lexicon.before.path is not None:
            lexicon.before.path.unlink()
        lexicon = replace(lexicon, before=None)  # frees memory
        cells = np.zeros(min(_CELLS, vocab_sizes[0] * vocab_sizes[1]), np.float32)
        totals = np.zeros(vocab_sizes[0]), np.zeros(vocab_sizes[1])
        for links in workers.map(lexicon.links, batches(lines, pairs)):
            # An array from another process has a dtype that equals ours but is another object, for
            # which numpy 2.4 adds twenty times as slowly; views have ours.
            np.add.at(cells, cells_of(links.keys.view(np.int64)), links.values.view(np.float32))
            for total, part in zip(totals, links.totals, strict=True):
                total += part
        table = _Table(cells, totals)
        if folder is not None:
            table = replace(table, path=folder / f"{uuid4().hex}.cells")
            cells.tofile(folder / str(table.path))
        lexicon = replace(lexicon, table=table, before=lexicon.table)
    return lexicon


def likely_translations(
    lines: Lines,
    vocab_sizes: tuple[int, int],
    most: int,
    lexicon: Lexicon | None = None,
) -> npt.NDArray[np.int32]:
    """Return the target tokens that most often translate each source token, the likeliest first.

    Args:
        lines: Sentence pairs: each row with itself. Of very many, a part that is evenly spread.
        vocab_sizes: V and W.
        most: Translations of each.
        lexicon: Was learned from the same text already, which saves most of the time.

    Returns:
        (V, most); -1 where there are fewer.
    """
    num = len(lines.source_lengths)
    rows = np.arange(0, num, sample_step(lines, num))
    pairs = Pairs(rows, rows)
    if lexicon is None:  # the links that are counted below are of one iteration more
        lexicon = learn_lexicon(lines, vocab_sizes, pairs, iterations=_ITERATIONS - 1)
    lexicon = replace(lexicon, lines=lines, before=None)
    num_targets = vocab_sizes[1]
    is_small = vocab_sizes[0] * num_targets < 1 << 31
    dtype = np.dtype(np.int32 if is_small else np.int64)  # half the memory
    waiting = [(np.empty(0, dtype), np.empty(0))]
    # A cell may be of several pairs of words, so links are counted by the words themselves.
    for links in map(lexicon.links, batches(lines, pairs)):
        waiting.append(_summed(links.keys.astype(dtype), links.values))
        if sum(len(keys) for keys, _ in waiting[1:]) > _MERGED_AT_ONCE:
            waiting = [_likeliest(waiting, num_targets, 4 * most)[:2]]
    keys, _, ranks = _likeliest(waiting, num_targets, most)
    table = np.full((vocab_sizes[0], most), -1, np.int32)
    sources, targets = np.divmod(keys, num_targets)
    table[sources, ranks] = targets
    return table


def write_shortlist(
    path: Path, store: ParallelStore, vocab_sizes: tuple[int, int], lexicon: Lexicon | None = None
) -> None:
    """Write which target tokens each source token may become, as learned from a store.

    The file has ``common``, the most frequent target tokens, and ``candidates``, the likeliest
    translations of each source token (V, most); -1 where there are fewer.
    """
    counts = store.token_counts("target", vocab_sizes[1])
    common = np.argsort(-counts, kind="stable")[:_MOST_COMMON]
    candidates = likely_translations(store, vocab_sizes, _MOST_CANDIDATES, lexicon)
    path.write_bytes(save({"common": common, "candidates": candidates}))


def _summed(keys: IntArray, values: npt.NDArray[np.floating]) -> tuple[IntArray, Values]:
    """Return the different keys, rising, and the sum of the values of each."""
    known, which = np.unique(keys, return_inverse=True)
    return known, np.bincount(which, values).astype(np.float64)


def _likeliest(
    parts: Sequence[tuple[IntArray, Values]], num_targets: int, most: int
) -> tuple[IntArray, Values, Rows]:
    """Add up the parts of a count of links; return the ``most`` frequent of each source token.

    Returns:
        Keys, rising; their counts; and their ranks among those of the source token, from 0. Of
        equals the first goes first.
    """
    keys, counts = _summed(*map(np.concatenate, zip(*parts, strict=True)))
    sources = keys // num_targets
    # Integers of 16 bits are sorted without comparisons.
    order = np.lexsort((-counts, sources.astype(np.min_scalar_type(int(sources.max(initial=0))))))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - np.searchsorted(sources, sources)
    kept = ranks < most
    return keys[kept], counts[kept], ranks[kept]
