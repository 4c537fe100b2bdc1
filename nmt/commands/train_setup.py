"""Build model, optimizer, loader and validation of `nmt train` from the configuration."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt.checkpoint.files import ADAPTER, AdapterRecord, Checkpoint, checkpoints_dir
from nmt.checkpoint.model_folder import find_model, find_start, read_weights
from nmt.checkpoint.run import (
    changed_settings,
    data_check,
    differing,
    identity,
    machine,
    parts_of,
    recorded_identity,
    reshared,
)
from nmt.commands.config import with_metric
from nmt.config.data import BatchConfig, CorpusConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_names, valid_sets
from nmt.data.loader import Loader
from nmt.data.plan import build_stages, epoch_weights
from nmt.data.prepare_report import KEPT, READ
from nmt.data.prepared import LINKS, PreparedData, PreparedManifest
from nmt.data.resegment import NoiseAdder, Resegment, Resegmenter
from nmt.data.store import ParallelStore
from nmt.data.terms import TermAnnotator
from nmt.device import own_cores
from nmt.device.compilation import Compilation, compile_layers, pays
from nmt.device.device import choose_device, is_out_of_memory, seed_rank
from nmt.device.distributed import Processes
from nmt.device.precision import choose_precision
from nmt.errors import CheckpointError, ConfigError, DeviceError, join_words, shell_command
from nmt.files.atomic import write_errors
from nmt.inference.direction import Languages
from nmt.inference.request import Request
from nmt.inference.translator import TranslationOptions
from nmt.installation import CLONE
from nmt.metrics.metric import label_of, split_argument
from nmt.metrics.result import hash_references
from nmt.model.transformer import build_model, count_parameters
from nmt.registry import Registry, built_in, load_attribute
from nmt.text.subword_dropout import SubwordDropout
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.training.checkpoints import Progress
from nmt.training.events import Console, JsonLines, Reporter, ReporterList, RunLog, TrainingEvent
from nmt.training.losses import LOSSES, loss_name
from nmt.training.optimizer import ModelOptimizer, freeze
from nmt.training.processes import StopSignal
from nmt.training.report import HtmlReport
from nmt.training.timing import TrainingSetup, fit_batches
from nmt.training.update import Updater
from nmt.training.validation import COMMAND, HeldOutText, ValidationSet, Validator, fixed_batches
from nmt.version import __version__

# Keys of the model section that may differ when weights are loaded from another model.
_REGULARISATION = ("preset", "dropout", "attention_dropout", "activation_dropout", "word_dropout")
_MOST_WORKERS = 4
_DESCRIBE_SECONDS = 5  # until training starts without the commit; a file system may hang
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
    batch = config.batch
    recorded_adapter = None
    if checkpoint is not None:
        recorded_adapter = checkpoint.state.get(ADAPTER)
        if batch.max_tokens == "auto":
            # Use the size that the first start has measured, and share the batches of an update
            # among the processes of this start.
            accumulation = {"gradient_accumulation": reshared(checkpoint.state, processes.size)}
            batch = BatchConfig.model_validate(checkpoint.state["batch"] | accumulation)
    try:
        updater, adapter = _build_updater(config, data, processes, recorded_adapter)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        fix = "Choose a smaller model.preset or tokenizer.vocab_size, set training.optimizer.kind "
        fix += "to adafactor, or use a device with more memory."
        raise DeviceError(
            "Out of memory while building the model and its optimizer.", fix=fix
        ) from error
    loader = _build_loader(config, batch, data, updater)
    seed_rank(config.training.seed, processes.rank)  # processes draw different dropout masks
    # The filters do not count BOS, which makes sources longer by one token.
    loader = fit_batches(updater, loader, config.filters.max_length + config.model.source_bos)
    valid_loader = replace(loader, store=data.valid, changes=())
    validation_sets = _build_validation_sets(config, data, updater, valid_loader)
    starts_pretrained = config.training.init_from is not None
    return TrainingSetup(
        training=config.training,
        data=data,
        updater=updater,
        loader=loader,
        validator=Validator(updater, validation_sets, stop, config.training.validation.choose_by),
        # The sets that do not choose the best checkpoint show what the run forgets of the model
        # that it starts from.
        validates_first=starts_pretrained and not all(item.is_choosing for item in validation_sets),
        adapter=adapter,
    )


def _build_updater(
    config: RunConfig,
    data: PreparedData,
    processes: Processes,
    recorded_adapter: AdapterRecord | None,
) -> tuple[Updater, AdapterRecord | None]:
    """Return an updater with a new model and its optimizer, and the record of its adapters.

    Args:
        config: The configuration.
        data: The prepared data.
        processes: The training processes.
        recorded_adapter: Record of the adapters in the checkpoint to resume from, if it has any.

    Returns:
        The updater; and `TrainingSetup.adapter`, which is None if all weights are trained.
    """
    training = config.training
    device = choose_device(training.device)
    precision = choose_precision(training.precision, device)
    torch.manual_seed(training.seed)
    vocab_sizes = (data.manifest.source_vocab_size, data.manifest.target_vocab_size)
    model = build_model(config.model, *vocab_sizes)
    freeze(model, training.freeze)
    adapter = None
    if training.lora is not None:
        adapter = load_attribute(_ADAPT)(model, config, recorded_adapter)
    model = model.to(device)
    model.recompute = training.activation_checkpointing
    optimizer = ModelOptimizer(
        model,
        training.optimizer,
        precision.weight_dtype,
        ema_decay=training.ema_decay,
        frozen_dtype=precision.dtype if adapter else None,
    )
    updater = Updater(
        model,
        optimizer,
        precision,
        LOSSES[loss_name(training)](training),
        clip_norm=training.optimizer.clip_norm,
        processes=processes,
    )
    return updater, adapter


def _build_loader(
    config: RunConfig, batch: BatchConfig, data: PreparedData, updater: Updater
) -> Loader:
    """Return the loader of the training data, with the batch section ``batch``."""
    data_config = config.data
    # Number of pairs of each training corpus.
    sizes = np.bincount(data.train.corpus, minlength=len(data_config.training)).tolist()
    num_workers = 0
    if updater.pace.uses_threads:
        # Half of the cores; the other half queues work on the device and writes checkpoints.
        num_workers = min(_MOST_WORKERS, max(1, own_cores() // 2))
    longest = None  # batch sizes are not rounded up
    if updater.precision.repeats_sizes:
        # The filters count neither EOS nor BOS.
        longest = config.filters.max_length + 1 + config.model.source_bos
    return Loader(
        data.train,
        batch,
        weights=epoch_weights(data_config, sizes),
        stages=build_stages(data_config, sizes),
        seed=config.training.seed,
        rank=updater.processes.rank,
        num_ranks=updater.processes.size,
        changes=_build_changes(config, data),
        source_bos=config.model.source_bos,
        num_workers=num_workers,
        longest=longest,
        keys=[*data_config.corpora],  # keys of held-out sets follow, which are not used
    )


def _build_changes(config: RunConfig, data: PreparedData) -> list[Resegment]:
    """Return functions that draw terms, noise and BPE-dropout in each epoch, in this order.

    Raises:
        ConfigError: The vocabulary does not allow BPE-dropout.
    """
    # Of each corpus: share of the pairs by kind of noise; empty without noise.
    rates = [corpus.noise.rates for corpus in config.data.training]
    bpe_dropout = config.batch.bpe_dropout
    changes = list[Resegment]()
    share = config.data.glossary.share
    if not any(rates) and not bpe_dropout and not share:
        return changes  # made-up data have no tokenizers
    seed = config.training.seed
    longest = config.filters.max_length
    tokenizers = load_tokenizers(data.tokenizer_dir)
    if share:
        links = ParallelStore.open(data.folder / LINKS)
        changes.append(TermAnnotator(tokenizers, links, share, seed=seed, longest=longest))
    if any(rates):
        # Row at which each corpus ends. Rows are sorted by the index of their corpus.
        ends = np.searchsorted(data.train.corpus, np.arange(len(rates)), side="right")
        changes.append(NoiseAdder(tokenizers, ends, rates, seed=seed, longest=longest))
    if bpe_dropout:
        source = _subword_dropout(tokenizers.source, bpe_dropout)
        target = source
        if not tokenizers.is_joint:
            target = _subword_dropout(tokenizers.target, bpe_dropout)
        changes.append(Resegmenter((source, target), seed=seed, longest=longest))
    return changes


def _subword_dropout(tokenizer: Tokenizer, rate: float) -> SubwordDropout:
    """Return BPE-dropout for a vocabulary.

    Raises:
        ConfigError: The vocabulary is not BPE.
    """
    pieces, scores, is_normal = zip(*tokenizer.pieces(), strict=True)
    # In BPE, the n-th merge has the score -n. Other kinds of vocabulary have log probabilities,
    # which are not whole numbers.
    if any(score % 1 for score in scores):
        raise ConfigError(
            "batch.bpe_dropout needs a BPE vocabulary, but this vocabulary is not BPE.",
            fix="Set batch.bpe_dropout to 0, or tokenizer.kind to bpe.",
        )
    return SubwordDropout(pieces, scores, is_normal, rate)


def _build_validation_sets(
    config: RunConfig, data: PreparedData, updater: Updater, loader: Loader
) -> list[ValidationSet]:
    """Return the validation sets, in the order of `DataConfig.validation`.

    Args:
        config: The configuration.
        data: The prepared data, which contain all sets, and the index of the set of each row.
        updater: The model, and the processes that share the batches.
        loader: Loads batches of the rows of all sets.

    Raises:
        ConfigError: A metric, its package or its model is missing, or the program does not work.
    """
    validation = config.training.validation
    has_text = bool(data.valid_source or data.valid_target)  # made-up data have none
    sets = []
    for set_index, (name, corpus) in enumerate(valid_sets(config.data).items()):
        rows = np.flatnonzero(data.valid.corpus == set_index)
        direction = config.direction(corpus)
        text = None
        if has_text:
            scored_rows = rows[: validation.max_sentences]
            options = TranslationOptions(
                # Without slow options that hardly change the scores.
                decoding=config.decoding.plain(validation.beam_size),
                max_length=config.filters.max_length,
                max_sentences=config.data.max_sentences,
                max_characters=config.data.max_characters,
                retry=False,
                languages=languages_of(config),
                **_tags_of(config, corpus),
            )
            references = [[lines[row] for row in scored_rows] for lines in data.valid_references]
            text = HeldOutText(
                [data.valid_source[row] for row in scored_rows],
                list(filter(any, references)),  # a set may have fewer
                load_tokenizers(data.tokenizer_dir),
                options,
                language=direction.target,
                metric=str(validation.metric),
                device=str(updater.device),
                command=validation.command,
            )
            if updater.processes.rank == 0:
                # Report a missing package, model or program before training: the first access to
                # the scorers loads them.
                text.scorers  # noqa: B018
                if text.metric == COMMAND:
                    text.run_command(text.references[0], is_trial=True)
        validation_set = ValidationSet(
            name=name,
            direction=direction,
            num_pairs=len(rows),
            batches=fixed_batches(loader, updater.processes, rows),
            text=text,
            is_choosing=set_index < len(config.data.valid),  # other sets only measure
        )
        sets.append(validation_set)
    return sets


def languages_of(config: RunConfig) -> Languages:
    """Return the languages of the model; none without language tags, which no line then gets."""
    if not config.language_tags:
        return Languages()
    return Languages.of(config.inference)


def _tags_of(config: RunConfig, corpus: CorpusConfig) -> dict[str, Any]:
    """Return the tags that a corpus has in the prepared data, as fields of a `Request`."""
    if not config.language_tags:
        return {"tag": corpus.tag}
    source, target = config.direction(corpus)
    return {"source_language": source, "target_language": target, "tag": corpus.tag}


def choosing_lines(config: RunConfig, data: PreparedData) -> tuple[list[Request], list[list[str]]]:
    """Return the sources and the references of the sets that choose the best checkpoint."""
    # These are the sets of `data.valid`. Their lines come before the lines of all other sets.
    tags_by_set = [_tags_of(config, corpus) for corpus in config.data.valid]
    requests = []
    # Not strict: made-up data have rows of validation sets, but no lines.
    for line, set_index in zip(data.valid_source, data.valid.corpus.tolist(), strict=False):
        if set_index < len(tags_by_set):
            requests.append(Request(line, **tags_by_set[set_index]))
    return requests, [lines[: len(requests)] for lines in data.valid_references]


def run_record(config: RunConfig, setup: TrainingSetup, *, is_compiled: bool) -> dict[str, Any]:
    """Return the data that checkpoints store, to be compared when training resumes.

    The keys are ``identity`` (settings and hashes that must not change), ``machine`` (what makes
    arithmetic bit-exact), ``batch`` (the batch section, with ``auto`` resolved) and `ADAPTER`.
    """
    manifest = setup.data.manifest
    updater = setup.updater
    run_identity = identity(
        config,
        data_hash=manifest.data_hash,
        vocab_hash=manifest.vocab_hash,
        num_processes=updater.processes.size,
    )
    arithmetic = {"precision": updater.precision.name, "compiled": is_compiled}
    return {
        "identity": run_identity,
        "machine": machine(updater.device) | arithmetic,
        "batch": setup.loader.config.model_dump(mode="json"),
        ADAPTER: setup.adapter,
    }


def compile_model(setup: TrainingSetup) -> Compilation:
    """Compile the layers, as `training.compile` configures."""
    updater = setup.updater
    loader = setup.loader
    num_parameters = sum(p.numel() for p in updater.model.parameters())
    # Tokens of an update of this process; `fit_batches` has replaced ``auto`` by a number. 0 if
    # only the number of sentences is limited.
    num_tokens = int(loader.config.max_tokens or 0) * loader.config.gradient_accumulation
    return compile_layers(
        setup.training.compile,
        updater.device,
        switch=updater.model.compile_layers,
        # The first batch of the first epoch.
        warm_up=lambda: updater.warm_up(loader.batch(loader.plan(0)[0])),
        is_worth_it=pays(setup.training.max_steps, num_parameters, num_tokens),
    )


def describe_start(
    config: RunConfig, setup: TrainingSetup, compilation_remark: str, progress: Progress
) -> TrainingEvent:
    """Return the event of the start: model size, data, device and schedule.

    ``compilation_remark`` is the outcome of compiling the layers; empty if there is nothing to say.
    """
    schedule = config.training.schedule
    updater = setup.updater
    num_pairs = len(setup.data.train)
    warmup = f"{schedule.warmup_steps:,} updates"
    if schedule.warmup_ratio:
        warmup = f"{100 * schedule.warmup_ratio:g}% of the updates"
    # Number of pairs by the reason that dropped them, in all training corpora.
    dropped = Counter[str]()
    for corpus in corpus_names(config.data.training):
        dropped += Counter(setup.data.manifest.counts.get(corpus, {}))
    del dropped[READ], dropped[KEPT]  # these counts are not reasons
    sizes = count_parameters(updater.model)  # by part of the model
    num_parameters = sum(sizes.values())
    threads = torch.get_num_threads()
    validation = setup.training.validation
    metric = validation.metric_name
    texts = [held_out.text for held_out in setup.validator.sets if held_out.text]
    references = chain.from_iterable(text.references for text in texts)
    facts = {
        "device": str(updater.device),
        "precision": updater.precision.name,
        "threads": threads,
        "processes": updater.processes.size,
        "parameters": num_parameters,
        "schedule": f"{schedule.shape}, peak_lr {schedule.peak_lr:g}, warm-up: {warmup}",
        "metric": metric,
        "beam_size": validation.beam_size,
        # Perplexities and scores of runs can be compared if these are equal.
        "vocabulary": setup.data.manifest.vocab_hash,
        "validation": hash_references(references),
        "validation_sentences": sum(len(text.sources) for text in texts),
        "label_smoothing": config.training.label_smoothing,
        "pairs": num_pairs,
        **_facts_of_sets(setup.validator),
        "dropped": dict(dropped.most_common()),
        "total_steps": progress.total_steps,
        **_origin(),
    }
    sizes_text = ", ".join(f"{part} {size:,}" for part, size in sizes.items())
    device_text = f"{updater.precision.name} on {updater.device}, CPU threads: {threads}"
    if updater.processes.size > 1:
        device_text += f" in each of {updater.processes.size} processes"
    if compilation_remark:
        device_text += f", {compilation_remark}"
    model_text = f"{num_parameters:,} parameters ({sizes_text}), {num_pairs:,} sentence pairs"
    text = f"{progress.describe()}: {model_text}, {device_text}; "
    text += f"{label_of(metric)} selects the best checkpoint"
    return TrainingEvent(progress.step, text, "start", facts)


def _origin() -> dict[str, str]:
    """Return the machine, command and version of nmt that train the model, and the date."""
    version = __version__
    if CLONE is not None and (CLONE / ".git").exists():
        describe = ["git", "-C", str(CLONE), "describe", "--always", "--dirty"]
        with suppress(OSError, subprocess.SubprocessError):
            commit = subprocess.check_output(
                describe, stderr=subprocess.DEVNULL, text=True, timeout=_DESCRIBE_SECONDS
            )
            version += f", commit {commit.strip()}"
    program = Path(sys.argv[0]).name
    words = [program, *sys.argv[1:]]
    return {
        "host": socket.gethostname(),
        "command": join_words(words),
        "version": version,
        "date": time.strftime("%Y-%m-%d %H:%M:%S%z"),
    }


def _facts_of_sets(validator: Validator) -> dict[str, Any]:
    """Return what the report shows about several validation sets; empty for one set."""
    if len(validator.sets) == 1:
        return {}
    facts_by_set = {
        validation_set.name: {
            "direction": str(validation_set.direction),
            "pairs": validation_set.num_pairs,
            "is_choosing": validation_set.is_choosing,
        }
        for validation_set in validator.sets
    }
    combination = None  # how the scores of several sets choose the best checkpoint
    if sum(validation_set.is_choosing for validation_set in validator.sets) > 1:
        combination = validator.choose_by
    return {"combination": combination, "sets": facts_by_set}


def init_from(config: RunConfig, setup: TrainingSetup) -> list[str]:
    """Load the weights of `training.init_from`, if set; return notes for the log."""
    folder = config.training.init_from
    optimizer = setup.updater.optimizer
    if folder is None:
        return []
    initial_model = find_model(folder)
    notes = [f"starting with the weights of {folder}"]
    if config.training.lora is not None:  # `_build_updater` has loaded the weights
        num_trained = optimizer.parameters.trained_size
        share = num_trained / sum(count_parameters(setup.updater.model).values())
        adapters = f"{num_trained:,} parameters of adapters ({share:.2%} of all)"
        notes.append(f"training {adapters}; the other weights are frozen and are not saved")
    elif config.training.init_differences:
        tokenizers = load_tokenizers(setup.data.tokenizer_dir)
        initial_weights = load_attribute(_PARTIAL)
        weights, table = initial_weights(
            config, read_weights(initial_model), tokenizers, optimizer.weights()
        )
        optimizer.load_weights(weights)
        notes.append(f"origin of the weights:\n  {table}")
    else:
        optimizer.load_weights(read_weights(initial_model).model.state_dict())
    model_pair = " to ".join(initial_model.config.languages)
    pair = " to ".join(config.inference.languages)
    if model_pair != pair and not config.language_tags:
        text = f"from {model_pair}, but this run translates from {pair}"
        notes.append(f"{folder} was trained to translate {text}")
    return notes


def check_run(config: RunConfig, num_processes: int) -> Callable[[PreparedManifest], None]:
    """Check that training can start or resume, before the data are prepared.

    Args:
        config: The configuration.
        num_processes: Number of training processes.

    Returns:
        The check of the prepared data.

    Raises:
        NmtError: Training cannot start or resume.
    """
    check_tools(config)
    recorded = recorded_identity(config.run_dir)
    if recorded is None:
        check_start(config)
    return data_check(config, recorded, num_processes)


def check_start(config: RunConfig) -> None:
    """Check that a run folder is new, and that its model matches that of `training.init_from`.

    Raises:
        CheckpointError: The checkpoints of the run are gone; or the model to start from is missing
            or damaged.
        ConfigError: The ``model`` or the ``tokenizer`` section differs more than
            `training.init_differences` says.
    """
    run_dir = config.run_dir
    log = run_dir / "log.txt"
    if log.is_file() and b"  saved step-" in log.read_bytes():
        again = shell_command("train", "CONFIG", run_dir="FOLDER")
        raise CheckpointError(
            f"{run_dir} is the folder of a run whose checkpoints are gone.",
            fix=f"Restore {checkpoints_dir(run_dir)}, for example by mounting its disk; or start "
            f"again in another folder, which keeps the records of that run: `{again}`.",
        )
    folder = config.training.init_from
    if folder is None:
        return
    sections = {"model", "tokenizer"} if config.training.keeps_vocabulary else {"model"}
    parts = config.training.init_differences
    if "layers" in parts:  # the number of layers of both parts may differ
        parts = ("encoder", "decoder")
    may_differ = {"model": {*_REGULARISATION, *(f"{part}_layers" for part in parts)}}
    was = find_start(folder).config.model_dump(include=sections, exclude=may_differ)
    now = config.model_dump(include=sections, exclude=may_differ)
    changes = changed_settings(was, now)
    if not changes:
        return
    fix = "Remove these keys, so that the values of that model are used."
    needed_parts = parts_of(changes)
    if "" not in needed_parts and config.training.lora is None:
        fix += f" Or start with a part of that model: {differing(config, *sorted(needed_parts))}."
    listed = "\n  ".join(changes)
    problem = (
        f"Settings differ from those of the model in {folder} (training.init_from):\n  {listed}"
    )
    raise ConfigError(problem, fix=fix)


def check_tools(config: RunConfig) -> None:
    """Check that metric name, program and trackers exist, before the data are prepared.

    Raises:
        ConfigError: The metric is unknown, or a package or the program is missing.
    """
    validation = config.training.validation
    if validation.metric not in (None, "loss", COMMAND):
        split_argument(validation.metric)
    if validation.command and shutil.which(validation.command[0]) is None:
        raise ConfigError(
            f"training.validation.command: there is no program {validation.command[0]}.",
            fix="Install the program, or correct the command.",
        )
    if config.training.lora is not None:
        load_attribute(_ADAPT)  # raises an error if the extra is missing
    for name in config.training.trackers:
        # Making a built-in tracker checks its package. Trackers of plugins may start something.
        if name in built_in("tracker"):
            TRACKERS[name](config)


def make_reporters(
    config: RunConfig, log: RunLog, progress: Progress, trackers: Sequence[Reporter]
) -> ReporterList:
    """Return the reporters of a run: reporters of files, the console, and the trackers.

    Raises:
        CheckpointError: The files cannot be written.
    """
    run_dir = config.run_dir
    start = progress.step
    # Step of the last validation; later validations are removed from the files, because training
    # repeats them. A new run (-1) also repeats the one before the first update, at step 0.
    last_validation = max(progress.history, default=0 if start else -1)
    fix = "Set run_dir to a folder you can write to, or free disk space."
    with write_errors(run_dir, CheckpointError, fix=fix):
        return ReporterList([
            JsonLines(run_dir / "metrics.jsonl", start, last_validation),
            JsonLines(run_dir / "starts.jsonl", start, last_validation, kinds=("start", "end")),
            log.open(run_dir / "log.txt"),
            Console(start, progress.total_steps, lambda: progress.step),
            HtmlReport(run_dir, config.name),
            *trackers,
        ])  # fmt: skip
