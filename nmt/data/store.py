"""Parallel token ids on disk: flat arrays with offsets, memory-mapped, written once, read often.

A folder holds, for each side, ``ids.bin`` (uint16 where the vocabulary allows, else uint32) and
``offsets.bin`` (int64), and ``corpus.bin`` (uint16) and ``lines.bin`` (int64): all little-endian,
all without special tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from nmt.errors import DataError
from nmt.files.json_file import field, read_json

IntArray = npt.NDArray[np.integer]
_SIDES = ("source", "target")
_COUNTED_AT_ONCE = 1 << 20


class _Side:
    """Ids and offsets of one language."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.offsets = _mapped(folder / f"{name}.offsets.bin", "<i8")
        self.ids = _mapped(folder / f"{name}.ids.bin", dtype)
        self.lengths = np.diff(self.offsets).astype(np.int32)
        if len(self.offsets) == 0 or int(self.offsets[-1]) != len(self.ids):
            raise DataError(
                f"{folder}/{name}.ids.bin does not have the length its offsets say.",
                fix="The prepared folder is damaged: run `nmt prepare CONFIG --force`.",
            )

    def gather(self, rows: IntArray) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return the ids of ``rows`` one after another, and the offset of each row (+ the end)."""
        lengths = self.lengths[rows].astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        where = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return self.ids[where], offsets


class ParallelStore:
    """Sentence pairs as token ids, read-only."""

    def __init__(self, folder: Path, ids_dtype: str) -> None:
        self._sides = {name: _Side(folder, name, ids_dtype) for name in _SIDES}
        self.corpus = _mapped(folder / "corpus.bin", "<u2")
        """Index of each pair's corpus in ``data.train``. (n,), uint16."""
        self.lines = _mapped(folder / "lines.bin", "<i8")
        """Line number of each pair in its corpus, from 1. (n,), int64."""

    @classmethod
    def open(cls, folder: Path) -> ParallelStore:
        """Map the arrays of ``folder``.

        Raises:
            DataError: A file is missing or has the wrong length.
        """
        try:
            return cls(folder, field(read_json(folder / "layout.json"), "ids", kind=str))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{folder} is not a complete token store: {error}",
                fix="Run `nmt prepare CONFIG --force`.",
            ) from error

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.corpus)

    @property
    def source_lengths(self) -> npt.NDArray[np.int32]:
        """Source tokens of each pair, without EOS. (n,)."""
        return self._sides["source"].lengths

    @property
    def target_lengths(self) -> npt.NDArray[np.int32]:
        """Target tokens of each pair, without EOS. (n,)."""
        return self._sides["target"].lengths

    def source_ids(self, rows: IntArray) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return the source ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return self._sides["source"].gather(rows)

    def target_ids(self, rows: IntArray) -> tuple[IntArray, npt.NDArray[np.int64]]:
        """Return the target ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return self._sides["target"].gather(rows)

    def token_counts(self, side: str, vocab_size: int) -> npt.NDArray[np.int64]:
        """Count how often each id occurs on a side. (vocab_size,)."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        ids = self._sides[side].ids
        for start in range(0, len(ids), _COUNTED_AT_ONCE):
            counts += np.bincount(ids[start : start + _COUNTED_AT_ONCE], minlength=vocab_size)
        return counts


def _mapped(path: Path, dtype: str) -> npt.NDArray[np.integer]:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


class StoreWriter:
    """Appends pairs to a new store; memory does not grow with their number.

    Args:
        folder: A new folder.
        vocab_size: Entries of the larger vocabulary; decides the width of the ids.
        append: Go on at the end of a store that an earlier writer left in ``folder``.
    """

    def __init__(self, folder: Path, vocab_size: int, *, append: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=append)
        self._folder = folder
        self._dtype = "<u2" if vocab_size <= 1 << 16 else "<u4"
        self._ends = dict.fromkeys(_SIDES, 0)
        self._stack = ExitStack()
        names = [f"{side}.{part}.bin" for side in _SIDES for part in ("ids", "offsets")]
        self._files: dict[str, BinaryIO] = {
            name: self._stack.enter_context((folder / name).open("ab" if append else "wb"))
            for name in (*names, "corpus.bin", "lines.bin")
        }
        for side in _SIDES:
            if append:
                self._ends[side] = int(_mapped(folder / f"{side}.offsets.bin", "<i8")[-1])
            else:
                self._files[f"{side}.offsets.bin"].write(np.zeros(1, "<i8").tobytes())

    def append(
        self,
        source: Sequence[Sequence[int]],
        target: Sequence[Sequence[int]],
        corpus: int,
        lines: Sequence[int],
    ) -> None:
        """Write many pairs of one corpus."""
        for side, rows in zip(_SIDES, (source, target), strict=True):
            lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
            flat = np.fromiter(chain.from_iterable(rows), self._dtype, int(lengths.sum()))
            offsets = self._ends[side] + np.cumsum(lengths)
            self._files[f"{side}.ids.bin"].write(flat.tobytes())
            self._files[f"{side}.offsets.bin"].write(offsets.astype("<i8").tobytes())
            self._ends[side] += int(lengths.sum())
        self._files["corpus.bin"].write(np.full(len(lines), corpus, "<u2").tobytes())
        self._files["lines.bin"].write(np.asarray(lines, "<i8").tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()
        if kind is None:
            layout = json.dumps({"ids": self._dtype})
            (self._folder / "layout.json").write_text(layout, encoding="utf-8")
