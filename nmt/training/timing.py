"""How long an update takes on this device, for budgets of time."""

from __future__ import annotations

import time
from collections.abc import Callable

from nmt.data.loader import Loader, Position
from nmt.engine.device import random_state, restore_random_state
from nmt.training.optimizer import ModelOptimizer
from nmt.training.update import Updater


def measure_update_seconds(
    updater: Updater,
    optimizer: ModelOptimizer,
    loader: Loader,
    *,
    num_updates: int = 16,
    check: Callable[[], object] = lambda: None,
) -> float:
    """Return the median seconds of an update, and leave no trace.

    Makes some updates with a learning rate of zero, then puts weights, optimizer and random
    generators back as they were. ``check`` is called between them; it may raise to interrupt.
    """
    device, processes = updater.model.output_weight.device, updater.processes
    weights = {name: tensor.clone() for name, tensor in optimizer.weights().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    generators, counters = random_state(device, processes), updater.loss_scale.counters()
    pace, seconds = updater.pace, []
    with pace.stream(loader.updates(Position())) as updates:
        for _ in range(num_updates):
            check()
            begin = time.perf_counter()
            batches, _after = next(updates)
            updater(batches, 0.0)
            pace.wait()
            seconds.append(time.perf_counter() - begin)
    optimizer.load(weights, moments)
    restore_random_state(generators, device, processes)
    updater.loss_scale.load_counters(counters)
    median = sorted(seconds[num_updates // 4 :])[(num_updates - num_updates // 4) // 2]
    return processes.share(median)
