"""Timing and memory of updates: how many fit into `training.max_minutes`, and the batch size.

All measurements restore weights, optimizer and random generators afterwards.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np

from nmt.checkpoint.files import AdapterRecord
from nmt.config.training import TrainingConfig
from nmt.data.loader import Loader, Position
from nmt.data.prepared import PreparedData
from nmt.data.store import Rows
from nmt.device import local_size
from nmt.device.device import free_bytes, measure_peak, random_state, restore_random_state
from nmt.errors import DeviceError
from nmt.files.progress import progress_bar
from nmt.training.checkpoints import Progress
from nmt.training.losses import LOSSES, loss_name
from nmt.training.update import Updater, UpdateStats
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)

MOST_SECONDS, NUM_UPDATES = 20.0, 20  # Limits for timing updates and a validation.
_FEWEST_UPDATES = 2
# Share of `training.max_minutes` spent on timing, and share of that spent on updates.
_SHARE_OF_BUDGET, _SHARE_OF_UPDATES = 0.1, 0.75
_SAVED_BYTES_PER_SECOND = 250e6  # Speed of saving, with hashing and syncing.
# Factor on `training.max_minutes`: a longer estimate gives a warning.
_OVER_BUDGET = 1.1
# Time per training pair for the shortlist and confidence file; measured on one core.
_PAIR_SECONDS = 60e-6
_PARTS, _LINES = 6, 7  # A validation is timed on 6 batches and 6 times 7 lines.
_SHARE_OF_MEMORY = 0.75  # Share of the free memory to use; the allocator needs some itself.
_FIRST_SIZE = 2048
# R-Drop is used if training without it reads the data at least this often. With 5,000 pairs and the
# same time, BLEU changes by -0.3 at 24 passes, and by +1.7 at 48; with 6,900, by -3 at about 30.
_PASSES_FOR_R_DROP = 36


@dataclass(frozen=True)
class TrainingSetup:
    """Model, data and tools that one process trains with, from `nmt.commands.train_setup.build`."""

    training: TrainingConfig
    data: PreparedData
    updater: Updater  # its model has new weights
    loader: Loader
    validator: Validator
    validates_first: bool = False  # before the first update, to show what the run forgets
    adapter: AdapterRecord | None = None  # Set if only adapters are trained.


@dataclass(frozen=True)
class TimePlan:
    """Estimated times of the parts of a training run, in seconds."""

    update: float  # The median update.
    validation: float  # A validation, with the save after it.
    saving: float  # A save between two validations.
    end: float  # Work after the last update: validation, and files for inference.
    spent: float = 0.0  # Time spent on measuring, before the first update.
    num_timed: int = 0  # Number of timed updates.

    def updates_in(self, minutes: float, training: TrainingConfig) -> int:
        """Return how many updates fit into ``minutes``, with their validations and saves.

        At least half of the time is planned for updates, because the other estimates may be too
        high.

        >>> training = TrainingConfig(max_minutes=10, validate_every=100)
        >>> TimePlan(1.0, 20.0, 0.0, 40.0).updates_in(10, training)
        466
        """
        seconds = max(minutes * 60 - self.spent, 0.0)
        inside = math.floor((seconds - self.end) / (self.update + self._between(training)))
        return max(1, inside, math.floor(seconds / 2 / self.update))

    def beside(self, updates: int, training: TrainingConfig) -> float:
        """Return the seconds that a training run of ``updates`` spends outside of the updates."""
        return updates * self._between(training) + self.end

    def _between(self, training: TrainingConfig) -> float:
        return self.validation / training.validate_every + self.saving / training.save_every

    def shortage(self, updates: int | None, training: TrainingConfig) -> str:
        """Return a warning if too little of `training.max_minutes` is left for updates, or ""."""
        minutes = training.max_minutes
        if minutes is None or updates != self.updates_in(minutes, training):
            return ""
        beside = self.beside(updates, training) / 60
        whole = beside + (self.spent + updates * self.update) / 60
        if beside <= minutes / 2 or whole <= _OVER_BUDGET * minutes:
            return ""
        at_end_only = updates < min(training.validate_every, training.save_every)
        rarer = "raise training.validate_every and save_every"
        todo = "raise training.max_minutes" if at_end_only else rarer
        share = f"{beside:,.1f} of the {minutes:g} minutes of training.max_minutes"
        todo = f"to spend more on updates, {todo}, or lower data.valid.max_pairs"
        return f"validation and saving take about {share}; {todo}"


@contextmanager
def left_as_it_was(updater: Updater) -> Iterator[None]:
    """Restore weights, optimizer and random generators when the context ends.

    Copies the weights and the state of the optimizer, which needs memory for a second copy.
    """
    optimizer, processes = updater.optimizer, updater.processes
    weights = {name: tensor.clone() for name, tensor in optimizer.weights().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    generators, counters = random_state(updater.device, processes), updater.counters()
    try:
        yield
    finally:
        optimizer.load(weights, moments)
        restore_random_state(generators, updater.device, processes)
        updater.load_counters(counters)


def time_updates(
    updater: Updater, loader: Loader, *, num_updates: int = NUM_UPDATES, most_seconds: float
) -> tuple[float, int]:
    """Return the median seconds of an update, and the number of updates timed.

    Restores the weights afterwards.

    Args:
        updater: Makes the updates, at learning rate 0.
        loader: Loads the batches.
        num_updates: Number of updates to time.
        most_seconds: Time limit; at least 2 updates are made.
    """
    pace, processes, seconds = updater.pace, updater.processes, list[float]()
    shown = not processes.rank
    with (
        left_as_it_was(updater),
        closing(loader.updates(Position())) as batches,
        pace.stream(batches) as updates,
        progress_bar("timing", unit="updates", total=num_updates, leave=False, shown=shown) as bar,
    ):
        for _ in range(num_updates):
            begin = time.perf_counter()
            parts, _after = next(updates)
            updater(parts, 0.0)
            pace.wait()
            seconds.append(time.perf_counter() - begin)
            bar.update()
            if processes.share(sum(seconds) > most_seconds and len(seconds) >= _FEWEST_UPDATES):
                break
    warm = sorted(seconds[-(-len(seconds) // 4) :])  # the first quarter is warm-up
    return processes.share((warm[len(warm) // 2], len(seconds)))


def _validation_seconds(validator: Validator, most_seconds: float) -> float:
    """Estimate the seconds of a validation from samples, after smaller samples as warm-up."""
    processes, seconds = validator.updater.processes, 0.0
    most_of_set = most_seconds / len(validator.sets)
    for held_out in validator.sets:
        text = held_out.text
        num_lines = len(text.sources) if text else 0
        for batches, lines, count in ((1, 0, len(held_out.batches)), (0, _LINES, num_lines)):
            of_item = 0.0
            for parts in (1, _PARTS) if processes.share(count) else ():
                sample = held_out.sample(num_batches=parts * batches, num_lines=parts * lines)
                begin = time.perf_counter()
                replace(validator, sets=[sample], end_loops=False)()
                of_item = (time.perf_counter() - begin) / max(sample.size, 1)
                # If already the small sample is slow, there is no time for the larger one.
                if processes.share(_PARTS * sample.size * of_item > most_of_set / 2):
                    break
            seconds += of_item * count
        if text and text.command and not processes.rank:
            begin = time.perf_counter()
            text.run_command(text.references[0])
            seconds += time.perf_counter() - begin
    return processes.share(seconds)


def time_plan(setup: TrainingSetup, *, most_seconds: float = MOST_SECONDS) -> TimePlan:
    """Time updates and parts of a validation, and compute the time of saving from file sizes.

    Restores the weights afterwards.

    Args:
        setup: The training to time.
        most_seconds: Approximate limit of the wall-clock time for measuring.
    """
    begin, updater, training = time.perf_counter(), setup.updater, setup.training
    most = _SHARE_OF_UPDATES * most_seconds
    update, num_timed = time_updates(updater, setup.loader, most_seconds=most)
    left = max(most_seconds - (time.perf_counter() - begin), most_seconds - most)
    validation = _validation_seconds(setup.validator, left)
    tensors = [*updater.optimizer.weights().values(), *updater.optimizer.state().values()]
    saving = sum(tensor.nbytes for tensor in tensors) / _SAVED_BYTES_PER_SECOND
    if updater.pace.uses_threads:
        saving = 0.0  # a thread saves while updates continue
    validations = 1 + (training.average_last is not None) + setup.validates_first
    end = validations * validation + saving + _PAIR_SECONDS * len(setup.data.train)
    spent = updater.processes.share(time.perf_counter() - begin)
    return TimePlan(update, validation + saving, saving, end, spent, num_timed)


def wastes_r_drop(setup: TrainingSetup, plan: TimePlan) -> bool:
    """Whether `training.max_minutes` is too short to gain from R-Drop, and the loss is ``auto``.

    R-Drop doubles the work per update, so a short training learns more from twice the updates.
    """
    training, config = setup.training, setup.loader.config
    if training.max_minutes is None or (training.loss, loss_name(training)) != ("auto", "r_drop"):
        return False
    in_epoch = len(setup.loader.plan(0)) / config.gradient_accumulation
    return 2 * plan.updates_in(training.max_minutes, training) < _PASSES_FOR_R_DROP * in_epoch


def plan_budget(setup: TrainingSetup, progress: Progress) -> None:
    """Set ``progress.total_steps`` to the smallest limit of updates, minutes and epochs.

    A resumed run uses the number of updates that its checkpoint recorded for the minutes, so that
    it ends at the same step as an uninterrupted run. If `training.max_minutes` has changed, the
    number changes in proportion.

    ``training.loss: auto`` becomes cross-entropy if the minutes are too few for R-Drop.
    """
    training, processes = setup.training, setup.updater.processes
    minutes, epochs, limits = training.max_minutes, training.max_epochs, [training.max_steps]
    plan = None
    if minutes is None:
        progress.timed = None
    elif progress.timed is None:
        progress.loss = None
        most = min(_SHARE_OF_BUDGET * 60 * minutes, MOST_SECONDS)
        text = "timing updates and validation to plan the %g minutes; this takes at most %.0f s"
        logger.info(text, minutes, most)
        plan = time_plan(setup, most_seconds=most)
        if wastes_r_drop(setup, plan):
            text = "%g minutes are too few for R-Drop, so it is not used (training.loss)"
            logger.info(text, minutes)
            progress.loss, spent = "cross_entropy", plan.spent
            setup.updater.objective = LOSSES[progress.loss](training)
            plan = time_plan(setup, most_seconds=most)
            plan = replace(plan, spent=plan.spent + spent)
        progress.timed = minutes, plan.updates_in(minutes, training)
    else:
        recorded_minutes, steps = progress.timed
        progress.timed = minutes, max(1, round(steps * minutes / recorded_minutes))
    if progress.loss and plan is None and training.loss == "auto":
        setup.updater.objective = LOSSES[progress.loss](training)
        logger.info("R-Drop is not used: training.max_minutes was too short when the run began")
    if epochs is None:
        progress.epoch_updates = None
    elif progress.epoch_updates is None or progress.epoch_updates[0] != epochs:
        # Planning many epochs is slow, so one process does it for all.
        of_epochs = setup.loader.epoch_updates() if processes.rank == 0 else iter(())
        progress.epoch_updates = epochs, processes.share(sum(islice(of_epochs, epochs)))
    limits += [budget[1] for budget in (progress.timed, progress.epoch_updates) if budget]
    progress.total_steps = min((each for each in limits if each is not None), default=None)
    if plan and not processes.rank and (text := plan.shortage(progress.total_steps, training)):
        logger.warning(text)


def largest_batches(loader: Loader, plan: Sequence[Rows]) -> list[Rows]:
    """Return the batch with the most tokens, and the batch with the most attention scores.

    Args:
        loader: Has the lengths of the sentence pairs.
        plan: Row numbers of each batch.

    Returns:
        Row numbers of one or two batches.
    """
    lengths = [loader.lengths(rows) for rows in plan]
    tokens = [int(source.sum() + target.sum()) for source, target in lengths]
    sizes = [(len(source), int(source.max()), int(target.max())) for source, target in lengths]
    scores = [pairs * (s**2 + t**2 + s * t) for pairs, s, t in sizes]
    return [plan[i] for i in sorted({int(np.argmax(tokens)), int(np.argmax(scores))})]


def fit_batches(updater: Updater, loader: Loader, max_length: int) -> Loader:
    """Return a loader whose batches fit into memory, if `batch.max_tokens` is ``auto``.

    Measures the peak memory of updates with batches of two sizes, and extrapolates linearly. The
    number of tokens per update stays the same: smaller batches are accumulated. All processes use
    the same size. Restores the weights afterwards.

    Args:
        updater: Makes the updates. Its layers must not be compiled yet, because they are compiled
            for the size found here.
        loader: Loads the batches.
        max_length: Maximum length of either side of a pair, in tokens.

    Raises:
        DeviceError: The longest pair does not fit into memory.
    """
    batch, processes = loader.config, updater.processes
    if batch.max_tokens != "auto" or batch.tokens_per_update is None:
        return loader
    own = fits = -(-batch.tokens_per_update // processes.size)
    smallest = 2 * max_length + 2
    first = min(own, max(smallest, _FIRST_SIZE))
    second = min(own, 2 * first)
    if second > first:
        # All processes measure the same batches: an update needs all of them.
        alike = replace(loader, rank=0, num_ranks=1)
        with left_as_it_was(updater):
            low, high = (measure_batches(updater, alike, size) for size in (first, second))
        free = int(_SHARE_OF_MEMORY * min(low[2], high[2]))
        fits = min(own, tokens_that_fit(low[:2], high[:2], free=free))
    fits = min(processes.gather(fits))
    if fits < smallest:
        pair = f"but a pair can have {max_length} tokens (filters.max_length) on each side"
        raise DeviceError(
            f"Memory fits batches of about {fits:,} tokens, {pair}.",
            fix="Lower filters.max_length, or use training.activation_checkpointing or "
            "another model.",
        )
    count = -(-own // fits)
    found = {"max_tokens": max(smallest, -(-own // count)), "tokens_per_update": None}
    found["gradient_accumulation"] = count
    return replace(loader, config=batch.model_copy(update=found))


def measure_batches(
    updater: Updater, loader: Loader, max_tokens: int | None = None
) -> tuple[int, int, int, int]:
    """Return (tokens, peak bytes, free bytes, splits) of updates with the largest batches.

    The peak does not count memory that training uses all the time, such as the weights. ``splits``
    is how often these batches were halved to fit into memory.
    """
    if max_tokens:
        size = {"max_tokens": max_tokens, "tokens_per_update": None}
        loader = replace(loader, config=loader.config.model_copy(update=size))
    plan = loader.plan(0)

    def update(rows: Rows) -> UpdateStats:
        return updater([loader.batch(rows)], 0.0)

    update(plan[0][:1])  # the first update also allocates memory that stays
    free = free_bytes(updater.device)
    if updater.device.type == "cpu":
        free //= local_size()
    largest = largest_batches(loader, plan)
    measured = [measure_peak(partial(update, rows), updater.device) for rows in largest]
    most = max(sum(int(side.sum()) for side in loader.lengths(rows)) for rows in largest)
    splits = max(stats.splits for stats, _ in measured)
    return most, max(peak for _, peak in measured), free, splits


def tokens_that_fit(low: tuple[int, int], high: tuple[int, int], *, free: int) -> int:
    """Extrapolate how many tokens fit into ``free`` bytes, from (tokens, bytes) of two batches.

    >>> tokens_that_fit((1000, 300_000), (2000, 500_000), free=900_000)
    4000
    """
    (few, few_bytes), (many, many_bytes) = low, high
    per_token = max((many_bytes - few_bytes) / max(many - few, 1), 1.0)
    return max(0, int(many + (free - many_bytes) / per_token))
