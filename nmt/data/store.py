"""The token store: token ids of sentence pairs on disk, as memory-mapped arrays.

A folder contains these little-endian arrays:

- ``SIDE.ids.bin``: the ids of all sentences of a side without special tokens (uint16 if the
  vocabulary is small enough, else uint32).
- ``SIDE.offsets.bin``: the start of each sentence in this file, and the end (int64).
- ``corpus.bin`` and ``lines.bin``: the corpus (uint16) and the line (int64) of each pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nmt.errors import DataError, shell_command
from nmt.files.json_file import field, read_json
from nmt.text.flat import FlatIds

IntArray = npt.NDArray[np.integer]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float64]
_SIDES = ("source", "target")
_COUNTED_AT_ONCE = 1 << 20  # ids
_ROWS_AT_ONCE = 10_000


class Lengths(Protocol):
    """Lengths of one side in tokens: an array, or an object that computes them on access."""

    def __len__(self) -> int:
        """Return the number of pairs."""

    def __getitem__(self, rows: slice | Rows, /) -> IntArray:
        """Return the lengths of ``rows``, in tokens."""


class LineSide(Protocol):
    """The lines of one side."""

    @property
    def lengths(self) -> Lengths:
        """Length of each line, in tokens, without EOS."""

    def ids(self, rows: Rows) -> FlatIds:
        """Return the ids of ``rows``."""


class Lines(Protocol):
    """Token ids of the lines of both sides: a `ParallelStore`, or a view of a store."""

    @property
    def source(self) -> LineSide:
        """The source lines."""

    @property
    def target(self) -> LineSide:
        """The target lines."""


class StoredSide:
    """The ids of one side of all pairs."""

    def __init__(self, folder: Path, side: str, dtype: npt.DTypeLike) -> None:
        self._ids = _mapped(folder / f"{side}.ids.bin", dtype)
        # Start of each row in the ids, and the end of the last row. (n + 1,)
        self._offsets = _mapped(folder / f"{side}.offsets.bin", "<i8")
        # The last offset must be the end of the ids. A slice, because an empty file has no offset.
        if self._offsets[-1:].tolist() != [len(self._ids)]:
            raise ValueError(f"the size of {side}.ids.bin does not match its offsets")
        # Lengths in tokens, without EOS. (n,), int32.
        self.lengths = np.diff(self._offsets).astype(np.int32)

    def ids(self, rows: IntArray) -> FlatIds:
        """Return the ids of ``rows``."""
        lengths = self.lengths[rows].astype(np.int64)
        starts = np.cumsum(lengths) - lengths  # of each row in the result
        # An index in the result plus the shift of its row is the index in the file.
        shifts = self._offsets[rows] - starts
        indices = np.arange(lengths.sum()) + np.repeat(shifts, lengths)
        return FlatIds(self._ids[indices], lengths)

    def blocks(self) -> Iterator[FlatIds]:
        """Yield the ids of all rows in blocks."""
        num_rows = len(self.lengths)
        for start in range(0, num_rows, _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, num_rows))
            yield self.ids(rows)

    def counts(self, vocab_size: int, rows: slice = slice(None)) -> IntArray:
        """Return the number of occurrences of each id in a range of rows. (vocab_size,), int64."""
        first_row, end_row, _ = rows.indices(len(self.lengths))
        end = int(self._offsets[end_row])
        counts = np.zeros(vocab_size, dtype=np.int64)
        for start in range(int(self._offsets[first_row]), end, _COUNTED_AT_ONCE):
            ids = self._ids[start : min(start + _COUNTED_AT_ONCE, end)]
            counts += np.bincount(ids, minlength=vocab_size)
        return counts


class ParallelStore:
    """A token store, opened read-only. Only the path of its folder is pickled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        layout = read_json(folder / "layout.json")
        dtype = np.dtype(field(layout, "ids", kind=str))
        self.source = StoredSide(folder, "source", dtype)
        self.target = StoredSide(folder, "target", dtype)
        self.corpus = _mapped(folder / "corpus.bin", "<u2")  # index of the corpus or set. (n,)
        self.lines = _mapped(folder / "lines.bin", "<i8")  # number in the corpus, from 1. (n,)

    @classmethod
    def open(cls, folder: Path) -> ParallelStore:
        """Open a token store.

        Raises:
            DataError: A file is missing or has the wrong size.
        """
        try:
            return cls(folder)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder} is not a complete token store: {error}",
                fix=f"Run `{shell_command('prepare', 'CONFIG', force=True)}`.",
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self._folder,)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.corpus)

    def rows_of(self, corpus: int) -> slice:
        """Return the rows of a corpus, by its index; empty if the store has none of its pairs."""
        # A store contains one corpus after the other, so ``corpus`` is sorted.
        start, stop = np.searchsorted(self.corpus, (corpus, corpus + 1))
        return slice(int(start), int(stop))


@lru_cache(maxsize=2)
def _opened(folder: Path) -> ParallelStore:
    return ParallelStore.open(folder)


def _mapped(path: Path, dtype: npt.DTypeLike) -> IntArray:
    """Open a file of numbers as an array, without reading it into memory. (n,)."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


class StoreWriter(ExitStack):
    """Writes a new token store, in constant memory.

    Args:
        folder: The folder; created if missing. A store in this folder is replaced.
        vocab_size: Size of the larger vocabulary. It determines the integer type of the ids.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._dtype = "<u2" if vocab_size <= 1 << 16 else "<u4"
        self._num_ids = dict.fromkeys(_SIDES, 0)  # written so far, by side
        # Exits run in reverse order, so `_finish` runs after all files are closed.
        self.push(self._finish)
        names = ["corpus.bin", "lines.bin"]
        for side in _SIDES:
            names += [f"{side}.ids.bin", f"{side}.offsets.bin"]
        self._files = {}  # open files, by name
        for name in names:
            self._files[name] = self.enter_context((folder / name).open("wb"))
        for side in _SIDES:  # the start of the first sentence; `append` adds the ends
            self._write(f"{side}.offsets.bin", np.zeros(1), "<i8")

    def append(
        self, source: FlatIds, target: FlatIds, corpus: int, lines: Sequence[int] | IntArray
    ) -> None:
        """Append pairs of one corpus.

        Args:
            source: Source ids.
            target: Target ids.
            corpus: Index of the corpus: in `DataConfig.training` or `DataConfig.validation`.
            lines: Line number of each pair in the corpus, from 1.
        """
        for side, flat in (("source", source), ("target", target)):
            self._write(f"{side}.ids.bin", flat.ids, self._dtype)
            # The start of the first sentence is already there: it is the end of the last one.
            ends = self._num_ids[side] + flat.offsets[1:]
            self._write(f"{side}.offsets.bin", ends, "<i8")
            self._num_ids[side] += len(flat.ids)
        self._write("corpus.bin", np.full(len(lines), corpus), "<u2")
        self._write("lines.bin", np.asarray(lines), "<i8")

    def _write(self, name: str, values: npt.NDArray[Any], dtype: str) -> None:
        self._files[name].write(values.astype(dtype).tobytes())

    def _finish(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Write the layout, so that the store can be opened, unless an error has occurred."""
        if error_type is None:
            layout = json.dumps({"ids": self._dtype})
            (self._folder / "layout.json").write_bytes(layout.encode())
