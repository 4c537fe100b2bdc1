"""``nmt train``: train the model of a configuration in a run folder.

The steps, from top to bottom::

    prepared data, and the newest checkpoint if there is one      `fit`
    -> model, optimizer, loader, validation                       `train_setup.build`
    -> updates; report, validate and save when due                `Trainer`
    -> averaged weights, and files for inference                  `_finish`

A checkpoint contains everything that an update depends on: weights, optimizer state, random
generators, the position in the data, and the counters of `Progress`. Therefore a resumed run makes
the same updates as an uninterrupted run.

After SIGTERM or the first Ctrl-C, training finishes the update, saves, and exits with code 143 or
130. Before the first update and after the last one, it exits at once. A second Ctrl-C raises
KeyboardInterrupt. After a kill or a power cut, the next start repeats the updates since the last
checkpoint (`training.save_every`), with the same results.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

from nmt.checkpoint.files import Checkpoint, list_checkpoints
from nmt.checkpoint.run import check_resumable, data_check, write_run_files
from nmt.commands import train_setup
from nmt.commands.config import advice, load_config, with_metric
from nmt.commands.options import TrainOptions
from nmt.commands.prepare import prepare_data
from nmt.commands.result import Result, log_next_commands
from nmt.commands.train_setup import TRACKERS
from nmt.config.flag import changed
from nmt.config.run import RunConfig
from nmt.data.loader import Batch, Position
from nmt.data.prepared import PreparedData
from nmt.device import device as devices
from nmt.device.distributed import Processes, join, report_one_failure
from nmt.errors import ConfigError, DivergedError, command_words
from nmt.files.atomic import run_lock
from nmt.inference.confidence import calibrate_confidence
from nmt.inference.engine import copy_extras
from nmt.inference.translator import Translator
from nmt.registry import load_attribute
from nmt.training import checkpoints
from nmt.training.checkpoints import CheckpointWriter, Progress, TrainingSummary
from nmt.training.events import Event, Reporter, ReporterList, RunLog
from nmt.training.processes import StoppedBySignal, StopSignal, launch
from nmt.training.schedule import build_schedule
from nmt.training.timing import TrainingSetup, plan_budget
from nmt.training.update import UpdateStats, read_together
from nmt.training.validation import Scores

logger = logging.getLogger(__name__)

_MOST_SKIPPED_IN_A_ROW = 20
_LIMITS = ("max_minutes", "max_steps", "max_epochs")
_DRY_RUN = "nmt.extras.planning.dry_run:dry_run"


def train(options: TrainOptions) -> Result | None:
    """Train a model; resume from the last checkpoint of the run folder if there is one.

    Raises:
        NmtError: The configuration, the data, a checkpoint or the device has a problem.
        StoppedBySignal: A signal stopped training; the last update is saved.
    """
    if options.dry_run:
        if others := changed(options, "strict_resume", "exact"):
            what = " and ".join(f"`{name}`" for name in others)
            raise ConfigError(f"`dry_run` cannot be combined with {what}.", fix=f"Remove {what}.")
        return load_attribute(_DRY_RUN)(options)
    config = load_config(options.config, options.overrides)
    if options.devices == 1:
        return fit(config, strict_resume=options.strict_resume, exact=options.exact)
    flags = {name: getattr(options, name) for name in ("strict_resume", "exact", "json")}
    flags["quiet"] = not logger.isEnabledFor(logging.INFO)
    words = command_words("train", options.config, set_=options.overrides, **flags)
    launch(words[1:], options.devices, config.training)
    return None


def fit(config: RunConfig, *, strict_resume: bool = False, exact: bool = False) -> TrainingSummary:
    """Prepare the data if necessary, then train, or resume from the last checkpoint.

    Args:
        config: The configuration; ``run_dir`` is the run folder.
        strict_resume: Raise an error if the newest checkpoint is damaged, instead of resuming from
            an older one.
        exact: Raise an error if resuming would not be bit-exact.

    Raises:
        NmtError: The configuration, the data, a checkpoint or the device has a problem.
        StoppedBySignal: A signal stopped training; the last update is saved.
    """
    config = with_metric(config)
    training, run_dir, notes, warnings = config.training, config.run_dir, list[str](), list[str]()
    devices.prepare_process(training.threads)
    devices.use_huge_pages()
    processes = join()
    is_first, device = processes.rank == 0, devices.choose_device(training.device)
    with (
        report_one_failure(processes),
        run_lock(run_dir) if is_first else nullcontext(),
        StopSignal() as stop,
        devices.deterministic(device, wanted=training.deterministic),
        RunLog() as log,
    ):
        # Before the first update there is nothing to save, so a signal ends the process at once.
        with stop.at_once():
            trackers = [TRACKERS[name](config) for name in training.trackers if is_first]
            data = _open_data(config, processes)
            checkpoint = checkpoints.load_newest(run_dir, processes, strict=strict_resume)
            setup = train_setup.build(config, data, processes, stop, checkpoint)
            compilation = train_setup.compile_model(setup)
            record = train_setup.run_record(config, setup, is_compiled=compilation.is_on)
            if checkpoint is None:
                progress = Progress()
                notes += train_setup.init_from(config, setup)
                warnings += advice(config)
            else:
                # Settings that the weights depend on must not change; others give warnings.
                progress = Progress.resumed(checkpoint.state, record["batch"])
                warnings += check_resumable(checkpoint.state, record, run_dir=run_dir, exact=exact)
            plan_budget(setup, progress)
        reporter: Reporter = ReporterList()
        if is_first:
            for text in warnings:
                logger.warning(text)
            checkpoints.tidy_run_folder(run_dir, checkpoint)
            for text in write_run_files(run_dir, config, data.tokenizer_dir):
                # `check_resumable` has warned about some of these settings.
                if checkpoint is not None and text not in "\n".join(warnings):
                    notes.append(f"setting changed since the last start: {text}")
            reporter = train_setup.make_reporters(config, log, progress, trackers)
        with closing(reporter):
            for text in notes:
                reporter.report(Event(progress.step, text))
            reporter.report(train_setup.describe_start(config, setup, compilation.remark, progress))
            trainer = Trainer(config, setup, progress, record, reporter, stop)
            if checkpoint is not None:
                trainer.restore(checkpoint)
                checkpoint = None  # Windows cannot delete its files while they are mapped
            reason = trainer.run()
            if reason == "signal":
                number = next(filter(None, processes.gather(stop.number)))
                processes.leave()
                raise StoppedBySignal(number)
            # All updates are saved. After a signal, the next start repeats the remaining work.
            with stop.at_once():
                metric = training.validation.metric_name
                summary = progress.summary(run_dir, reason, metric, trainer.seconds)
                summary = _finish(config, setup, summary, reporter)
    processes.leave()
    return summary


def _open_data(config: RunConfig, processes: Processes) -> PreparedData:
    """Open the prepared data; the first process prepares the data first if necessary."""
    if processes.rank == 0:
        train_setup.check_tools(config)
        if not list_checkpoints(config.run_dir):
            train_setup.check_start(config)
        prepared = prepare_data(config, check=data_check(config, processes.size))
        if not prepared.up_to_date:
            logger.info(prepared.as_text())
    processes.wait()
    return PreparedData.open(config.prepared_dir)


class Trainer:
    """The training loop: updates, reports, validations and checkpoints.

    Args:
        config: The configuration.
        setup: Updater, loader and validator.
        progress: Progress and limits of the run; updated in place.
        record: Settings, hashes and machine: stored in checkpoints, and compared when training
            resumes.
        reporter: Receives the events of training.
        stop: Records SIGTERM and SIGINT; checked at every update.
    """

    def __init__(
        self,
        config: RunConfig,
        setup: TrainingSetup,
        progress: Progress,
        record: Mapping[str, Any],
        reporter: Reporter,
        stop: StopSignal,
    ) -> None:
        self.progress = progress
        self._run_dir, self._training, self._stop = config.run_dir, setup.training, stop
        self._updater, self._loader, self._validator = setup.updater, setup.loader, setup.validator
        self._validates_first = setup.validates_first
        self._processes, self._pace = setup.updater.processes, setup.updater.pace
        self._report = reporter.report
        # The learning rate is a function of the number of the update and of the planned number.
        width, total = config.model.model_dim, progress.total_steps
        self._schedule = build_schedule(self._training.schedule, model_dim=width, total_steps=total)
        self._writer = CheckpointWriter(
            config.run_dir, config.training, setup.updater, record, reporter.report
        )
        self.seconds = self._reported_seconds = 0.0
        # Tokens of earlier starts, which the first report subtracts to measure the speed.
        self._tokens_before = progress.source_tokens, progress.target_tokens
        self._all_stop = False
        self._unread: list[UpdateStats] = []

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore weights, optimizer, random generators and counters from a checkpoint.

        Raises:
            CheckpointError: The checkpoint belongs to a different model or optimizer.
        """
        self._updater.optimizer.load(checkpoint.model, checkpoint.optimizer)
        devices.restore_random_state(checkpoint.optimizer, self._updater.device, self._processes)
        self._updater.load_counters(checkpoint.state["counters"])
        self._writer.saved_step = checkpoint.step

    def run(self) -> str:
        """Train to the end, and save the last update.

        Returns:
            Why training ended: ``budget``, ``patience`` or ``signal``.
        """
        progress, loader = self.progress, self._loader
        with self._writer:
            step = progress.step
            is_due = step % self._training.validate_every == 0 or self._is_last()
            # The last start was stopped at this step before it could validate: do it now.
            if step and is_due and step not in progress.history:
                self._validate_and_save()
            elif not step and self._validates_first:
                self._validate()
            self._all_stop |= any(self._processes.gather(self._stop.number is not None))
            reason, outcome = self._reason_to_end(), "training ended"
            if reason not in (None, "signal"):
                limits = ("patience",) if reason == "patience" else _LIMITS
                given = [f"training.{key}" for key in limits if getattr(self._training, key)]
                outcome = f"training is complete at step {step:,}; to continue, raise "
                outcome += " and ".join(given)
            # A stage is an entry of data.stages, which ends after its number of updates.
            while reason is None:
                stage = progress.position.stage
                with (
                    closing(loader.updates(progress.position)) as batches,
                    self._pace.stream(batches) as updates,
                ):
                    while reason is None and progress.position.stage == stage:
                        self._update(updates)
                        reason = self._reason_to_end()
                if progress.position.stage != stage:
                    text = f"starting stage {progress.position.stage + 1} of data.stages"
                    self._report(Event(progress.step, text))
            self._read()
            self._writer.save_the_end(progress)
        if reason == "signal":
            outcome = f"stopped at step {progress.step:,}; run the same command again to resume"
        self._report(Event(progress.step, outcome, "end", {"reason": reason}))
        return reason

    def _reason_to_end(self) -> str | None:
        # Several processes agree to stop inside of an update. A single process can stop directly.
        if self._all_stop or (self._processes.size == 1 and self._stop.number is not None):
            return "signal"
        return self.progress.reason_to_end(self._training.patience)

    def _is_last(self) -> bool:
        return self.progress.reason_to_end(patience=None) == "budget"

    def _update(self, updates: Iterator[tuple[list[Batch], Position]]) -> None:
        """Queue the next update on the device; then report, validate or save if due."""
        progress, training, begin = self.progress, self._training, time.perf_counter()
        batches, position = next(updates)
        # A function of the number of the update: checkpoints need not store it.
        learning_rate = self._schedule(progress.step + 1)
        stats = self._updater(batches, learning_rate, stops=self._stop.number is not None)
        progress.add(stats, position)
        self.seconds += time.perf_counter() - begin
        self._all_stop |= stats.stop
        self._unread.append(stats)
        if self._writer.writing is not None:
            self._writer.look()
        # A GPU has not finished the update yet, and reading its loss would wait for it. Therefore
        # the loss is read later, when it is needed or when many updates are queued.
        if len(self._unread) == self._pace.max_inflight_updates:
            self._read()
        is_last = self._is_last()
        if progress.step % training.log_every == 0 or is_last:
            self._report_updates(stats)
        if self._reason_to_end() == "signal":
            return  # `run` saves and ends; the next start first does what is due here
        if progress.step % training.validate_every == 0 or is_last:
            self._validate_and_save()
        elif progress.step % training.save_every == 0:
            self._save()

    def _read(self) -> None:
        """Wait for the queued updates, add their statistics to the progress, and log problems.

        Raises:
            DivergedError: The loss or gradient was not finite in many updates in a row.
        """
        begin, progress = time.perf_counter(), self.progress
        read_together(self._unread)
        self.seconds += time.perf_counter() - begin
        updates, self._unread = self._unread, []
        for step, stats in enumerate(updates, progress.step - len(updates) + 1):
            progress.add_outcome(stats)
            if progress.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
                raise self._diverged(
                    f"The loss or gradient was not finite in {progress.skipped_in_a_row} updates "
                    f"in a row.\n  Step {step:,}, learning rate {stats.learning_rate:.2e}; "
                    f"the last batch was {self._where(stats)}.",
                    "Lower training.schedule.peak_lr, raise its warmup_steps, or train in float32.",
                )
            if stats.skipped or stats.splits:
                text = "update skipped: loss or gradient is not finite"
                if not stats.skipped:
                    text = f"out of memory: batches were halved {stats.splits} times"
                self._report(Event(step, f"{text} ({self._where(stats)})", level=logging.WARNING))

    def _where(self, stats: UpdateStats) -> str:
        """Return which lines of the corpora all processes used in an update, as text."""
        batches = [self._loader.batch(rows) for rows in stats.rows]
        return "; ".join(self._processes.gather(self._loader.describe(batches)))

    def _diverged(self, problem: str, fix: str) -> DivergedError:
        self._writer.wait()
        saved = self._writer.saved_step
        last = f"step {saved:,}" if saved else "none"
        if saved:
            fix += " Then start a new run with a new run_dir; training.init_from loads "
            fix += "the weights of this run."
        return DivergedError(f"{problem}\n  Last checkpoint: {last}.", fix=fix)

    def _report_updates(self, last: UpdateStats) -> None:
        self._read()
        progress = self.progress
        seconds = max(self.seconds - self._reported_seconds, 1e-9)
        self._reported_seconds = self.seconds
        before, self._tokens_before = self._tokens_before, (0, 0)
        self._report(progress.report(last.learning_rate, last.gradient_norm, seconds, before))

    def _validate(self) -> Scores | None:
        """Validate and report the scores; return None if a signal interrupts the validation."""
        begin, progress = time.perf_counter(), self.progress
        try:
            scores = self._validator()
        except StoppedBySignal:  # raised in all processes
            self._all_stop = True  # the loop saves and ends; the next start first validates
            return None
        seconds = time.perf_counter() - begin
        self._report(scores.event(progress.step, progress.position.epoch, seconds))
        return scores

    def _validate_and_save(self) -> None:
        self._read()
        progress, training, step = self.progress, self._training, self.progress.step
        if (scores := self._validate()) is None:
            return
        score = scores.value(training.validation.metric_name)
        progress.history[step] = score
        # During warm-up, some models are worse than a random guess.
        warmup = training.schedule.warmup_updates(progress.total_steps)
        vocab_size = len(self._updater.model.output_weight)
        if step > warmup and not scores.loss <= math.log(2 * vocab_size):
            raise self._diverged(
                f"Training diverged: validation perplexity is {scores.perplexity:.3g} at step "
                f"{step:,}, more than twice the vocabulary size of {vocab_size:,}.",
                "Lower training.schedule.peak_lr or raise its warmup_steps.",
            )
        self._save()

    def _save(self) -> None:
        self._read()
        self._writer.save(self.progress)


def _finish(
    config: RunConfig, setup: TrainingSetup, summary: TrainingSummary, reporter: Reporter
) -> TrainingSummary:
    """Average the last checkpoints, choose the best weights, and write files for inference."""
    run_dir, data, is_first = config.run_dir, setup.data, setup.updater.processes.rank == 0
    if is_first:
        logger.info("weights saved; calibrating confidence scores on the validation set")
        copy_extras(data.folder, run_dir)
    summary = checkpoints.average_at_end(config.training, summary, setup.validator, reporter)
    if is_first:
        threads, device = config.training.threads, config.training.device
        load = partial(Translator.load, run_dir, engine="torch", device=device, threads=threads)
        known = train_setup.languages_of(config)
        calibrate_confidence(
            run_dir,
            *train_setup.choosing_lines(config, data),
            lambda lines, progress: load(progress=progress, languages=known).translate(lines),
        )
        if summary.best_score is None:
            logger.warning("no validation has a score; the last checkpoint is used")
        log_next_commands(run_dir)
    return summary
