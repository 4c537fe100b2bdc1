"""A store and a position -> the endless stream of batches that training reads from there on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.config.data import BatchConfig
from nmt.data.batch import Batch, Resegmenter, collate
from nmt.data.batching import epoch_rows, plan_batches
from nmt.data.store import ParallelStore
from nmt.errors import DataError

_LINES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the stream: the batch to be read next."""

    epoch: int = 0
    """Epochs read to the end."""
    batch: int = 0
    """Batches read of this epoch."""


class Loader:
    """All epochs of one store for one process.

    Args:
        store: The training pairs.
        config: The batch section, with numbers.
        weights: How often an epoch reads each corpus.
        seed: Seed of the data order.
        rank: This process among ``num_ranks``.
        num_ranks: Processes that share the epoch.
        resegment: Draws other subwords in each epoch. Batches are planned by the stored ones, and
            so hold more tokens than they are meant to (a fifth more at a rate of 0.1).
    """

    def __init__(
        self,
        store: ParallelStore,
        config: BatchConfig,
        *,
        weights: Sequence[float],
        seed: int,
        rank: int = 0,
        num_ranks: int = 1,
        resegment: Resegmenter | None = None,
    ) -> None:
        if config.max_tokens == "auto":
            raise ValueError("batch.max_tokens must be a number here")
        self.store = store
        self._config, self._max_tokens = config, config.max_tokens
        self._weights = weights
        self._seed = seed
        self._ranks = (rank, num_ranks)
        self._resegment = resegment

    def plan(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        """Return the store's rows of each batch of an epoch, in order.

        Raises:
            DataError: The weights leave no row.
        """
        rows = epoch_rows(self.store.corpus, self._weights, seed=self._seed, epoch=epoch)
        if not len(rows):
            raise DataError(
                f"An epoch reads no pair: {len(self.store):,} with weights of "
                f"{', '.join(map(str, self._weights))}.",
                fix="Raise data.train.*.weight: it says how often an epoch reads a corpus.",
            )
        plan = plan_batches(
            self.store.source_lengths[rows] + 1,
            self.store.target_lengths[rows] + 1,
            max_tokens=self._max_tokens,
            noise=self._config.noise,
            seed=self._seed,
            epoch=epoch,
            rank=self._ranks[0],
            num_ranks=self._ranks[1],
        )
        return [rows[batch] for batch in plan]

    def updates(self, start: Position) -> Iterator[tuple[list[Batch], Position]]:
        """Yield the batches of each optimizer update and the position after them, for ever.

        An update has ``accumulate`` batches, the last one of an epoch perhaps fewer: an update
        never mixes two epochs.
        """
        epoch, first = start.epoch, start.batch
        while True:
            plan = self.plan(epoch)
            for begin in range(first, len(plan), self._config.accumulate):
                end = min(begin + self._config.accumulate, len(plan))
                after = Position(epoch, end) if end < len(plan) else Position(epoch + 1, 0)
                yield [self.batch(rows, epoch) for rows in plan[begin:end]], after
            epoch, first = epoch + 1, 0

    def batch(self, rows: npt.NDArray[np.int64], epoch: int = 0) -> Batch:
        """Return the batch of some rows of the store, as it is in an epoch."""
        return collate(self.store, rows, self._resegment, epoch)

    def updates_per_epoch(self, epoch: int = 0) -> int:
        """Return the optimizer updates of an epoch."""
        return -(-len(self.plan(epoch)) // self._config.accumulate)

    def describe(self, batches: Sequence[Batch]) -> str:
        """Say where the pairs of ``batches`` come from: corpora and some of their lines."""
        rows = np.concatenate([batch.rows for batch in batches])
        corpora, lines = self.store.corpus[rows], self.store.lines[rows]
        parts = []
        for corpus in np.unique(corpora):
            own = np.sort(lines[corpora == corpus])
            some = ", ".join(f"{line:,}" for line in own[:_LINES_NAMED])
            more = f" and {len(own) - _LINES_NAMED:,} more" if len(own) > _LINES_NAMED else ""
            parts.append(f"data.train.{corpus} lines {some}{more}")
        return "; ".join(parts)
