"""Where training stands; the checkpoints that keep it, the best one, and the mean of the last."""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from nmt.checkpoint.files import (
    AVERAGE,
    Checkpoint,
    by_score,
    checkpoint_name,
    clean_partial,
    expired,
    host_copies,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    newest_steps,
    rank,
    read_best,
    read_state,
    save_checkpoint,
    set_damaged_aside,
    write_best,
)
from nmt.checkpoint.model_folder import EXTRAS, RECORD, average_weights, write_average
from nmt.config.training import TrainingConfig
from nmt.data.loader import Position
from nmt.device.device import random_state
from nmt.device.distributed import Processes
from nmt.errors import CheckpointError
from nmt.files.atomic import remove_folder
from nmt.files.json_file import Manifest
from nmt.training.report import Event, Reporter
from nmt.training.update import Updater, UpdateStats
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)


class History(dict[int, float]):
    """Scores of all validations of a run by step, oldest first: BLEU, chrF, or minus the loss.

    >>> history = History({10: 21.5, 20: 24.0, 30: 23.9})
    >>> history.best
    20
    >>> history.should_stop(patience=1), history.should_stop(patience=2)
    (True, False)
    """

    @property
    def best(self) -> int | None:
        """The step with the highest score, the earlier of two equal ones; NaN is lowest."""
        return next(iter(by_score(self, self)), None)

    def should_stop(self, patience: int | None) -> bool:
        """Whether the last ``patience`` validations were no better than one before them."""
        if patience is None or self.best is None:
            return False
        return len(self) - 1 - list(self).index(self.best) >= patience


@dataclass(slots=True)
class Progress:
    """Where training stands. Written into every checkpoint."""

    step: int = 0  # Optimizer updates made.
    position: Position = field(default_factory=Position)  # The batch to be read next.
    total_steps: int | None = None  # Updates in all; None when only patience ends training.
    # A time budget in minutes, and the updates it was measured to hold.
    timed: tuple[float, int] | None = None
    # A budget of epochs, and the updates that these hold.
    epoch_updates: tuple[int, int] | None = None
    history: History = field(default_factory=History)  # Validation scores so far.
    # Loss summed since the last report, in nats, without that of skipped updates.
    loss_sum: float = 0.0
    scored_tokens: int = 0  # Target tokens that it is of.
    source_tokens: int = 0
    target_tokens: int = 0
    padded_tokens: int = 0  # Tokens since the last report.
    skipped: int = 0  # Updates left out in all, because loss or gradient was not finite.
    skipped_in_a_row: int = 0  # Of these, the ones since the last good update.

    def add(self, stats: UpdateStats, position: Position) -> None:
        """Count one update, which the device may not have made yet, and after which to read on."""
        self.step, self.position = self.step + 1, position
        self.source_tokens += stats.source_tokens
        self.target_tokens += stats.target_tokens
        self.padded_tokens += stats.padded_tokens

    def add_outcome(self, stats: UpdateStats) -> None:
        """Count what the device computed in one update."""
        if not stats.skipped:
            self.loss_sum += stats.loss_sum
            self.scored_tokens += stats.target_tokens
        self.skipped += stats.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if stats.skipped else 0

    def report(
        self,
        learning_rate: float,
        gradient_norm: float,
        seconds: float,
        before: tuple[int, int] = (0, 0),
    ) -> Event:
        """Report the updates since the last report, and begin a new interval.

        Args:
            learning_rate: Of the last of them.
            gradient_norm: Of the last of them, before clipping.
            seconds: That this process took for its part, without validation and saving.
            before: Source and target tokens of these updates that an earlier process read.
        """
        real = self.source_tokens + self.target_tokens
        speed = (self.target_tokens - before[1]) / seconds
        # Smoothed objective per target token, in nats.
        loss = self.loss_sum / self.scored_tokens if self.scored_tokens else math.nan
        values = {
            "epoch": self.position.epoch,
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "target_tokens_per_second": speed,
            "source_tokens_per_second": (self.source_tokens - before[0]) / seconds,
            "padding_waste": 1 - real / max(self.padded_tokens, 1),
            "seconds": seconds,
        }
        text = (
            f"step {self.step:,}  epoch {self.position.epoch}  loss {loss:.3f}  "
            f"lr {learning_rate:.2e}  norm {gradient_norm:.2f}  {speed:,.0f} target tokens/s"
        )
        self.loss_sum, self.scored_tokens = 0.0, 0
        self.source_tokens = self.target_tokens = self.padded_tokens = 0
        return Event(self.step, text, "update", values)

    def reason_to_end(self, patience: int | None) -> str | None:
        """Return ``budget`` or ``patience`` if one of them is used up, else None."""
        if self.total_steps is not None and self.step >= self.total_steps:
            return "budget"
        return "patience" if self.history.should_stop(patience) else None

    def summary(self, run_dir: Path, reason: str, metric: str, seconds: float) -> TrainingSummary:
        """Report how training ended, after ``seconds`` of updates."""
        best = self.history.best
        name, score = (None, None) if best is None else (checkpoint_name(best), self.history[best])
        return TrainingSummary(run_dir, self.step, reason, name, score, metric, seconds)

    def describe(self) -> str:
        """Return where training stands, in a phrase."""
        if self.reason_to_end(patience=None):
            return f"at step {self.step:,}, and training ends at step {self.total_steps:,}"
        end = f"to step {self.total_steps:,}" if self.total_steps else "until patience ends"
        return f"resuming at step {self.step:,} {end}" if self.step else f"training {end}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for state.json."""
        return asdict(self) | {"history": list(self.history.items())}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """Take `as_dict` back."""
        position, history = Position(**values["position"]), History(values["history"])
        return cls(**{**values, "position": position, "history": history})

    @classmethod
    def resumed(cls, state: Mapping[str, Any], batch: Mapping[str, Any]) -> Progress:
        """Take that of a checkpoint, where updates may have had another number of batches.

        Args:
            state: Of the checkpoint.
            batch: The batch section of this process, now.
        """
        progress = cls.from_dict(state["progress"])
        then, now = (x["gradient_accumulation"] for x in (state["batch"], batch))
        number = progress.position.batch // then * now
        progress.position = replace(progress.position, batch=number)
        return progress


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """How training ended."""

    run_dir: Path  # Where the model is.
    step: int  # Updates made.
    reason: str  # Why it ended: ``budget``, ``patience`` or ``signal``.
    best: str | None  # The best weights: the name of a checkpoint, or ``average``.
    best_score: float | None  # Its score (BLEU, chrF, or minus the loss).
    metric: str  # Of that score.
    training_seconds: float  # Time spent in updates by this process, without validation and saving.

    def as_text(self) -> str:
        """Return a line to read."""
        score = "" if self.best_score is None else f" ({self.metric} {self.best_score:.2f})"
        return f"{self.run_dir}: {self.step:,} steps; best: {self.best or 'none'}{score}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"run_dir": str(self.run_dir)}


def load_newest(run_dir: Path, processes: Processes, *, strict: bool) -> Checkpoint | None:
    """Load the newest whole checkpoint in all processes; the first one says which that is.

    Raises:
        CheckpointError: All are damaged, or the newest is and ``strict`` is set.
    """
    newest = newest_checkpoint(run_dir, strict=strict) if processes.rank == 0 else None
    newest = processes.share(newest)
    checkpoint = load_checkpoint(newest) if newest else None
    processes.wait()  # the first process tidies up next
    return checkpoint


def tidy_run_folder(run_dir: Path, checkpoint: Checkpoint | None) -> None:
    """Remove or set aside what earlier starts left that does not belong to ``checkpoint``.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    clean_partial(run_dir)
    if checkpoint is not None:
        set_damaged_aside(run_dir, checkpoint.step)
        return
    for name in EXTRAS:  # of an earlier run with other data
        (run_dir / name).unlink(missing_ok=True)


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
        self._thread = ThreadPoolExecutor(1, "checkpoint") if updater.pace.uses_threads else None

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
            state = {"progress": progress.as_dict(), "counters": updater.counters(), **self._record}
            write = partial(self._write, progress.step, History(progress.history), state)
            groups = optimizer.weights(), optimizer.state() | generators
            if self._thread is None:
                self._take_note(write(*groups))
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
            self._take_note(writing.result())

    def _take_note(self, saved: Event | None) -> None:
        if saved is not None:
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
            problem = f"The disk is full: the last step, {progress.step:,}, could not be saved."
            resumes = f"it resumes from step {self.saved_step:,}"
            fix = f"Free disk space, then start the same command again: {resumes}."
            raise CheckpointError(problem, fix=fix)

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
        keep = {"keep_last": training.keep_last, "keep_best": training.keep_best}
        for old in expired(present, scores, **keep, due_every=_due_every(training)):
            remove_folder(present[old])


def _due_every(training: TrainingConfig) -> tuple[int, int]:
    return training.save_every, training.validate_every


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
    steps = newest_steps(present, training.average_last, due_every=_due_every(training))
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
        problem = f"There is no mean of the last {len(paths)} checkpoints: {error.problem}"
        fix = "All updates are made. For a mean of the others, remove this checkpoint and start "
        fix += "the same command again; or unset training.average_last."
        raise CheckpointError(problem, fix=fix) from error
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
