"""Lines without their ends: later words say little more about what a line means."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.data.store import Ids, ParallelStore, Rows

MOST_TOKENS = 64


class CutLines:
    """A view of a store in which each sentence ends after `MOST_TOKENS` tokens.

    Memory holds two bytes a line. It travels to other processes as its store.
    """

    def __init__(self, store: ParallelStore) -> None:
        self._store = store
        self.source_lengths = _CutLengths(store.source_lengths)
        self.target_lengths = _CutLengths(store.target_lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        return CutLines, (self._store,)

    def source_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the source ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return _cut(*self._store.source_ids(rows))

    def target_ids(self, rows: Rows) -> tuple[Ids, Rows]:
        """Return the target ids of ``rows``, flat, and offsets (len(rows) + 1,)."""
        return _cut(*self._store.target_ids(rows))


class _CutLengths:
    def __init__(self, lengths: npt.NDArray[np.integer]) -> None:
        self._values = np.minimum(lengths, MOST_TOKENS).astype(np.uint8)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any, /) -> npt.NDArray[np.int32]:
        return self._values[rows].astype(np.int32)


def _cut(ids: Ids, offsets: Rows) -> tuple[Ids, Rows]:
    """Return the first tokens of each sentence."""
    whole = np.diff(offsets)
    lengths = np.minimum(whole, MOST_TOKENS)
    if (lengths == whole).all():
        return ids, offsets
    cut = np.concatenate(([0], np.cumsum(lengths)))
    return ids[np.arange(cut[-1]) + np.repeat(offsets[:-1] - cut[:-1], lengths)], cut
