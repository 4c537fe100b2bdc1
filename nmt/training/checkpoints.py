"""The progress of a training run, its checkpoints, and the average of the last checkpoints."""

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

from nmt.checkpoint import files
from nmt.checkpoint.files import ValidationScore
from nmt.checkpoint.model_folder import EXTRAS, RECORD, average_weights, write_average
from nmt.config.training import TrainingConfig, ValidationConfig
from nmt.data.loader import Position
from nmt.device.device import random_state
from nmt.device.distributed import Processes
from nmt.errors import CheckpointError
from nmt.files.atomic import remove_folder
from nmt.files.json_file import Manifest
from nmt.metrics.metric import as_quality, format_score, label_of
from nmt.training.events import Reporter, TrainingEvent
from nmt.training.optimizer import ModelOptimizer
from nmt.training.plan import Plan
from nmt.training.update import Updater, UpdateStats
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)

# A validation loss falls if it is below this multiple of the older one.
_FALLING = 0.995


class History(dict[int, ValidationScore]):
    """The score of each validated step, oldest first."""

    @property
    def best(self) -> int | None:
        """The best step; None if no step has a score."""
        return next(iter(files.by_score(self, self)), None)

    def should_stop(self, patience: int, *, after: int, has_limit: bool) -> bool:
        """Whether the last ``patience`` validations brought nothing new.

        Those in the warm-up do not count, nor does noise; and training goes on while the loss
        falls by more than 0.5% over these validations.

        Args:
            patience: Number of validations, at least 1.
            after: Last step of the warm-up.
            has_limit: Whether anything else ends training. If not, noise counts: a model that
                learns nothing must not train for ever.
        """
        scored_steps = [step for step in self if not math.isnan(self[step].score)]
        counted_steps = [step for step in scored_steps if step > after]
        if has_limit:
            counted_steps = [step for step in counted_steps if not self[step].is_noise]
        window = counted_steps[-patience:]
        if len(window) < patience:
            return False
        # A loss that hardly falls makes no new best here: without the last part of the quality.
        best = max(scored_steps, key=lambda step: self[step].quality[:2])
        if best >= window[0]:
            return False
        before = scored_steps[scored_steps.index(window[0]) - 1]
        # With `not`, a loss that is NaN does not fall.
        return not self[window[-1]].loss < _FALLING * self[before].loss


@dataclass(slots=True)
class Progress:
    """Progress of a training run. Every checkpoint stores it."""

    step: int = 0  # Optimizer updates made.
    position: Position = field(default_factory=Position)  # Position of the next batch.
    total_steps: int | None = None  # Planned updates; None if only patience ends training.
    seconds: float = 0.0  # Used of `training.max_minutes`.
    plans: list[Plan] = field(default_factory=list)  # Plans of these minutes so far.
    # Loss chosen for these minutes, in place of R-Drop; None for the loss of the configuration.
    loss: str | None = None
    # `training.max_epochs`, and the number of updates in these epochs.
    epoch_updates: tuple[int, int] | None = None
    history: History = field(default_factory=History)  # Validation scores so far.
    # What is wrong with the translations of the last validation: see `Scores.problem`.
    problem: str | None = None
    # Sum of the loss since the last report, in nats. Skipped updates do not count.
    loss_sum: float = 0.0
    scored_tokens: int = 0  # Target tokens summed into `loss_sum`.
    source_tokens: int = 0  # Source tokens since the last report.
    target_tokens: int = 0  # Target tokens since the last report.
    padded_tokens: int = 0  # Tokens since the last report, including padding.
    skipped: int = 0  # Updates skipped because the loss or gradient was not finite.
    skipped_in_a_row: int = 0  # Skipped updates since the last successful update.

    def add(self, stats: UpdateStats, position: Position) -> None:
        """Count one update, even if the device has not finished it yet.

        Args:
            stats: Token counts of the update.
            position: Position of the batch after the update.
        """
        self.step += 1
        self.position = position
        self.source_tokens += stats.source_tokens
        self.target_tokens += stats.target_tokens
        self.padded_tokens += stats.padded_tokens

    def add_outcome(self, stats: UpdateStats) -> None:
        """Add the loss of one update, or count the update as skipped. Waits for the device."""
        if stats.skipped:
            self.skipped += 1
            self.skipped_in_a_row += 1
        else:
            self.loss_sum += stats.loss_sum
            self.scored_tokens += stats.target_tokens
            self.skipped_in_a_row = 0

    def report(
        self,
        learning_rate: float,
        gradient_norm: float,
        seconds: float,
        tokens_before: tuple[int, int] = (0, 0),
    ) -> TrainingEvent:
        """Report the updates since the last report, and reset the sums.

        Args:
            learning_rate: Learning rate of the last update.
            gradient_norm: Gradient norm of the last update, before clipping.
            seconds: Time that this process spent in these updates, without validation and saving.
            tokens_before: Source and target tokens since the last report that were processed before
                training was resumed. Counted in the loss, but not in the speed.
        """
        num_tokens = self.source_tokens + self.target_tokens
        source_before, target_before = tokens_before
        speed = (self.target_tokens - target_before) / seconds
        loss = math.nan
        if self.scored_tokens:
            # Training loss per target token, in nats; includes label smoothing.
            loss = self.loss_sum / self.scored_tokens
        values = {
            "epoch": self.position.current_epoch,
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "target_tokens": self.target_tokens,
            "target_tokens_per_second": speed,
            "source_tokens_per_second": (self.source_tokens - source_before) / seconds,
            "padding_waste": 1 - num_tokens / max(self.padded_tokens, 1),
            "seconds": seconds,
        }
        text = f"step {self.step:,}  epoch {values['epoch']}  loss {loss:.3f}  lr "
        text += f"{learning_rate:.2e}  grad norm {gradient_norm:.2f}  {speed:,.0f} target tokens/s"
        self.loss_sum = 0.0
        self.scored_tokens = 0
        self.source_tokens = 0
        self.target_tokens = 0
        self.padded_tokens = 0
        return TrainingEvent(self.step, text, "update", values)

    def reason_to_end(self, patience: int | None, warmup_steps: int = 0) -> str | None:
        """Return ``budget`` or ``patience`` if that limit ends training now, else None."""
        has_limit = self.total_steps is not None
        if self.total_steps is not None and self.step >= self.total_steps:
            return "budget"
        if patience is None:
            return None
        is_over = self.history.should_stop(patience, after=warmup_steps, has_limit=has_limit)
        return "patience" if is_over else None

    def describe_end(self, reason: str, metric: str) -> str:
        """Return why training ended, and which checkpoint is the best and why.

        Args:
            reason: As `reason_to_end` returns it.
            metric: Display name of the metric that selects the best checkpoint.
        """
        text = "all planned updates are made"
        if reason == "patience":
            text = f"the last validations brought no better {metric} (training.patience)"
        best_step = self.history.best
        if best_step is None:
            return text
        evidence = f"the best {metric} and, of equal ones, the lowest loss"
        if self.history[best_step].is_noise:
            evidence = f"the lowest loss, because each {metric} is noise"
        return f"{text}; the best checkpoint is step {best_step:,}, with {evidence}"

    def summary(
        self, run_dir: Path, reason: str, validation: ValidationConfig, seconds: float
    ) -> TrainingSummary:
        """Summarise the finished training.

        Args:
            run_dir: The run folder.
            reason: Why training ended: ``budget``, ``patience`` or ``signal``.
            validation: How the run was validated.
            seconds: Time spent in updates.
        """
        best_step = self.history.best
        checkpoint_step = self.step if best_step is None else best_step
        return TrainingSummary(
            run_dir=run_dir,
            step=self.step,
            reason=reason,
            best=files.checkpoint_name(checkpoint_step),
            best_score=None if best_step is None else self.history[best_step].score,
            metric=validation.metric_name,
            training_seconds=seconds,
            beam_size=validation.beam_size,
        )

    def describe(self) -> str:
        """Return a phrase for the log, such as ``resuming at step 80, until step 1,400``."""
        if self.reason_to_end(patience=None):
            return f"resuming at step {self.step:,}, the last one"
        end = f"until step {self.total_steps:,}" if self.total_steps else "until patience runs out"
        if self.step:
            return f"resuming at step {self.step:,}, {end}"
        return f"training {end}"

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable data for state.json."""
        # The history as a list: JSON has no integer keys.
        history = [(step, *validation) for step, validation in self.history.items()]
        return asdict(self) | {"history": history}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """Rebuild the progress from the output of `as_dict`."""
        progress = cls(**values)
        progress.position = Position(**values["position"])
        progress.plans = [Plan(**plan) for plan in values.get("plans", ())]
        progress.history = History()
        for step, *validation in values["history"]:
            progress.history[step] = ValidationScore(*validation)
        return progress

    @classmethod
    def resumed(cls, state: Mapping[str, Any], batch: Mapping[str, Any]) -> Progress:
        """Return the progress stored in a checkpoint.

        The position is converted if the number of batches per update has changed since.

        Args:
            state: Contents of the checkpoint's state.json, with the ``batch`` section in use then.
            batch: The ``batch`` section now in use.
        """
        progress = cls.from_dict(state["progress"])
        position = progress.position
        num_updates = position.batch // state["batch"]["gradient_accumulation"]
        progress.position = replace(position, batch=num_updates * batch["gradient_accumulation"])
        return progress


@dataclass(frozen=True)
class TrainingSummary:
    """Result of a training run: its last step, why it ended, and the best weights."""

    run_dir: Path  # The run folder.
    step: int  # Updates made.
    reason: str  # Why training ended: ``budget``, ``patience`` or ``signal``.
    best: str  # Folder name of the best checkpoint (without scores, the last), or ``average``.
    # Score of the best weights (BLEU, chrF, or the negative loss); None if no weights have a score.
    best_score: float | None
    metric: str  # Metric of the score.
    training_seconds: float  # Time this process spent in updates, without validation and saving.
    beam_size: int = 1  # Of the search in validations.

    def as_text(self) -> str:
        """Return the summary as one line. A loss is shown as a positive number.

        >>> TrainingSummary(Path("a"), 9, "budget", "step-9", -2.5, "loss", 1.0).as_text()
        'a: 9 steps; best: step-9 (validation loss 2.50)'
        >>> TrainingSummary(Path("a"), 9, "budget", "step-9", 30.0, "bleu", 1.0).as_text()
        'a: 9 steps; best: step-9 (validation BLEU 30.00, beam size 1)'
        """
        score = "no score"
        if self.best_score is not None:  # `as_quality` is its own inverse
            score = format_score(self.metric, as_quality(self.metric, self.best_score))
            if self.metric != "loss":
                score += f", beam size {self.beam_size}"
        best = f"{self.best} (validation {label_of(self.metric)} {score})"
        return f"{self.run_dir}: {self.step:,} steps; best: {best}"

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable data."""
        return asdict(self) | {"run_dir": str(self.run_dir)}


def load_newest(run_dir: Path, processes: Processes, *, strict: bool) -> files.Checkpoint | None:
    """Load the newest intact checkpoint in all processes; None if the run has no checkpoint.

    Args:
        run_dir: The run folder.
        processes: The training processes. The first process chooses the checkpoint for all.
        strict: Raise an error if the newest checkpoint is damaged, instead of loading an older one.

    Raises:
        CheckpointError: All checkpoints are damaged; or the newest is, and ``strict`` is set.
    """
    newest = None
    if processes.rank == 0:
        newest = files.newest_checkpoint(run_dir, strict=strict)
    newest = processes.share(newest)
    checkpoint = files.load_checkpoint(newest) if newest else None
    processes.wait()  # next, the first process removes files
    return checkpoint


def tidy_run_folder(run_dir: Path, checkpoint: files.Checkpoint | None) -> None:
    """Clean up a run folder before training starts or resumes.

    Removes unfinished files of earlier processes, and renames damaged checkpoints that are newer
    than ``checkpoint``. If training starts from the beginning, also removes the files in `EXTRAS`.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    files.clean_partial(run_dir)
    if checkpoint is not None:
        files.set_damaged_aside(run_dir, checkpoint.step)
        return
    for name in EXTRAS:  # they belong to an earlier run, maybe with other data
        (run_dir / name).unlink(missing_ok=True)


def check_room(
    run_dir: Path, training: TrainingConfig, optimizer: ModelOptimizer, progress: Progress
) -> None:
    """Check the free disk space for the checkpoints to come, and log a warning if it is small.

    Raises:
        CheckpointError: There is no room for one checkpoint.
    """
    if progress.reason_to_end(training.patience):  # nothing will be saved
        return
    folder = files.checkpoints_dir(run_dir)
    size = files.checkpoint_bytes(optimizer.weights(), optimizer.state())
    free = shutil.disk_usage(folder if folder.exists() else run_dir).free
    sizes = f"each needs {size / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free"
    if free < size:
        raise CheckpointError(
            f"{folder} has no room for a checkpoint: {sizes}.",
            fix="Free disk space, or set run_dir to a folder on another disk.",
        )
    # A checkpoint is removed after the next one is written.
    num_kept = training.keep_last + training.keep_best + 1
    num_new = num_kept - len(files.list_checkpoints(run_dir))
    if free < num_new * size:
        logger.warning(
            "%s has no room for %d more checkpoints, as training.keep_last and keep_best need: %s",
            folder,
            num_new,
            sizes,
        )


class CheckpointWriter:
    """Saves checkpoints, records which one is best, and removes expired checkpoints.

    On a GPU, `save` only copies the tensors to the host, and a thread writes the files. On a CPU,
    `save` returns when the files are on disk. Use it as a context manager: leaving the context
    waits until the last checkpoint is written.

    Args:
        run_dir: The run folder.
        training: How many checkpoints to keep, and what to do when the disk is full.
        updater: Model and optimizer to save. Only the first process writes.
        record: Data about the run that every checkpoint stores: see `nmt.checkpoint.run`.
        report: Called after each save.
    """

    def __init__(
        self,
        run_dir: Path,
        training: TrainingConfig,
        updater: Updater,
        record: Mapping[str, Any],
        report: Callable[[TrainingEvent], None],
    ) -> None:
        self._run_dir = run_dir
        self._training = training
        self._updater = updater
        self._record = record
        self._report = report
        self.saved_step = 0  # step of the newest checkpoint
        # Result of `_write` for the checkpoint that the thread now writes; None if it writes none.
        self._writing: Future[TrainingEvent | None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint") if updater.pace.uses_threads else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def save(self, progress: Progress) -> None:
        """Save a checkpoint; on a GPU, only start saving. Waits for the previous checkpoint first.

        Raises:
            CheckpointError: The disk is full and `training.on_full_disk` is ``stop``.
        """
        self.wait()
        updater = self._updater
        generators = random_state(updater.device, updater.processes)  # of all processes
        if updater.processes.rank == 0:
            state = {"progress": progress.as_dict(), "counters": updater.counters(), **self._record}
            write = partial(self._write, progress.step, History(progress.history), state)
            model = updater.optimizer.weights()
            optimizer = updater.optimizer.state() | generators
            if self._thread is None:
                self._take_note(write(model, optimizer))
            else:
                # Copies, because training changes the tensors while the thread writes.
                model = files.host_copies(model)
                optimizer = files.host_copies(optimizer)
                self._writing = self._thread.submit(write, model, optimizer)
        if self._thread is None:
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is written, and update `saved_step` in all processes."""
        self.report_written(wait=True)
        self.saved_step = self._updater.processes.share(self.saved_step)

    def report_written(self, *, wait: bool = False) -> None:
        """Report the last checkpoint once it has been written.

        Args:
            wait: Wait until the checkpoint is written.

        Raises:
            CheckpointError: As for `save`.
        """
        writing = self._writing
        if writing is not None and (wait or writing.done()):
            self._writing = None
            self._take_note(writing.result())

    def _take_note(self, event: TrainingEvent | None) -> None:
        """Record and report a saved checkpoint, the result of `_write`; None was not saved."""
        if event is not None:
            self.saved_step = event.step
            self._report(event)

    def save_the_end(self, progress: Progress) -> None:
        """Save the last step, unless its checkpoint already exists.

        Raises:
            CheckpointError: The disk is full.
        """
        self.wait()
        if self.saved_step < progress.step:
            self.save(progress)
            self.wait()
        elif self._updater.processes.rank == 0 and not self._has_average():
            # A kill may have come between the last save and the record of the best.
            self._tidy(progress.history)
        if self.saved_step < progress.step:
            problem = f"The disk is full: the last step, {progress.step:,}, could not be saved."
            resumes = f"training resumes at step {self.saved_step:,}"
            raise CheckpointError(
                problem, fix=f"Free disk space, then run the same command again; {resumes}."
            )

    def _has_average(self) -> bool:
        """Whether the best weights are the average of checkpoints."""
        return files.read_best(self._run_dir) == self._run_dir / files.AVERAGE

    def _write(
        self,
        step: int,
        history: History,
        state: Mapping[str, Any],
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
    ) -> TrainingEvent | None:
        """Save a checkpoint; return its event, or None if training continues on a full disk."""
        begin = time.perf_counter()
        try:
            folder = files.save_checkpoint(
                self._run_dir, step, model=model, optimizer=optimizer, state=state
            )
        except CheckpointError as error:
            if self._training.on_full_disk == "stop":
                raise
            logger.warning("checkpoint not saved, training continues: %s", error.problem)
            return None
        self._tidy(history)
        seconds = time.perf_counter() - begin
        return TrainingEvent(step, f"saved {folder.name} ({seconds:.2f} s)", "saved")

    def _tidy(self, history: History) -> None:
        """Record the best of the existing checkpoints, and remove the expired checkpoints.

        If that fails, the checkpoints themselves are saved, and the next save tries it again.
        """
        try:
            self._record_best(history)
        except OSError as error:
            logger.warning("old checkpoints were not removed: %s", error.strerror)

    def _record_best(self, history: History) -> None:
        training = self._training
        folders = dict(files.list_checkpoints(self._run_dir))  # by step
        scores = History({step: history[step] for step in history if step in folders})
        if scores.best is not None:
            files.write_best(self._run_dir, files.checkpoint_name(scores.best))
        expired_steps = files.expired(
            folders,
            scores,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            due_every=_due_every(training),
        )
        for step in expired_steps:
            remove_folder(folders[step])


def _due_every(training: TrainingConfig) -> tuple[int, int]:
    """Return the two intervals, in steps, at which checkpoints are saved."""
    return training.save_every, training.validate_every


def average_at_end(
    training: TrainingConfig, summary: TrainingSummary, validator: Validator, reporter: Reporter
) -> TrainingSummary:
    """Average the weights of the last checkpoints; record the average as best if it scores better.

    Does nothing if `training.average_last` is not set, or if the average exists already. Afterwards
    the model has the averaged weights.

    Args:
        training: The ``training`` section.
        summary: Result of training so far.
        validator: Scores the averaged weights.
        reporter: Receives the score.

    Returns:
        The summary with the best weights, ``average`` or a checkpoint.

    Raises:
        CheckpointError: A checkpoint is damaged, or the folder cannot be written.
    """
    if training.average_last is None:
        return summary
    run_dir = summary.run_dir
    updater = validator.updater
    folders = dict(files.list_checkpoints(run_dir))  # by step
    steps = files.newest_steps(folders, training.average_last, due_every=_due_every(training))
    old_record = _average_record(run_dir, summary.step)
    if old_record is not None:
        # If its checkpoints no longer exist, the average cannot be made again.
        all_exist = folders.keys() >= set(old_record["steps"])
        if old_record["steps"] == steps or not all_exist:
            return _best_of(summary, old_record["score"])
    if len(steps) < 2:
        return summary
    paths = [folders[step] for step in steps]
    try:
        updater.optimizer.load_weights(average_weights(paths))
    except CheckpointError as error:
        problem = f"The last {len(paths)} checkpoints could not be averaged: {error.problem}"
        fix = "Training is complete. Delete the damaged checkpoint and run the same command again "
        fix += "to average the remaining checkpoints, or unset training.average_last."
        raise CheckpointError(problem, fix=fix) from error
    scores = validator()
    score = scores.value(summary.metric)
    with_average = _best_of(summary, score)
    is_best = with_average.best == files.AVERAGE
    if updater.processes.rank == 0:
        # `best` may also name an earlier average, which is replaced now.
        if is_best or files.read_best(run_dir) == run_dir / files.AVERAGE:
            # Written before the average: if this process is killed in between, `best` names a
            # missing folder, and readers fall back to the newest checkpoint.
            files.write_best(run_dir, with_average.best)
        shutil.rmtree(run_dir / files.AVERAGE, ignore_errors=True)
        record = {"score": score, "problem": scores.problem}
        write_average(run_dir / files.AVERAGE, run_dir, paths, record)
    outcome = "now the best" if is_best else "not better than the best checkpoint"
    text = f"average of the last {len(steps)} checkpoints: {scores}; {outcome}"
    reporter.report(TrainingEvent(summary.step, text))
    return with_average


def _best_of(summary: TrainingSummary, score: float) -> TrainingSummary:
    """Return the summary, with the average as best weights if ``score``, its score, is higher.

    NaN is not higher. Without an earlier score, any score is.
    """
    if math.isnan(score) or (summary.best_score is not None and score <= summary.best_score):
        return summary
    return replace(summary, best=files.AVERAGE, best_score=score)


def _average_record(run_dir: Path, step: int) -> dict[str, Any] | None:
    """Return the record of the average that an earlier start of the run wrote at ``step``.

    Returns:
        Its ``steps`` and its ``score``, among others; None if there is no intact average of this
        step.
    """
    folder = run_dir / files.AVERAGE
    try:
        manifest = Manifest.read(folder)
        manifest.verify(folder)
        record = files.read_object(folder / RECORD)
    except CheckpointError:
        return None
    return record if manifest.step == step and "score" in record else None
