"""The configuration and prepared data -> a run folder; dry run and proof of exact resume."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import Checkpoint, list_checkpoints, newest_checkpoint, read_state
from nmt.checkpoint.model_folder import load_model
from nmt.checkpoint.run import (
    check_resumable,
    data_check,
    identity,
    machine,
    reshared,
    write_run_files,
)
from nmt.commands.prepare import prepare_data
from nmt.config.data import BatchConfig
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.data.size import load_config
from nmt.device.device import choose_device, deterministic, prepare_process
from nmt.device.distributed import Processes, join
from nmt.device.memory import use_huge_pages
from nmt.device.precision import precisions_to_compare
from nmt.extras.planning.advice import Plan, advise
from nmt.extras.planning.dry_run import DryRunReport, measure_training
from nmt.extras.planning.prove_resume import Proof, prove
from nmt.files.lock import run_lock
from nmt.inference.calibration import calibrate_confidence
from nmt.inference.shortlist_file import make_shortlist
from nmt.inference.translator import Translator
from nmt.metrics.metric import METRICS
from nmt.training.checkpoints import average_at_end, load_newest, tidy_run_folder
from nmt.training.dashboards import make_reporters
from nmt.training.measure import MeasuredOnce, fit_batches, plan_budget
from nmt.training.probe import Comparison, compare_precisions, to_compare, with_precision
from nmt.training.progress import Progress, TrainingSummary
from nmt.training.report import Event, ReporterList, RunLog
from nmt.training.setup import TrainingSetup, check_start, start_notes
from nmt.training.signals import (
    Interrupted,
    SharedStop,
    StoppedBySignal,
    StopSignal,
    report_one_failure,
)
from nmt.training.trainer import Trainer
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)

_LIMITS = "max_minutes", "max_steps", "max_epochs"
_UNMEASURED = "The weights are saved; the same command measures the rest."


def train(
    config: RunConfig, *, strict_resume: bool = False, exact: bool = False
) -> TrainingSummary:
    """Train in ``config.run_dir``, or resume from its last checkpoint; prepare data if need be.

    Args:
        config: The experiment.
        strict_resume: Refuse to fall back when the newest checkpoint is damaged.
        exact: Refuse to resume where the result would not be the same to the bit.

    Raises:
        NmtError: Data, configuration, checkpoint or device do not allow it; see the message.
        StoppedBySignal: The process was asked to stop; everything is saved.
    """
    if config.training.validation.metric != "loss":
        METRICS[config.training.validation.metric]  # refuses an unknown name before anything slow
    prepare_process(config.training.threads)
    use_huge_pages()
    processes = join()
    with report_one_failure(processes):
        try:
            with run_lock(config.run_dir) if processes.rank == 0 else nullcontext():
                if processes.rank == 0:
                    if not list_checkpoints(config.run_dir):
                        check_start(config)
                    _prepare(config, num_processes=processes.size)
                processes.wait()
                processes.watch()  # from now on nothing holds Python's lock for long
                device = choose_device(config.training.device)
                with (
                    StopSignal() as stop,
                    deterministic(device, wanted=config.training.deterministic),
                    RunLog() as log,
                ):
                    summary = _run(config, processes, stop, log, strict=strict_resume, exact=exact)
                numbers = [each for each in processes.gather(stop.number) if each is not None]
        except Interrupted as interrupted:  # before or after all updates: nothing is to be saved
            processes.leave()
            raise StoppedBySignal(interrupted.number) from None
    processes.leave()
    if numbers:
        raise StoppedBySignal(numbers[0])
    return summary


def dry_run(config: RunConfig, *, num_updates: int = 12) -> DryRunReport:
    """Compute and measure what training ``config`` from its first update would take.

    Prepares the data if need be, for it needs their lengths. Then makes a few updates of a model
    that is thrown away. Neither locks nor writes ``config.run_dir``.

    Args:
        config: The experiment.
        num_updates: Most updates of the probe behind the time.

    Raises:
        NmtError: Data, configuration or device do not allow it; see the message.
    """
    prepare_process(config.training.threads)
    why = f"Prepared the data first, which stay in {config.prepared_dir}: a dry run needs them."
    _prepare(config, why=why)
    device = choose_device(config.training.device)
    with deterministic(device, wanted=config.training.deterministic):
        data, rates = PreparedData.open(config.prepared_dir), None
        if names := to_compare(config, data):
            found = compare_precisions(names, config, data)
            config, rates = with_precision(config, found.chosen), found.rates
        batch = _fitted(config, data, Processes())
        setup = TrainingSetup.build(config, batch, data)
        report = measure_training(setup, name=config.name, num_updates=num_updates)
        warnings = (*report.warnings, *_advice(setup, report.budget["updates"]))
        return replace(report, compared_rates=rates, warnings=warnings)


def prove_resume(config_path: Path, overrides: Sequence[str] = (), **options: Any) -> Proof:
    """Prove that a training of ``config_path`` that is killed and resumed ends with equal bytes.

    Both are short, and processes of their own. Nothing is left but the prepared data.

    Args:
        config_path: YAML file of the experiment.
        overrides: ``section.key=value`` each, as of ``--set``.
        options: Of `nmt.extras.planning.prove_resume.prove`.

    Raises:
        NmtError: The configuration or the data do not allow training.
        CheckpointError: The ends differ, or a training failed; see the message.
        StoppedBySignal: The process was asked to stop.
    """
    config = load_config(config_path, overrides)
    _prepare(config)
    command = [sys.executable, "-m", "nmt", "train", str(config_path), "--quiet"]
    command += [f"--set={text}" for text in overrides]
    prepare_process(config.training.threads)
    data = PreparedData.open(config.prepared_dir)
    # Each training would measure other numbers, or choose for one as short as the proof.
    newest = newest_checkpoint(config.run_dir)
    recorded = None if newest is None else read_state(newest)
    decided = _decided(config, data, Processes(), recorded)
    if decided is not config:
        command.append(f"--set=training.precision={decided.training.precision}")
    if config.batch.max_tokens == "auto":
        batch = _fitted(decided, data, Processes())
        for name in ("max_tokens", "accumulate", "tokens_per_update"):
            command.append(f"--set=batch.{name}={json.dumps(getattr(batch, name))}")
    return prove(command, config.run_dir, **options)


def _prepare(config: RunConfig, num_processes: int | None = None, *, why: str = "") -> None:
    """Prepare the data if need be: it may take long, and stops at once at a signal."""
    prepared = prepare_data(config, check=data_check(config, num_processes))
    if not prepared.up_to_date:
        logger.info("\n".join(filter(None, (why, prepared.as_text()))))


def _fitted(config: RunConfig, data: PreparedData, processes: Processes) -> BatchConfig:
    """Return the batch section with numbers in place of ``auto``."""
    # Compiled, layers take less memory; but that takes a minute, and would be for small batches.
    training = config.training.model_copy(update={"compile": False})
    plain = config.model_copy(update={"training": training})

    def build(batch: BatchConfig) -> TrainingSetup:
        return TrainingSetup.build(plain, batch, data)

    longest = config.filters.max_length + config.model.source_bos
    return fit_batches(config.batch, longest, build, processes)


def _decided(
    config: RunConfig,
    data: PreparedData,
    processes: Processes,
    recorded: Mapping[str, Any] | None,
    measured_once: MeasuredOnce | None = None,
) -> RunConfig:
    """Return the configuration with a precision for ``auto``, where one is recorded or compared.

    Args:
        config: The experiment.
        data: Its prepared data.
        processes: All of them decide the same.
        recorded: State of the checkpoint to resume from, if any.
        measured_once: Keeps what is compared, until there is a checkpoint.
    """
    if config.training.precision != "auto":
        return config
    if recorded is not None:
        was, device = recorded["machine"], choose_device(config.training.device)
        is_same = was["device"] == machine(device)["device"]
        is_possible = was.get("precision") in precisions_to_compare(device)
        return with_precision(config, was["precision"]) if is_same and is_possible else config
    names = processes.share(to_compare(config, data))
    if not names:
        return config

    def measure() -> dict[str, Any]:
        return processes.share(asdict(compare_precisions(names, config, data)))

    def is_whole(record: Any) -> bool:
        return Comparison.recorded(record) is not None

    found = measured_once("precision", measure, is_whole) if measured_once else measure()
    comparison = Comparison(**found)
    if processes.rank == 0:
        logger.info("Compared before the first update: %s", comparison)
    return with_precision(config, comparison.chosen)


def _run(
    config: RunConfig, processes: Processes, stop: StopSignal, log: RunLog, **resume: bool
) -> TrainingSummary:
    """Do one process's part of a training, from its checkpoint to its end."""
    run_dir, is_first = config.run_dir, processes.rank == 0
    data = PreparedData.open(config.prepared_dir)
    checkpoint = load_newest(run_dir, processes, strict=resume["strict"])
    with stop.ending_at_once():  # compiling takes minutes
        setup, record, measured_once = _build(config, data, checkpoint, processes)
    notes, warned = _begin(config, setup, checkpoint, record, exact=resume["exact"])
    progress = Progress()
    if checkpoint is not None:
        progress = Progress.resumed(checkpoint.state, setup.batch.accumulate)
    shared_stop = SharedStop(stop, processes)
    validator = Validator(setup, shared_stop)
    plan_budget(setup, progress, measured_once, shared_stop, validator)
    reporter = ReporterList()
    if is_first:
        for text in () if checkpoint else _advice(setup, progress.total_steps):
            logger.warning(text)
        tidy_run_folder(run_dir, checkpoint)
        changed = write_run_files(run_dir, config, data.tokenizer_dir)
        unsaid = [line for line in changed if checkpoint and line not in warned]
        notes += [f"setting changed since the last start: {line}" for line in unsaid]
        reporter = make_reporters(config, log, progress)
    try:
        trainer = Trainer(
            setup, progress, validator=validator, record=record, reporter=reporter, stop=stop
        )
        if checkpoint is not None:
            trainer.restore(checkpoint)
        for text in notes:
            reporter.report(Event(progress.step, text))
        text = f"{progress.describe()}: {setup.describe()}"
        facts = setup.facts() | {"total_steps": progress.total_steps}
        reporter.report(Event(progress.step, text, "start", facts))
        begun = progress.step
        trained = trainer.run()
        if is_first and trained.step == begun and trained.reason != "signal":
            logger.info(_ended(config, trained))
        if is_first and trained.reason != "signal":
            logger.info("the weights are saved; measuring confidence (validation)")
            with stop.ending_at_once(_UNMEASURED):
                make_shortlist(run_dir, data)
        summary = average_at_end(setup, trained, validator, reporter)
        if is_first and trained.reason != "signal":
            with stop.ending_at_once(_UNMEASURED):
                calibrate_confidence(run_dir, data, partial(_translator, config))
        return summary
    finally:
        reporter.close()


def _ended(config: RunConfig, trained: TrainingSummary) -> str:
    """Say that no update was left to make, and how to make more."""
    limits = ("patience",) if trained.reason == "patience" else _LIMITS
    set_ = {key: value for key in limits if (value := getattr(config.training, key))}
    longer = " ".join(f"--set training.{key}={2 * value}" for key, value in set_.items())
    return f"training had ended at step {trained.step:,}; the same command with {longer} goes on"


def _advice(setup: TrainingSetup, total_steps: int | None) -> Iterator[str]:
    """Yield what looks wrong, by the number of updates that an epoch really has."""
    in_epoch, config = setup.loader.updates_per_epoch(), setup.config
    known = replace(Plan.estimate(config), total_steps=total_steps, updates_per_epoch=in_epoch)
    return advise(config, known)


def _translator(config: RunConfig) -> Translator:
    """Return the best model of a run that has ended."""
    training = config.training
    return Translator.load(
        config.run_dir, engine="torch", device=training.device, threads=training.threads
    )


def _build(
    config: RunConfig, data: PreparedData, checkpoint: Checkpoint | None, processes: Processes
) -> tuple[TrainingSetup, dict[str, Any], MeasuredOnce]:
    """Return what trains, what its checkpoints record, and what is measured before the first."""
    training, batch = config.training, config.batch
    known = identity(
        config,
        data_hash=data.manifest.data_hash,
        vocab_hash=data.manifest.vocab_hash,
        num_processes=processes.size,
    )
    conditions = {
        "identity": known,
        "machine": machine(choose_device(training.device)),
        "compile": training.compile,
        "activation_checkpointing": training.activation_checkpointing,
    }
    measured_once = MeasuredOnce(config.run_dir, conditions, processes)
    recorded = checkpoint.state if checkpoint is not None else None
    config = _decided(config, data, processes, recorded, measured_once)
    if batch.max_tokens == "auto":  # a resumed run keeps its numbers
        if checkpoint is not None:
            accumulate = reshared(checkpoint.state, processes.size)
            found = checkpoint.state["batch"] | {"accumulate": accumulate}
        else:
            found = measured_once("batch", lambda: _fitted(config, data, processes).model_dump())
        batch = BatchConfig.model_validate(found)
    setup = TrainingSetup.build(config, batch, data, processes)
    return setup, {"identity": known} | setup.record(), measured_once


def _begin(
    config: RunConfig,
    setup: TrainingSetup,
    checkpoint: Checkpoint | None,
    record: Mapping[str, Any],
    *,
    exact: bool,
) -> tuple[list[str], str]:
    """Check that the run may be resumed; or begin with the weights of another model.

    Returns:
        Notes for the log, and the warnings that were given.
    """
    start_from = config.training.start_from
    if checkpoint is not None:
        found = check_resumable(checkpoint.state, record, run_dir=config.run_dir, exact=exact)
        for warning in found if setup.updater.processes.rank == 0 else ():
            logger.warning(warning)
        return [], "\n".join(found)
    if start_from is not None:
        start = load_model(start_from)
        notes = [f"begins with the weights of {start_from}", *start_notes(config, start)]
        setup.updater.optimizer.load_weights(start.model.state_dict())
        return notes, ""
    return [], ""
