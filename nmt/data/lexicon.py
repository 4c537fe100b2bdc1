"""Which words translate each other, learned from a corpus itself: how well do two lines agree?

IBM model 1 (Brown et al. 1993, section 4.2) in both directions, trained to agree (Liang et al.
2006, section 3.1): a link counts as much as both directions believe in it. The score of a pair
leaves out what the pair itself has taught (leave-one-out), or else rare words would vouch for each
other. Both directions share one table of expected counts, in cells that a hash of both words
chooses, so that memory does not grow with the corpus; what falls into one cell by chance weighs
little.

Shapes: P pairs, n meetings of a source and a target token of one pair, s and t source and target
tokens of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_CELLS = 1 << 25  # 128 MiB a table, and two are held
_HASH = np.uint64(0x9E3779B97F4A7C15)
_ITERATIONS = 4
_MEETINGS_AT_ONCE = 1 << 20
MOST_MEETINGS = 1 << 26
"""Of two tokens in pairs to learn from: more takes time, and teaches little."""
_EMPTY_WORD = 0.1
"""Probability that a token translates nothing, as it would stand anywhere."""
_FLOOR = 0.1
"""Share of a token's general frequency in its probability in a translation."""
_HELD_OUT = 16
_NEVER = 127
_PRIOR = 0.5
"""Meetings that a word is taken to have had with words never seen beside it."""


class Lines(Protocol):
    """Token ids of the lines of both sides, as of `nmt.data.store.ParallelStore`."""

    source_lengths: npt.NDArray[np.int32]
    target_lengths: npt.NDArray[np.int32]

    def source_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the source ids of ``rows``, flat, and offsets (len(rows) + 1,)."""

    def target_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the target ids of ``rows``, flat, and offsets (len(rows) + 1,)."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Expected links."""

    cells: npt.NDArray[np.float32]
    """Of each pair of words. (cells,)."""
    totals: tuple[Values, Values]
    """Of each source and of each target word. (V,) and (W,)."""


class _Meetings:
    """Every source token of some pairs beside every target token of its pair."""

    def __init__(self, lines: Lines, sources: Rows, targets: Rows, num_targets: int) -> None:
        self.source, source_offsets = lines.source_ids(sources)
        self.target, target_offsets = lines.target_ids(targets)
        self.lengths = np.diff(source_offsets), np.diff(target_offsets)
        """Tokens of both sides of each pair. (P,) and (P,)."""
        pairs = np.arange(len(sources))
        self.pairs = tuple(np.repeat(pairs, lengths) for lengths in self.lengths)
        """The pair of each token. (s,) and (t,)."""
        widths = self.lengths[1][self.pairs[0]]  # meetings of each source token
        first = target_offsets[self.pairs[0]] - (np.cumsum(widths) - widths)
        self.source_places = np.repeat(np.arange(len(self.source)), widths)
        """Source token of each meeting. (n,)."""
        self.target_places = np.arange(len(self.source_places)) + np.repeat(first, widths)
        """Target token of each meeting. (n,)."""
        rows = self.source.astype(np.int64) * num_targets
        self.cells = cells_of(rows[self.source_places] + self.target[self.target_places])

    def sums(self, side: int, values: npt.NDArray[np.floating]) -> Values:
        """Add up values of meetings for each token of a side. (s,) or (t,)."""
        places, size = (
            (self.target_places, len(self.target))
            if side
            else (self.source_places, len(self.source))
        )
        return np.bincount(places, values, size).astype(np.float64)


def cells_of(keys: Rows) -> Rows:
    """Return the cell of each pair of words, given as source * W + target; keys of any shape."""
    if keys.size and int(keys.max()) < _CELLS:
        return keys
    shift = np.uint64(64 - (_CELLS.bit_length() - 1))
    return ((keys.astype(np.uint64) * _HASH) >> shift).astype(np.int64)


def held_out(rows: Rows) -> npt.NDArray[np.bool_]:
    """Return which rows no lexicon learns from, to see what it knows."""
    return rows % _HELD_OUT == 0


class Lexicon:
    """Expected links of the words of two languages.

    Args:
        lines: Token ids, which `score` and `band` go on reading.
        vocab_sizes: Entries of the source and of the target vocabulary, V and W.
        sources: Rows of the pairs to learn from.
        targets: For each, the row of its target, at most 100 further up or down.
    """

    def __init__(
        self, lines: Lines, vocab_sizes: tuple[int, int], sources: Rows, targets: Rows
    ) -> None:
        self._lines, self._sizes = lines, vocab_sizes
        is_used = ~held_out(sources)
        sources, targets = sources[is_used], targets[is_used]
        self._taught = np.full(len(lines.source_lengths), _NEVER, np.int8)
        self._taught[sources] = targets - sources
        counts = [np.full(size, 0.5) for size in vocab_sizes]
        for each in self._batches(sources, targets):
            for side, ids in enumerate((each.source, each.target)):
                counts[side] += np.bincount(ids, minlength=vocab_sizes[side])
        self._frequencies = tuple(each / each.sum() for each in counts)
        self._table: _Table | None = None
        self._before: _Table | None = None
        for _ in range(_ITERATIONS):
            self._before = None  # makes room
            self._table, self._before = self._expect(sources, targets), self._table

    def score(self, sources: Rows, targets: Rows) -> Values:
        """Return how much likelier each pair's tokens are as translations than anywhere.

        Of each token, the natural log of the ratio; a pair that was learned from counts without
        what it has taught.

        Args:
            sources: Rows. (P,).
            targets: Rows. (P,).

        Returns:
            The sum over the tokens of both sides, in nats. (P,). 0 where a side is blank.
        """
        totals, start = np.zeros(len(sources)), 0
        for each in self._batches(sources, targets):
            stop = start + len(each.lengths[0])
            taught = self._taught[sources[start:stop]] == targets[start:stop] - sources[start:stop]
            totals[start:stop] = self._score(each, taught)
            start = stop
        is_blank = (self._lines.source_lengths[sources] == 0) | (self._widths(targets) == 0)
        return np.where(is_blank, 0.0, totals)

    def band(self, sources: Rows, targets: Rows) -> npt.NDArray[np.float32]:
        """Return the sums of `score` of each of some sources with each of some targets.

        Nothing is left out of what pairs have taught.

        Args:
            sources: Rows, some hundred. (S,).
            targets: Rows. (T,).

        Returns:
            (S, T), nats; of blank lines without meaning.
        """
        (bags, words), (other_bags, other_words) = (
            _bags(*ids)
            for ids in (self._lines.source_ids(sources), self._lines.target_ids(targets))
        )
        keys = words[:, None].astype(np.int64) * self._sizes[1] + other_words
        links = self._links.cells[cells_of(keys)]
        result = np.zeros((len(sources), len(targets)), np.float32)
        for own, own_words, other, other_ids, side in (
            (bags, words, other_bags, other_words, 0),
            (other_bags, other_words, bags, words, 1),
        ):
            scale = 1 / (self._links.totals[side][own_words] + _PRIOR)
            table = (links.T if side else links) * scale[:, None].astype(np.float32)
            table /= self._frequencies[1 - side][other_ids].astype(np.float32)
            mean = own / np.maximum(own.sum(1, keepdims=True), 1)
            found = np.log(_FLOOR + (1 - _FLOOR) * (mean @ table)) @ other.T
            result += found.T if side else found
        return result

    @property
    def _links(self) -> _Table:
        assert self._table is not None
        return self._table

    def _widths(self, targets: Rows) -> npt.NDArray[np.int64]:
        return self._lines.target_lengths[targets].astype(np.int64)

    def _batches(self, sources: Rows, targets: Rows) -> Iterator[_Meetings]:
        """Yield the meetings of pairs in order, about `_MEETINGS_AT_ONCE` at a time."""
        weights = self._lines.source_lengths[sources] * self._widths(targets) + 8
        parts = np.cumsum(weights) // _MEETINGS_AT_ONCE
        cuts = np.flatnonzero(np.diff(parts)) + 1
        for own, other in zip(np.split(sources, cuts), np.split(targets, cuts), strict=True):
            if len(own):
                yield _Meetings(self._lines, own, other, self._sizes[1])

    def _expect(self, sources: Rows, targets: Rows) -> _Table:
        """Return the expected links of pairs under the table that there is."""
        num_cells = min(_CELLS, self._sizes[0] * self._sizes[1])
        cells = np.zeros(num_cells, np.float32)
        totals = tuple(np.zeros(size) for size in self._sizes)
        for each in self._batches(sources, targets):
            links = self._posterior(each, self._table)
            np.add.at(cells, each.cells, links)
            for side, ids in enumerate((each.source, each.target)):
                totals[side][:] += np.bincount(ids, each.sums(side, links), self._sizes[side])
        return _Table(cells, (totals[0], totals[1]))

    def _posterior(self, each: _Meetings, table: _Table | None) -> npt.NDArray[np.float32]:
        """Return the probability of a link at each meeting: that of both directions. (n,)."""
        result = np.ones(len(each.cells), np.float32)
        counts = result if table is None else table.cells[each.cells]
        for side, ids in enumerate((each.source, each.target)):
            places = (each.source_places, each.target_places)
            # How likely each token of this side makes the token of the other side.
            scale = (1 - _EMPTY_WORD) / each.lengths[side][each.pairs[side]]
            if table is not None:
                scale /= np.maximum(table.totals[side][ids], 1e-9)
            likely = counts * scale.astype(np.float32)[places[side]]
            other = (each.target, each.source)[side]
            empty = _EMPTY_WORD * self._frequencies[1 - side][other]
            whole = each.sums(1 - side, likely) + (empty if table is not None else 0)
            result *= likely * (1 / np.maximum(whole, 1e-30)).astype(np.float32)[places[1 - side]]
        return result

    def _score(self, each: _Meetings, taught: npt.NDArray[np.bool_]) -> Values:
        """Return the sums of `score` of a batch. (P,)."""
        links, total = self._links.cells[each.cells], np.zeros(len(taught))
        # Zero where the pair taught nothing.
        own = self._posterior(each, self._before) * taught[each.pairs[0]][each.source_places]
        links = np.maximum(links - own, 0)
        for side, ids in enumerate((each.source, each.target)):
            known = self._links.totals[side][ids] - each.sums(side, own)
            scale = 1 / ((np.maximum(known, 0) + _PRIOR) * each.lengths[side][each.pairs[side]])
            places = (each.source_places, each.target_places)[side]
            other = (each.target, each.source)[side]
            likely = each.sums(1 - side, links * scale.astype(np.float32)[places])
            ratio = likely / self._frequencies[1 - side][other]
            logs = np.log(_FLOOR + (1 - _FLOOR) * ratio)
            total += np.bincount(each.pairs[1 - side], logs, len(taught))
        return total


def _bags(ids: Ids, offsets: Rows) -> tuple[npt.NDArray[np.float32], Ids]:
    """Return how often each line has each of the words (lines, words), and the words (words,)."""
    words, places = np.unique(ids, return_inverse=True)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    size = (len(offsets) - 1) * len(words)
    bags = np.bincount(rows * len(words) + places, minlength=size).astype(np.float32)
    return bags.reshape(-1, len(words)), words
