"""The token ids of every line of some corpora: made by any process, kept on disk, read in parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import Block
from nmt.data.order import Lengths
from nmt.data.pairs import BadPair
from nmt.data.shards import Parts
from nmt.data.store import FlatIds, StoreWriter, ids_dtype
from nmt.errors import DataError
from nmt.text.tokenizer import Tokenizers

Ids = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int64]
MOST_TOKENS = 64
"""Tokens of a line that are looked at; later ones say little more about its meaning."""
_READ_AT_ONCE = 1 << 18


class Lines(Protocol):
    """Token ids of the lines of both sides."""

    @property
    def source_lengths(self) -> Lengths:
        """Source tokens of each line."""

    @property
    def target_lengths(self) -> Lengths:
        """Target tokens of each line."""

    def source_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the source ids of ``rows``, flat, and offsets (len(rows) + 1,)."""

    def target_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the target ids of ``rows``, flat, and offsets (len(rows) + 1,)."""


class LineIds(NamedTuple):
    """All lines of a block as token ids."""

    ids: tuple[FlatIds, FlatIds]
    """Of source and target; none for what cannot be read."""
    numbers: npt.NDArray[np.int64]
    """Line numbers."""

    @property
    def num_lines(self) -> int:
        """Lines of the block."""
        return len(self.numbers)


@dataclass(frozen=True, slots=True)
class Encode:
    """Encodes the lines of a block."""

    corpus: str
    """Its name."""
    tokenizers: Tokenizers
    threads: int

    def __call__(self, block: Block) -> LineIds:
        """Return the ids of all lines.

        Raises:
            DataError: A line cannot be read.
        """
        pairs = block.pairs()
        texts = [("", "") if isinstance(pair, BadPair) else pair[:2] for pair in pairs]
        source, target = (
            FlatIds.of(tokenizer.encode_batch(side, self.threads))
            for tokenizer, side in zip(self.tokenizers, zip(*texts, strict=True), strict=True)
        )
        return LineIds((source, target), np.array([pair.line for pair in pairs], np.int64))

    def parts(self, result: LineIds) -> Parts:
        """Return what `restored` needs."""
        arrays: dict[str, npt.NDArray[Any]] = {"numbers": result.numbers}
        for side, flat in enumerate(result.ids):
            arrays |= {f"ids_{side}": flat.ids, f"lengths_{side}": flat.lengths}
        return Parts(arrays, None)

    def restored(self, _: Block, parts: Parts) -> LineIds:
        """Return the result of a block again."""
        arrays, _ = parts
        source, target = (FlatIds(arrays[f"ids_{i}"], arrays[f"lengths_{i}"]) for i in range(2))
        return LineIds((source, target), arrays["numbers"])


class LineWriter(StoreWriter):
    """Writes the token ids of all lines of some corpora to a new folder, in order."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        super().__init__(folder, vocab_size)
        self.spans: dict[str, tuple[int, int]] = {}
        """First row of each corpus, and the row behind its last."""

    def add(self, corpus: str, lines: LineIds) -> None:
        """Add the next lines of a corpus."""
        self.append_flat(lines.ids, 0, lines.numbers)
        end = max((stop for _, stop in self.spans.values()), default=0)
        self.spans[corpus] = self.spans.get(corpus, (end, end))[0], end + lines.num_lines


class _Lengths:
    """Lengths of at most `MOST_TOKENS`, in a byte each."""

    def __init__(self, values: npt.NDArray[np.uint8]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any, /) -> npt.NDArray[np.int32]:
        return self._values[rows].astype(np.int32)


class LineStore:
    """What a `LineWriter` has written; memory holds two bytes a line, and what is asked for.

    As `Lines`, a line ends after `MOST_TOKENS` tokens. It may be sent to any process that sees the
    folder, without the names of the corpora.

    Args:
        folder: What the writer has written.
        spans: First row of each corpus, and the row behind its last.
    """

    def __init__(self, folder: Path, spans: Mapping[str, tuple[int, int]] | None = None) -> None:
        self._folder, self._dtype, self.spans = folder, ids_dtype(folder), spans or {}
        self.source_lengths, self.target_lengths = map(self._lengths, ("source", "target"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the name of the folder."""
        return _store_of, (self._folder,)

    def _lengths(self, side: str) -> _Lengths:
        found = [np.zeros(0, np.uint8)]
        size = (self._folder / f"{side}.offsets.bin").stat().st_size // 8 - 1
        for start in range(0, size, _READ_AT_ONCE):
            lengths = np.diff(self._offsets(side, start, min(start + _READ_AT_ONCE, size)))
            found.append(np.minimum(lengths, MOST_TOKENS).astype(np.uint8))
        return _Lengths(np.concatenate(found))

    def _offsets(self, side: str, start: int, stop: int) -> Rows:
        """Return where rows begin, and where the last ends. (stop - start + 1,)."""
        path = self._folder / f"{side}.offsets.bin"
        return np.fromfile(path, "<i8", stop - start + 1, offset=8 * start).astype(np.int64)

    def _ids(self, side: str, first: int, last: int) -> Ids:
        path = self._folder / f"{side}.ids.bin"
        return np.fromfile(path, self._dtype, last - first, offset=first * self._dtype.itemsize)

    def source_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the source ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return self._gather("source", rows)

    def target_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the target ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return self._gather("target", rows)

    def _gather(self, side: str, rows: Rows) -> tuple[Ids, Rows]:
        if not len(rows):
            return np.empty(0, self._dtype), np.zeros(1, np.int64)
        first = int(rows.min())
        places = self._offsets(side, first, int(rows.max()) + 1)
        ids = self._ids(side, int(places[0]), int(places[-1]))
        starts, ends = places[rows - first] - places[0], places[rows - first + 1] - places[0]
        lengths = np.minimum(ends - starts, MOST_TOKENS)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return ids[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)], offsets

    def block(self, corpus: str, start: int, stop: int) -> LineIds:
        """Return a range of lines of a corpus, whole.

        Raises:
            DataError: The corpus had not as many.
        """
        first, end = self.spans[corpus]
        start, stop = first + start, first + stop
        if stop > end:
            raise has_changed(corpus)
        sides = []
        for side in ("source", "target"):
            places = self._offsets(side, start, stop)
            ids = self._ids(side, int(places[0]), int(places[-1])).astype(np.int32)
            sides.append(FlatIds(ids, np.diff(places)))
        path = self._folder / "lines.bin"
        numbers = np.fromfile(path, "<i8", stop - start, offset=8 * start).astype(np.int64)
        return LineIds((sides[0], sides[1]), numbers)


def has_changed(corpus: str) -> DataError:
    """Return the error of a corpus that has other lines than when it was read before."""
    return DataError(
        f"The corpus {corpus} changed while it was read.",
        fix="Prepare again when nothing writes to the corpora any more.",
    )


@lru_cache(maxsize=1)
def _store_of(folder: Path) -> LineStore:
    return LineStore(folder)


def selected(flat: FlatIds, is_wanted: npt.NDArray[np.bool_], first: int | None = None) -> FlatIds:
    """Return some of the sentences, each with an id in front of it unless that is None."""
    lengths = flat.lengths[is_wanted]
    ids = flat.ids[np.repeat(is_wanted, flat.lengths)]
    if first is not None:
        ids = np.insert(ids, np.cumsum(lengths) - lengths, first)
    return FlatIds(ids.astype(np.int32), lengths + (first is not None))
