"""A store and a position -> the endless stream of batches that training reads from there on.

The plan of an epoch, which pairs share a batch and which batch comes when, is a pure function of
(lengths, settings, seed, epoch, rank): nothing is remembered between epochs, so a resumed run makes
the plan again and skips to its position. `collate` is the only place where training adds BOS and
EOS.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.config.data import BatchConfig
from nmt.data.plan import Stage, epoch_random, epoch_rows, plan_batches
from nmt.data.resegment import Resegment, install, resegment_installed
from nmt.data.store import IntArray, ParallelStore, Rows
from nmt.data.workers import map_ahead, process_pool
from nmt.errors import DataError
from nmt.packed import Packed, move, round_up
from nmt.text import BOS_ID, EOS_ID

_LINES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """Sentence pairs without padding; filler may follow them, which `rows` and `gold` lack."""

    # Source ids, each sentence ending in EOS, and with ``model.source_bos`` beginning with BOS.
    source: Packed
    target: Packed  # What the decoder reads: BOS, then the target.
    # What the decoder must predict: the target, then EOS. (num_target_tokens,), int64.
    gold: Tensor
    rows: Rows  # Where the pairs stand in the store, for error messages. (B,)

    @property
    def num_source_tokens(self) -> int:
        """Source tokens with EOS, without padding."""
        return self.source.num_tokens - self.source.num_filler

    @property
    def num_target_tokens(self) -> int:
        """Predicted tokens without padding: the divisor of the loss."""
        return len(self.gold)

    @property
    def num_padded_tokens(self) -> int:
        """Cells of the padded rectangles of both sides."""
        return self.source.num_cells + self.target.num_cells

    def halves(self) -> tuple[Batch, Batch]:
        """Return two batches of half the pairs."""
        stop, middle = len(self.rows), len(self.rows) // 2
        split = int(self.target.cu_seqlens[middle])
        return self._part(0, middle, self.gold[:split]), self._part(middle, stop, self.gold[split:])

    def _part(self, start: int, stop: int, gold: Tensor) -> Batch:
        sides = self.source.part(start, stop), self.target.part(start, stop)
        return Batch(*sides, gold, self.rows[start:stop])

    def to(self, device: torch.device) -> Batch:
        """Return a copy on ``device``; this batch stays as it is."""
        if device.type == "cpu":
            return self
        source, target = self.source.to(device), self.target.to(device)
        return replace(self, source=source, target=target, gold=move(self.gold, device))


def collate(
    store: ParallelStore,
    rows: Rows,
    resegment: Resegment | None = None,
    epoch: int = 0,
    *,
    source_bos: bool = False,
    longest: int | None = None,
) -> Batch:
    """Gather ``rows`` of the store into a batch: BOS before targets and EOS after each sentence.

    Args:
        store: The pairs.
        rows: Which of them.
        resegment: Draws other subwords, and noise, for the epoch.
        epoch: Number of the epoch, from 0.
        source_bos: Whether sources, too, begin with BOS.
        longest: Most tokens of any sentence of either side, if sizes are to be rounded up.
    """
    sides = (store.source_ids(rows), store.target_ids(rows))
    if resegment is not None:
        sides = resegment(epoch, rows, sides)
    (source, source_offsets), (target, offsets) = sides
    packed = _packed(source, source_offsets, EOS_ID, last=True)
    packed = packed.prepend(BOS_ID) if source_bos else packed
    read, gold = (
        _packed(target, offsets, special, last=last)
        for special, last in ((BOS_ID, False), (EOS_ID, True))
    )
    if longest is not None:
        packed, read = round_up(packed, read, longest)
    return Batch(source=packed, target=read, gold=gold.ids, rows=rows)


def _packed(ids: npt.NDArray[np.integer], offsets: Rows, special: int, *, last: bool) -> Packed:
    """Pack sentences with a special token as the last or the first of each."""
    ends = offsets + np.arange(len(offsets))
    where = ends[1:] - 1 if last else ends[:-1]
    values = np.full(ends[-1], special, dtype=np.int64)
    values[np.delete(np.arange(ends[-1]), where)] = ids
    longest = int(np.diff(ends).max())
    return Packed(torch.from_numpy(values), torch.from_numpy(ends.astype(np.int32)), longest)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the stream: the batch to be read next."""

    epoch: int = 0  # Epochs read to the end.
    batch: int = 0  # Batches read of this epoch.
    stage: int = 0  # Stages that are over.
    stage_epochs: int = 0  # Epochs of this stage read to the end.
    stage_updates: int = 0  # Updates of this stage.

    def next_stage(self) -> Position:
        """Return the beginning of the next stage, which begins an epoch."""
        return Position(self.epoch + (self.batch > 0), 0, self.stage + 1)


@dataclass(frozen=True, slots=True)
class Loader:
    """All epochs of one store for one process."""

    store: ParallelStore  # The training pairs.
    config: BatchConfig  # The batch section, with numbers.
    weights: Sequence[float]  # How often an epoch reads each corpus.
    seed: int  # Seed of the data order.
    rank: int = 0  # This process among ``num_ranks``.
    num_ranks: int = 1  # Processes that share the epoch.
    # Draws other subwords, and noise, in each epoch. Batches are planned by what is stored, and so
    # hold more tokens than they are meant to (a fifth more at a BPE-dropout of 0.1).
    resegment: Resegment | None = None
    source_bos: bool = False  # Put BOS before sources.
    # Processes that draw subwords some updates ahead, while a thread plans the next epoch. With 0
    # nothing is made before it is asked for.
    num_workers: int = 0
    stages: Sequence[Stage] = ()  # Mixtures one after the other, in place of ``weights``.
    # Most tokens of a sentence, if the sizes of batches are rounded up: `nmt.packed.round_up`.
    longest: int | None = None

    def lengths(self, rows: Rows | slice) -> tuple[IntArray, IntArray]:
        """Return source and target tokens of rows of the store, special ones included."""
        source, target = self.store.source_lengths[rows], self.store.target_lengths[rows]
        return source + (1 + self.source_bos), target + 1

    def plan(self, epoch: int, stage: int = 0) -> list[Rows]:
        """Return the store's rows of each batch of an epoch, in order.

        Args:
            epoch: Its number, from 0.
            stage: The number of its stage, from 0.

        Raises:
            DataError: The weights leave no row.
        """
        assert self.config.max_tokens != "auto"
        store = self.store
        weights = self.stages[stage].weights if self.stages else self.weights
        rows = epoch_rows(store.corpus, weights, seed=self.seed, epoch=epoch)
        if not len(store if rows is None else rows):
            shown = ", ".join(map(str, weights))
            problem = f"An epoch reads no pair: {len(store):,} with weights of {shown}."
            fix = "Raise data.train.*.weight: it says how often an epoch reads a corpus."
            raise DataError(problem, fix=fix)
        plan = plan_batches(
            *self.lengths(slice(None) if rows is None else rows),
            max_tokens=self.config.max_tokens,
            max_sentences=self.config.max_sentences,
            noise=self.config.length_noise,
            random=epoch_random(self.seed, epoch),
        )
        # Each process takes equally many batches; a few are read twice to make it even.
        even = range(self.rank, len(plan) + -len(plan) % self.num_ranks, self.num_ranks)
        mine = [plan[number % len(plan)] for number in even]
        return mine if rows is None else [rows[batch] for batch in mine]

    def updates(self, start: Position) -> Generator[tuple[list[Batch], Position], None, None]:
        """Yield the batches of each optimizer update and the position after them, for ever.

        An update has ``gradient_accumulation`` batches. The last update of an epoch may have fewer,
        since an update never mixes two epochs.
        """
        planned = self._planned(start)
        if not self.num_workers or self.resegment is None:
            yield from map(self._made, planned)
            return
        with (
            process_pool(self.num_workers, install, self.resegment) as pool,
            ThreadPoolExecutor(self.num_workers, "ahead") as threads,
        ):
            loader = replace(
                self, resegment=lambda *batch: pool.submit(resegment_installed, *batch).result()
            )
            ahead = 2 * self.num_workers  # no process waits for its next task
            yield from map_ahead(loader._made, planned, threads, ahead)

    def _planned(self, start: Position) -> Iterator[tuple[list[Rows], int, Position]]:
        """Yield the rows of the batches of each update, their epoch, and the position after."""
        position = start
        while True:
            epochs, stage = itertools.count(position.epoch), position.stage
            make = partial(self.plan, stage=stage)
            with ExitStack() as stack:
                plans: Iterator[list[Rows]] = map(make, epochs)
                if self.num_workers:  # a thread plans the next epoch while this one is read
                    thread = stack.enter_context(ThreadPoolExecutor(1, "ahead"))
                    plans = map_ahead(make, epochs, thread, ahead=1)
                for plan in plans:
                    epoch = position.epoch
                    count = self.config.gradient_accumulation
                    for begin in range(position.batch, len(plan), count):
                        end = min(begin + count, len(plan))
                        position = self._after(position, end if end < len(plan) else None)
                        yield plan[begin:end], epoch, position
                        if position.epoch != epoch:
                            break
                    if position.stage != stage:
                        break

    def _after(self, position: Position, batch: int | None) -> Position:
        """Return the position after an update that ends before a batch, or with the epoch."""
        is_over = batch is None
        after = replace(position, epoch=position.epoch + is_over, batch=batch or 0)
        if not self.stages:
            return after
        epochs, updates = position.stage_epochs + is_over, position.stage_updates + 1
        after = replace(after, stage_epochs=epochs, stage_updates=updates)
        is_last = after.stage + 1 == len(self.stages)
        is_done = not is_last and self.stages[after.stage].is_over(epochs, updates)
        return after.next_stage() if is_done else after

    def after_score(self, position: Position, score: float) -> Position:
        """Return where training continues after a validation: perhaps in the next stage."""
        if position.stage + 1 >= len(self.stages):
            return position
        wanted = self.stages[position.stage].score
        return position.next_stage() if wanted is not None and score >= wanted else position

    def epoch_updates(self) -> Iterator[int]:
        """Yield the updates of each epoch. A stage that ends with a score is taken to last."""
        count = 0
        for _, epoch, after in self._planned(Position()):
            count += 1
            if after.epoch > epoch:
                yield count
                count = 0

    def _made(self, planned: tuple[list[Rows], int, Position]) -> tuple[list[Batch], Position]:
        batches, epoch, after = planned
        return [self.batch(rows, epoch) for rows in batches], after

    def batch(self, rows: Rows, epoch: int = 0) -> Batch:
        """Return the batch of some rows of the store, as it is in an epoch."""
        bos, longest = self.source_bos, self.longest
        return collate(self.store, rows, self.resegment, epoch, source_bos=bos, longest=longest)

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
