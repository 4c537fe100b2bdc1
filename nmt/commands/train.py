"""``nmt train``: a configuration -> a run folder that translates.

The story, from top to bottom::

    prepared data, and the newest checkpoint if there is one      `fit`
    -> model, optimizer, loader, validation                       `build`
    -> updates; report, validate and save when due                `Trainer`
    -> what inference needs, the mean of the last checkpoints     `_finish`

All that an update depends on is in the checkpoint: weights, optimizer, random generators, the
position in the data, and the counters of `Progress`. So a run that is stopped anywhere and started
again by the same command makes the same updates as one that was not.
"""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nmt.checkpoint.files import Checkpoint, checkpoint_name, list_checkpoints
from nmt.checkpoint.model_folder import CONFIG, load_folder_config, load_model
from nmt.checkpoint.run import (
    check_resumable,
    data_check,
    identity,
    machine,
    reshared,
    write_run_files,
)
from nmt.commands.advice import advice
from nmt.commands.load_config import load_config
from nmt.commands.prepare import prepare_data
from nmt.commands.result import Result, log_next_commands
from nmt.commands.train_options import TrainOptions
from nmt.config.data import BatchConfig
from nmt.config.flag import changed
from nmt.config.run import RunConfig
from nmt.data.batch import Batch
from nmt.data.loader import Loader, Position
from nmt.data.mixing import build_stages, tempered_weights
from nmt.data.prepared import PreparedData
from nmt.device import own_cores
from nmt.device.device import (
    choose_device,
    deterministic,
    prepare_process,
    random_state,
    restore_random_state,
    seed_rank,
)
from nmt.device.distributed import Processes, join
from nmt.device.memory import use_huge_pages
from nmt.errors import CheckpointError, ConfigError, DivergedError, shell_command
from nmt.files.atomic import write_errors
from nmt.files.lock import run_lock
from nmt.inference.calibration import calibrate_confidence
from nmt.inference.shortlist_file import make_shortlist
from nmt.inference.translator import Translator
from nmt.metrics.metric import METRICS
from nmt.registry import load_attribute
from nmt.text.tokenizer import load_tokenizers
from nmt.training.checkpoints import (
    CheckpointWriter,
    average_at_end,
    load_newest,
    tidy_run_folder,
)
from nmt.training.html_report import HtmlReport
from nmt.training.launch import launch
from nmt.training.progress import Progress, TrainingSummary
from nmt.training.report import (
    Console,
    Event,
    JsonLines,
    Reporter,
    ReporterList,
    RunLog,
    TensorBoard,
)
from nmt.training.schedule import build_schedule
from nmt.training.setup import TrainingSetup, build_updater, check_shape, redrawn_text
from nmt.training.signals import StoppedBySignal, StopSignal, report_one_failure
from nmt.training.timing import fit_batches, plan_budget
from nmt.training.update import UpdateStats, read_together
from nmt.training.validation import HeldOutText, Validator, fixed_batches

logger = logging.getLogger(__name__)

_MOST_SKIPPED_IN_A_ROW = 20
_MOST_WORKERS = 4
_LIMITS = ("max_minutes", "max_steps", "max_epochs")
_DRY_RUN = "nmt.extras.planning.dry_run:dry_run"


def train(options: TrainOptions) -> Result | None:
    """Train a model; resume from the last checkpoint of the run folder if there is one.

    Raises:
        NmtError: Data, configuration, checkpoint or device do not allow it; see the message.
        StoppedBySignal: The process was asked to stop; everything is saved.
    """
    if options.dry_run:
        if others := changed(options, "strict_resume", "exact"):
            what = " and ".join(f"`{name}`" for name in others)
            raise ConfigError(f"A dry run resumes nothing: {what}.", fix="Leave it out.")
        dry_run = load_attribute(_DRY_RUN)
        return dry_run(options)
    config = load_config(options.config, options.overrides)
    if options.devices == 1:
        return fit(config, strict_resume=options.strict_resume, exact=options.exact)
    flags = {name: getattr(options, name) for name in ("strict_resume", "exact", "json")}
    flags["quiet"] = not logger.isEnabledFor(logging.INFO)
    command = shell_command("train", options.config, set_=options.overrides, **flags)
    training = config.training
    launch(
        shlex.split(command)[1:],
        num_processes=options.devices,
        threads=training.threads,
        device=training.device,
    )
    return None


def fit(config: RunConfig, *, strict_resume: bool = False, exact: bool = False) -> TrainingSummary:
    """Train in ``config.run_dir``, or resume from its last checkpoint; prepare data if need be.

    Args:
        config: The experiment.
        strict_resume: Refuse to fall back when the newest checkpoint is damaged.
        exact: Refuse to resume where the result would not be the same to the bit.
    """
    training, run_dir = config.training, config.run_dir
    if training.validation.metric != "loss":
        METRICS[training.validation.metric]  # refuses an unknown name before anything slow
    prepare_process(training.threads)
    use_huge_pages()
    processes = join()
    is_first, device = processes.rank == 0, choose_device(training.device)
    with (
        report_one_failure(processes),
        run_lock(run_dir) if is_first else nullcontext(),
        StopSignal() as stop,
        deterministic(device, wanted=training.deterministic),
        RunLog() as log,
    ):
        # Before the first update there is nothing to save: a signal ends all this at once.
        with stop.at_once():
            data = _open_data(config, processes)
            checkpoint = load_newest(run_dir, processes, strict=strict_resume)
            setup = build(config, data, processes, stop, checkpoint)
            compilation = setup.compile()
            hashes = {
                "data_hash": data.manifest.data_hash,
                "vocab_hash": data.manifest.vocab_hash,
            }
            arithmetic = {
                "precision": setup.updater.precision.name,
                "compiled": compilation.is_on,
            }
            record = {
                "identity": identity(config, num_processes=processes.size, **hashes),
                "machine": machine(device) | arithmetic,
                "batch": setup.loader.config.model_dump(mode="json"),
            }
            if checkpoint is None:
                progress, warnings = Progress(), []
                notes = _start_from(config, setup)
            else:
                # What binds the run must be as it was; what may differ is said.
                warnings = check_resumable(checkpoint.state, record, run_dir=run_dir, exact=exact)
                progress, notes = Progress.resumed(checkpoint.state, record["batch"]), []
            plan_budget(setup, progress)
        reporter: Reporter = ReporterList()
        if is_first:
            tidy_run_folder(run_dir, checkpoint)
            changes = write_run_files(run_dir, config, data.tokenizer_dir)
            notes += _differences(config, checkpoint, warnings, changes)
            reporter = _reporters(config, log, progress)
        with closing(reporter):
            for text in notes:
                reporter.report(Event(progress.step, text))
            text = ", ".join(filter(None, (setup.describe(), compilation.remark)))
            facts = setup.facts(config.data, progress.total_steps)
            reporter.report(Event(progress.step, f"{progress.describe()}: {text}", "start", facts))
            trainer = Trainer(config, setup, progress, record, reporter, stop)
            if checkpoint is not None:
                trainer.restore(checkpoint)
            reason = trainer.run()
            if reason == "signal":
                number = next(filter(None, processes.gather(stop.number)))
                processes.leave()
                raise StoppedBySignal(number)
            # All updates are saved; what a signal leaves undone here, the next start does.
            with stop.at_once():
                summary = _finish(config, setup, trainer.summary(reason), reporter)
    processes.leave()
    return summary


def _open_data(config: RunConfig, processes: Processes) -> PreparedData:
    """Open the prepared data; the first process makes them if need be, and the others wait."""
    if processes.rank == 0:
        folder = config.training.start_from
        if (
            folder is not None
            and (folder / CONFIG).is_file()
            and not list_checkpoints(config.run_dir)
        ):
            check_shape(config.model, load_folder_config(folder).model, folder)
        prepared = prepare_data(config, check=data_check(config, processes.size))
        if not prepared.up_to_date:
            logger.info(prepared.as_text())
    processes.wait()
    return PreparedData.open(config.prepared_dir)


def build(
    config: RunConfig,
    data: PreparedData,
    processes: Processes,
    stop: StopSignal,
    checkpoint: Checkpoint | None = None,
) -> TrainingSetup:
    """Make model, optimizer, loader and validation, and seed the random generators.

    Args:
        config: The experiment.
        data: Its prepared data.
        processes: Those that train together.
        stop: May give a validation up.
        checkpoint: To be resumed from: knows the batches, where these were measured.
    """
    training, corpora, validation = config.training, config.data, config.training.validation
    batch = config.batch
    if checkpoint is not None and batch.max_tokens == "auto":
        own = {"accumulate": reshared(checkpoint.state, processes.size)}
        batch = BatchConfig.model_validate(checkpoint.state["batch"] | own)
    vocab_sizes = data.manifest.source_vocab_size, data.manifest.target_vocab_size
    updater = build_updater(config.model, training, vocab_sizes, processes)
    sizes = np.bincount(data.train.corpus, minlength=len(corpora.train)).tolist()
    is_error = validation.metric == "loss" or METRICS[validation.metric].lower_is_better
    longest, bos = config.filters.max_length, config.model.source_bos
    seed = training.seed
    loader = Loader(
        data.train,
        batch,
        weights=tempered_weights([c.weight for c in corpora.train], sizes, corpora.temperature),
        stages=build_stages(corpora, sizes, lower_is_better=is_error),
        seed=seed,
        rank=processes.rank,
        num_ranks=processes.size,
        resegment=redrawn_text(data, corpora, batch.bpe_dropout, seed=seed, longest=longest),
        source_bos=bos,
        # Half of the cores: the others give the device its work and write checkpoints.
        num_workers=min(_MOST_WORKERS, max(1, own_cores() // 2))
        if updater.pace.uses_threads
        else 0,
        longest=longest + 1 + bos if updater.precision.repeats_sizes else None,
    )
    seed_rank(seed, processes.rank)  # each process draws other dropout masks
    loader = fit_batches(updater, loader, longest + bos)
    text, most = None, validation.max_sentences
    if data.valid_source:
        text = HeldOutText(
            data.valid_source[:most],
            data.valid_target[:most],
            load_tokenizers(data.tokenizer_dir),
            config.decoding.plain(validation.beam_size),
            max_length=longest,
            language=config.target_language,
            tag=corpora.valid.tag,
            metric=validation.metric,
        )
    batches = fixed_batches(replace(loader, store=data.valid, resegment=None), processes)
    return TrainingSetup(training, data, updater, loader, Validator(updater, batches, text, stop))


def _start_from(config: RunConfig, setup: TrainingSetup) -> list[str]:
    """Begin with the weights of another model, if that is configured; say what may surprise."""
    folder = config.training.start_from
    if folder is None:
        return []
    start = load_model(folder)
    setup.updater.optimizer.load_weights(start.model.state_dict())
    notes = [f"begins with the weights of {folder}"]
    was, now = ((c.source_language, c.target_language) for c in (start.config, config))
    if was != now:
        languages = f"from {was[0]} to {was[1]}, this run is from {now[0]} to {now[1]}"
        notes.append(f"{folder} was trained {languages}")
    size = start.tokenizers.target.vocab_size
    if "tokenizer" in config.model_fields_set and config.tokenizer.vocab_sizes[1] != size:
        notes.append(
            f"the vocabulary is that of {folder} ({size:,} entries): the tokenizer section "
            "changes nothing"
        )
    return notes


class Trainer:
    """Makes the updates of a run, and what is due between them.

    Args:
        config: The experiment.
        setup: Makes updates, gives batches, validates.
        progress: Where training stands, with its budget; kept up to date.
        record: Identity and machine, which checkpoints hold: compared when the run is resumed.
        reporter: Is given what happens.
        stop: Looked at in every update.
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
        self._run_dir, self._training, self._record = config.run_dir, config.training, record
        self._updater, self._loader, self._validator = setup.updater, setup.loader, setup.validator
        self._optimizer, self._processes = setup.updater.optimizer, setup.updater.processes
        self._pace, self._stop, self._report = setup.updater.pace, stop, reporter.report
        # The learning rate is a pure function of the number of the update.
        self._schedule = build_schedule(
            config.training.schedule,
            model_dim=config.model.model_dim,
            total_steps=progress.total_steps,
        )
        self._writer = CheckpointWriter(
            config.run_dir, config.training, in_background=self._pace.uses_threads
        )
        self._seconds = self._reported_seconds = 0.0
        self._before = progress.source_tokens, progress.target_tokens  # this process did not read
        self._saved_step, self._all_stop = 0, False
        self._unread: list[UpdateStats] = []

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over weights, optimizer, random generators and counters of a checkpoint.

        Raises:
            CheckpointError: It is of another model or optimizer.
        """
        self._optimizer.load(checkpoint.model, checkpoint.optimizer)
        restore_random_state(checkpoint.optimizer, self._updater.device, self._processes)
        self._updater.load_counters(checkpoint.state["counters"])
        self._saved_step = checkpoint.step

    def run(self) -> str:
        """Train to the end; return why it came: ``budget``, ``patience`` or ``signal``.

        The last update is saved in any case.
        """
        progress, loader = self.progress, self._loader
        with self._writer:
            step = progress.step
            is_due = step % self._training.validate_every == 0 or self._is_last()
            if step and is_due and step not in progress.history:
                self._validate_and_save()  # a signal came just when this was due
            self._all_stop |= any(self._processes.gather(self._stop.number is not None))
            reason = self._reason_to_end()
            if reason not in (None, "signal"):
                limits = ("patience",) if reason == "patience" else _LIMITS
                given = [f"training.{key}" for key in limits if getattr(self._training, key)]
                text = f"training had ended at step {step:,}; the same command with a larger "
                self._report(Event(step, f"{text}{' and '.join(given)} goes on"))
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
                    text = f"stage {progress.position.stage + 1} of the data begins"
                    self._report(Event(progress.step, text))
            self._save_the_end()
        if reason == "signal":
            text = f"stopped at step {progress.step:,}: the same command resumes from there"
            self._report(Event(progress.step, text))
        return reason

    def _reason_to_end(self) -> str | None:
        # One process alone need not agree with others in an update first.
        if self._all_stop or (self._processes.size == 1 and self._stop.number is not None):
            return "signal"
        return self.progress.reason_to_end(self._training.patience)

    def _is_last(self) -> bool:
        return self.progress.reason_to_end(patience=None) == "budget"

    def _update(self, updates: Iterator[tuple[list[Batch], Position]]) -> None:
        """Make the next update, which may wait in the device's queue; then do what is due."""
        progress, training, begin = self.progress, self._training, time.perf_counter()
        batches, position = next(updates)
        learning_rate = self._schedule(progress.step + 1)
        stats = self._updater(batches, learning_rate, stops=self._stop.number is not None)
        progress.add(stats, position)
        self._seconds += time.perf_counter() - begin
        self._all_stop |= stats.stop
        self._unread.append(stats)
        if self._writer.writing is not None:
            self._note_saved()
        if len(self._unread) == self._pace.max_inflight_updates:
            self._read()
        is_last = self._is_last()
        if progress.step % training.report_every == 0 or is_last:
            self._report_updates(stats)
        if self._reason_to_end() == "signal":
            return
        if progress.step % training.validate_every == 0 or is_last:
            self._validate_and_save()
        elif progress.step % training.save_every == 0:
            self._save()

    def _read(self) -> None:
        """Wait for the updates under way, and see what they did; before anything depends on it.

        Raises:
            DivergedError: Loss or gradient was not finite many updates in a row.
        """
        begin, progress = time.perf_counter(), self.progress
        read_together(self._unread)
        self._seconds += time.perf_counter() - begin
        updates, self._unread = self._unread, []
        for step, stats in enumerate(updates, progress.step - len(updates) + 1):
            progress.add_outcome(stats)
            if progress.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
                raise self._diverged(
                    f"Loss or gradient was not finite in {progress.skipped_in_a_row} updates "
                    f"in a row.\n  Step {step:,}, learning rate {stats.learning_rate:.2e}; "
                    f"the last batch was {self._where(stats)}.",
                    "Lower training.schedule.peak_lr, raise its warmup_steps, or train in float32.",
                )
            if stats.skipped or stats.splits:
                text = "update skipped: loss or gradient not finite"
                if not stats.skipped:
                    text = f"batches halved {stats.splits} times: memory did not hold them"
                self._report(Event(step, f"{text} ({self._where(stats)})", level=logging.WARNING))

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

    def _report_updates(self, last: UpdateStats) -> None:
        self._read()
        seconds = max(self._seconds - self._reported_seconds, 1e-9)
        self._reported_seconds = self._seconds
        norm, before, self._before = last.gradient_norm, self._before, (0, 0)
        self._report(self.progress.report(last.learning_rate, norm, seconds, before))

    def _validate_and_save(self) -> None:
        self._read()
        begin, progress, training = time.perf_counter(), self.progress, self._training
        try:
            scores = self._validator()
        except StoppedBySignal:  # in all processes
            self._all_stop = True  # the loop saves and leaves; the next start validates first
            return
        step, epoch = progress.step, progress.position.epoch
        score = scores.value(training.validation.metric)
        progress.history[step] = score
        progress.position = self._loader.after_score(progress.position, score)
        self._report(scores.event(step, epoch, time.perf_counter() - begin))
        # Some models are worse than guessing before they have learned anything.
        warmup = training.schedule.warmup_updates(progress.total_steps)
        vocab_size = len(self._updater.model.output_weight)
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
        self._wait_until_saved()
        generators = random_state(self._updater.device, self._processes)
        if self._processes.rank == 0:
            self._writer.save(
                self.progress,
                model=self._optimizer.weights(),
                optimizer=self._optimizer.state() | generators,
                state={"counters": self._updater.counters(), **self._record},
            )
        if not self._pace.uses_threads:
            self._wait_until_saved()

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

    def _wait_until_saved(self) -> None:
        """Wait for what is being written; all processes learn which step is saved."""
        self._note_saved(wait=True)
        self._saved_step = self._processes.share(self._saved_step)

    def _note_saved(self, *, wait: bool = False) -> None:
        if saved := self._writer.finished(wait=wait):
            self._saved_step = saved.step
            self._report(saved)

    def summary(self, reason: str) -> TrainingSummary:
        """Report how training ended."""
        history = self.progress.history
        best, score = (
            (None, None)
            if history.best is None
            else (checkpoint_name(history.best), history[history.best])
        )
        metric = self._training.validation.metric
        return TrainingSummary(
            self._run_dir, self.progress.step, reason, best, score, metric, self._seconds
        )


def _reporters(config: RunConfig, log: RunLog, progress: Progress) -> ReporterList:
    """Return what is told what happens: to add one, write a `Reporter` and put it here.

    Raises:
        CheckpointError: The files cannot be written.
        ConfigError: TensorBoard is not installed.
    """
    run_dir, start, last = config.run_dir, progress.step, max(progress.history, default=0)
    fix = "Set run_dir to a folder you can write to, or free disk space."
    with write_errors(run_dir, CheckpointError, fix=fix):
        reporters: list[Reporter] = [
            JsonLines(run_dir / "metrics.jsonl", start, last),
            JsonLines(run_dir / "starts.jsonl", start, last, kinds=("start",)),
            log.open(run_dir / "log.txt"),
            Console(start, progress.total_steps, lambda: progress.step),
            HtmlReport(run_dir, config.name),  # reads what the first two have written
        ]
        if config.training.tensorboard:
            reporters.append(TensorBoard(run_dir, start))
    return ReporterList(reporters)


def _differences(
    config: RunConfig, checkpoint: Checkpoint | None, warnings: list[str], changes: list[str]
) -> list[str]:
    """Warn of what a new run should not have, or a resumed one; return what else has changed."""
    for text in advice(config) if checkpoint is None else warnings:
        logger.warning(text)
    said = "\n".join(warnings)
    unsaid = [text for text in changes if checkpoint is not None and text not in said]
    return [f"setting changed since the last start: {text}" for text in unsaid]


def _finish(
    config: RunConfig, setup: TrainingSetup, summary: TrainingSummary, reporter: Reporter
) -> TrainingSummary:
    """Write what inference needs, and the mean of the last checkpoints; choose the best."""
    run_dir, data, is_first = config.run_dir, setup.data, setup.updater.processes.rank == 0
    if is_first:
        logger.info("the weights are saved; measuring confidence (validation)")
        make_shortlist(run_dir, data)
    summary = average_at_end(config.training, summary, setup.validator, reporter)
    if is_first:
        threads, device = config.training.threads, config.training.device
        load = partial(Translator.load, run_dir, engine="torch", device=device, threads=threads)
        calibrate_confidence(run_dir, data, load)
        log_next_commands(run_dir)
    return summary
