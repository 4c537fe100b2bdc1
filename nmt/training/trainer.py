"""The loop: update, report, validate, save, stop.

All that an update depends on is in the checkpoint: weights, optimizer, random generators, the
position in the data, and the counters below. So a run that is stopped anywhere and started again
makes the same updates as one that was not.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from nmt.checkpoint.files import Checkpoint
from nmt.data.batch import Batch
from nmt.data.loader import Position
from nmt.device.device import random_state, restore_random_state
from nmt.errors import CheckpointError, DivergedError, NmtError
from nmt.training.checkpoints import CheckpointWriter, Saved
from nmt.training.progress import Progress, TrainingSummary
from nmt.training.report import Event, Reporter
from nmt.training.schedule import build_schedule
from nmt.training.setup import TrainingSetup
from nmt.training.signals import Interrupted, StopSignal
from nmt.training.update import UpdateStats, read_together
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)

_MOST_SKIPPED_IN_A_ROW = 20


class Trainer:
    """Trains one model to its end.

    Args:
        setup: Makes updates, and gives batches.
        progress: Where training stands, with its budget; kept up to date.
        validator: Measures the model.
        record: Identity and machine, which checkpoints hold: compared when the run is resumed.
        reporter: Is given what happens.
        stop: Asked in every update.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        progress: Progress,
        *,
        validator: Validator,
        record: Mapping[str, Any],
        reporter: Reporter,
        stop: StopSignal,
    ) -> None:
        updater = setup.updater
        self._config, self._loader, self._device = setup.config.training, setup.loader, setup.device
        self._updater, self._optimizer = updater, updater.optimizer
        self._schedule = build_schedule(
            self._config.schedule,
            model_dim=setup.config.model.model_dim,
            total_steps=progress.total_steps,
        )
        self._validator, self._record = validator, record
        stop.unsaved = self._unsaved
        self._reporter, self._stop = reporter, stop
        self._processes = updater.processes
        self._vocab_size = len(updater.model.output_weight)
        self._seconds = self._reported_seconds = 0.0
        self._writer = CheckpointWriter(setup.config, in_background=updater.pace.uses_threads)
        self._before = progress.source_tokens, progress.target_tokens  # this process did not read
        self._saved_step = 0
        self._all_stop = False
        self._unread: list[UpdateStats] = []
        self.progress = progress

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over weights, optimizer, random generators and counters of a checkpoint.

        Raises:
            CheckpointError: It is of another model or optimizer.
        """
        self._optimizer.load(checkpoint.model, checkpoint.optimizer)
        restore_random_state(checkpoint.optimizer, self._device, self._processes)
        self._updater.loss_scale.load_counters(checkpoint.state["counters"])
        self._saved_step = checkpoint.step

    def run(self) -> TrainingSummary:
        """Train until the budget is used, patience ends, or the process is asked to stop."""
        with self._writer:
            self._catch_up()
            self._all_stop |= any(self._processes.gather(self._stop.requested))
            reason = self._make_updates()
            self._save_the_end()
        if reason == "signal":
            text = f"stopped at step {self.progress.step:,}: the same command resumes from there"
            self._reporter.report(Event(self.progress.step, text))
        return self.progress.summary(reason, self._seconds)

    def _make_updates(self) -> str:
        """Make updates until there is a reason to end, and return it.

        A signal to all processes of a terminal or a job ends compilers and workers, too, so that
        the update which it meets may fail: it is left, and what is whole can be saved.
        """
        reason = "signal" if self._is_stopping() else self._finished()
        while reason is None:
            try:
                reason = self._make_updates_of_stage()
            except Exception as error:
                if not self._stop.requested or isinstance(error, NmtError):
                    raise
                what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                if self._processes.size > 1 or not self._updater.is_whole:
                    step = f"step {self._saved_step:,}" if self._saved_step else "the start"
                    text = "the update that the signal met has failed (%s); the same command "
                    logger.exception(text + "resumes from %s", what, step)
                    raise
                text = f"the update that the signal met has failed, and is left ({what})"
                self._reporter.report(Event(self.progress.step, text, level=logging.WARNING))
                reason = "signal"
        return reason

    def _make_updates_of_stage(self) -> str | None:
        """Make updates until there is a reason to end, or another stage begins."""
        config, progress, pace = self._config, self.progress, self._updater.pace
        reason, stage = None, progress.position.stage
        with (
            closing(self._loader.updates(progress.position)) as batches,
            pace.stream(batches) as updates,
        ):
            while reason is None and progress.position.stage == stage:
                stats = self._update(updates)
                self._tell_saved(self._writer.finished())
                if len(self._unread) == pace.max_inflight_updates:
                    self._read()
                is_last = self._finished() == "budget"
                if progress.step % config.report_every == 0 or is_last:
                    self._report(stats)
                if not self._is_stopping():
                    if progress.step % config.validate_every == 0 or is_last:
                        self._validate_and_save()
                    elif progress.step % config.save_every == 0:
                        self._save()
                reason = "signal" if self._is_stopping() else self._finished()
        if progress.position.stage != stage:
            text = f"stage {progress.position.stage + 1} of the data begins"
            self._reporter.report(Event(progress.step, text))
        return reason

    def _save_the_end(self) -> None:
        """Have the last step saved.

        Raises:
            CheckpointError: The disk is full.
        """
        step = self.progress.step
        self._wait_until_saved()
        if self._saved_step < step:
            self._save()
            self._wait_until_saved()
        if self._saved_step < step:
            raise CheckpointError(
                f"Training has ended, but step {step:,} could not be saved: the disk is full.",
                fix="Free disk space, then start the same command again: it resumes from "
                f"step {self._saved_step:,}.",
            )

    def _unsaved(self) -> str:
        updates = self.progress.step + self._stop.in_update - self._saved_step
        since = f"step {self._saved_step:,}" if self._saved_step else "the start"
        return f"{updates:,} update{'s' * (updates != 1)} since {since}"

    def _is_stopping(self) -> bool:
        """Whether all leave; one process alone need not agree with others in an update first."""
        return self._all_stop or (self._processes.size == 1 and self._stop.requested)

    def _update(self, updates: Iterator[tuple[list[Batch], Position]]) -> UpdateStats:
        """Have the next update made; it may wait in the device's queue."""
        learning_rate = self._schedule(self.progress.step + 1)
        begin = time.perf_counter()
        self._stop.in_update = True
        try:
            batches, position = next(updates)
            stats = self._updater(
                batches, learning_rate, stop_requested=lambda: self._stop.requested
            )
        finally:
            self._stop.in_update = False
        self.progress.position = position
        self._seconds += time.perf_counter() - begin
        self._all_stop |= stats.stop
        self.progress.add(stats)
        self._unread.append(stats)
        return stats

    def _read(self) -> None:
        """Wait for the updates under way, and see what they did; before anything depends on it.

        Raises:
            DivergedError: Loss or gradient was not finite many updates in a row.
        """
        begin = time.perf_counter()
        read_together(self._unread)
        self._seconds += time.perf_counter() - begin
        updates, self._unread = self._unread, []
        for step, stats in enumerate(updates, self.progress.step - len(updates) + 1):
            self.progress.add_outcome(stats)
            if self.progress.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
                raise self._diverged(
                    f"Loss or gradient was not finite in {self.progress.skipped_in_a_row} updates "
                    f"in a row.\n  Step {step:,}, learning rate {stats.learning_rate:.2e}; "
                    f"the last batch was {self._where(stats)}.",
                    "Lower training.schedule.peak_lr, raise its warmup_steps, or train in float32.",
                )
            if stats.skipped or stats.splits:
                text = "update skipped: loss or gradient not finite"
                if not stats.skipped:
                    text = f"batches halved {stats.splits} times: memory did not hold them"
                text += f" ({self._where(stats)})"
                self._reporter.report(Event(step, text, level=logging.WARNING))

    def _where(self, stats: UpdateStats) -> str:
        """Name the lines of the batches of all processes."""
        batches = [self._loader.batch(rows) for rows in stats.rows]
        return "; ".join(self._processes.gather(self._loader.describe(batches)))

    def _diverged(self, problem: str, fix: str) -> DivergedError:
        self._wait_until_saved()
        last = f"step {self._saved_step:,}" if self._saved_step else "none"
        if self._saved_step:
            fix += " That takes another run_dir; training.start_from can begin it with the weights "
            fix += "of this one."
        return DivergedError(f"{problem}\n  Last checkpoint: {last}.", fix=fix)

    def _finished(self) -> str | None:
        total = self.progress.total_steps
        if total is not None and self.progress.step >= total:
            return "budget"
        if self.progress.history.should_stop(self._config.patience):
            return "patience"
        return None

    def _catch_up(self) -> None:
        """Validate if the process before was stopped just when that was due."""
        step = self.progress.step
        is_due = step % self._config.validate_every == 0 or self._finished() == "budget"
        if step and is_due and step not in self.progress.history:
            self._validate_and_save()

    def _report(self, last: UpdateStats) -> None:
        self._read()
        seconds = max(self._seconds - self._reported_seconds, 1e-9)
        self._reported_seconds = self._seconds
        norm, before, self._before = last.gradient_norm, self._before, (0, 0)
        self._reporter.report(self.progress.report(last.learning_rate, norm, seconds, before))

    def _validate_and_save(self) -> None:
        self._read()
        begin = time.perf_counter()
        try:
            scores = self._validator()
        except Interrupted:  # in all processes
            self._all_stop = True  # the loop saves and leaves; the next start validates first
            return
        step, epoch = self.progress.step, self.progress.position.epoch
        score = scores.value(self._config.validation.metric)
        self.progress.history[step] = score
        self.progress.position = self._loader.after_score(self.progress.position, score)
        self._reporter.report(scores.event(step, epoch, time.perf_counter() - begin))
        # Some models are worse than guessing before they have learned anything.
        warmup = self._config.schedule.warmup_updates(self.progress.total_steps)
        vocab_size = self._vocab_size
        if step > warmup and not scores.loss <= math.log(2 * vocab_size):
            raise self._diverged(
                f"Validation perplexity is {scores.perplexity:.3g} at step {step:,}, worse than "
                f"twice a guess among all {vocab_size:,} subwords.",
                "Lower training.schedule.peak_lr or raise its warmup_steps.",
            )
        self._save()

    def _save(self) -> None:
        """Save, or begin to: one checkpoint is written at a time."""
        self._read()
        if self._updater.pace.uses_threads:
            self._wait_until_saved()
        generators = random_state(self._device, self._processes)
        if self._processes.rank == 0:
            self._writer.save(
                self.progress,
                model=self._optimizer.weights(),
                optimizer=self._optimizer.state() | generators,
                state={"counters": self._updater.loss_scale.counters(), **self._record},
            )
        if not self._updater.pace.uses_threads:
            self._wait_until_saved()

    def _wait_until_saved(self) -> None:
        """Wait for what is being written; all processes learn which step is saved."""
        self._tell_saved(self._writer.finished(wait=True))
        self._saved_step = self._processes.share(self._saved_step)

    def _tell_saved(self, saved: Saved | None) -> None:
        if saved is not None:
            self._saved_step = saved.step
            text = f"saved {saved.name} ({saved.seconds:.2f} s)"
            self._reporter.report(Event(saved.step, text, "saved"))
