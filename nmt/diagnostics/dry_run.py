"""A setup of training -> what training would take: parameters, FLOPs, memory, time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from nmt.data.batching import padding_waste
from nmt.diagnostics.dry_run_report import BudgetReport, DryRunReport, EpochReport, MemoryReport
from nmt.engine.memory import measure_peak
from nmt.model.cost import LengthSums, matmul_parameters, training_flops
from nmt.model.transformer import count_parameters
from nmt.training.losses import objective_name
from nmt.training.measure import measure_update_seconds, updates_in
from nmt.training.optimizer import ModelOptimizer
from nmt.training.setup import Rows, TrainingSetup

logger = logging.getLogger(__name__)


def measure_training(setup: TrainingSetup, *, name: str, num_updates: int = 12) -> DryRunReport:
    """Compute and measure what training with ``setup`` from its first update would take.

    Makes a few updates of its model, which is not to be used afterwards.

    Args:
        setup: A setup of one process.
        name: Name of the run.
        num_updates: Updates of the probe behind the time.
    """
    plan = setup.loader.plan(0)
    epoch = _epoch(setup, plan)
    logger.info(
        "Measuring memory on the largest batches, and time in a probe of %d updates.", num_updates
    )
    memory = _memory(setup, plan)
    seconds = measure_update_seconds(setup.updater, setup.loader, num_updates=num_updates)
    vocab_size = setup.data.manifest.target_vocab_size
    passes = 2 if objective_name(setup.training) == "r_drop" else 1
    return DryRunReport(
        name=name,
        device=str(setup.device),
        precision=setup.updater.precision.name,
        compilation=setup.compilation,
        threads=torch.get_num_threads(),
        parameters=count_parameters(setup.updater.model),
        matrices=matmul_parameters(setup.model, vocab_size),
        passes=passes,
        flops=training_flops(setup.model, vocab_size, epoch.sums, passes=passes),
        memory=memory,
        epoch=epoch,
        budget=_budget(setup, epoch, seconds),
        probe_updates=num_updates,
        update_seconds=seconds,
    )


def _epoch(setup: TrainingSetup, plan: Sequence[Rows]) -> EpochReport:
    store, rows = setup.data.train, np.concatenate(plan)
    return EpochReport(
        pairs=len(rows),
        batches=len(plan),
        updates=-(-len(plan) // setup.batch.accumulate),
        sums=LengthSums.of_pairs(*setup.lengths(rows)),
        padding_waste=padding_waste(plan, store.source_lengths + 1, store.target_lengths + 1),
    )


def held_bytes(optimizer: ModelOptimizer, model: nn.Module) -> dict[str, int]:
    """Return the bytes of the buffers that stay between updates, by what they hold.

    The names are those of `MemoryReport`.
    """
    parameters = list(model.parameters())
    weights = _storages(parameters)
    master = _without(_storages([optimizer.parameters.weights]), weights)
    gradients = [p.grad for p in parameters if p.grad is not None]
    # Weights that are computed on demand are at another address each time.
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


def _memory(setup: TrainingSetup, plan: Sequence[Rows]) -> MemoryReport:
    """Look at the buffers, and measure what the largest batches take on top of them."""
    setup.update(plan[0][:1])  # what the first update makes and keeps is not to be measured
    shapes, splits, peaks = [], [], []
    for rows in setup.largest_batches(plan):
        source, target = setup.lengths(rows)
        shapes.append((len(rows), int(source.max()), int(target.max())))
        stats, peak = measure_peak(partial(setup.update, rows), setup.device)
        splits.append(stats.splits)
        peaks.append(peak)
    return MemoryReport(
        **held_bytes(setup.updater.optimizer, setup.updater.model),
        activations=max(peaks),
        largest_batches=tuple(shapes),
        splits=max(splits),
    )


def _budget(setup: TrainingSetup, epoch: EpochReport, seconds: float) -> BudgetReport:
    """Find the limit that ends training first, as `nmt train` does at its start."""
    training, limits = setup.training, {}
    if training.max_steps is not None:
        limits["training.max_steps"] = training.max_steps
    if training.max_epochs is not None:
        later = range(1, training.max_epochs)
        updates = epoch.updates + sum(setup.loader.updates_per_epoch(number) for number in later)
        limits["training.max_epochs"] = updates
    if training.max_minutes is not None:
        limits["training.max_minutes"] = updates_in(training.max_minutes, seconds)
    limit = min(limits, key=lambda key: limits[key], default=None)
    return BudgetReport(
        updates=None if limit is None else limits[limit],
        limit=limit,
        has_patience=training.patience is not None,
    )
