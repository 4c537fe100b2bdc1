"""What a run measures before its first update: time, epochs, and how many tokens fit into memory.

All of it is measured once: a start that was killed leaves it in the run folder, a checkpoint
records it, and so a resumed run makes the updates of one that was not stopped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.run import read_measured, write_measured
from nmt.config.data import BatchConfig
from nmt.config.training import TrainingConfig
from nmt.data.loader import Loader, Position
from nmt.device import local_size, shared_cores
from nmt.device.device import random_state, restore_random_state
from nmt.device.distributed import Processes
from nmt.device.memory import free_bytes, measure_peak
from nmt.errors import DeviceError
from nmt.files.progress import progress_bar
from nmt.training.progress import Progress
from nmt.training.setup import TrainingSetup
from nmt.training.signals import SharedStop
from nmt.training.update import Updater
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)

_SHARE = 0.75
"""Share of the free memory to use: other programs and the allocator need some, too."""
_FIRST_PROBE = 2048
MOST_SECONDS, _FEWEST_UPDATES = 20.0, 2
"""About the most that timing updates and a validation takes; but so many updates at least."""
_SHARE_OF_BUDGET, _SHARE_OF_UPDATES = 0.1, 0.75
"""Of a budget of minutes, for timing; of that, for updates."""
_SAVED_BYTES_PER_SECOND = 250e6
"""Written, hashed and synced."""
_OVER_BUDGET = 1.1
"""Times a budget of minutes: what is estimated to take longer is worth a warning."""
_PAIR_SECONDS = 60e-6
"""Time for short lists and the guard by training pair; measured on one core."""


@dataclass(frozen=True, slots=True)
class MeasuredOnce:
    """What the starts of a run before its first checkpoint measure, in all processes alike."""

    run_dir: Path
    conditions: Mapping[str, Any]
    """What else the result depends on, as plain data; under others it is measured again."""
    processes: Processes

    def __call__(
        self,
        name: str,
        measure: Callable[[], Any],
        is_whole: Callable[[Any], bool] = lambda _found: True,
    ) -> Any:
        """Return what a start that was killed has found, if ``is_whole`` says so, or measure.

        Raises:
            CheckpointError: The run folder cannot be written.
        """
        is_first = self.processes.rank == 0
        found = read_measured(self.run_dir, self.conditions) if is_first else {}
        known = self.processes.share(found)
        if name not in known or not is_whole(known[name]):
            known = {**known, name: measure()}
            if is_first:
                write_measured(self.run_dir, self.conditions, known)
        return known[name]


def count_updates(loader: Loader, epochs: int, stop: SharedStop, processes: Processes) -> int:
    """Return the updates of the first epochs; the first process plans them, and shares the sum.

    Raises:
        Interrupted: A signal came meanwhile.
    """

    def count() -> int:
        total = 0
        for updates in islice(loader.epoch_updates() if processes.rank == 0 else (), epochs):
            stop.check()
            total += updates
        return total

    return stop.gather(count)[0]


@dataclass(frozen=True, slots=True)
class TimePlan:
    """About how long the parts of a training take, in seconds."""

    update: float
    """The median update."""
    validation: float
    """A validation, with the save after it."""
    saving: float
    """A save between two validations."""
    end: float
    """What follows the last update: validation, short lists, guard, and validating the average."""
    spent: float = 0.0
    """On measuring all this, before the first update."""
    num_timed: int = 0
    """Updates that were made for it."""

    def updates_in(self, minutes: float, training: TrainingConfig) -> int:
        """Return how many updates a budget of time holds, with all that belongs to them.

        Estimates may be wrong: half of the time is for updates in any case.

        >>> training = TrainingConfig(max_minutes=10, validate_every=100)
        >>> TimePlan(1.0, 20.0, 0.0, 40.0).updates_in(10, training)
        466
        """
        between = self.validation / training.validate_every + self.saving / training.save_every
        seconds = max(minutes * 60 - self.spent, 0.0)
        inside = math.floor((seconds - self.end) / (self.update + between))
        return max(1, inside, math.floor(seconds / 2 / self.update))

    def shortage(self, updates: int | None, training: TrainingConfig) -> Iterator[str]:
        """Yield a warning if a budget of time, which gives ``updates``, does not hold the rest."""
        minutes = training.max_minutes
        if minutes is None or updates != self.updates_in(minutes, training):
            return
        beside = self.beside(updates, training) / 60
        whole = beside + (self.spent + updates * self.update) / 60
        if beside > minutes / 2 and whole > _OVER_BUDGET * minutes:
            rarer = "raise training.validate_every and save_every, or "
            if updates < min(training.validate_every, training.save_every):
                rarer = "give it more time, or "  # both come at the end only
            yield (
                f"validation, saving and the end of training take about {beside:,.1f} minutes, and "
                f"training.max_minutes is {minutes:g}: {rarer}use a smaller validation set "
                "(data.valid.max_pairs)"
            )

    def beside(self, updates: int, training: TrainingConfig) -> float:
        """Return the seconds of a training of so many updates that are not theirs."""
        between = self.validation / training.validate_every + self.saving / training.save_every
        return updates * between + self.end


def time_plan(
    setup: TrainingSetup,
    validator: Validator,
    *,
    check: Callable[[], object] = lambda: None,
    num_updates: int = 16,
    most_seconds: float = MOST_SECONDS,
) -> TimePlan:
    """Measure updates and parts of a validation, and leave no trace; compute the rest from sizes.

    Takes about ``most_seconds`` at most: by the clock, as other processes may hold the cores.

    Raises:
        Interrupted: ``check`` or the validator says so.
    """
    begin, cpu_begin = time.perf_counter(), time.process_time()
    updater, training = setup.updater, setup.config.training
    most = _SHARE_OF_UPDATES * most_seconds
    update, num_timed = measure_update_seconds(
        updater, setup.loader, check=check, num_updates=num_updates, most_seconds=most
    )
    spent = time.perf_counter() - begin
    if setup.device.type == "cpu" and not updater.processes.rank:
        used = (time.process_time() - cpu_begin) / spent
        if shared := shared_cores(used, torch.get_num_threads()):
            logger.warning("%s and is as much slower: end them, or give it more minutes", shared)
    left = max(most_seconds - spent, most_seconds - most)
    validation = updater.processes.share(validator.estimate_seconds(left))
    tensors = [*updater.optimizer.weights().values(), *updater.optimizer.state().values()]
    saving = sum(tensor.nbytes for tensor in tensors) / _SAVED_BYTES_PER_SECOND
    if updater.pace.uses_threads:
        saving = 0.0  # goes on beside updates
    validations = 1 + (training.average_last is not None)
    end = validations * validation + saving + _PAIR_SECONDS * len(setup.data.train)
    spent = updater.processes.share(time.perf_counter() - begin)
    return TimePlan(update, validation + saving, saving, end, spent, num_timed)


def plan_budget(
    setup: TrainingSetup,
    progress: Progress,
    measured_once: MeasuredOnce,
    stop: SharedStop,
    validator: Validator,
) -> Progress:
    """Set the budgets of ``progress``, and the updates in all: the least of all limits.

    What a checkpoint has recorded counts, so that a resumed run ends where one that was not stopped
    does; if the minutes were changed since, the updates are in proportion (`check_resumable` warns
    where the schedule depends on them).

    Raises:
        Interrupted: A signal came meanwhile.
    """
    training, loader, processes = setup.config.training, setup.loader, setup.updater.processes
    minutes, epochs, limits = training.max_minutes, training.max_epochs, [training.max_steps]

    def seconds() -> dict[str, float]:
        most = min(_SHARE_OF_BUDGET * 60 * (minutes or 0), MOST_SECONDS)
        text = "timing some updates and validation, to plan %g minutes; takes up to about %.0f s"
        logger.info(text, minutes, most)
        check = partial(stop.gather, stop.check)
        return asdict(time_plan(setup, validator, check=check, most_seconds=most))

    plan = None
    if minutes is None:
        progress.timed = None
    elif progress.timed is None:
        plan = TimePlan(**measured_once("seconds", seconds))
        progress.timed = minutes, plan.updates_in(minutes, training)
    else:
        recorded_minutes, steps = progress.timed
        progress.timed = minutes, max(1, round(steps * minutes / recorded_minutes))
    if epochs is None:
        progress.epoch_updates = None
    elif progress.epoch_updates is None or progress.epoch_updates[0] != epochs:
        updates = measured_once(
            f"updates of {epochs} epochs", lambda: count_updates(loader, epochs, stop, processes)
        )
        progress.epoch_updates = epochs, updates
    limits += [budget[1] for budget in (progress.timed, progress.epoch_updates) if budget]
    progress.total_steps = min((each for each in limits if each is not None), default=None)
    if plan is not None and not processes.rank:
        for warning in plan.shortage(progress.total_steps, training):
            logger.warning(warning)
    return progress


def measure_update_seconds(
    updater: Updater,
    loader: Loader,
    *,
    num_updates: int = 16,
    check: Callable[[], object] = lambda: None,
    most_seconds: float = math.inf,
) -> tuple[float, int]:
    """Return the median seconds of an update, and of how many; leave no trace.

    Makes some updates with a learning rate of zero, then puts weights, optimizer and random
    generators back as they were: ``num_updates``, or fewer (2 at least) that take ``most_seconds``.
    ``check`` is called between them; it may raise to interrupt.
    """
    optimizer = updater.optimizer
    device, processes = updater.model.output_weight.device, updater.processes
    weights = {name: tensor.clone() for name, tensor in optimizer.weights().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    generators, counters = random_state(device, processes), updater.loss_scale.counters()
    pace, seconds = updater.pace, []
    bar = progress_bar(
        "timing", unit="updates", total=num_updates, leave=False, shown=not processes.rank
    )
    with closing(loader.updates(Position())) as batches, pace.stream(batches) as updates, bar:
        for _ in range(num_updates):
            check()
            begin = time.perf_counter()
            parts, _after = next(updates)
            updater(parts, 0.0)
            pace.wait()
            seconds.append(time.perf_counter() - begin)
            bar.update()
            is_late = sum(seconds) > most_seconds and len(seconds) >= _FEWEST_UPDATES
            if processes.share(is_late):
                break
    optimizer.load(weights, moments)
    restore_random_state(generators, device, processes)
    updater.loss_scale.load_counters(counters)
    warm = sorted(seconds[-(-len(seconds) // 4) :])
    return processes.share((warm[len(warm) // 2], len(seconds)))


def fit_batches(
    batch: BatchConfig,
    max_length: int,
    build: Callable[[BatchConfig], TrainingSetup],
    processes: Processes,
) -> BatchConfig:
    """Return the batch section with numbers in place of ``auto``; else the section as it is.

    Measures what the largest batches of two sizes take, and lays a line through them. Updates keep
    their size: what does not fit at once is accumulated.

    Args:
        batch: The section.
        max_length: Most tokens of a side of a pair.
        build: Makes what trains with batches of a given size, in this process alone.
        processes: All of them find the same numbers.

    Raises:
        DeviceError: Memory does not hold the longest pair.
    """
    if batch.max_tokens != "auto" or batch.tokens_per_update is None:
        return batch
    own = fits = -(-batch.tokens_per_update // processes.size)
    smallest = 2 * max_length + 2
    first = min(own, max(smallest, _FIRST_PROBE))
    second = min(own, 2 * first)
    if second > first:
        sizes = ({"max_tokens": n, "tokens_per_update": None} for n in (first, second))
        (low, free), (high, less) = (_probe(build(batch.model_copy(update=n))) for n in sizes)
        fits = min(own, tokens_that_fit(low, high, free=int(_SHARE * min(free, less))))
    fits = min(processes.gather(fits))
    if fits < smallest:
        raise DeviceError(
            f"Memory holds batches of about {fits:,} tokens, fewer than a pair with "
            f"filters.max_length ({max_length}) tokens on each side.",
            fix="Lower filters.max_length, set training.activation_checkpointing, or choose a "
            "smaller model.",
        )
    accumulate = -(-own // fits)
    max_tokens = max(smallest, -(-own // accumulate))
    return batch.model_copy(
        update={"max_tokens": max_tokens, "accumulate": accumulate, "tokens_per_update": None}
    )


def _probe(setup: TrainingSetup) -> tuple[tuple[int, int], int]:
    """Return tokens of the largest batches and bytes of their updates at the peak; free bytes.

    Bytes are those besides what training holds all the time.
    """
    plan = setup.loader.plan(0)
    setup.update(plan[0][:1])  # what the first update makes and keeps is not to be measured
    free = free_bytes(setup.device)
    if setup.device.type == "cpu":
        free //= local_size()
    largest = setup.largest_batches(plan)
    peaks = [measure_peak(partial(setup.update, rows), setup.device)[1] for rows in largest]
    most = max(sum(int(side.sum()) for side in setup.lengths(rows)) for rows in largest)
    return (most, max(peaks)), free


def tokens_that_fit(low: tuple[int, int], high: tuple[int, int], *, free: int) -> int:
    """Return how many tokens fit, from (tokens, bytes) of two sizes of batches.

    >>> tokens_that_fit((1000, 300_000), (2000, 500_000), free=900_000)
    4000
    """
    (few, few_bytes), (many, many_bytes) = low, high
    per_token = max((many_bytes - few_bytes) / max(many - few, 1), 1.0)
    return max(0, int(many + (free - many_bytes) / per_token))
