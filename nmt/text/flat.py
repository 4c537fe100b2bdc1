"""Sentences as ids, concatenated without padding: `nmt.packed.Packed` without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class FlatIds:
    """Sentences of one side, concatenated. n sentences with N ids in total."""

    ids: Ids  # ids of all sentences. (N,)
    lengths: npt.NDArray[np.int64]  # number of ids of each sentence. (n,)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> FlatIds:
        """Concatenate a list of ids per sentence."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum()))
        return cls(ids, lengths)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Start of each sentence in ``ids``, and the end of the last sentence. (n + 1,)."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    @cached_property
    def sentences(self) -> npt.NDArray[np.int64]:
        """Index of the sentence of each id. (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def rows(self) -> list[list[int]]:
        """Return a list of ids per sentence."""
        ids = self.ids.tolist()
        offsets = self.offsets.tolist()
        return [ids[start:stop] for start, stop in pairwise(offsets)]

    def part(self, start: int, stop: int) -> FlatIds:
        """Return the sentences from ``start`` to ``stop`` (exclusive)."""
        first_id = self.offsets[start]
        end_id = self.offsets[stop]
        return FlatIds(self.ids[first_id:end_id], self.lengths[start:stop])

    def prepend(self, added: Sequence[int]) -> FlatIds:
        """Return the sentences with the ids ``added`` in front of each."""
        starts = self.offsets[:-1]  # without the end of the last sentence
        indices = np.repeat(starts, len(added))
        inserted = np.tile(np.asarray(added, self.ids.dtype), len(self.lengths))
        ids = np.insert(self.ids, indices, inserted)
        return FlatIds(ids, self.lengths + len(added))

    def sums(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the sum of a value of each id, by sentence. (n,).

        Args:
            values: The value of each id of the vocabulary. (V,)
        """
        # Sums of the values before each id. The sum of a sentence is the difference of two of them.
        cumulative = np.concatenate(([0.0], np.cumsum(values[self.ids])))
        sums = np.diff(cumulative[self.offsets])
        return np.asarray(sums)
