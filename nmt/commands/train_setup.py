"""Build model, optimizer, loader and validation of `nmt train` from the configuration."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from nmt.checkpoint.files import ADAPTER, AdapterRecord, Checkpoint
from nmt.checkpoint.model_folder import CONFIG, find_model, load_folder_config, read_weights
from nmt.checkpoint.run import identity, machine, refuse_other_keys, reshared
from nmt.commands.config import with_metric
from nmt.config.data import BatchConfig, CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_names, valid_names
from nmt.data.loader import Loader
from nmt.data.plan import build_stages, epoch_weights
from nmt.data.prepare_report import KEPT, READ
from nmt.data.prepared import PreparedData
from nmt.data.resegment import NoiseAdder, Resegment, Resegmenter, in_turn
from nmt.device import own_cores
from nmt.device.compilation import Compilation, compile_layers, pays
from nmt.device.device import choose_device, is_out_of_memory, seed_rank
from nmt.device.distributed import Processes
from nmt.device.precision import choose_precision
from nmt.errors import CheckpointError, ConfigError, DeviceError
from nmt.files.atomic import write_errors
from nmt.inference.direction import Languages
from nmt.inference.request import Request
from nmt.inference.translator import TranslationOptions
from nmt.metrics.metric import label_of, lower_is_better, split_argument
from nmt.model.transformer import build_model, count_parameters
from nmt.registry import Registry, load_attribute
from nmt.text.subword_dropout import SubwordDropout
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.training.checkpoints import Progress
from nmt.training.events import Console, Event, JsonLines, Reporter, ReporterList, RunLog
from nmt.training.losses import LOSSES, loss_name
from nmt.training.optimizer import build_optimizer, freeze
from nmt.training.processes import StopSignal
from nmt.training.report import HtmlReport
from nmt.training.timing import TrainingSetup, fit_batches
from nmt.training.update import Updater
from nmt.training.validation import COMMAND, HeldOutText, ValidationSet, Validator, fixed_batches

# Keys of the model section that may differ when weights are loaded from another model.
_REGULARISATION = ("preset", "dropout", "attention_dropout", "activation_dropout", "word_dropout")
_MOST_WORKERS = 4
_ADAPT = "nmt.extras.adaptation.lora:adapt"
_PARTIAL = "nmt.extras.adaptation.start:initial_weights"
# Names in `training.trackers` -> functions from the configuration to a reporter.
TRACKERS = Registry[Callable[[RunConfig], Reporter]]("tracker")


def build(
    config: RunConfig,
    data: PreparedData,
    processes: Processes,
    stop: StopSignal,
    checkpoint: Checkpoint | None = None,
) -> TrainingSetup:
    """Create model, optimizer, loader and validation, and seed the random generators.

    Args:
        config: The configuration.
        data: The prepared data.
        processes: The training processes.
        stop: Records signals, which interrupt a validation.
        checkpoint: Checkpoint to resume from. It contains the batch size if that was measured.
    """
    config = with_metric(config)
    training, corpora, validation = config.training, config.data, config.training.validation
    batch = config.batch
    if checkpoint is not None:
        present = identity(config, data_hash="", vocab_hash="")
        refuse_other_keys(checkpoint.state["identity"], present, config.run_dir)
    if checkpoint is not None and batch.max_tokens == "auto":
        own = {"gradient_accumulation": reshared(checkpoint.state, processes.size)}
        batch = BatchConfig.model_validate(checkpoint.state["batch"] | own)
    try:
        updater, adapter = _updater(config, data, processes, checkpoint)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        fix = "Choose a smaller model.preset or tokenizer.vocab_size, set training.optimizer.kind "
        fix += "to adafactor, or use a device with more memory."
        problem = "Out of memory while building the model and its optimizer."
        raise DeviceError(problem, fix=fix) from error
    sizes = np.bincount(data.train.corpus, minlength=len(corpora.training)).tolist()
    longest, bos = config.filters.max_length, config.model.source_bos
    is_error = lower_is_better(validation.metric_name)
    # Half of the cores. The other half queues work on the device and writes checkpoints.
    num_workers = min(_MOST_WORKERS, max(1, own_cores() // 2)) if updater.pace.uses_threads else 0
    loader = Loader(
        data.train,
        batch,
        weights=epoch_weights(corpora, sizes),
        stages=build_stages(corpora, sizes, lower_is_better=is_error),
        seed=training.seed,
        rank=processes.rank,
        num_ranks=processes.size,
        resegment=_redrawn_text(config, data),
        source_bos=bos,
        num_workers=num_workers,
        longest=longest + 1 + bos if updater.precision.repeats_sizes else None,
        keys=[*corpora.corpora],  # training corpora come first
    )
    seed_rank(training.seed, processes.rank)  # processes draw different dropout masks
    loader = fit_batches(updater, loader, longest + bos)
    of_valid = replace(loader, store=data.valid, resegment=None)
    sets = _validation_sets(config, data, updater, of_valid)
    validator = Validator(updater, sets, stop, validation.choose_by)
    starts_pretrained = training.init_from is not None
    is_forgetful = starts_pretrained and not all(held_out.is_choosing for held_out in sets)
    return TrainingSetup(training, data, updater, loader, validator, is_forgetful, adapter)


def _validation_sets(
    config: RunConfig, data: PreparedData, updater: Updater, loader: Loader
) -> list[ValidationSet]:
    """Return the validation sets. ``loader`` reads all of them; their corpora have numbers."""
    validation, processes, sets = config.training.validation, updater.processes, []
    sides, most = (data.valid_source, data.valid_target), validation.max_sentences
    corpora = config.data.validation
    for number, (name, corpus) in enumerate(zip(valid_names(config.data), corpora, strict=True)):
        rows, text = np.flatnonzero(data.valid.corpus == number), None
        direction = config.direction(corpus)
        if any(sides):
            sources, references = ([side[row] for row in rows[:most]] for side in sides)
            text = HeldOutText(
                sources,
                references,
                load_tokenizers(data.tokenizer_dir),
                TranslationOptions(
                    # Without slow options that hardly change the scores.
                    decoding=config.decoding.plain(validation.beam_size),
                    max_length=config.filters.max_length,
                    retry=False,
                    languages=languages_of(config),
                    **_tags_of(config, corpus),
                ),
                language=direction.target,
                metric=str(validation.metric),
                device=str(updater.device),
                command=validation.command,
            )
            if processes.rank == 0:  # report a missing package, model or program before training
                text.scorers  # noqa: B018
                if validation.metric == COMMAND:
                    text.run_command(text.references, is_trial=True)
        batches = fixed_batches(loader, processes, rows)
        is_choosing = number < len(config.data.valid)
        sets.append(ValidationSet(name, direction, len(rows), batches, text, is_choosing))
    return sets


def languages_of(config: RunConfig) -> Languages:
    """Return the languages of the model; none without language tags, which no line then gets."""
    return Languages.of(config.inference) if config.language_tags else Languages()


def _tags_of(config: RunConfig, corpus: CorpusConfig) -> dict[str, Any]:
    """Return the tags that a corpus has in the prepared data, as fields of a `Request`."""
    direction = config.direction(corpus) if config.language_tags else (None, None)
    return {"source_language": direction[0], "target_language": direction[1], "tag": corpus.tag}


def choosing_lines(config: RunConfig, data: PreparedData) -> tuple[list[Request], list[str]]:
    """Return source and reference lines of the validation sets that choose the best checkpoint."""
    corpora, numbers = config.data.valid, data.valid.corpus.tolist()
    tags = [_tags_of(config, corpora[number]) for number in numbers if number < len(corpora)]
    # The sets of `data.valid` come first.
    requests = [Request(line, **each) for line, each in zip(data.valid_source, tags, strict=False)]
    return requests, data.valid_target[: len(requests)]


def _updater(
    config: RunConfig, data: PreparedData, processes: Processes, checkpoint: Checkpoint | None
) -> tuple[Updater, AdapterRecord | None]:
    """Return an updater with a new model and its optimizer, and `TrainingSetup.adapter`."""
    training, vocab, adapter = config.training, data.manifest, None
    device = choose_device(training.device)
    precision = choose_precision(training.precision, device)
    torch.manual_seed(training.seed)
    model = build_model(config.model, vocab.source_vocab_size, vocab.target_vocab_size)
    freeze(model, training.freeze)
    if training.lora is not None:
        recorded = checkpoint and checkpoint.state[ADAPTER]
        adapter = load_attribute(_ADAPT)(model, config, recorded)
    model = model.to(device)
    model.recompute = training.activation_checkpointing
    optimizer = build_optimizer(
        model,
        training.optimizer,
        precision.weight_dtype,
        ema_decay=training.ema_decay,
        frozen_dtype=precision.dtype if adapter else None,
    )
    parts = model, optimizer, precision, LOSSES[loss_name(training)](training)
    clip_norm = training.optimizer.clip_norm
    return Updater(*parts, clip_norm=clip_norm, processes=processes), adapter


def _redrawn_text(config: RunConfig, data: PreparedData) -> Resegment | None:
    """Return a function that draws noise and BPE-dropout in each epoch; None if both are off.

    Raises:
        ConfigError: The vocabulary does not allow BPE-dropout.
    """
    seed, longest = config.training.seed, config.filters.max_length
    rates, bpe_dropout = [c.noise.rates for c in config.data.training], config.batch.bpe_dropout
    changes: list[Resegment] = []
    if any(rates) or bpe_dropout:
        tokenizers = load_tokenizers(data.tokenizer_dir)
        if any(rates):
            ends = np.searchsorted(data.train.corpus, np.arange(len(rates)), side="right")
            changes.append(NoiseAdder(tokenizers, ends, rates, seed=seed, longest=longest))
        if bpe_dropout:
            source = _subword_dropout(tokenizers.source, bpe_dropout)
            target = (
                source if tokenizers.is_joint else _subword_dropout(tokenizers.target, bpe_dropout)
            )
            changes.append(Resegmenter((source, target), seed=seed, longest=longest))
    return partial(in_turn, changes) if changes else None


def _subword_dropout(tokenizer: Tokenizer, rate: float) -> SubwordDropout:
    pieces, scores, is_normal = zip(*tokenizer.pieces(), strict=True)
    # In BPE, the n-th merge has the score -n. Other kinds of vocabulary have probabilities.
    if any(score % 1 for score in scores):
        problem = "batch.bpe_dropout needs a BPE vocabulary, but this vocabulary is not BPE."
        raise ConfigError(problem, fix="Set batch.bpe_dropout to 0, or tokenizer.kind to bpe.")
    return SubwordDropout(pieces, scores, is_normal, rate)


def run_record(config: RunConfig, setup: TrainingSetup, *, is_compiled: bool) -> dict[str, Any]:
    """Return the data that checkpoints store, to be compared when training resumes."""
    manifest, updater = setup.data.manifest, setup.updater
    hashes = {"data_hash": manifest.data_hash, "vocab_hash": manifest.vocab_hash}
    arithmetic = {"precision": updater.precision.name, "compiled": is_compiled}
    return {
        "identity": identity(config, num_processes=updater.processes.size, **hashes),
        "machine": machine(updater.device) | arithmetic,
        "batch": setup.loader.config.model_dump(mode="json"),
        ADAPTER: setup.adapter,
    }


def compile_model(setup: TrainingSetup) -> Compilation:
    """Compile the layers, as `training.compile` configures."""
    updater, loader = setup.updater, setup.loader
    num_parameters = sum(p.numel() for p in updater.model.parameters())
    num_tokens = int(loader.config.max_tokens or 0) * loader.config.gradient_accumulation
    return compile_layers(
        setup.training.compile,
        updater.device,
        switch=updater.model.compile_layers,
        warm_up=lambda: updater.warm_up(loader.batch(loader.plan(0)[0])),
        is_worth_it=pays(setup.training.max_steps, num_parameters, num_tokens),
    )


def describe_start(config: RunConfig, setup: TrainingSetup, note: str, progress: Progress) -> Event:
    """Return the event of the start: model size, data, device and schedule."""
    schedule, updater, pairs = config.training.schedule, setup.updater, len(setup.data.train)
    counts = [setup.data.manifest.counts.get(x, {}) for x in corpus_names(config.data.training)]
    reasons = sum(map(Counter, counts), Counter[str]()).most_common()
    share = schedule.warmup_ratio and f"{schedule.warmup_ratio:.2%} of the updates"
    rise = f"{share or f'{schedule.warmup_steps:,} updates'} of warm-up to {schedule.peak_lr:g}"
    sizes, threads = count_parameters(updater.model), torch.get_num_threads()
    metric = setup.training.validation.metric_name
    facts = {
        "device": str(updater.device),
        "precision": updater.precision.name,
        "threads": threads,
        "processes": updater.processes.size,
        "parameters": sum(sizes.values()),
        "schedule": f"{schedule.shape}: {rise}",
        "metric": metric,
        "label_smoothing": config.training.label_smoothing,
        "pairs": pairs,
        **_facts_of_sets(setup.validator),
        "dropped": {name: number for name, number in reasons if name not in (READ, KEPT)},
        "total_steps": progress.total_steps,
    }
    parts = ", ".join(f"{name} {number:,}" for name, number in sizes.items())
    where = f"{updater.precision.name} on {updater.device}, CPU threads: {threads}"
    if (size := updater.processes.size) > 1:
        where += f" in each of {size} processes"
    text = f"{sum(sizes.values()):,} parameters ({parts}), {pairs:,} sentence pairs, {where}"
    if note:
        text += f", {note}"
    text = f"{progress.describe()}: {text}; {label_of(metric)} selects the best checkpoint"
    return Event(progress.step, text, "start", facts)


def _facts_of_sets(validator: Validator) -> dict[str, Any]:
    """Return what the report shows about several validation sets; empty for one set."""
    if len(validator.sets) == 1:
        return {}
    several = sum(held_out.is_choosing for held_out in validator.sets) > 1
    sets = {
        x.name: {"direction": str(x.direction), "pairs": x.num_pairs, "is_choosing": x.is_choosing}
        for x in validator.sets
    }
    return {"combination": validator.choose_by if several else None, "sets": sets}


def init_from(config: RunConfig, setup: TrainingSetup) -> list[str]:
    """Load the weights of `training.init_from`, if set; return notes for the log."""
    folder, optimizer = config.training.init_from, setup.updater.optimizer
    if folder is None:
        return []
    start = find_model(folder)
    notes = [f"starting with the weights of {folder}"]
    if config.training.lora is not None:  # `_updater` has loaded them
        kept, sizes = optimizer.parameters.trained_size, count_parameters(setup.updater.model)
        share = f"{kept:,} parameters of adapters ({kept / sum(sizes.values()):.2%} of all)"
        notes.append(f"training {share}; the other weights are frozen and are not saved")
    elif config.training.init_differences:
        tokenizers, new = load_tokenizers(setup.data.tokenizer_dir), optimizer.weights()
        weights, table = load_attribute(_PARTIAL)(config, read_weights(start), tokenizers, new)
        optimizer.load_weights(weights)
        notes.append(f"origin of the weights:\n  {table}")
    else:
        optimizer.load_weights(read_weights(start).model.state_dict())
    was, now = start.config.languages, config.inference.languages
    if was != now and not config.language_tags:
        text = f"from {was[0]} to {was[1]}, but this run translates from {now[0]} to {now[1]}"
        notes.append(f"{folder} was trained to translate {text}")
    size = start.tokenizers.target.vocab_size
    is_kept = config.training.keeps_vocabulary and "tokenizer" in config.model_fields_set
    if is_kept and config.tokenizer.vocab_sizes[1] != size:
        text = f"using the vocabulary of {folder} (size {size:,})"
        notes.append(f"{text}; the tokenizer section has no effect")
    return notes


def check_start(config: RunConfig) -> None:
    """Check that the model of `training.init_from` matches, before the data are prepared.

    Raises:
        ConfigError: The ``model`` sections differ more than `training.init_differences` says.
    """
    where = config.training.init_from
    if where is None or not (where / CONFIG).is_file():  # `init_from` reports it later
        return
    was, now = (c.model.model_dump() for c in (load_folder_config(where), config))
    differences = config.training.init_differences
    new_sizes = ("encoder", "decoder") if "layers" in differences else differences
    allowed = {*_REGULARISATION, *(f"{side}_layers" for side in new_sizes)}
    keys = [key for key in now if key not in allowed and was[key] != now[key]]
    if keys:
        problem = f"The model in {where} (training.init_from) has different settings:"
        lines = [f"model.{x}: {was[x]} in that model, {now[x]} in this configuration" for x in keys]
        fix = "Remove the model section, so that the settings of that model are used."
        if all(key.endswith("_layers") for key in keys):
            fix = "Set training.init_differences to [layers], or remove these keys."
        raise ConfigError("\n  ".join([problem, *lines]), fix=fix)


def check_tools(config: RunConfig) -> None:
    """Check that metric name, program and trackers exist, before the data are prepared.

    Raises:
        ConfigError: The metric is unknown, or a package or the program is missing.
    """
    validation = config.training.validation
    if validation.metric not in (None, "loss", COMMAND):
        split_argument(validation.metric)
    if validation.command and shutil.which(validation.command[0]) is None:
        problem = f"training.validation.command: there is no program {validation.command[0]}."
        raise ConfigError(problem, fix="Install the program, or correct the command.")
    if config.training.lora is not None:
        load_attribute(_ADAPT)  # the extra may be missing
    # Only these: others may start something when they are made.
    for name in config.training.trackers:
        if TRACKERS.is_built_in(name):
            TRACKERS[name](config)


def make_reporters(
    config: RunConfig, log: RunLog, progress: Progress, trackers: Sequence[Reporter]
) -> ReporterList:
    """Return the reporters of a run: reporters of files, the console, and the trackers.

    Raises:
        CheckpointError: The files cannot be written.
    """
    run_dir, start = config.run_dir, progress.step
    # A new start also repeats the validation before the first update, at step 0.
    last = max(progress.history, default=0 if start else -1)
    fix = "Set run_dir to a folder you can write to, or free disk space."
    with write_errors(run_dir, CheckpointError, fix=fix):
        return ReporterList([
            JsonLines(run_dir / "metrics.jsonl", start, last),
            JsonLines(run_dir / "starts.jsonl", start, last, kinds=("start",)),
            log.open(run_dir / "log.txt"),
            Console(start, progress.total_steps, lambda: progress.step),
            HtmlReport(run_dir, config.name),  # reads the files of the first two
            *trackers,
        ])  # fmt: skip
