"""The dry run of ``nmt train``: estimates parameters, FLOPs, memory and time of a training run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt.checkpoint.run import data_check
from nmt.commands.config import advice, load_config
from nmt.commands.options import TrainOptions
from nmt.commands.prepare import prepare_data
from nmt.commands.train_setup import build, check_tools, compile_model
from nmt.config.run import RunConfig
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.data.store import Rows
from nmt.device.compilation import Compilation
from nmt.device.device import choose_device, deterministic, prepare_process
from nmt.device.distributed import Processes
from nmt.extras.planning import made_up
from nmt.extras.planning.plan import LengthSums, training_flops
from nmt.model.transformer import count_parameters
from nmt.report.page import render
from nmt.training import timing
from nmt.training.losses import loss_name
from nmt.training.optimizer import ModelOptimizer
from nmt.training.processes import StopSignal
from nmt.training.timing import MOST_SECONDS, TrainingSetup, time_plan, wastes_r_drop

logger = logging.getLogger(__name__)
_TOTALS = ("pairs", "batches", "updates", "source_tokens", "target_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunReport:
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

    def as_dict(self) -> dict[str, Any]:
        """Return unrounded numbers for JSON."""
        return asdict(self)

    def as_text(self) -> str:
        """Return the report as a table."""
        forms = {"decimal": _decimal, "binary": _binary, "duration": _duration, "number": _number}
        text = str(render("dry_run.txt.j2", totals=_TOTALS, **forms, **self.as_dict()))
        return "\n".join(line.rstrip() for line in text.strip().split("\n"))


def dry_run(options: TrainOptions) -> DryRunReport:
    """Estimate the cost of a whole training run, whatever its progress.

    Prepares local corpora if necessary, because the estimate needs sentence lengths.
    Downloads nothing: for absent corpora, the lengths are made up (`nmt.extras.planning.made_up`).
    Then trains a temporary model for a few updates. Neither locks nor writes the run folder. For
    several devices, one process is measured on its part of the data.

    Raises:
        NmtError: The data, configuration or device is not usable; see the message.
    """
    return estimate(load_config(options.config, options.overrides), options.devices)


def estimate(config: RunConfig, devices: int = 1) -> DryRunReport:
    """Estimate the cost of a training run; see `dry_run`."""
    check_tools(config)
    prepare_process(config.training.threads)
    device, why = choose_device(config.training.device), made_up.explain(config)
    with (
        deterministic(device, wanted=config.training.deterministic),
        TemporaryDirectory(prefix="nmt-dry-run-", ignore_cleanup_errors=True) as folder,
    ):
        measured, whole = config, config.batch
        if why:
            measured, whole = made_up.without_corpora(config, small=device.type == "cpu")
            data = made_up.write_data(config, Path(folder))
        else:
            prepared = prepare_data(config, check=data_check(config))
            if not prepared.up_to_date:
                text = f"Prepared the data in {config.prepared_dir} for the dry run."
                logger.info("%s\n%s", text, prepared.as_text())
            data = PreparedData.open(config.prepared_dir)
        setup = build(measured, data, Processes(), StopSignal())
        setup = replace(setup, loader=replace(setup.loader, num_ranks=devices))
        loader = setup.loader if whole == measured.batch else replace(setup.loader, config=whole)
        return _measure(setup, loader, config, compile_model(setup), why)


def _measure(
    setup: TrainingSetup, loader: Loader, config: RunConfig, compilation: Compilation, why: str
) -> DryRunReport:
    """Time a few updates, and compute the report. Destroys the weights of the model.

    Time and memory are extrapolated if ``loader`` has larger batches than the loader in ``setup``.
    """
    plan, training = loader.plan(0), setup.training
    logger.info(
        "measuring memory on the largest batches, then time (at most about %g s)", MOST_SECONDS
    )
    memory, timed = _memory(setup, loader, plan), time_plan(setup, most_seconds=MOST_SECONDS)
    rows, sides = np.concatenate(plan), loader.lengths(slice(None))
    sums = LengthSums.of_pairs(*(side[rows] for side in sides))
    in_epoch = -(-len(plan) // loader.config.gradient_accumulation)
    padded = sum(len(batch) * int(side[batch].max()) for batch in plan for side in sides)
    if loader is not setup.loader:  # both read the same pairs, in a different number of updates
        timed = replace(timed, update=timed.update * len(setup.loader.plan(0)) / in_epoch)
    passes = 2 if loss_name(training) == "r_drop" else 1
    if wastes_r_drop(setup, timed):
        passes, timed = 1, replace(timed, update=timed.update / 2)
    limits = {} if training.max_steps is None else {"training.max_steps": training.max_steps}
    if training.max_epochs is not None and not why:
        of_epochs = islice(loader.epoch_updates(), training.max_epochs)
        limits["training.max_epochs"] = sum(of_epochs)
    if training.max_minutes is not None:
        limits["training.max_minutes"] = timed.updates_in(training.max_minutes, training)
    limit = min(limits, key=limits.__getitem__, default=None)
    updates = limits.get(limit or "")
    sizes, tokens = count_parameters(setup.updater.model), sums.source_tokens + sums.target_tokens
    flops = training_flops(config.model, setup.data.manifest.target_vocab_size, sums, passes=passes)
    report = DryRunReport(
        name=config.name,
        device=str(setup.updater.device),
        devices=loader.num_ranks,
        precision=setup.updater.precision.name,
        compiled=compilation.is_on,
        threads=torch.get_num_threads(),
        parameters={**sizes, "total": sum(sizes.values())},
        flops={
            "passes": passes,
            "per_target_token": flops.total / sums.target_tokens,
            "attention_share": flops.attention / flops.total,
            "update": flops.total / in_epoch,
            "training": updates and updates * flops.total / in_epoch,
            "per_second": flops.total / in_epoch / timed.update,
        },
        memory_bytes=memory,
        epoch={
            "pairs": len(rows),
            "batches": len(plan),
            "updates": in_epoch,
            "source_tokens": sums.source_tokens,
            "target_tokens": sums.target_tokens,
            "tokens_per_batch": tokens / len(plan),
            "tokens_per_update": tokens / in_epoch,
            "padding_waste": 1 - tokens / padded,
        },
        budget={
            "updates": updates,
            "limit": limit,
            "has_patience": training.patience is not None,
            "epochs": updates and updates / in_epoch,
        },
        seconds={
            "probe_updates": timed.num_timed,
            "update": timed.update,
            "epoch": in_epoch * timed.update,
            "training": updates and updates * timed.update,
            "target_tokens_per_second": sums.target_tokens / in_epoch / timed.update,
            "validation_and_saving": updates and timed.beside(updates, training),
        },
        remark=compilation.remark,
        made_up=why,
        warnings=tuple(filter(None, (timed.shortage(updates, training), *advice(config)))),
    )
    if why:  # the number of pairs is unknown
        report.epoch.update(dict.fromkeys(_TOTALS))
        report.budget["epochs"] = report.seconds["epoch"] = None
    return report


def resident_bytes(optimizer: ModelOptimizer, model: nn.Module) -> dict[str, int]:
    """Return the bytes of the buffers that stay in memory between updates.

    ``weights`` have the dtype of the forward and backward pass. ``master_weights`` are a float32
    copy of the weights, if that dtype is smaller. ``optimizer`` contains the moments and,
    if configured, averaged weights.
    """
    parameters = list(model.parameters())
    weights = _storages(parameters)
    master = _storages([optimizer.parameters.weights])
    # Weights that are computed on demand have a new address each time.
    both = optimizer.weights(), optimizer.weights()
    used, again = (_storages(tensors.values()) for tensors in both)
    temporary = used.keys() - again.keys()
    kept = {address: size for address, size in used.items() if address not in temporary}
    others = kept | _storages(optimizer.state().values())
    return {
        "weights": sum(weights.values()),
        "master_weights": sum(master[address] for address in master.keys() - weights),
        "gradients": sum(_storages([optimizer.parameters.gradient]).values()),
        "optimizer": sum(others[address] for address in others.keys() - (weights | master)),
    }


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the address and the bytes of each storage. Views of one buffer count once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _memory(setup: TrainingSetup, loader: Loader, plan: Sequence[Rows]) -> dict[str, Any]:
    """Return the bytes of the buffers, and the additional peak memory of the largest batches."""
    updater, small = setup.updater, setup.loader
    lengths = [loader.lengths(rows) for rows in timing.largest_batches(loader, plan)]
    tokens, peak, _, splits = timing.measure_batches(updater, small)
    if loader is not small:
        half = int(small.config.max_tokens or 0) // 2
        few, low = timing.measure_batches(updater, small, half)[:2]
        most = max(int(source.sum() + target.sum()) for source, target in lengths)
        peak += round((peak - low) / max(tokens - few, 1) * (most - tokens))
    held = resident_bytes(updater.optimizer, updater.model) | {"activations": peak}
    shapes = [(len(source), int(source.max()), int(target.max())) for source, target in lengths]
    return {**held, "largest_batches": shapes, "splits": splits, "total": sum(held.values())}


def _decimal(number: float | None) -> str:
    """Format a number with three digits and a decimal prefix."""
    if number is None:
        return "unknown"
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if number < 999.5:
            return f"{number:.3g} {prefix}".rstrip()
        number /= 1000
    return f"{number:.3g} Z"


def _number(number: float | None, form: str = ",") -> str:
    return "unknown" if number is None else format(number, form)


def _binary(size_bytes: int) -> str:
    mebibytes = size_bytes / 2**20
    return f"{mebibytes:,.1f} MiB" if mebibytes < 1000 else f"{mebibytes / 1024:,.2f} GiB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"
