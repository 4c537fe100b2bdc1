"""The dry run of ``nmt train``: estimates parameters, FLOPs, memory and time of a training run.

If the corpora are absent, their lengths are made up. The source length in subwords is log-normal:
half of the lengths are above the median, and the logarithm has a normal distribution. The median
suits news and parliament text with 32,000 subwords. The target length is the source length times a
log-normal factor with median 1. Pairs above filters.max_length are dropped, as `nmt prepare` does.
Ids are uniform.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt.commands.config import advice, load_config
from nmt.commands.options import CommandResult, TrainOptions
from nmt.commands.prepare import prepare_data, recipe_of
from nmt.commands.train_setup import build, check_run, compile_model
from nmt.config.data import BatchConfig, CorpusConfig, DataConfig
from nmt.config.run import RunConfig
from nmt.config.training import TrainingConfig
from nmt.data.corpus import VALID, check_files, is_piped
from nmt.data.hubs import is_on_hub
from nmt.data.loader import Loader
from nmt.data.prepare_report import find_prepared
from nmt.data.prepared import TOKENIZER, TRAIN, PreparedData, PreparedManifest
from nmt.data.store import Rows, StoreWriter
from nmt.device.compilation import Compilation
from nmt.device.device import choose_device, deterministic, prepare_process
from nmt.device.distributed import Processes
from nmt.errors import DataError
from nmt.extras.planning.plan import LengthSums, training_flops
from nmt.model.transformer import count_parameters
from nmt.report.page import render
from nmt.text import NUM_SPECIAL
from nmt.text.flat import FlatIds
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.training import timing
from nmt.training.budget import first_plan
from nmt.training.losses import loss_name
from nmt.training.optimizer import ModelOptimizer
from nmt.training.processes import StopSignal
from nmt.training.timing import MOST_SECONDS, TrainingSetup, measure_costs

logger = logging.getLogger(__name__)
# Sizes of an epoch that depend on the number of pairs.
_TOTALS = ("pairs", "batches", "updates", "source_tokens", "target_tokens")
_MEDIAN = 24.0  # Of the source lengths that are made up, in subwords.
_SPREAD = 0.6  # Standard deviation of the logarithms of these lengths.
_SPREAD_OF_RATIO = 0.2  # That of the logarithms of target length / source length.
_NUM_PAIRS = {TRAIN: 100_000, VALID: 1000}
_FEW_TOKENS = 1024  # A batch that a CPU computes in seconds, even with a large model.


@dataclass(frozen=True, kw_only=True)
class DryRunReport(CommandResult):
    """The cost of a training run in bytes, FLOPs and seconds.

    If only training.patience ends training, the number of updates is unknown, and values that
    depend on the number are None.
    """

    name: str
    device: str
    devices: int  # Number of processes. The values below are for each process.
    precision: str
    compiled: bool
    threads: int
    parameters: dict[str, int]  # By part, and ``total``. Tied embeddings are counted once.
    # FLOPs of forward and backward, per target token, update and training. ``passes``: passes over
    # a batch in one update.
    flops: dict[str, Any]
    # Peak memory: the exact `resident_bytes`, and the measured ``activations`` of an update on the
    # ``largest_batches`` (pairs, longest source, longest target, with EOS). ``splits``: number of
    # times that these batches were halved to fit into memory.
    memory_bytes: dict[str, Any]
    # The first epoch. Tokens include EOS; ``padding_waste`` is a share. The totals are None for
    # made-up data.
    epoch: dict[str, Any]
    # Number of updates, the key that limits it (``limit``), and whether patience is set, too.
    budget: dict[str, Any]
    # Seconds of the median update in a probe, and the estimates for an epoch and for the training.
    seconds: dict[str, Any]
    remark: str  # Outcome of compiling the layers; empty if compilation is off.
    made_up: str = ""  # Why and how the lengths of the sentences were made up, if they were.
    warnings: tuple[str, ...] = ()  # Likely problems of the training.

    def as_text(self) -> str:
        """Return the report as a table."""
        text = render(
            "dry_run.txt.j2",
            totals=_TOTALS,
            decimal=_decimal,
            binary=_binary,
            duration=_duration,
            number=_number,
            **self.as_dict(),
        )
        return "\n".join(line.rstrip() for line in str(text).strip().split("\n"))


def dry_run(options: TrainOptions) -> DryRunReport:
    """Estimate the cost of a whole training run, whatever its progress.

    Prepares local corpora if necessary, because the estimate needs sentence lengths.
    Downloads nothing: for absent corpora, the lengths are made up (see above).
    Then trains a temporary model for a few updates. Neither locks nor writes the run folder. For
    several devices, one process is measured on its part of the data.

    Raises:
        NmtError: The data, configuration or device is not usable; see the message.
    """
    return estimate(load_config(options.config, options.overrides), options.devices)


def estimate(config: RunConfig, devices: int = 1) -> DryRunReport:
    """Estimate the cost of a training run; see `dry_run`."""
    check = check_run(config, devices)
    prepare_process(config.training.threads)
    device = choose_device(config.training.device)
    made_up = explain_made_up(config)
    with (
        deterministic(device, wanted=config.training.deterministic),
        TemporaryDirectory(prefix="nmt-dry-run-", ignore_cleanup_errors=True) as folder,
    ):
        # The probe trains with ``measured``; the training will have the batches of ``batch``.
        if made_up:
            measured, batch = _without_corpora(config, small=device.type == "cpu")
            data = write_data(config, Path(folder))
        else:
            measured = config
            batch = config.batch
            prepared = prepare_data(config, check=check)
            if not prepared.up_to_date:
                text = f"Prepared the data in {prepared.folder} for the dry run."
                logger.info("%s\n%s", text, prepared.as_text())
            data = PreparedData.open(Path(prepared.folder))
        setup = build(measured, data, Processes(), StopSignal())
        setup = replace(setup, loader=replace(setup.loader, num_ranks=devices))
        loader = setup.loader
        if batch != measured.batch:
            loader = replace(loader, config=batch)
        return _measure(setup, loader, config, compile_model(setup), made_up)


def explain_made_up(config: RunConfig) -> str:
    """Explain why and how lengths are made up; return "" if the corpora can be read."""
    if find_prepared(recipe_of(config)):
        return ""
    corpora = (*config.data.training, *config.data.validation)
    # Corpora that are not files on this machine.
    remote = [
        corpus for corpus in corpora if is_piped(corpus) or is_on_hub(corpus) or corpus.sacrebleu
    ]
    if remote:
        names = dict.fromkeys(
            corpus.huggingface or corpus.sacrebleu or "standard input" for corpus in remote
        )
        reason = f"a dry run downloads nothing, and {', '.join(names)} is not prepared"
    else:
        try:
            check_files(config.data.corpora)
            return ""
        except DataError as error:
            reason = error.problem.removesuffix(".")
    return (
        f"{reason}.\n  Log-normal, median {_median(config):g} subwords, sigma {_SPREAD:g}, at most "
        f"{config.filters.max_length} (filters.max_length). After `nmt prepare`, lengths are real."
        "\n  Validation is timed without translation. On a CPU, times are extrapolated from "
        f"batches of about {2 * _FEW_TOKENS:,} tokens."
    )


def _without_corpora(config: RunConfig, *, small: bool) -> tuple[RunConfig, BatchConfig]:
    """Return the configuration for made-up data: a single corpus, no options that need text.

    Args:
        config: The configuration.
        small: Whether to make batches of at most about 2,000 tokens, for a CPU.

    Returns:
        The changed configuration, and its batch section before batches were made small.
    """
    data = DataConfig(train=(CorpusConfig(demo="train"),), valid=(CorpusConfig(demo="valid"),))
    full = config.batch.model_copy(update={"bpe_dropout": 0.0})
    measured = full
    full_tokens = full.tokens_per_update or full.max_tokens
    # Half of a small batch holds the longest pair: both sides, an EOS on each side, and one BOS.
    small_tokens = 2 * max(2 * config.filters.max_length + 3, _FEW_TOKENS)
    is_large = full_tokens is None or int(full_tokens) > small_tokens
    if small and is_large:
        # With ``auto``, the tokens of an update are taken as one large batch.
        full = full.model_copy(update={"max_tokens": full_tokens, "tokens_per_update": None})
        small_batch = {"max_tokens": small_tokens, "gradient_accumulation": 1}
        measured = full.model_copy(update=small_batch)
    return config.model_copy(update={"data": data, "batch": measured}), full


def write_data(config: RunConfig, folder: Path) -> PreparedData:
    """Write token stores with made-up pairs, and open them."""
    source_size, target_size = _vocab_sizes(config)
    random = np.random.default_rng(1)

    def draw_ids(vocab_size: int, lengths: Rows) -> FlatIds:
        """Draw sentences of these lengths, without special tokens."""
        return FlatIds(random.integers(NUM_SPECIAL, vocab_size, int(lengths.sum())), lengths)

    for part, num_pairs in _NUM_PAIRS.items():
        # Logarithms of the source lengths, and of the ratios of target to source length.
        logs = random.normal(np.log(_median(config)), _SPREAD, num_pairs)
        log_ratios = random.normal(0.0, _SPREAD_OF_RATIO, num_pairs)
        # Source and target lengths. (2, pairs)
        lengths = np.exp([logs, logs + log_ratios]).round().clip(1).astype(np.int64)
        is_kept = lengths.max(axis=0) <= config.filters.max_length
        source_lengths, target_lengths = lengths[:, is_kept]
        with StoreWriter(folder / part, max(source_size, target_size)) as writer:
            source = draw_ids(source_size, source_lengths)
            target = draw_ids(target_size, target_lengths)
            line_numbers = np.arange(1, len(source_lengths) + 1)
            writer.append(source, target, 0, line_numbers)  # 0: the first and only corpus
        for name in ("source.txt", "target.txt"):
            (folder / part / name).touch()  # no text, so no translations in the validation
    manifest = PreparedManifest(
        config_hash="", sources={}, data_hash="", vocab_hash="", counts={},
        source_vocab_size=source_size, target_vocab_size=target_size, files={},
    )  # fmt: skip
    return PreparedData(folder, manifest)


def _vocab_sizes(config: RunConfig) -> tuple[int, int]:
    """Return the vocabulary sizes of source and target, although nothing is prepared."""
    start = config.training.init_from
    if start is not None and config.training.keeps_vocabulary:
        return load_tokenizers(start / TOKENIZER).vocab_sizes
    models = config.tokenizer.models
    if models is not None:
        source, target = map(Tokenizer.load, models)
        return source.vocab_size, target.vocab_size
    return config.tokenizer.vocab_sizes


def _median(config: RunConfig) -> float:
    """Return the median of the source lengths, so that most pairs are below the limit."""
    return min(_MEDIAN, config.filters.max_length / 2)


def _measure(
    setup: TrainingSetup, loader: Loader, config: RunConfig, compilation: Compilation, made_up: str
) -> DryRunReport:
    """Time a few updates, and compute the report. Destroys the weights of the model.

    Time and memory are extrapolated if ``loader`` has larger batches than the loader in ``setup``.

    Args:
        setup: Model, data and loader of the probe.
        loader: Loads the batches of the training to estimate.
        config: The configuration of this training.
        compilation: Whether the model is compiled.
        made_up: Why and how lengths are made up; empty for real data.
    """
    training = setup.training
    updater = setup.updater
    plan = loader.plan(0)
    logger.info(
        "measuring memory on the largest batches, then time (at most about %g s)", MOST_SECONDS
    )
    memory = _memory(setup, loader, plan)
    sums = LengthSums.of_pairs(*loader.lengths(np.concatenate(plan)))
    epoch = _epoch(loader, plan, sums)
    updates_per_epoch = epoch["updates"]
    timed = measure_costs(setup, most_seconds=MOST_SECONDS)
    if loader is not setup.loader:
        # Both loaders read the same pairs, so an epoch takes the same time with both, although the
        # number of its updates differs. The loader of the probe has one batch for each update.
        timed = replace(timed, update=timed.update * len(setup.loader.plan(0)) / updates_per_epoch)
    passes = 1  # Over each batch.
    if loss_name(training) == "r_drop":
        passes = 2
    limits = _limits(training, loader, has_corpora=not made_up)
    whole = 60 * (training.max_minutes or 0.0)
    if whole:
        planned = first_plan(setup, timed, 0, whole)
        limits["training.max_minutes"] = planned.total_steps
        if planned.loss is not None:  # training will use one pass
            timed = replace(timed, update=timed.update / 2)
            passes = 1
    # The key that ends training first.
    limit = min(limits, key=limits.__getitem__, default=None)
    updates = None if limit is None else limits[limit]
    parameters = count_parameters(updater.model)

    vocab_size = setup.data.manifest.target_vocab_size
    epoch_flops = training_flops(config.model, vocab_size, sums, passes=passes)
    flops = {
        "passes": passes,
        "per_target_token": epoch_flops.total / sums.target_tokens,
        "attention_share": epoch_flops.attention / epoch_flops.total,
        "update": epoch_flops.total / updates_per_epoch,
        "training": None,
        "per_second": epoch_flops.total / updates_per_epoch / timed.update,
    }
    budget = {
        "updates": updates,
        "limit": limit,
        "has_patience": training.patience is not None,
        "epochs": None,
    }
    seconds = {
        "probe_updates": timed.num_timed,
        "update": timed.update,
        "epoch": updates_per_epoch * timed.update,
        "training": None,
        "target_tokens_per_second": sums.target_tokens / updates_per_epoch / timed.update,
        "validation_and_saving": None,
    }
    if updates is not None:
        flops["training"] = updates * epoch_flops.total / updates_per_epoch
        budget["epochs"] = updates / updates_per_epoch
        seconds["training"] = updates * timed.update
        seconds["validation_and_saving"] = timed.beside(updates, training)
        if limit == "training.max_minutes":
            seconds["validation_and_saving"] = max(0.0, whole - seconds["training"])
    if made_up:  # the number of pairs is unknown
        epoch |= dict.fromkeys(_TOTALS)
        budget["epochs"] = None
        seconds["epoch"] = None
    return DryRunReport(
        name=config.name,
        device=str(updater.device),
        devices=loader.num_ranks,
        precision=updater.precision.name,
        compiled=compilation.is_on,
        threads=torch.get_num_threads(),
        parameters={**parameters, "total": sum(parameters.values())},
        flops=flops,
        memory_bytes=memory,
        epoch=epoch,
        budget=budget,
        seconds=seconds,
        remark=compilation.remark,
        made_up=made_up,
        warnings=tuple(advice(config)),
    )


def _limits(training: TrainingConfig, loader: Loader, *, has_corpora: bool) -> dict[str, int]:
    """Return the number of updates at which ``max_steps`` and ``max_epochs`` end training.

    Without corpora, the size of an epoch is unknown, so ``max_epochs`` is left out.
    """
    limits = {}
    if training.max_steps is not None:
        limits["training.max_steps"] = training.max_steps
    if training.max_epochs is not None and has_corpora:
        updates_of_epochs = islice(loader.epoch_updates(), training.max_epochs)
        limits["training.max_epochs"] = sum(updates_of_epochs)
    return limits


def _epoch(loader: Loader, plan: Sequence[Rows], sums: LengthSums) -> dict[str, Any]:
    """Return the sizes of an epoch.

    Args:
        loader: Has the lengths of the sentence pairs.
        plan: Row numbers of each batch.
        sums: Sums over all pairs of the plan.
    """
    updates = ceil(len(plan) / loader.config.gradient_accumulation)
    tokens = sums.source_tokens + sums.target_tokens
    padded_tokens = 0
    for rows in plan:
        # In a padded batch, all sources, and all targets, are as long as the longest.
        for lengths in loader.lengths(rows):
            padded_tokens += len(rows) * int(lengths.max())
    return {
        "pairs": sum(map(len, plan)),
        "batches": len(plan),
        "updates": updates,
        "source_tokens": sums.source_tokens,
        "target_tokens": sums.target_tokens,
        "tokens_per_batch": tokens / len(plan),
        "tokens_per_update": tokens / updates,
        "padding_waste": 1 - tokens / padded_tokens,
    }


def resident_bytes(optimizer: ModelOptimizer, model: nn.Module) -> dict[str, int]:
    """Return the bytes of the buffers that stay in memory between updates.

    ``weights`` have the dtype of the forward and backward pass. ``master_weights`` are a float32
    copy of the weights, if that dtype is smaller. ``optimizer`` contains the moments and,
    if configured, averaged weights.
    """
    # Each of these dicts maps the address of a buffer to its bytes. A buffer is counted only once,
    # in the first group that contains it.
    weights = _storages(model.parameters())
    master = _storages([optimizer.parameters.weights])
    # Weights for validation, such as averaged weights, stay in memory, unless they are computed on
    # demand. Then they have a new address each time, and are not counted.
    first = optimizer.weights()
    second = optimizer.weights()
    sizes = _storages(first.values())
    lasting = sizes.keys() & _storages(second.values())
    state = {address: sizes[address] for address in lasting}
    state |= _storages(optimizer.state().values())
    return {
        "weights": sum(weights.values()),
        "master_weights": sum(master[address] for address in master.keys() - weights),
        "gradients": sum(_storages([optimizer.parameters.gradient]).values()),
        "optimizer": sum(state[address] for address in state.keys() - (weights | master)),
    }


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the address and the bytes of each storage. Views of one buffer count once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _memory(setup: TrainingSetup, loader: Loader, plan: Sequence[Rows]) -> dict[str, Any]:
    """Return the bytes of the buffers, and the additional peak memory of the largest batches.

    Args:
        setup: Its batches are measured.
        loader: If it is not the loader of ``setup``, its batches are larger, and their peak is
            extrapolated on the line through two sizes of measured batches.
        plan: The batches of ``loader``.
    """
    updater = setup.updater
    measured = setup.loader
    # Source lengths and target lengths of the pairs in one or two batches.
    lengths = [loader.lengths(rows) for rows in timing.largest_batches(loader, plan)]
    tokens, peak, _, splits = timing.measure_batches(updater, measured)
    if loader is not measured:
        half = int(measured.config.max_tokens or 0) // 2
        half_tokens, half_peak, *_ = timing.measure_batches(updater, measured, half)
        bytes_per_token = (peak - half_peak) / max(tokens - half_tokens, 1)
        largest_tokens = max(int(source.sum() + target.sum()) for source, target in lengths)
        peak += round(bytes_per_token * (largest_tokens - tokens))
    buffers = resident_bytes(updater.optimizer, updater.model)
    buffers["activations"] = peak
    largest_batches = []
    for source, target in lengths:
        largest_batches.append((len(source), int(source.max()), int(target.max())))
    return {
        **buffers,
        "largest_batches": largest_batches,
        "splits": splits,
        "total": sum(buffers.values()),
    }


def _decimal(number: float | None) -> str:
    """Format a number with three digits and a decimal prefix."""
    if number is None:
        return "unknown"
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 999.5:  # a larger number would be rounded to four digits
            return f"{number:.3g} {prefix}".rstrip()
        number /= 1000
    return f"{number:.3g} Z"


def _number(number: float | None, form: str = ",") -> str:
    return "unknown" if number is None else format(number, form)


def _binary(size_bytes: int) -> str:
    """Format a size in MiB or GiB."""
    mebibytes = size_bytes / 2**20
    return f"{mebibytes:,.1f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:,.2f} GiB"


def _duration(seconds: float | None) -> str:
    """Format a duration in the unit that gives a short number."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    # The largest unit of which there are at least two.
    for unit, unit_seconds in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:,.1f} {unit}"
    return f"{seconds:.1f} s"
