"""Which words translate each other, learned from a corpus itself: how well do two lines agree?

IBM model 1 (Brown et al. 1993, section 4.2) in both directions, trained to agree (Liang et al.
2006, section 3.1): a link counts as much as both directions believe in it. The score of a pair
leaves out what the pair itself has taught (leave-one-out), or else rare words would vouch for each
other. Both directions share one table of expected counts, in cells that a hash of both words
chooses, so that memory does not grow with the corpus; two pairs of words in one cell disturb each
other little.

Shapes: P pairs, n meetings of a source and a target token of one pair, s and t source and target
tokens of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from nmt.data.lines import Ids, Lines, Rows
from nmt.data.workers import Mapped, map_here

Values = npt.NDArray[np.float64]

_CELLS = 1 << 25  # 128 MiB a table, and two are held
_HASH = np.uint64(0x9E3779B97F4A7C15)
_ITERATIONS = 4
_MEETINGS_AT_ONCE = 1 << 20
_PAIRS_AT_ONCE = 1 << 16
MOST_MEETINGS = 1 << 26
"""Of two tokens in pairs to learn from: more takes time, and teaches little."""
_EMPTY_WORD = 0.1
"""Probability that a token translates nothing, as it would stand anywhere."""
_FLOOR = 0.1
"""Share of a token's general frequency in its probability in a translation."""
_HELD_OUT = 16
_PRIOR = 0.5
"""Meetings that a word is taken to have had with words never seen beside it."""


@dataclass(frozen=True, slots=True)
class _Table:
    """Expected links."""

    cells: npt.NDArray[np.float32]
    """Of each pair of words. (cells,)."""
    totals: tuple[Values, Values]
    """Of each source and of each target word. (V,) and (W,)."""
    path: Path | None = None
    """File with the cells, if other processes need them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the name of the file."""
        return _table_of, (self.path, self.totals)


@lru_cache(maxsize=2)
def _cells_in(path: Path) -> npt.NDArray[np.float32]:
    return np.memmap(path, np.float32, "r")


def _table_of(path: Path, totals: tuple[Values, Values]) -> _Table:
    return _Table(_cells_in(path), totals, path)


class _Batch(NamedTuple):
    """Some pairs."""

    sources: Rows
    targets: Rows
    taught: npt.NDArray[np.bool_]
    """Whether the pair is one of those that were learned from."""


class _Links(NamedTuple):
    """What a batch adds to a table."""

    cells: npt.NDArray[np.uint32]
    """Of each meeting. (n,)."""
    values: npt.NDArray[np.float32]
    """Probability of a link there. (n,)."""
    totals: tuple[Values, Values]
    """Sums for each source and each target word. (V,) and (W,)."""


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


@dataclass(frozen=True, slots=True)
class _Model:
    """What is known of words; does the work on batches in any process."""

    lines: Lines
    sizes: tuple[int, int]
    """V and W."""
    frequencies: tuple[Values, Values]
    """Shares of all tokens. (V,) and (W,)."""
    table: _Table | None = None
    before: _Table | None = None
    """The table from which ``table`` was made."""

    def links(self, batch: _Batch) -> _Links:
        """Return the expected links of pairs."""
        each = self._meetings(batch)
        links = self._posterior(each, self.table)
        source, target = (
            np.bincount(ids, each.sums(side, links), self.sizes[side]).astype(np.float64)
            for side, ids in enumerate((each.source, each.target))
        )
        return _Links(each.cells.astype(np.uint32), links, (source, target))

    def score(self, batch: _Batch) -> Values:
        """Return the sums of `Lexicon.score` of a batch. (P,)."""
        assert self.table is not None
        each = self._meetings(batch)
        total = np.zeros(len(batch.taught))
        # Zero where the pair taught nothing. Words that a line repeats have taught it as often.
        own = self._posterior(each, self.before) * batch.taught[each.pairs[0]][each.source_places]
        sides = zip(each.pairs, (each.source, each.target), strict=True)
        repeats = [_repeats(*side) for side in sides]
        again = repeats[0][each.source_places] * repeats[1][each.target_places]
        links = np.maximum(self.table.cells[each.cells] - own * again, 0)
        for side, ids in enumerate((each.source, each.target)):
            known = self.table.totals[side][ids] - each.sums(side, own) * repeats[side]
            scale = 1 / ((np.maximum(known, 0) + _PRIOR) * each.lengths[side][each.pairs[side]])
            places = (each.source_places, each.target_places)[side]
            other = (each.target, each.source)[side]
            likely = each.sums(1 - side, links * scale.astype(np.float32)[places])
            ratio = likely / self.frequencies[1 - side][other]
            logs = np.log(_FLOOR + (1 - _FLOOR) * ratio)
            total += np.bincount(each.pairs[1 - side], logs, len(batch.taught))
        return total

    def _meetings(self, batch: _Batch) -> _Meetings:
        return _Meetings(self.lines, batch.sources, batch.targets, self.sizes[1])

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
            empty = _EMPTY_WORD * self.frequencies[1 - side][other]
            whole = each.sums(1 - side, likely) + (empty if table is not None else 0)
            result *= likely * (1 / np.maximum(whole, 1e-30)).astype(np.float32)[places[1 - side]]
        return result


class Lexicon:
    """Expected links of the words of two languages.

    Args:
        lines: Token ids, which `score` and `band` go on reading.
        vocab_sizes: Entries of the source and of the target vocabulary, V and W.
        sources: Rows of the pairs to learn from, rising.
        targets: For each, the row of its target.
        mapped: Has something done with batches, perhaps by other processes.
        folder: For tables that these read; None if there are none.
    """

    def __init__(
        self,
        lines: Lines,
        vocab_sizes: tuple[int, int],
        sources: Rows,
        targets: Rows,
        *,
        mapped: Mapped = map_here,
        folder: Path | None = None,
    ) -> None:
        self._lines, self._sizes, self._mapped = lines, vocab_sizes, mapped
        is_used = ~held_out(sources)
        sources, targets = sources[is_used], targets[is_used]
        self._taught = sources, targets
        counts = np.full(vocab_sizes[0], 0.5), np.full(vocab_sizes[1], 0.5)
        for start in range(0, len(sources), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            for side, (ids, _) in enumerate(
                (lines.source_ids(sources[part]), lines.target_ids(targets[part]))
            ):
                counts[side][:] += np.bincount(ids, minlength=vocab_sizes[side])
        source, target = (each / each.sum() for each in counts)
        self._model = _Model(lines, vocab_sizes, (source, target))
        for _ in range(_ITERATIONS):
            before, self._model = self._model.before, replace(self._model, before=None)
            if before is not None and before.path is not None:
                before.path.unlink()
            del before  # makes room
            table = self._expect(sources, targets)
            if folder is not None:
                table = replace(table, path=folder / f"{uuid4().hex}.cells")
                table.cells.tofile(folder / str(table.path))
            self._model = replace(self._model, table=table, before=self._model.table)

    def score(self, sources: Rows, targets: Rows) -> Values:
        """Return how much more probable each pair's tokens are as translations than anywhere.

        Of each token, the natural log of the ratio; a pair that was learned from counts without
        what it has taught.

        Args:
            sources: Rows. (P,).
            targets: Rows. (P,).

        Returns:
            The sum over the tokens of both sides, in nats. (P,). 0 where a side is blank.
        """
        found = self._mapped(self._model.score, self._batches(sources, targets))
        totals = np.concatenate([np.zeros(0), *found])
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
        known = self._model.table
        assert known is not None
        links = known.cells[cells_of(keys)]
        result = np.zeros((len(sources), len(targets)), np.float32)
        for own, own_words, other, other_ids, side in (
            (bags, words, other_bags, other_words, 0),
            (other_bags, other_words, bags, words, 1),
        ):
            scale = 1 / (known.totals[side][own_words] + _PRIOR)
            table = (links.T if side else links) * scale[:, None].astype(np.float32)
            table /= self._model.frequencies[1 - side][other_ids].astype(np.float32)
            mean = own / np.maximum(own.sum(1, keepdims=True), 1)
            found = np.log(_FLOOR + (1 - _FLOOR) * (mean @ table)) @ other.T
            result += found.T if side else found
        return result

    def _widths(self, targets: Rows) -> npt.NDArray[np.int64]:
        return self._lines.target_lengths[targets].astype(np.int64)

    def _batches(self, sources: Rows, targets: Rows) -> Iterator[_Batch]:
        """Yield pairs in order, about `_MEETINGS_AT_ONCE` meetings at a time."""
        weights = self._lines.source_lengths[sources] * self._widths(targets) + 8
        parts = np.cumsum(weights) // _MEETINGS_AT_ONCE
        cuts = np.flatnonzero(np.diff(parts)) + 1
        for own, other in zip(np.split(sources, cuts), np.split(targets, cuts), strict=True):
            if len(own):
                yield _Batch(own, other, self._has_taught(own, other))

    def _has_taught(self, sources: Rows, targets: Rows) -> npt.NDArray[np.bool_]:
        """Return which pairs are among those that were learned from. (P,)."""
        rows, others = self._taught
        if not len(rows):
            return np.zeros(len(sources), np.bool_)
        places = np.searchsorted(rows, sources).clip(max=len(rows) - 1)
        return (rows[places] == sources) & (others[places] == targets)

    def _expect(self, sources: Rows, targets: Rows) -> _Table:
        """Return the expected links of pairs under the table that there is.

        Added up in the order of the batches, whoever has done them.
        """
        cells = np.zeros(min(_CELLS, self._sizes[0] * self._sizes[1]), np.float32)
        totals = np.zeros(self._sizes[0]), np.zeros(self._sizes[1])
        for found in self._mapped(self._model.links, self._batches(sources, targets)):
            # An array from another process has a dtype that equals ours but is another object, for
            # which numpy 2.4 adds twenty times as slowly; views have ours.
            np.add.at(cells, found.cells.astype(np.int64), found.values.view(np.float32))
            for total, own in zip(totals, found.totals, strict=True):
                total += own
        return _Table(cells, totals)


def _repeats(pairs: Rows, ids: Ids) -> npt.NDArray[np.float32]:
    """Return how often the line of each token has its word."""
    keys = pairs * (int(ids.max(initial=0)) + 1) + ids
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[places].astype(np.float32)


def _bags(ids: Ids, offsets: Rows) -> tuple[npt.NDArray[np.float32], Ids]:
    """Return how often each line has each of the words (lines, words), and the words (words,)."""
    words, places = np.unique(ids, return_inverse=True)
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    size = (len(offsets) - 1) * len(words)
    bags = np.bincount(rows * len(words) + places, minlength=size).astype(np.float32)
    return bags.reshape(-1, len(words)), words
