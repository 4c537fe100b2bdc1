"""The configuration and prepared data -> a run folder with checkpoints."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.files import (
    clean_partial,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    write_best,
)
from nmt.checkpoint.lock import RunLock
from nmt.checkpoint.retention import expired
from nmt.checkpoint.run import check_resumable, identity, machine, write_run_files
from nmt.commands.prepare import prepare
from nmt.config.run import RunConfig
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.engine.device import choose_device, prepare_process
from nmt.engine.precision import choose_precision
from nmt.errors import CheckpointError
from nmt.metrics.sacrebleu import MetricOptions, corpus_score
from nmt.model.factory import build_model, count_parameters
from nmt.text.tokenizer import load_tokenizers
from nmt.training.optimizer import FlatAdamW
from nmt.training.report import NoteReport, Reporter, make_reporter
from nmt.training.schedule import build_schedule
from nmt.training.signals import Interrupted, StoppedBySignal, StopSignal
from nmt.training.stopping import History
from nmt.training.trainer import Surroundings, Trainer, TrainingSummary, measure_update_seconds
from nmt.training.update import Updater
from nmt.training.validation import TextScores, Validator
from nmt.translation.translator import Translator

_NUM_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class DecodingValidator:
    """Scores the model's own translations of the validation set. See `TextValidator`."""

    translator: Translator
    source: Sequence[str]
    reference: Sequence[str]
    options: MetricOptions

    def __call__(self) -> TextScores:
        """Translate and score."""
        hypotheses = [result.text for result in self.translator.translate(self.source)]
        bleu, chrf = (
            corpus_score(hypotheses, [self.reference], metric, self.options).value
            for metric in ("bleu", "chrf")
        )
        samples = zip(self.source, hypotheses, self.reference, strict=True)
        return TextScores(bleu, chrf, tuple(samples)[:_NUM_SAMPLES])


@dataclass(frozen=True, slots=True)
class CheckpointSaver:
    """Saves into a run folder, names the best, removes the expired. See `Saver`."""

    run_dir: Path
    config: RunConfig
    record: Mapping[str, Any]
    """Identity and machine, to be compared when the run goes on."""
    note: Callable[[int, str], None]

    def __call__(
        self,
        step: int,
        *,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        state: Mapping[str, Any],
        history: History,
    ) -> str | None:
        """Save; on a full disk stop or go on, as ``training.on_full_disk`` says."""
        training = self.config.training
        try:
            folder = save_checkpoint(
                self.run_dir,
                step,
                model=model,
                optimizer=optimizer,
                state={**state, **self.record},
            )
        except CheckpointError as error:
            if training.on_full_disk == "stop":
                raise
            self.note(step, f"not saved: {error.problem}")
            return None
        try:
            self._tidy(history)
        except OSError as error:  # the checkpoint is whole; the next one makes up for this
            self.note(step, f"best and old checkpoints not brought up to date: {error.strerror}")
        return folder.name

    def _tidy(self, history: History) -> None:
        """Name the best of the checkpoints there are, and remove the expired."""
        training = self.config.training
        present = dict(list_checkpoints(self.run_dir))
        scored = History(tuple(entry for entry in history.entries if entry.step in present))
        if scored.best is not None:
            write_best(self.run_dir, scored.best.step)
        scores = {entry.step: entry.score for entry in scored.entries}
        kept = {"keep_last": training.keep_last, "keep_best": training.keep_best}
        for old in expired(present, scores, **kept):
            remove_checkpoint(present[old])


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
    prepare_process(config.training.threads)
    with RunLock(config.run_dir):
        prepared = prepare(config, quiet=quiet)  # may take long, and stops at once when told to
        if not quiet and not prepared.up_to_date:
            sys.stderr.write(prepared.as_text() + "\n")
        with StopSignal() as stop:
            run = _Run(config, stop, quiet=quiet)
            try:
                summary = run.train(strict_resume=strict_resume, exact=exact)
            except Interrupted as interrupted:  # before the first update: nothing is to be saved
                raise StoppedBySignal(interrupted.number) from None
    if stop.number is not None:
        raise StoppedBySignal(stop.number)
    return summary


class _Run:
    """One process's part of a run: everything wired together."""

    def __init__(self, config: RunConfig, stop: StopSignal, *, quiet: bool) -> None:
        self.config, self.stop, self.quiet = config, stop, quiet
        self.data = PreparedData.open(config.prepared_dir)
        self.device = choose_device(config.training.device)
        manifest = self.data.manifest
        torch.manual_seed(config.training.seed)
        vocab_sizes = (manifest.source_vocab_size, manifest.target_vocab_size)
        self.model = build_model(config.model, *vocab_sizes).to(self.device)
        precision = choose_precision(config.training.precision, self.device)
        self.optimizer = FlatAdamW(self.model, config.training.optimizer, precision.weight_dtype)
        self.updater = Updater(
            self.model,
            self.optimizer,
            precision,
            label_smoothing=config.training.label_smoothing,
            clip_norm=config.training.optimizer.clip_norm,
        )
        self.loader = Loader(
            self.data.train,
            config.batch,
            weights=[corpus.weight for corpus in config.data.train],
            seed=config.training.seed,
        )
        self.record = {
            "identity": identity(
                config, data_hash=manifest.data_hash, vocab_hash=manifest.vocab_hash
            ),
            "machine": machine(self.device) | {"precision": precision.name},
        }

    def train(self, *, strict_resume: bool, exact: bool) -> TrainingSummary:
        """Resume if there is something to resume, and train to the end."""
        warnings: list[str] = []
        run_dir = self.config.run_dir
        found = newest_checkpoint(run_dir, strict=strict_resume, warn=warnings.append)
        checkpoint = load_checkpoint(found) if found else None
        if checkpoint is not None:
            warnings += check_resumable(checkpoint.state, self.record, run_dir=run_dir, exact=exact)
            progress = checkpoint.state["progress"]
            timed = self._time_budget(progress.get("timed"))
        else:
            timed = self._time_budget(None)
        total_steps = self._budget(timed)
        clean_partial(run_dir)
        changes = write_run_files(run_dir, self.config, self.data.tokenizer_dir)
        start = checkpoint.step if checkpoint else 0
        if checkpoint is not None:
            warnings += [f"setting changed since the last start: {change}" for change in changes]
        history = checkpoint.state["progress"]["history"] if checkpoint else []
        reporter = make_reporter(
            run_dir,
            start=start,
            total=total_steps,
            quiet=self.quiet,
            last_validation=history[-1][0] if history else 0,
        )
        try:
            trainer = self._trainer(reporter, total_steps)
            if checkpoint is not None:
                trainer.resume(
                    model=checkpoint.model, optimizer=checkpoint.optimizer, state=checkpoint.state
                )
            trainer.progress.total_steps, trainer.progress.timed = total_steps, timed
            for text in [*warnings, self._greeting(start, total_steps)]:
                reporter.report(NoteReport(start, text))
            return trainer.run()
        finally:
            reporter.close()

    def _time_budget(self, recorded: tuple[float, int] | None) -> tuple[float, int] | None:
        """Return the minutes and the updates they hold.

        These were measured once and are recorded, so that a resumed run ends where one that was
        not stopped does; if the minutes were changed since, the updates are in proportion.
        """
        minutes = self.config.training.max_minutes
        if minutes is None:
            return None
        if recorded is not None:
            recorded_minutes, steps = recorded
            return minutes, max(1, round(steps * minutes / recorded_minutes))
        check = self.stop.check
        seconds = measure_update_seconds(self.updater, self.optimizer, self.loader, check=check)
        return minutes, max(1, math.floor(minutes * 60 / seconds))

    def _budget(self, timed: tuple[float, int] | None) -> int | None:
        """Return the number of updates in all, if it is known."""
        training = self.config.training
        limits = []
        if training.max_steps is not None:
            limits.append(training.max_steps)
        if training.max_epochs is not None:
            epochs = range(training.max_epochs)
            limits.append(sum(self.loader.updates_per_epoch(epoch) for epoch in epochs))
        if timed is not None:
            limits.append(timed[1])
        return min(limits, default=None)

    def _greeting(self, start: int, total_steps: int | None) -> str:
        sizes = count_parameters(self.model)
        parts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        verb = f"resuming at step {start:,}" if start else "training"
        end = f"to step {total_steps:,}" if total_steps else "until patience ends"
        return (
            f"{verb} {end}: {sum(sizes.values()):,} parameters ({parts}), "
            f"{len(self.data.train):,} pairs, {self.updater.precision.name} on {self.device}, "
            f"{torch.get_num_threads()} threads"
        )

    def _trainer(self, reporter: Reporter, total_steps: int | None) -> Trainer:
        config = self.config
        saver = CheckpointSaver(
            config.run_dir,
            config,
            self.record,
            lambda step, text: reporter.report(NoteReport(step, text)),
        )
        validator = Validator(
            self.updater,
            self.data.valid,
            max_tokens=config.batch.max_tokens,
            text_validator=self._text_validator(),
            check=self.stop.check,
        )
        schedule = build_schedule(
            config.training.schedule,
            model_dim=config.model.model_dim,
            total_steps=total_steps,
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

    def _text_validator(self) -> DecodingValidator | None:
        validation = self.config.training.validation
        wanted = validation.max_sentences
        source, reference = self.data.valid_source[:wanted], self.data.valid_target[:wanted]
        if not source:
            return None
        options = self.config.decoding.model_copy(
            update={"beam_size": validation.beam_size, "n_best": 1}
        )
        translator = Translator(
            self.model,
            load_tokenizers(self.data.tokenizer_dir),
            options,
            self.device,
            max_length=self.config.filters.max_length,
            check=self.stop.check,
        )
        return DecodingValidator(translator, source, reference, _metric_options(self.config))


def _metric_options(config: RunConfig) -> MetricOptions:
    """Score by the target language, but with nothing that may not be installed."""
    language = config.target_language
    tokenizer = "char" if language[:2].lower() in ("ja", "ko") else None
    return MetricOptions(target_language=language, tokenize=tokenizer)
