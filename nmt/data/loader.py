"""The endless stream of training batches, which can be resumed at any position.

The plan of an epoch (which pairs share a batch, and the order of batches) depends only on lengths,
settings, seed, epoch and rank. No state is kept between epochs, so a resumed run makes the same
plan again and skips to its position. BOS and EOS are added only by `collate`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nmt.config.data import BatchConfig
from nmt.data.plan import Stage, epoch_random, epoch_rows, plan_batches
from nmt.data.resegment import Resegment, in_turn, install, resegment_installed
from nmt.data.store import IntArray, ParallelStore, Rows
from nmt.data.workers import map_ahead, process_pool
from nmt.errors import DataError
from nmt.packed import Packed, move, round_up
from nmt.text import BOS_ID, EOS_ID
from nmt.text.flat import FlatIds

_LINES_NAMED = 8  # lines of a corpus that an error message lists


@dataclass(frozen=True)
class Batch:
    """Packed sentence pairs, without padding.

    ``source`` and ``target`` may end with filler tokens (`nmt.packed.round_up`), which ``rows`` and
    ``gold`` do not count.
    """

    # Source ids. Each sentence ends with EOS, and starts with BOS if ``model.source_bos`` is set.
    source: Packed
    target: Packed  # Input of the decoder: BOS, then the target.
    # Expected output of the decoder: the target, then EOS. (num_target_tokens,), int64.
    gold: Tensor
    rows: Rows  # Rows of the pairs in the store, for error messages. (B,)

    @property
    def num_source_tokens(self) -> int:
        """Number of source tokens, including EOS, without padding."""
        return self.source.num_tokens - self.source.num_filler

    @property
    def num_target_tokens(self) -> int:
        """Number of predicted tokens, including EOS: the divisor of the loss."""
        return len(self.gold)

    @property
    def num_padded_tokens(self) -> int:
        """Number of tokens of both sides after padding each sentence to the longest."""
        return self.source.num_cells + self.target.num_cells

    def halves(self) -> tuple[Batch, Batch]:
        """Split the batch into two batches with half of the sentences each."""
        num_pairs = len(self.rows)
        middle = num_pairs // 2
        # ``target`` and ``gold`` have the same number of tokens for each sentence.
        num_first_tokens = int(self.target.cu_seqlens[middle])
        first = self._part(0, middle, self.gold[:num_first_tokens])
        last = self._part(middle, num_pairs, self.gold[num_first_tokens:])
        return first, last

    def _part(self, start: int, stop: int, gold: Tensor) -> Batch:
        """Return the pairs from ``start`` to ``stop`` (exclusive), with their ``gold`` tokens."""
        source = self.source.part(start, stop)
        target = self.target.part(start, stop)
        return Batch(source, target, gold, self.rows[start:stop])

    def to(self, device: torch.device) -> Batch:
        """Return this batch on ``device``; on a CPU, the same object."""
        if device.type == "cpu":
            return self
        source = self.source.to(device)
        target = self.target.to(device)
        return replace(self, source=source, target=target, gold=move(self.gold, device))


def collate(
    source_ids: FlatIds,
    target_ids: FlatIds,
    rows: Rows,
    *,
    source_bos: bool = False,
    longest: int | None = None,
) -> Batch:
    """Make a batch of pairs. Adds BOS before targets and EOS after each sentence.

    Args:
        source_ids: Source ids of the pairs.
        target_ids: Target ids of the pairs.
        rows: Rows of the pairs in the store.
        source_bos: Whether to add BOS before sources too.
        longest: Maximum tokens of a sentence. If set, batch sizes are rounded up.
    """
    source = _packed(source_ids, EOS_ID, is_last=True)
    if source_bos:
        source = source.prepend(BOS_ID)
    target = _packed(target_ids, BOS_ID, is_last=False)
    gold = _packed(target_ids, EOS_ID, is_last=True)
    if longest is not None:
        source, target = round_up(source, target, longest)
    return Batch(source=source, target=target, gold=gold.ids, rows=rows)


def _packed(flat: FlatIds, special_id: int, *, is_last: bool) -> Packed:
    """Pack sentences, with a special token as the last or as the first token of each."""
    # With the special tokens: start of each sentence, and the end of the last one. (B + 1,)
    borders = flat.offsets + np.arange(len(flat.offsets))
    special_indices = borders[:-1]  # starts
    if is_last:
        special_indices = borders[1:] - 1  # last token of each sentence
    ids = np.full(borders[-1], special_id, dtype=np.int64)
    text_indices = np.delete(np.arange(len(ids)), special_indices)
    ids[text_indices] = flat.ids
    cu_seqlens = torch.from_numpy(borders.astype(np.int32))
    longest = int(flat.lengths.max()) + 1  # with the special token
    return Packed(torch.from_numpy(ids), cu_seqlens, longest)


@dataclass(frozen=True)
class Position:
    """The position of the next batch in the stream."""

    epoch: int = 0  # Completed epochs.
    batch: int = 0  # Batches read in this epoch.
    stage: int = 0  # Completed stages.
    stage_epochs: int = 0  # Completed epochs of this stage.
    stage_updates: int = 0  # Completed updates of this stage.

    @property
    def current_epoch(self) -> int:
        """Number of the epoch of the last batch, from 1; 0 before the first batch."""
        if self.batch:
            return self.epoch + 1
        return self.epoch


@dataclass(frozen=True)
class _PlannedUpdate:
    """The batches of one optimizer update."""

    batches: Sequence[Rows]  # rows of each batch
    epoch: int  # epoch of the batches, from 0
    after: Position  # position after the update


@dataclass(frozen=True)
class Loader:
    """Reads the training batches of one process."""

    store: ParallelStore  # Token ids of the training pairs.
    config: BatchConfig  # The batch section, with ``auto`` resolved.
    weights: Sequence[float]  # How often an epoch reads each corpus.
    seed: int  # Seed of the data order.
    rank: int = 0  # Number of this process, from 0.
    num_ranks: int = 1  # Processes that share each epoch.
    # Replace the stored ids in each epoch (noise, BPE-dropout). Batches are planned with the stored
    # lengths, so they exceed ``max_tokens`` (by a fifth with a BPE-dropout of 0.1).
    changes: Sequence[Resegment] = ()
    source_bos: bool = False  # Add BOS before sources.
    # Processes that prepare some updates ahead, while a thread plans the next epoch. 0 prepares
    # every batch when it is needed.
    num_workers: int = 0
    stages: Sequence[Stage] = ()  # Consecutive mixtures of the corpora, instead of ``weights``.
    # Maximum tokens of a sentence, if batch sizes are rounded up (`nmt.packed.round_up`).
    longest: int | None = None
    keys: Sequence[str] = ()  # Configuration key of each corpus, for error messages.

    def lengths(self, rows: Rows | slice) -> tuple[IntArray, IntArray]:
        """Return the source and target lengths of ``rows``, including special tokens."""
        # EOS, and BOS of the source if it is added. The target has BOS as an input, or EOS as an
        # output.
        source = self.store.source.lengths[rows] + (1 + self.source_bos)
        target = self.store.target.lengths[rows] + 1
        return source, target

    def plan(self, epoch: int, stage: int = 0) -> list[Rows]:
        """Return the rows of each batch of an epoch, in order.

        Args:
            epoch: Number of the epoch, from 0.
            stage: Number of the stage, from 0.

        Raises:
            DataError: The weights select no pair.
        """
        assert self.config.max_tokens != "auto"
        store = self.store
        weights = self.stages[stage].weights if self.stages else self.weights
        rows = epoch_rows(store.corpus, weights, seed=self.seed, epoch=epoch)
        # None: the epoch reads every row once. Then an index into its rows is the row itself.
        selected: slice | Rows = slice(None) if rows is None else rows
        source_lengths, target_lengths = self.lengths(selected)
        if not len(source_lengths):
            shown = ", ".join(map(str, weights))
            raise DataError(
                f"The weights ({shown}) select none of {len(store):,} pairs.",
                fix="Raise data.train.*.weight, the number of times that an epoch reads a corpus.",
            )
        batches = plan_batches(  # of indices into the rows of the epoch
            source_lengths,
            target_lengths,
            max_tokens=self.config.max_tokens,
            max_sentences=self.config.max_sentences,
            noise=self.config.length_noise,
            random=epoch_random(self.seed, epoch),
        )
        # Processes take turns, and each reads the same number of batches. If the last turn is not
        # complete, it continues with the first batches, which are then read twice.
        num_turns = math.ceil(len(batches) / self.num_ranks)
        indices = range(self.rank, num_turns * self.num_ranks, self.num_ranks)
        rank_batches = [batches[index % len(batches)] for index in indices]
        if rows is None:
            return rank_batches
        return [rows[batch] for batch in rank_batches]

    def updates(self, start: Position) -> Generator[tuple[list[Batch], Position], None, None]:
        """Yield the batches of each optimizer update, and the position after them, endlessly.

        An update has ``gradient_accumulation`` batches. The last update of an epoch may have fewer,
        because an update never mixes two epochs.
        """
        planned = self._planned(start)
        if not self.num_workers or not self.changes:
            yield from map(self._load, planned)
            return
        # Threads load the batches, but the changes, which are slow, run in processes. Each process
        # gets all changes when it starts. The threads use a copy of this loader with one change,
        # which sends its inputs to a process and waits for the result.
        with (
            process_pool(self.num_workers, install, self.changes) as pool,
            ThreadPoolExecutor(self.num_workers, "ahead") as threads,
        ):
            loader = replace(
                self, changes=[lambda *inputs: pool.submit(resegment_installed, *inputs).result()]
            )
            ahead = 2 * self.num_workers  # so that no process has to wait for its next task
            yield from map_ahead(loader._load, planned, threads, ahead)

    def _planned(self, start: Position) -> Iterator[_PlannedUpdate]:
        """Yield the updates after a position, endlessly."""
        update_batches = self.config.gradient_accumulation
        position = start
        while True:  # one stage after the other
            stage = position.stage
            for batches in self._plans(position.epoch, stage):  # one epoch after the other
                epoch = position.epoch
                # Only the first epoch may start in the middle.
                for first in range(position.batch, len(batches), update_batches):
                    end = min(first + update_batches, len(batches))
                    position = self._after(position, end, is_over=end == len(batches))
                    yield _PlannedUpdate(batches[first:end], epoch, position)
                    # The end of a stage ends the epoch, even if it has more batches.
                    if position.epoch != epoch:
                        break
                if position.stage != stage:  # these plans are of the old stage
                    break

    def _plans(self, epoch: int, stage: int) -> Iterator[list[Rows]]:
        """Yield the plans of a stage, epoch by epoch, endlessly. ``epoch`` is the first one."""
        plan_epoch = partial(self.plan, stage=stage)
        epochs = itertools.count(epoch)
        if not self.num_workers:
            yield from map(plan_epoch, epochs)
            return
        # A thread plans the next epoch during the current one.
        with ThreadPoolExecutor(1, "ahead") as thread:
            yield from map_ahead(plan_epoch, epochs, thread, ahead=1)

    def _after(self, position: Position, batch: int, *, is_over: bool) -> Position:
        """Return the position after an update.

        Args:
            position: The position before the update.
            batch: Index of the next batch of the epoch.
            is_over: Whether the update has the last batches of the epoch.
        """
        after = replace(position, batch=batch)
        if is_over:
            after = replace(position, epoch=position.epoch + 1, batch=0)
        if not self.stages:
            return after
        epochs = position.stage_epochs + is_over  # True counts 1
        updates = position.stage_updates + 1
        after = replace(after, stage_epochs=epochs, stage_updates=updates)
        is_last = after.stage + 1 == len(self.stages)
        if not is_last and self.stages[after.stage].is_over(epochs, updates):
            # A new epoch: if this one has begun, it ends here and counts as completed.
            return Position(after.epoch + (after.batch > 0), 0, after.stage + 1)
        return after

    def epoch_updates(self) -> Iterator[int]:
        """Yield the number of updates of each epoch, endlessly."""
        num_updates = 0
        for update in self._planned(Position()):
            num_updates += 1
            if update.after.epoch > update.epoch:  # the last update of its epoch
                yield num_updates
                num_updates = 0

    def _load(self, update: _PlannedUpdate) -> tuple[list[Batch], Position]:
        """Return the batches of an update, and the position after it."""
        return [self.batch(rows, update.epoch) for rows in update.batches], update.after

    def batch(self, rows: Rows, epoch: int = 0) -> Batch:
        """Return ``rows`` of the store as a batch, with the noise of ``epoch``."""
        sides = self.store.source.ids(rows), self.store.target.ids(rows)
        if self.changes:
            sides = in_turn(self.changes, epoch, rows, sides)
        return collate(*sides, rows, source_bos=self.source_bos, longest=self.longest)

    def describe(self, batches: Sequence[Batch]) -> str:
        """Return the corpora and the line numbers of the pairs, for error messages."""
        rows = np.concatenate([batch.rows for batch in batches])
        corpora = self.store.corpus[rows]
        lines = self.store.lines[rows]
        descriptions = []
        for corpus in np.unique(corpora):
            key = self.keys[corpus] if self.keys else f"data.train.{corpus}"
            corpus_lines = np.sort(lines[corpora == corpus])
            shown = [f"{line:,}" for line in corpus_lines[:_LINES_NAMED]]
            description = f"{key} lines {', '.join(shown)}"
            num_more = len(corpus_lines) - len(shown)
            if num_more:
                description += f" and {num_more:,} more"
            descriptions.append(description)
        return "; ".join(descriptions)
