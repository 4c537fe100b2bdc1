"""Checkpoints that a run folder keeps of training: which is best, and the mean of the last."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from nmt.checkpoint.files import (
    AVERAGE,
    Checkpoint,
    checkpoint_name,
    clean_partial,
    host_copies,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    read_best,
    read_state,
    save_checkpoint,
    set_damaged_aside,
    write_best,
)
from nmt.checkpoint.model_folder import EXTRAS
from nmt.checkpoint.retention import RECORD, average_weights, expired, newest, rank, write_average
from nmt.config.training import TrainingConfig
from nmt.device.device import random_state
from nmt.device.distributed import Processes
from nmt.errors import CheckpointError
from nmt.files.atomic import remove_folder
from nmt.files.manifest import Manifest
from nmt.training.progress import History, Progress, TrainingSummary
from nmt.training.report import Event, Reporter
from nmt.training.update import Updater
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)


def load_newest(run_dir: Path, processes: Processes, *, strict: bool) -> Checkpoint | None:
    """Load the newest whole checkpoint in all processes; the first one says which that is.

    Raises:
        CheckpointError: All are damaged, or the newest is and ``strict`` is set.
    """
    found = None
    if processes.rank == 0:
        found = newest_checkpoint(run_dir, strict=strict)
    found = processes.share(found)
    checkpoint = load_checkpoint(found) if found else None
    processes.wait()  # the first process tidies up next
    return checkpoint


def tidy_run_folder(run_dir: Path, checkpoint: Checkpoint | None) -> None:
    """Remove or set aside what earlier starts left that does not belong to ``checkpoint``.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    clean_partial(run_dir)
    if checkpoint is None:  # files of an earlier run with other data
        for name in EXTRAS:
            (run_dir / name).unlink(missing_ok=True)
        return
    set_damaged_aside(run_dir, checkpoint.step)


class CheckpointWriter:
    """Saves into a run folder, names the best checkpoint, removes the expired.

    Beside a GPU `save` only copies the tensors, in whole buffers, and a thread writes, hashes and
    syncs the files; beside a CPU it returns when all is on the disk. A context: it ends when
    nothing is being written any more.

    Args:
        run_dir: The folder.
        training: What to keep, and what to do about a full disk.
        updater: What is saved; processes share its updates, and the first one writes.
        record: What every checkpoint says of the run: see `nmt.checkpoint.run`.
        report: Told what is saved.
    """

    def __init__(
        self,
        run_dir: Path,
        training: TrainingConfig,
        updater: Updater,
        record: Mapping[str, Any],
        report: Callable[[Event], None],
    ) -> None:
        self._run_dir, self._training, self._updater = run_dir, training, updater
        self._record, self._report = record, report
        self.saved_step = 0  # of the newest checkpoint
        self.writing: Future[Event | None] | None = None  # what has been begun
        self._thread = None
        if updater.pace.uses_threads:
            self._thread = ThreadPoolExecutor(1, "checkpoint")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def save(self, progress: Progress) -> None:
        """Save, or begin to: one checkpoint is written at a time.

        Raises:
            CheckpointError: The disk is full and ``training.on_full_disk`` says to stop.
        """
        self.wait()
        updater, optimizer = self._updater, self._updater.optimizer
        generators = random_state(updater.device, updater.processes)
        if updater.processes.rank == 0:
            counters = {"counters": updater.counters()}
            state = {"progress": progress.as_dict(), **counters, **self._record}
            write = partial(self._write, progress.step, History(progress.history), state)
            groups = optimizer.weights(), optimizer.state() | generators
            if self._thread is None:
                self.writing = Future()
                self.writing.set_result(write(*groups))
            else:
                self.writing = self._thread.submit(write, *map(host_copies, groups))
        if self._thread is None:
            self.wait()

    def wait(self) -> None:
        """Wait for what is being written; all processes learn which step is saved."""
        self.look(wait=True)
        self.saved_step = self._updater.processes.share(self.saved_step)

    def look(self, *, wait: bool = False) -> None:
        """Take note of a checkpoint that has been written; or ``wait`` for it.

        Raises:
            CheckpointError: As `save`.
        """
        writing = self.writing
        if writing is not None and (wait or writing.done()):
            self.writing = None
            if saved := writing.result():
                self.saved_step = saved.step
                self._report(saved)

    def save_the_end(self, progress: Progress) -> None:
        """Have the last step saved.

        Raises:
            CheckpointError: The disk is full.
        """
        self.wait()
        if self.saved_step < progress.step:
            self.save(progress)
            self.wait()
        if self.saved_step < progress.step:
            raise CheckpointError(
                f"Training has ended, but step {progress.step:,} could not be saved: the disk is "
                "full.",
                fix="Free disk space, then start the same command again: it resumes from "
                f"step {self.saved_step:,}.",
            )

    def _write(
        self,
        step: int,
        history: History,
        state: Mapping[str, Any],
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
    ) -> Event | None:
        """Save; return None if the disk was full and training is to go on."""
        begin = time.perf_counter()
        groups: dict[str, Any] = {"model": model, "optimizer": optimizer, "state": state}
        try:
            folder = save_checkpoint(self._run_dir, step, **groups)
        except CheckpointError as error:
            if self._training.on_full_disk == "stop":
                raise
            logger.warning("not saved: %s", error.problem)
            return None
        try:
            self._tidy(history)
        except OSError as error:  # the checkpoint is whole; the next one makes up for this
            logger.warning("best and old checkpoints not brought up to date: %s", error.strerror)
        return Event(step, f"saved {folder.name} ({time.perf_counter() - begin:.2f} s)", "saved")

    def _tidy(self, history: History) -> None:
        """Name the best of the checkpoints there are, and remove the expired."""
        training, present = self._training, dict(list_checkpoints(self._run_dir))
        scores = History({step: score for step, score in history.items() if step in present})
        if scores.best is not None:
            write_best(self._run_dir, checkpoint_name(scores.best))
        gone = expired(
            present,
            scores,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            due_every=(training.save_every, training.validate_every),
        )
        for old in gone:
            remove_folder(present[old])


def average_at_end(
    training: TrainingConfig, summary: TrainingSummary, validator: Validator, reporter: Reporter
) -> TrainingSummary:
    """Write the mean of the last checkpoints, and name it best if it validates better.

    Does nothing if that is not configured, or if it is done already. The model's weights are the
    mean afterwards.

    Raises:
        CheckpointError: A checkpoint is damaged, or the folder cannot be written.
    """
    if training.average_last is None:
        return summary
    run_dir, updater = summary.run_dir, validator.updater
    present = dict(list_checkpoints(run_dir))
    due_every = (training.save_every, training.validate_every)
    steps = newest(present, training.average_last, due_every=due_every)
    made = _made(run_dir, summary.step)
    is_choosable = present.keys() >= {*made.get("steps", ())}
    if "score" in made and (made["steps"] == steps or not is_choosable):
        return _best_of(summary, made["score"])
    if len(steps) < 2:
        return summary
    paths = [present[step] for step in steps]
    try:
        updater.optimizer.load_weights(average_weights(paths))
    except CheckpointError as error:
        raise CheckpointError(
            f"There is no mean of the last {len(paths)} checkpoints: {error.problem}",
            fix="All updates are made. Remove this checkpoint and start the same command again for "
            "a mean of the others, or unset training.average_last.",
        ) from error
    scores = validator()
    score = scores.value(training.validation.metric)
    result = _best_of(summary, score)
    if updater.processes.rank == 0:
        # Should it end before the mean is written, the newest checkpoint counts as best meanwhile.
        if result.best == AVERAGE or read_best(run_dir) == run_dir / AVERAGE:
            write_best(run_dir, result.best)
        shutil.rmtree(run_dir / AVERAGE, ignore_errors=True)
        write_average(run_dir / AVERAGE, run_dir, paths, score=score)
    outcome = "now the best" if result.best == AVERAGE else "the best checkpoint is better"
    text = f"mean of the last {len(steps)} checkpoints: {scores}; {outcome}"
    reporter.report(Event(summary.step, text))
    return result


def _best_of(summary: TrainingSummary, score: float) -> TrainingSummary:
    """Take the score of the mean into account."""
    if summary.best_score is not None and rank(score) <= rank(summary.best_score):
        return summary
    return replace(summary, best=AVERAGE, best_score=score)


def _made(run_dir: Path, step: int) -> dict[str, Any]:
    """Return the record of the mean that an earlier start made after ``step``, or nothing."""
    folder = run_dir / AVERAGE
    try:
        manifest = Manifest.read(folder)
        manifest.verify(folder)
        return read_state(folder, RECORD) if manifest.step == step else {}
    except CheckpointError:
        return {}
