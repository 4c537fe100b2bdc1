"""The configuration and prepared data -> a run folder with checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.files import (
    Checkpoint,
    clean_partial,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    set_damaged_aside,
)
from nmt.checkpoint.model_folder import EXTRAS, forget_extras
from nmt.checkpoint.run import (
    check_resumable,
    data_check,
    identity,
    machine,
    write_run_files,
)
from nmt.config.data import BatchConfig
from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedManifest
from nmt.engine.device import choose_device, deterministic, prepare_process
from nmt.engine.distributed import PEER_LOST, PeerLostError, Processes, join, tell_launcher
from nmt.files.lock import run_lock
from nmt.metrics.metric import check_metric
from nmt.model.transformer import count_parameters
from nmt.recipes.prepare import prepare
from nmt.runtime.make_shortlist import make_shortlist
from nmt.training.batch_fit import fit_batches
from nmt.training.budget import MeasuredOnce, time_budget, updates_in_all
from nmt.training.checkpoint_saver import CheckpointSaver
from nmt.training.decoding_validator import decoding_validator
from nmt.training.final_average import average_at_end
from nmt.training.fine_tuning import check_start, start_notes
from nmt.training.html_report import HtmlReport
from nmt.training.progress import TrainingSummary
from nmt.training.report import AllReporters, NoteReport, Reporter, make_reporter
from nmt.training.schedule import build_schedule
from nmt.training.setup import TrainingSetup
from nmt.training.signals import Interrupted, SharedStop, StoppedBySignal, StopSignal
from nmt.training.tensorboard import TensorBoard
from nmt.training.timing import measure_update_seconds
from nmt.training.trainer import Surroundings, Trainer
from nmt.training.validation import Validator
from nmt.translation.guard_calibration import calibrate_guard

_SECONDS_TO_TELL = 5


def train(
    config: RunConfig, *, quiet: bool = False, strict_resume: bool = False, exact: bool = False
) -> TrainingSummary:
    """Train, or go on training, in ``config.run_dir``; prepare the data first if need be.

    Args:
        config: The experiment.
        quiet: Show no progress.
        strict_resume: Refuse to fall back when the newest checkpoint is damaged.
        exact: Refuse to resume where the result would not be the same to the bit.

    Raises:
        NmtError: Data, configuration, checkpoint or device do not allow it; see the message.
        StoppedBySignal: The process was asked to stop; everything is saved.
    """
    if config.training.validation.metric != "loss":
        check_metric(config.training.validation.metric)
    prepare_process(config.training.threads)
    processes = join()
    try:
        with run_lock(config.run_dir) if processes.rank == 0 else nullcontext():
            if processes.rank == 0:
                _prepare(config, processes.size, quiet=quiet)
            processes.wait()
            device, wanted = choose_device(config.training.device), config.training.deterministic
            with StopSignal() as stop, deterministic(device, wanted=wanted):
                run = _Run(config, stop, processes, quiet=quiet, strict_resume=strict_resume)
                summary = run.train(exact=exact)
            numbers = [number for number in processes.gather(stop.number) if number is not None]
    except Interrupted as interrupted:  # before or after all updates: nothing is to be saved
        processes.leave()
        raise StoppedBySignal(interrupted.number) from None
    except Exception as error:
        is_told = isinstance(error, PeerLostError) and tell_launcher(error)
        if not is_told and processes.is_first_to_fail():
            raise
        if not is_told:  # the launcher ends this process as soon as the one that tells has ended
            time.sleep(_SECONDS_TO_TELL)
        raise SystemExit(PEER_LOST) from None
    processes.leave()
    if numbers:
        raise StoppedBySignal(numbers[0])
    return summary


def _prepare(config: RunConfig, num_processes: int, *, quiet: bool) -> None:
    """Prepare the data if need be: it may take long, and stops at once when told to."""
    if not list_checkpoints(config.run_dir):
        check_start(config)
    prepared = prepare(config, check=data_check(config, num_processes))
    if not quiet and not prepared.up_to_date:
        sys.stderr.write(prepared.as_text() + "\n")


class _Run:
    """One process's part of a run: everything wired together."""

    def __init__(
        self,
        config: RunConfig,
        stop: StopSignal,
        processes: Processes,
        *,
        quiet: bool,
        strict_resume: bool,
    ) -> None:
        self.config, self.stop, self.quiet = config, stop, quiet
        self.processes, self.shared_stop = processes, SharedStop(stop, processes)
        self.warnings: list[str] = []
        self.checkpoint = self._newest(strict=strict_resume)
        manifest = PreparedManifest.read(config.prepared_dir)
        self.identity = identity(
            config,
            data_hash=manifest.data_hash,
            vocab_hash=manifest.vocab_hash,
            num_processes=processes.size,
        )
        conditions = {
            "identity": self.identity,
            "machine": machine(choose_device(config.training.device)),
            "compile": config.training.compile,
            "activation_checkpointing": config.training.activation_checkpointing,
        }
        self.measured_once = MeasuredOnce(config.run_dir, conditions, processes)
        state = self.checkpoint.state if self.checkpoint else {}
        self.batch = self._batch(state)
        setup = TrainingSetup.build(config.model_copy(update={"batch": self.batch}), processes)
        self.data, self.device, self.loader = setup.data, setup.device, setup.loader
        self.updater, self.optimizer = setup.updater, setup.updater.optimizer
        self.compilation = setup.compilation
        self.model = self.updater.model
        self.record = {
            "identity": self.identity,
            "machine": machine(self.device)
            | {"precision": self.updater.precision.name, "compiled": self.compilation.is_on},
            "batch": self.batch.model_dump(mode="json"),
        }

    def _batch(self, state: Mapping[str, Any]) -> BatchConfig:
        """Find numbers for ``auto`` once; a run that goes on keeps them."""
        if self.config.batch.max_tokens == "auto" and "batch" in state:
            return BatchConfig.model_validate(state["batch"])
        if self.config.batch.max_tokens != "auto":
            return self.config.batch
        found = self.measured_once(
            "batch",
            lambda: fit_batches(self.config, self.processes).model_dump(mode="json"),
        )
        return BatchConfig.model_validate(found)

    def train(self, *, exact: bool) -> TrainingSummary:
        """Resume if there is something to resume, and train to the end."""
        warnings, checkpoint = self.warnings, self.checkpoint
        run_dir, is_first = self.config.run_dir, self.processes.rank == 0
        if checkpoint is not None:
            warnings += check_resumable(checkpoint.state, self.record, run_dir=run_dir, exact=exact)
        else:
            self._fine_tune()
        recorded = checkpoint.state["progress"].get("timed") if checkpoint else None
        timed = time_budget(self.config.training.max_minutes, recorded, self._update_seconds)
        total_steps = updates_in_all(self.config.training, self.loader, timed)
        if is_first:
            clean_partial(run_dir)
            if checkpoint is None:  # what an earlier run with other data has left here
                forget_extras(run_dir, *EXTRAS)
            else:
                aside = set_damaged_aside(run_dir, checkpoint.step)
                warnings += [f"kept, to be looked at and removed: {place}" for place in aside]
            changes = write_run_files(run_dir, self.config, self.data.tokenizer_dir)
            if checkpoint is not None:
                warnings += [f"setting changed since the last start: {line}" for line in changes]
        start = checkpoint.step if checkpoint else 0
        reporter = self._reporter(checkpoint, total_steps)
        validator = self._validator()
        try:
            trainer = self._trainer(reporter, validator, total_steps)
            if checkpoint is not None:
                trainer.resume(
                    model=checkpoint.model, optimizer=checkpoint.optimizer, state=checkpoint.state
                )
            trainer.progress.total_steps, trainer.progress.timed = total_steps, timed
            for text in [*warnings, self._greeting(start, total_steps)]:
                reporter.report(NoteReport(start, text))
            trained = trainer.run()
            is_whole = is_first and trained.reason != "signal"
            if is_whole:
                make_shortlist(run_dir, self.data)
                calibrate_guard(run_dir, self.data)
            return average_at_end(
                self.config,
                trained,
                optimizer=self.optimizer,
                validator=validator,
                processes=self.processes,
                note=lambda text: reporter.report(NoteReport(trained.step, text)),
            )
        finally:
            reporter.close()

    def _newest(self, *, strict: bool) -> Checkpoint | None:
        """Load the newest whole checkpoint; the first process says which that is."""
        found = None
        if self.processes.rank == 0:
            warn = self.warnings.append
            found = newest_checkpoint(self.config.run_dir, strict=strict, warn=warn)
        found = self.processes.share(found)
        checkpoint = load_checkpoint(found) if found else None
        self.processes.wait()  # the first process tidies up next
        return checkpoint

    def _reporter(self, checkpoint: Checkpoint | None, total_steps: int | None) -> Reporter:
        if self.processes.rank:
            return AllReporters([])
        history = checkpoint.state["progress"]["history"] if checkpoint else []
        run_dir, start = self.config.run_dir, checkpoint.step if checkpoint else 0
        reporters: list[Reporter] = [
            make_reporter(
                run_dir,
                start=start,
                total=total_steps,
                quiet=self.quiet,
                last_validation=history[-1][0] if history else 0,
            ),
            HtmlReport(run_dir, self.config.name),
        ]
        if self.config.training.tensorboard:
            reporters.append(TensorBoard(run_dir, start))
        return AllReporters(reporters)

    def _fine_tune(self) -> None:
        """Begin with the weights of another model, if the configuration says so.

        Raises:
            ConfigError: It is of another shape.
        """
        folder = self.config.training.start_from
        if folder is None:
            return
        start = load_model(folder)
        self.warnings += start_notes(self.config, start)
        self.optimizer.load_weights(start.model.state_dict())

    def _update_seconds(self) -> float:
        """Measure an update, but for a start before this one that has."""
        stop = self.shared_stop
        seconds: float = self.measured_once(
            "update_seconds",
            lambda: measure_update_seconds(
                self.updater, self.optimizer, self.loader, check=lambda: stop.gather(stop.check)
            ),
        )
        return seconds

    def _greeting(self, start: int, total_steps: int | None) -> str:
        sizes = count_parameters(self.model)
        parts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        if total_steps is not None and start >= total_steps:
            where = f"at step {start:,}, and training ends at step {total_steps:,}"
        else:
            where = f"resuming at step {start:,}" if start else "training"
            where += f" to step {total_steps:,}" if total_steps else " until patience ends"
        many = f" in each of {self.processes.size} processes" if self.processes.size > 1 else ""
        return (
            f"{where}: {sum(sizes.values()):,} parameters ({parts}), "
            f"{len(self.data.train):,} pairs, {self.updater.precision.name} on {self.device}, "
            f"{torch.get_num_threads()} threads{many}{self._compiled()}{self._fitted()}"
        )

    def _compiled(self) -> str:
        remark = self.compilation.remark
        return f", {remark}" if remark else ""

    def _fitted(self) -> str:
        batch = self.batch
        if self.config.batch.max_tokens != "auto":
            return ""
        return f"; batches of {batch.max_tokens:,} tokens fit, {batch.accumulate} to an update"

    def _validator(self) -> Validator:
        text_validator = decoding_validator(
            self.config,
            self.data,
            self.model,
            processes=self.processes,
            stop=self.shared_stop,
        )
        return Validator(
            self.updater,
            self.data.valid,
            max_tokens=int(self.batch.max_tokens),
            text_validator=text_validator,
            stop=self.shared_stop,
        )

    def _trainer(
        self, reporter: Reporter, validator: Validator, total_steps: int | None
    ) -> Trainer:
        config = self.config
        saver = CheckpointSaver(
            config.run_dir,
            config,
            self.record,
            lambda step, text: reporter.report(NoteReport(step, text)),
        )
        schedule = build_schedule(
            config.training.schedule, model_dim=config.model.model_dim, total_steps=total_steps
        )
        return Trainer(
            config.training,
            updater=self.updater,
            optimizer=self.optimizer,
            loader=self.loader,
            schedule=schedule,
            surroundings=Surroundings(
                validator=validator, saver=saver, reporter=reporter, stop=self.stop
            ),
        )
