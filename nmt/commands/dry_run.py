"""The configuration and prepared data -> what training would take, before any of it is done."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nmt.commands.dry_run_report import BudgetReport, DryRunReport, EpochReport, MemoryReport
from nmt.commands.prepare import prepare
from nmt.config.run import RunConfig
from nmt.data.batch import collate
from nmt.data.batching import padding_waste
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.engine.device import choose_device, prepare_process
from nmt.engine.peak import measure_peak
from nmt.engine.precision import choose_precision
from nmt.model.cost import Workload, matmul_parameters, training_flops
from nmt.model.factory import build_model, count_parameters
from nmt.training.optimizer import Optimizer, build_optimizer
from nmt.training.parameters import freeze
from nmt.training.trainer import measure_update_seconds
from nmt.training.update import Updater, UpdateStats

__all__ = ["DryRunReport", "dry_run", "held_bytes"]

Rows = npt.NDArray[np.int64]


def dry_run(config: RunConfig, *, quiet: bool = False, num_updates: int = 12) -> DryRunReport:
    """Work out and measure what training ``config`` from its first update would take.

    Prepares the data if need be, for it needs their lengths. Then makes a few updates of a model
    that is thrown away. Neither reads, locks nor writes ``config.run_dir``.

    Args:
        config: The experiment.
        quiet: Say nothing on the way.
        num_updates: Updates of the probe behind the time.

    Raises:
        NmtError: Data, configuration or device do not allow it; see the message.
    """
    prepare_process(config.training.threads)
    prepared = prepare(config, quiet=quiet)
    if not quiet and not prepared.up_to_date:
        sys.stderr.write("Prepared the data first: a dry run needs their lengths.\n")
        sys.stderr.write(prepared.as_text() + "\n")
    bench = _Bench.build(config)
    plan = bench.loader.plan(0)
    epoch = _epoch(bench, plan)
    if not quiet:
        sys.stderr.write(f"Making {num_updates} and a few updates to measure time and memory.\n")
    memory = _memory(bench, plan)
    seconds = measure_update_seconds(
        bench.updater, bench.updater.optimizer, bench.loader, num_updates=num_updates
    )
    vocab_size = bench.data.manifest.target_vocab_size
    passes = 2 if config.training.r_drop else 1
    return DryRunReport(
        name=config.name,
        device=str(bench.device),
        precision=bench.updater.precision.name,
        threads=torch.get_num_threads(),
        parameters=count_parameters(bench.updater.model),
        matrices=matmul_parameters(config.model, vocab_size),
        passes=passes,
        flops=training_flops(config.model, vocab_size, epoch.workload, passes=passes),
        memory=memory,
        epoch=epoch,
        budget=_budget(bench, epoch, seconds),
        probe_updates=num_updates,
        update_seconds=seconds,
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """What training would work with."""

    config: RunConfig
    data: PreparedData
    device: torch.device
    updater: Updater
    loader: Loader

    @classmethod
    def build(cls, config: RunConfig) -> _Bench:
        data, device = PreparedData.open(config.prepared_dir), choose_device(config.training.device)
        manifest, training = data.manifest, config.training
        torch.manual_seed(training.seed)
        vocab_sizes = (manifest.source_vocab_size, manifest.target_vocab_size)
        model = build_model(config.model, *vocab_sizes).to(device)
        freeze(model, training.freeze)
        precision = choose_precision(training.precision, device)
        updater = Updater(
            model,
            build_optimizer(
                model, training.optimizer, precision.weight_dtype, ema_decay=training.ema_decay
            ),
            precision,
            label_smoothing=training.label_smoothing,
            clip_norm=training.optimizer.clip_norm,
            r_drop=training.r_drop,
        )
        weights = [corpus.weight for corpus in config.data.train]
        loader = Loader(data.train, config.batch, weights=weights, seed=training.seed)
        return cls(config, data, device, updater, loader)

    def lengths(self, rows: Rows) -> tuple[Rows, Rows]:
        """Source and target tokens of each pair, EOS included."""
        store = self.data.train
        source, target = store.source_lengths[rows], store.target_lengths[rows]
        return source.astype(np.int64) + 1, target.astype(np.int64) + 1

    def update(self, rows: Rows) -> UpdateStats:
        """Make an update of one batch that changes no weight."""
        return self.updater([collate(self.data.train, rows)], 0.0)


def _epoch(bench: _Bench, plan: Sequence[Rows]) -> EpochReport:
    store, rows = bench.data.train, np.concatenate(plan)
    return EpochReport(
        pairs=len(rows),
        batches=len(plan),
        updates=-(-len(plan) // bench.config.batch.accumulate),
        workload=Workload.of_pairs(*bench.lengths(rows)),
        padding_waste=padding_waste(plan, store.source_lengths + 1, store.target_lengths + 1),
    )


def held_bytes(optimizer: Optimizer, model: nn.Module) -> dict[str, int]:
    """Return the bytes of the buffers that stay between updates, by what they hold.

    The names are those of `MemoryReport`.
    """
    parameters = list(model.parameters())
    weights = _storages(parameters)
    master = _without(_storages([optimizer.parameters.weights]), weights)
    gradients = [p.grad for p in parameters if p.grad is not None]
    # Weights that are only worked out when asked for stand elsewhere each time.
    used, again = optimizer.weights(), optimizer.weights()
    temporary = _without(_storages(used.values()), _storages(again.values()))
    kept = _without(_storages(used.values()), temporary)
    others = kept | _storages(optimizer.state().values())
    return {
        "weights": sum(weights.values()),
        "master_weights": sum(master.values()),
        "gradients": sum(_storages([*gradients, optimizer.parameters.gradient]).values()),
        "optimizer": sum(_without(others, weights | master).values()),
    }


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Address and bytes of each storage: views of one buffer count once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _without(storages: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    return {address: size for address, size in storages.items() if address not in others}


def _memory(bench: _Bench, plan: Sequence[Rows]) -> MemoryReport:
    """Look at the buffers, and measure what the largest batches take on top of them."""
    bench.update(plan[0][:1])  # what the first update makes and keeps is not to be measured
    shapes, splits, peaks = [], [], []
    for rows in _largest(bench, plan):
        source, target = bench.lengths(rows)
        shapes.append((len(rows), int(source.max()), int(target.max())))
        stats, peak = measure_peak(partial(bench.update, rows), bench.device)
        splits.append(stats.splits)
        peaks.append(peak)
    return MemoryReport(
        **held_bytes(bench.updater.optimizer, bench.updater.model),
        activations=max(peaks),
        largest_batches=tuple(shapes),
        splits=max(splits),
    )


def _largest(bench: _Bench, plan: Sequence[Rows]) -> Iterator[Rows]:
    """Yield the batch with the most tokens and, if another, the one with the most scores."""
    tokens, scores = [], []
    for rows in plan:
        source, target = bench.lengths(rows)
        longest, longest_target = int(source.max()), int(target.max())
        tokens.append(int(source.sum() + target.sum()))
        squares = longest**2 + longest_target**2 + longest * longest_target
        scores.append(len(rows) * squares)
    for index in sorted({int(np.argmax(tokens)), int(np.argmax(scores))}):
        yield plan[index]


def _budget(bench: _Bench, epoch: EpochReport, seconds: float) -> BudgetReport:
    """Find the limit that ends training first, as `nmt train` does at its start."""
    training, limits = bench.config.training, {}
    if training.max_steps is not None:
        limits["training.max_steps"] = training.max_steps
    if training.max_epochs is not None:
        later = range(1, training.max_epochs)
        updates = epoch.updates + sum(bench.loader.updates_per_epoch(number) for number in later)
        limits["training.max_epochs"] = updates
    if training.max_minutes is not None:
        limits["training.max_minutes"] = max(1, math.floor(training.max_minutes * 60 / seconds))
    limit = min(limits, key=lambda key: limits[key], default=None)
    return BudgetReport(
        updates=None if limit is None else limits[limit],
        limit=limit,
        has_patience=training.patience is not None,
    )
