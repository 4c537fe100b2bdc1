"""The loop: update, report, validate, save, stop.

All that an update depends on is in the checkpoint: weights, optimizer, random generators, the
position in the data, and the counters below. So a run that is stopped anywhere and started again
makes the same updates as one that was not.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nmt.checkpoint.files import Checkpoint
from nmt.data.batch import Batch, IntArray
from nmt.data.loader import Position
from nmt.engine.device import random_state, restore_random_state
from nmt.errors import CheckpointError, DivergedError
from nmt.training.checkpoints import CheckpointSaver
from nmt.training.progress import Progress, TrainingSummary
from nmt.training.report import NoteReport, Reporter, SavedReport
from nmt.training.setup import TrainingSetup
from nmt.training.signals import Interrupted, StopSignal
from nmt.training.update import UpdateStats, read_together
from nmt.training.validation import Validator

_MOST_SKIPPED_IN_A_ROW = 20


class _Update(NamedTuple):
    """An update that was made, or that waits in the device's queue."""

    step: int
    learning_rate: float
    rows: Sequence[IntArray]
    """Of the store, by batch; for messages."""
    stats: UpdateStats


class Trainer:
    """Trains one model to its end.

    Args:
        setup: Makes updates, and gives batches.
        schedule: Update, from 1 -> learning rate.
        validator: Measures the model.
        saver: Writes checkpoints.
        reporter: Is given what happens.
        stop: Asked in every update.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        *,
        schedule: Callable[[int], float],
        validator: Validator,
        saver: CheckpointSaver,
        reporter: Reporter,
        stop: StopSignal,
    ) -> None:
        updater = setup.updater
        self._config, self._loader = setup.training, setup.loader
        self._updater, self._optimizer = updater, updater.optimizer
        self._schedule = schedule
        self._validator, self._saver = validator, saver
        self._reporter, self._stop = reporter, stop
        self._processes = updater.processes
        weight = updater.model.output_weight
        self._device, self._vocab_size = weight.device, len(weight)
        self._seconds = 0.0
        self._interval_seconds = 0.0
        self._saved_step = 0
        self._all_stop = False
        self._unread: list[_Update] = []
        self.progress = Progress()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over weights, optimizer, random generators and counters of a checkpoint.

        Raises:
            CheckpointError: It is of another model or optimizer.
        """
        self._optimizer.load(checkpoint.model, checkpoint.optimizer)
        restore_random_state(checkpoint.optimizer, self._device, self._processes)
        self._updater.loss_scale.load_counters(checkpoint.state["counters"])
        self._saved_step = checkpoint.step

    def run(self, progress: Progress) -> TrainingSummary:
        """Train until the budget is used, patience ends, or the process is asked to stop.

        Args:
            progress: Where training stands, with its budget; kept up to date.
        """
        self.progress = progress
        self._catch_up()
        self._all_stop |= any(self._processes.gather(self._stop.requested))
        reason = "signal" if self._is_stopping else self._finished()
        pace = self._updater.pace
        with pace.stream(self._loader.updates(self.progress.position)) as updates:
            while reason is None:
                update = self._update(updates)
                if len(self._unread) == pace.max_inflight_updates:
                    self._read()
                reason = self._finished()
                self._after_update(update, is_last=reason == "budget")
                if self._is_stopping:
                    reason = "signal"
                reason = reason or self._finished()
        self._save_end()
        if reason == "signal":
            text = f"stopped at step {self.progress.step:,}: the same command resumes from there"
            self._reporter.report(NoteReport(self.progress.step, text))
        return self.progress.summary(reason, self._seconds + self._interval_seconds)

    @property
    def _is_stopping(self) -> bool:
        """Whether all leave; one process alone need not agree with others in an update first."""
        return self._all_stop or (self._processes.size == 1 and self._stop.requested)

    def _update(self, updates: Iterator[tuple[list[Batch], Position]]) -> _Update:
        """Have the next update made."""
        learning_rate = self._schedule(self.progress.step + 1)
        begin = time.perf_counter()
        batches, self.progress.position = next(updates)
        stats = self._updater(batches, learning_rate, stop_requested=lambda: self._stop.requested)
        self._interval_seconds += time.perf_counter() - begin
        self._all_stop |= stats.stop
        self.progress.add(stats)
        rows = [batch.rows for batch in batches]
        self._unread.append(_Update(self.progress.step, learning_rate, rows, stats))
        return self._unread[-1]

    def _read(self) -> None:
        """Wait for the updates under way, and see what they did; before anything depends on it.

        Raises:
            DivergedError: Loss or gradient was not finite many updates in a row.
        """
        begin = time.perf_counter()
        read_together([update.stats for update in self._unread])
        self._interval_seconds += time.perf_counter() - begin
        updates, self._unread = self._unread, []
        for update in updates:
            self.progress.add_outcome(update.stats)
            if self.progress.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
                raise self._diverged(
                    f"Loss or gradient was not finite in {self.progress.skipped_in_a_row} updates "
                    f"in a row.\n  Step {update.step:,}, learning rate {update.learning_rate:.2e}; "
                    f"the last batch was {self._where(update)}.",
                    "Lower training.schedule.peak_lr, raise its warmup_steps, or train in float32.",
                )
            if update.stats.skipped or update.stats.splits:
                text = "update skipped: loss or gradient not finite"
                if not update.stats.skipped:
                    text = f"batches halved {update.stats.splits} times: memory did not hold them"
                text += f" ({self._where(update)})"
                self._reporter.report(NoteReport(update.step, text, logging.WARNING))

    def _where(self, update: _Update) -> str:
        """Name the lines of the batches of all processes."""
        batches = [self._loader.batch(rows) for rows in update.rows]
        return "; ".join(self._processes.gather(self._loader.describe(batches)))

    def _diverged(self, problem: str, fix: str) -> DivergedError:
        last = f"step {self._saved_step:,}" if self._saved_step else "none"
        if self._saved_step:
            fix += " That takes another run_dir; training.start_from can begin it with the weights "
            fix += "of this one."
        return DivergedError(f"{problem}\n  Last checkpoint: {last}.", fix=fix)

    def _save_end(self) -> None:
        step = self.progress.step
        if self._saved_step < step:
            self._save()
        if self._saved_step < step:
            raise CheckpointError(
                f"Training has ended, but step {step:,} could not be saved: the disk is full.",
                fix="Free disk space, then start the same command again: it resumes from "
                f"step {self._saved_step:,}.",
            )

    def _finished(self) -> str | None:
        total = self.progress.total_steps
        if total is not None and self.progress.step >= total:
            return "budget"
        if self.progress.history.should_stop(self._config.patience):
            return "patience"
        return None

    def _catch_up(self) -> None:
        """Validate if the process before was stopped just when that was due."""
        step, last = self.progress.step, self.progress.history.entries[-1:]
        is_due = step % self._config.validate_every == 0 or self._finished() == "budget"
        if step and is_due and not (last and last[0].step == step):
            self._validate_and_save()

    def _validate_and_save(self) -> None:
        try:
            self._validate()
        except Interrupted:  # in all processes
            self._all_stop = True  # the loop saves and leaves; the next start validates first
            return
        self._save()

    def _after_update(self, update: _Update, *, is_last: bool) -> None:
        step, config = update.step, self._config
        if step % config.report_every == 0 or is_last:
            self._report(update)
        if self._is_stopping:
            return
        if step % config.validate_every == 0 or is_last:
            self._validate_and_save()
        elif step % config.save_every == 0:
            self._save()

    def _report(self, update: _Update) -> None:
        self._read()
        seconds = max(self._interval_seconds, 1e-9)
        self._reporter.report(
            self.progress.report(update.learning_rate, update.stats.gradient_norm, seconds)
        )
        self.progress.clear_sums()
        self._seconds += self._interval_seconds
        self._interval_seconds = 0.0

    def _validate(self) -> None:
        self._read()
        begin = time.perf_counter()
        scores = self._validator()
        step, epoch = self.progress.step, self.progress.position.epoch
        score = scores.value(self._config.validation.metric)
        self.progress.history = self.progress.history.add(step, score)
        self._reporter.report(scores.report(step, epoch, time.perf_counter() - begin))
        # Some models are worse than guessing before they have learned anything.
        has_begun, vocab_size = step > self._config.schedule.warmup_steps, self._vocab_size
        if has_begun and not scores.loss <= math.log(2 * vocab_size):
            raise self._diverged(
                f"Validation perplexity is {scores.perplexity:.3g} at step {step:,}, worse than "
                f"twice a guess among all {vocab_size:,} subwords.",
                "Lower training.schedule.peak_lr or raise its warmup_steps.",
            )

    def _save(self) -> None:
        self._read()
        begin = time.perf_counter()
        generators = random_state(self._device, self._processes)
        where = None
        if self._processes.rank == 0:
            where = self._saver(
                self.progress.step,
                model=self._optimizer.weights(),
                optimizer=self._optimizer.state() | generators,
                state={
                    "progress": self.progress.as_dict(),
                    "counters": self._updater.loss_scale.counters(),
                },
                history=self.progress.history,
            )
        where = self._processes.share(where)
        if where is not None:
            self._saved_step = self.progress.step
            seconds = time.perf_counter() - begin
            self._reporter.report(SavedReport(self.progress.step, where, seconds))
