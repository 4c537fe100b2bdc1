"""``nmt train``: train the model of a configuration in a run folder.

The phases of `fit`, from top to bottom::

    open     prepared data, and the newest checkpoint if there is one      `_open`
    build    model, optimizer, loader, validation                          `train_setup.build`
    start    progress so far, and planned updates                          `_find_start`
    run      weights of the checkpoint; updates; report, validate and save `Trainer`
    finish   averaged weights, and files for inference                     `_finish`

A checkpoint contains everything that an update depends on: weights, optimizer state, random
generators, the position in the data, and the counters of `Progress`. Therefore a resumed run makes
the same updates as an uninterrupted run.

After SIGTERM, SIGHUP or the first Ctrl-C, training finishes the update, saves, and exits with code
143, 129 or 130. Before the first update and after the last one, it exits at once. A second Ctrl-C
raises KeyboardInterrupt. After SIGUSR1, training saves and continues. After a kill or a power cut,
the next start repeats the updates since the last checkpoint (`training.save_every`), with the same
results.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import Checkpoint, ValidationScore
from nmt.checkpoint.model_folder import log_next_commands
from nmt.checkpoint.run import changes_since, check_resumable, write_run_files
from nmt.commands import train_setup
from nmt.commands.config import advice, load_config, with_metric
from nmt.commands.options import CommandResult, TrainOptions
from nmt.commands.prepare import prepare_data
from nmt.commands.train_setup import TRACKERS
from nmt.config.flag import changed
from nmt.config.inference import LINE_LIMITS
from nmt.config.run import RunConfig
from nmt.data.loader import Batch, Position
from nmt.data.prepared import PreparedData
from nmt.device import device as devices
from nmt.device.distributed import Processes, join, report_one_failure
from nmt.device.threads import same_threads_after
from nmt.errors import ConfigError, DivergedError, command_words
from nmt.files.atomic import run_lock
from nmt.inference.confidence import calibrate_confidence
from nmt.inference.engine import copy_extras
from nmt.inference.request import Request, Result
from nmt.inference.translator import Translator
from nmt.metrics.metric import label_of
from nmt.registry import load_attribute
from nmt.training import checkpoints
from nmt.training.budget import PLANS, Budget
from nmt.training.checkpoints import CheckpointWriter, Progress, TrainingSummary
from nmt.training.events import Reporter, ReporterList, RunLog, TrainingEvent
from nmt.training.processes import StoppedBySignal, StopSignal, launch
from nmt.training.schedule import build_schedule
from nmt.training.timing import TrainingSetup
from nmt.training.update import UpdateStats, read_together
from nmt.training.validation import COMMAND, Scores

logger = logging.getLogger(__name__)

_MOST_SKIPPED_IN_A_ROW = 20
# Why training ended -> keys of the training section that can have ended it.
_LIMITS = {"budget": ("max_minutes", "max_steps", "max_epochs"), "patience": ("patience",)}
_DRY_RUN = "nmt.extras.planning.dry_run:dry_run"


def train(options: TrainOptions) -> CommandResult | None:
    """Train a model; resume from the last checkpoint of the run folder if there is one.

    Raises:
        NmtError: The configuration, the data, a checkpoint or the device has a problem.
        StoppedBySignal: A signal stopped training; the last update is saved.
    """
    if options.dry_run:
        names = changed(options, "strict_resume", "exact")
        if names:
            flags = " and ".join(f"`{name}`" for name in names)
            raise ConfigError(f"`dry_run` cannot be combined with {flags}.", fix=f"Remove {flags}.")
        return load_attribute(_DRY_RUN)(options)
    config = load_config(options.config, options.overrides)
    if options.devices == 1:
        return fit(config, strict_resume=options.strict_resume, exact=options.exact)
    if isinstance(options.config, Mapping):
        raise ConfigError(
            "Several processes cannot read a dictionary.",
            fix="Write it to a file, and pass the file as `config`.",
        )
    words = command_words(
        "train",
        options.config,
        set_=options.overrides,
        strict_resume=options.strict_resume,
        exact=options.exact,
        json=options.json,
        quiet=not logger.isEnabledFor(logging.INFO),
    )
    launch(words[1:], options.devices, config.training)  # without the word ``nmt``
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
    training = config.training
    devices.prepare_process(training.threads)
    devices.use_huge_pages()
    processes = join()
    is_first = processes.rank == 0
    device = devices.choose_device(training.device)
    with (
        report_one_failure(processes),
        run_lock(config.run_dir) if is_first else nullcontext(),
        StopSignal() as stop,
        devices.deterministic(device, wanted=training.deterministic),
        same_threads_after(),  # a plan may change it
        RunLog() as log,
    ):
        # Before the first update there is nothing to save, so a signal ends the process at once.
        with stop.at_once():
            trackers = [TRACKERS[name](config) for name in training.trackers if is_first]
            config, data, checkpoint = _open(config, processes, strict=strict_resume)
            begin = time.perf_counter()  # of the time that `training.max_minutes` limits
            setup = train_setup.build(config, data, processes, stop, checkpoint)
            start = _find_start(config, setup, checkpoint, exact=exact, begin=begin)
            setup = start.setup
        reporter = ReporterList()
        if is_first:
            optimizer = setup.updater.optimizer
            # First, because what a killed process has left takes room.
            checkpoints.tidy_run_folder(config.run_dir, checkpoint)
            checkpoints.check_room(config.run_dir, training, optimizer, start.progress)
            _open_run_folder(config, data, start, checkpoint)
            reporter = train_setup.make_reporters(config, log, start.progress, trackers)
        with closing(reporter):
            for note in start.notes:
                reporter.report(TrainingEvent(start.progress.step, note))
            remark = start.compilation_remark
            reporter.report(train_setup.describe_start(config, setup, remark, start.progress))
            trainer = Trainer(config, setup, start.budget, start.record, reporter, stop)
            if checkpoint is not None:
                trainer.restore(checkpoint)
                checkpoint = None  # closes its mapped files, which Windows could not delete
            try:
                reason = trainer.run()
            except BaseException as error:
                failure = str(error) or type(error).__name__
                step = start.progress.step
                # Not on the console, where the error is shown anyway.
                reporter.report(
                    TrainingEvent(step, failure, "end", {"reason": failure}, logging.DEBUG)
                )
                raise
            if reason == "signal":
                signal_numbers = processes.gather(stop.number)  # None: this process had no signal
                processes.leave()
                raise StoppedBySignal(next(filter(None, signal_numbers)))
            # All updates are saved. After a signal, the next start repeats the remaining work.
            with stop.at_once():
                summary = start.progress.summary(
                    config.run_dir, reason, training.validation, trainer.seconds
                )
                summary = _finish(config, setup, summary, reporter, start.progress)
                if training.max_minutes is not None:
                    minutes = start.budget.seconds / 60
                    logger.info("used %.2f of %g minutes", minutes, training.max_minutes)
    processes.leave()
    return summary


def _open(
    config: RunConfig, processes: Processes, *, strict: bool
) -> tuple[RunConfig, PreparedData, Checkpoint | None]:
    """Open the prepared data, and load the newest checkpoint if there is one.

    Before, the first process checks settings, and prepares the data if necessary. ``strict`` raises
    an error if the newest checkpoint is damaged. The returned configuration contains the folder and
    the sizes of the lines of the data.
    """
    folder = config.prepared_dir
    if processes.rank == 0:
        check = train_setup.check_run(config, processes.size)
        prepared = prepare_data(config, check=check, user=config.run_dir)
        folder = Path(prepared.folder)
        if not prepared.up_to_date:
            logger.info(prepared.as_text())
    folder = processes.share(folder)
    data = PreparedData.open(folder)
    data_section = config.data
    for key in LINE_LIMITS:
        if getattr(data_section, key) is None:
            counted = {key: getattr(data.manifest, key)}
            data_section = data_section.model_copy(update=counted)
    config = config.model_copy(update={"prepared_dir": folder, "data": data_section})
    return config, data, checkpoints.load_newest(config.run_dir, processes, strict=strict)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """Where training starts or resumes."""

    progress: Progress
    setup: TrainingSetup
    budget: Budget
    record: Mapping[str, Any]  # Settings, hashes and machine, for checkpoints: `run_record`.
    compilation_remark: str  # Outcome of compiling the layers.
    notes: list[str]  # For the log.
    warnings: list[str]


def _find_start(
    config: RunConfig,
    setup: TrainingSetup,
    checkpoint: Checkpoint | None,
    *,
    exact: bool,
    begin: float,
) -> _Start:
    """Compile the model, find out where training starts, and plan the number of updates.

    A new run starts at step 0, and the weights of `training.init_from` are loaded here. A resumed
    run starts at the progress of its checkpoint, whose weights `Trainer.restore` loads later.
    """
    compilation = train_setup.compile_model(setup)
    record = train_setup.run_record(config, setup, is_compiled=compilation.is_on)
    notes = list[str]()
    if checkpoint is None:
        progress = Progress()
        notes = train_setup.init_from(config, setup)
        warnings = advice(config)
        if setup.updater.processes.rank == 0 and changes_since(config.run_dir, config):
            # A start that saved nothing has planned for other settings.
            (config.run_dir / PLANS).unlink(missing_ok=True)
    else:
        # Settings that the weights depend on must not change; others give warnings.
        progress = Progress.resumed(checkpoint.state, record["batch"])
        run_dir = config.run_dir
        warnings = check_resumable(checkpoint.state, record, run_dir=run_dir, exact=exact)
    budget = Budget(setup, progress, config.run_dir, begin=begin)
    setup = budget.start()
    notes += map(str, progress.plans[-1:])
    return _Start(
        progress=progress,
        setup=setup,
        budget=budget,
        record=record,
        compilation_remark=compilation.remark,
        notes=notes,
        warnings=warnings,
    )


def _open_run_folder(
    config: RunConfig, data: PreparedData, start: _Start, checkpoint: Checkpoint | None
) -> None:
    """Write configuration and tokenizer into the run folder. Adds notes to ``start``."""
    for warning in start.warnings:
        logger.warning(warning)
    for change in write_run_files(config.run_dir, config, data.tokenizer_dir):
        # `check_resumable` has warned about some of these settings.
        if checkpoint is not None and change not in "\n".join(start.warnings):
            start.notes.append(f"setting changed since the last start: {change}")
    # The run needs them at the end, when another run may have replaced the folder.
    copy_extras(data.folder, config.run_dir)


class Trainer:
    """The training loop: updates, reports, validations and checkpoints.

    Args:
        config: The configuration.
        setup: Updater, loader and validator.
        budget: Progress and limits of the run; updated in place.
        record: Settings, hashes and machine: stored in checkpoints, and compared when training
            resumes.
        reporter: Receives the events of training.
        stop: Records signals; checked at every update.

    Attributes:
        progress: Progress of the run.
        seconds: Time that this process has spent in updates.
    """

    def __init__(
        self,
        config: RunConfig,
        setup: TrainingSetup,
        budget: Budget,
        record: Mapping[str, Any],
        reporter: Reporter,
        stop: StopSignal,
    ) -> None:
        progress = budget.progress
        self.progress = progress
        self.seconds = 0.0
        self._budget = budget
        self._setup = setup
        self._training = setup.training
        self._updater = setup.updater
        self._loader = setup.loader
        self._processes = setup.updater.processes
        self._report = reporter.report
        self._stop = stop
        # The learning rate is a function of the number of the update and of the plans.
        schedule_length = budget.schedule_length
        self._schedule = build_schedule(
            setup.training.schedule,
            model_dim=config.model.model_dim,
            total_steps=schedule_length,
        )
        self._warmup_steps = setup.training.schedule.warmup_updates(schedule_length)
        self._writer = CheckpointWriter(
            config.run_dir, config.training, setup.updater, record, self._report
        )
        self._reported_seconds = 0.0  # `seconds` at the last report
        # Source and target tokens of earlier starts since their last report. The first report
        # subtracts them to measure the speed.
        self._tokens_before = (progress.source_tokens, progress.target_tokens)
        self._all_stop = False  # whether all processes have agreed to stop, because of a signal
        # The last updates, which are queued on the device: their losses are not known yet.
        self._unread = list[UpdateStats]()

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
        progress = self.progress
        with self._writer:
            if progress.step:
                # The last start may have been stopped at this step before it could validate.
                is_due = self._is_due(self._budget.validate_every)
                if is_due and progress.step not in progress.history:
                    self._validate_and_plan()
                else:
                    self._plan()
            elif self._setup.validates_first:
                self._validate()
            # A signal may have come already: then no process makes an update.
            self._all_stop |= any(self._processes.gather(self._stop.number is not None))
            reason = self._reason_to_end()
            outcome = ""
            if reason in _LIMITS:  # an earlier start has completed training
                keys = [
                    f"training.{key}" for key in _LIMITS[reason] if getattr(self._training, key)
                ]
                outcome = f"training is complete at step {progress.step:,}; to continue, raise "
                outcome += " and ".join(keys)
            with (
                closing(self._loader.updates(progress.position)) as batches,
                self._updater.pace.stream(batches) as updates,
            ):
                while reason is None:
                    stage = progress.position.stage  # an entry of data.stages
                    self._update(updates)
                    reason = self._reason_to_end()
                    if progress.position.stage != stage:
                        note = f"starting stage {progress.position.stage + 1} of data.stages"
                        self._report(TrainingEvent(progress.step, note))
            self._read_losses()
            progress.seconds = self._budget.seconds
            self._writer.save_the_end(progress)
        if not outcome:
            metric = label_of(self._training.validation.metric_name)
            outcome = f"training ended: {progress.describe_end(reason, metric)}"
        if reason == "signal":
            outcome = f"stopped at step {progress.step:,}; run the same command again to resume"
        self._report(TrainingEvent(progress.step, outcome, "end", {"reason": reason}))
        return reason

    def _reason_to_end(self) -> str | None:
        """Return ``budget``, ``patience`` or ``signal`` if training ends now, else None."""
        # Several processes agree to stop inside of an update. A single process can stop directly.
        if self._all_stop or (self._processes.size == 1 and self._stop.number is not None):
            return "signal"
        return self.progress.reason_to_end(self._training.patience, self._warmup_steps)

    def _is_due(self, every: int) -> bool:
        """Whether something that happens every N updates, and after the last one, is due."""
        is_last = self.progress.reason_to_end(patience=None) == "budget"
        return is_last or self.progress.step % every == 0

    def _update(self, updates: Iterator[tuple[list[Batch], Position]]) -> None:
        """Queue the next update on the device; then report, validate or save if due."""
        progress = self.progress
        training = self._training
        begin = time.perf_counter()
        batches, position = next(updates)
        # A function of the number of the update: checkpoints need not store it.
        learning_rate = self._schedule(self._budget.place(progress.step + 1))
        saves = self._stop.save_requested
        if saves:
            self._stop.save_requested = False
        stops = self._stop.number is not None
        stats = self._updater(batches, learning_rate, stops=stops, saves=saves)
        progress.add(stats, position)
        self.seconds += time.perf_counter() - begin
        self._all_stop |= stats.stop
        self._unread.append(stats)
        self._writer.report_written()
        # A GPU has not finished the update yet, and reading its loss would wait for it. Therefore
        # the loss is read later, when it is needed or when many updates are queued.
        if len(self._unread) == self._updater.pace.max_inflight_updates:
            self._read_losses()
        if self._is_due(training.log_every):
            self._report_updates(stats)
        if self._reason_to_end() == "signal":
            return  # `run` saves and ends; the next start first does what is due here
        if self._is_due(self._budget.validate_every):
            self._validate_and_plan()
            return
        # At `validate_every` also where the budget has no time for a validation.
        intervals = (training.save_every, training.validate_every)
        if stats.save or any(progress.step % every == 0 for every in intervals):
            self._save()
        self._plan()

    def _validate_and_plan(self) -> None:
        begin = self._budget.seconds
        self._validate_and_save()
        if not self._all_stop:  # a signal may interrupt the validation
            self._plan(self._budget.seconds - begin)

    def _plan(self, validation_seconds: float | None = None) -> None:
        """Plan the rest of `training.max_minutes` again; see `Budget.next_plan`."""
        plan = self._budget.next_plan(validation_seconds)
        if plan is not None:
            values = {"total_steps": self.progress.total_steps}
            self._report(TrainingEvent(self.progress.step, str(plan), "plan", values))

    def _read_losses(self) -> None:
        """Wait for the queued updates, add their losses to the progress, and report problems.

        Raises:
            DivergedError: The loss or gradient was not finite in many updates in a row.
        """
        progress = self.progress
        begin = time.perf_counter()
        updates = read_together(self._unread)
        self.seconds += time.perf_counter() - begin
        self._unread = []
        first_step = progress.step - len(updates) + 1  # the progress already counts these updates
        for step, stats in enumerate(updates, first_step):
            progress.add_outcome(stats)
            if progress.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
                raise self._diverged(
                    f"The loss or gradient was not finite in {progress.skipped_in_a_row} updates "
                    f"in a row.\n  Step {step:,}, learning rate {stats.learning_rate:.2e}; "
                    f"the last batch was {self._where(stats)}.",
                    "Lower training.schedule.peak_lr, raise its warmup_steps, or train in float32.",
                )
            if stats.skipped:
                problem = "update skipped: loss or gradient is not finite"
            elif stats.splits:
                problem = f"out of memory: batches were halved {stats.splits} times"
            else:
                continue
            text = f"{problem} ({self._where(stats)})"
            self._report(TrainingEvent(step, text, level=logging.WARNING))

    def _where(self, stats: UpdateStats) -> str:
        """Return which lines of the corpora all processes used in an update, as text."""
        batches = [self._loader.batch(rows) for rows in stats.rows]
        return "; ".join(self._processes.gather(self._loader.describe(batches)))

    def _diverged(self, problem: str, fix: str) -> DivergedError:
        """Return an error that also says which checkpoint is the last."""
        self._writer.wait()
        saved_step = self._writer.saved_step
        last_checkpoint = "none"
        if saved_step:
            last_checkpoint = f"step {saved_step:,}"
            fix += " Then start a new run with a new run_dir; training.init_from loads "
            fix += "the weights of this run."
        return DivergedError(f"{problem}\n  Last checkpoint: {last_checkpoint}.", fix=fix)

    def _report_updates(self, last_update: UpdateStats) -> None:
        """Report the updates since the last report; ``last_update`` is the last of them."""
        self._read_losses()
        seconds = max(self.seconds - self._reported_seconds, 1e-9)  # speeds are divided by it
        self._reported_seconds = self.seconds
        tokens_before = self._tokens_before
        self._tokens_before = (0, 0)
        self._report(
            self.progress.report(
                last_update.learning_rate, last_update.gradient_norm, seconds, tokens_before
            )
        )

    def _validate(self) -> Scores | None:
        """Validate and report the scores; return None if a signal interrupts the validation."""
        begin = time.perf_counter()
        try:
            scores = self._setup.validator()
        except StoppedBySignal:  # raised in all processes
            self._all_stop = True  # the loop saves and ends; the next start first validates
            return None
        seconds = time.perf_counter() - begin
        epoch = self.progress.position.current_epoch
        self._report(scores.event(self.progress.step, epoch, seconds))
        return scores

    def _validate_and_save(self) -> None:
        """Validate, record the score, and save a checkpoint.

        Raises:
            DivergedError: The model is much worse than at the start and than before.
        """
        self._read_losses()
        progress = self.progress
        training = self._training
        step = progress.step
        scores = self._validate()
        if scores is None:
            return
        metric = training.validation.metric_name
        # The loss of a random guess is the logarithm of the vocabulary size.
        first_loss = math.log(len(self._updater.model.output_weight))
        losses = [validation.loss for validation in progress.history.values()]
        if training.init_from is not None:  # that model may be worse than a guess
            first_loss = max(first_loss, [*losses, scores.loss][0])
        lowest_loss = min([first_loss, *losses])
        is_noise = bool(scores.problem) and metric in scores.text and metric != COMMAND
        score = scores.value(metric)
        progress.history[step] = ValidationScore(score, scores.loss, is_noise)
        progress.problem = scores.problem
        self._save()
        # During warm-up, some models are worse than a random guess. With `not` and `<=`, the
        # condition is also true for a loss that is NaN.
        if step > self._warmup_steps and not scores.loss <= max(
            first_loss, lowest_loss + math.log(2)
        ):
            raise self._diverged(
                f"Training diverged: validation perplexity is {scores.perplexity:.3g} at step "
                f"{step:,}, more than at the start ({Scores(first_loss).perplexity:.3g}) and "
                f"than twice the lowest so far ({Scores(lowest_loss).perplexity:.3g}).",
                "Lower training.schedule.peak_lr or raise its warmup_steps.",
            )

    def _save(self) -> None:
        """Save a checkpoint, with the losses of all updates."""
        self._read_losses()
        self.progress.seconds = self._budget.seconds
        self._writer.save(self.progress)


def _finish(
    config: RunConfig,
    setup: TrainingSetup,
    summary: TrainingSummary,
    reporter: Reporter,
    progress: Progress,
) -> TrainingSummary:
    """Average the last checkpoints, choose the best weights, and write files for inference."""
    run_dir = config.run_dir
    training = config.training
    is_first = setup.updater.processes.rank == 0

    def translate(lines: Sequence[Request], progress: Callable[[int], object]) -> list[Result]:
        """Translate lines with the best weights, which are chosen before this is called."""
        translator = Translator.load(
            run_dir,
            engine="torch",
            device=training.device,
            threads=training.threads,
            progress=progress,
            lower_capitals=False,  # measured on these translations
            languages=train_setup.languages_of(config),
        )
        return translator.translate(lines)

    summary = checkpoints.average_at_end(training, summary, setup.validator, reporter)
    if is_first:
        requests, references = train_setup.choosing_lines(config, setup.data)
        logger.info("weights saved; calibrating confidence scores on the validation set")
        share = progress.plans[0].share if progress.plans else 1.0
        calibrate_confidence(run_dir, requests, references, translate, share=share)
        if summary.best_score is None:
            logger.warning("no validation has a score; the last checkpoint is used")
        if progress.problem:
            logger.warning("the model has not learned to translate: %s", progress.problem)
        log_next_commands(run_dir)
    return summary
