"""Measurements before training: time of updates and validations, and memory of batches.

All measurements restore weights, optimizer and random generators afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

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
from nmt.training.update import Updater, UpdateStats
from nmt.training.validation import ValidationSet, Validator

# Limits for timing updates and a validation.
MOST_SECONDS = 20.0
NUM_UPDATES = 20
_FEWEST_UPDATES = 2
_SHARE_OF_UPDATES = 0.75  # Share of the time for measuring that is spent on updates.
_SAVED_BYTES_PER_SECOND = 250e6  # Speed of saving, with hashing and syncing.
# A validation is timed on 6 batches and 6 times 7 lines.
_PARTS = 6
_LINES = 7
_SHARE_OF_MEMORY = 0.75  # Share of the free memory to use; the allocator needs some itself.
_FIRST_SIZE = 2048


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
class Costs:
    """Estimated times of the parts of a training run, in seconds."""

    update: float  # The median update.
    validation: float  # A validation of the whole sets.
    saving: float  # A save.
    num_timed: int = 0  # Number of timed updates.

    def beside(self, updates: int, training: TrainingConfig) -> float:
        """Return the seconds that a run of ``updates`` spends on validations and saves."""
        num_validations = updates / training.validate_every + 1
        if training.average_last is not None:
            num_validations += 1
        num_saves = num_validations + updates / training.save_every
        return num_validations * self.validation + num_saves * self.saving


@contextmanager
def left_as_it_was(updater: Updater) -> Iterator[None]:
    """Restore weights, optimizer and random generators when the context ends.

    Copies the weights and the state of the optimizer, which needs memory for a second copy.
    """
    optimizer = updater.optimizer
    processes = updater.processes
    weights = {name: tensor.clone() for name, tensor in optimizer.weights().items()}
    moments = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    generators = random_state(updater.device, processes)
    counters = updater.counters()
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
    pace = updater.pace
    processes = updater.processes
    shown = processes.rank == 0
    seconds = list[float]()
    with (
        left_as_it_was(updater),
        closing(loader.updates(Position())) as batches,
        pace.stream(batches) as updates,
        progress_bar("timing", unit="updates", total=num_updates, leave=False, shown=shown) as bar,
    ):
        for number in range(1, num_updates + 1):
            begin = time.perf_counter()
            parts, _after = next(updates)
            updater(parts, 0.0)
            pace.wait()
            seconds.append(time.perf_counter() - begin)
            bar.update()
            is_late = sum(seconds) > most_seconds and number >= _FEWEST_UPDATES
            if processes.share(is_late):
                break
    num_cold = -(-len(seconds) // 4)  # the first quarter is warm-up
    warm = sorted(seconds[num_cold:])
    return processes.share((warm[len(warm) // 2], len(seconds)))


def _seconds_of_item(
    validator: Validator,
    held_out: ValidationSet,
    most_seconds: float,
    *,
    num_batches: int = 0,
    num_lines: int = 0,
) -> float:
    """Return the seconds of a batch, or of a line, in a sample and in a six times larger sample."""
    processes = validator.updater.processes
    of_item = 0.0
    for parts in (1, _PARTS):
        sample = held_out.sample(num_batches=parts * num_batches, num_lines=parts * num_lines)
        timed = replace(validator, sets=[sample], end_loops=False)
        begin = time.perf_counter()
        timed()
        of_item = (time.perf_counter() - begin) / max(sample.size, 1)
        # If already the small sample is slow, there is no time for the larger one, which takes
        # less than six times as long.
        if processes.share(sample.size * of_item > most_seconds / 3):
            break
    return of_item


def _validation_seconds(validator: Validator, most_seconds: float) -> float:
    """Estimate the seconds of a validation from samples."""
    processes = validator.updater.processes
    most = most_seconds / len(validator.sets)
    seconds = 0.0
    for held_out in validator.sets:
        # The first line may take a second: at that speed, a validation would fill a short budget.
        first = held_out.sample(num_batches=1, num_lines=1)
        warm_up = replace(validator, sets=[first], end_loops=False)
        warm_up()
        text = held_out.text
        if processes.share(len(held_out.batches)):
            of_batch = _seconds_of_item(validator, held_out, most, num_batches=1)
            seconds += of_batch * len(held_out.batches)
        if text is None:
            continue
        of_line = _seconds_of_item(validator, held_out, most, num_lines=_LINES)
        seconds += of_line * len(text.sources)
        if text.command and processes.rank == 0:
            begin = time.perf_counter()
            text.run_command(text.references[0])
            seconds += time.perf_counter() - begin
    return processes.share(seconds)


def measure_costs(setup: TrainingSetup, *, most_seconds: float = MOST_SECONDS) -> Costs:
    """Time updates and parts of a validation, and compute the time of saving from file sizes.

    Restores the weights afterwards.

    Args:
        setup: The training to time.
        most_seconds: Approximate limit of the wall-clock time for measuring.
    """
    updater = setup.updater
    begin = time.perf_counter()
    most = _SHARE_OF_UPDATES * most_seconds
    update, num_timed = time_updates(updater, setup.loader, most_seconds=most)
    left = max(most_seconds - (time.perf_counter() - begin), most_seconds - most)
    validation = _validation_seconds(setup.validator, left)
    saving = 0.0
    if not updater.pace.uses_threads:  # else a thread saves while updates continue
        tensors = [*updater.optimizer.weights().values(), *updater.optimizer.state().values()]
        saving = sum(tensor.nbytes for tensor in tensors) / _SAVED_BYTES_PER_SECOND
    return Costs(update, validation, saving, num_timed)


def largest_batches(loader: Loader, plan: Sequence[Rows]) -> list[Rows]:
    """Return the batch with the most tokens, and the batch with the most attention scores.

    Args:
        loader: Has the lengths of the sentence pairs.
        plan: Row numbers of each batch.

    Returns:
        Row numbers of one or two batches.
    """
    lengths = [loader.lengths(rows) for rows in plan]
    tokens = []
    scores = []
    for source, target in lengths:
        tokens.append(int(source.sum() + target.sum()))
        longest_source = int(source.max())
        longest_target = int(target.max())
        scores_of_pair = longest_source**2 + longest_target**2 + longest_source * longest_target
        scores.append(len(source) * scores_of_pair)
    largest = {int(np.argmax(tokens)), int(np.argmax(scores))}
    return [plan[index] for index in sorted(largest)]


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
    batch = loader.config
    processes = updater.processes
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
            low = measure_batches(updater, alike, first)
            high = measure_batches(updater, alike, second)
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
    tokens = [sum(int(side.sum()) for side in loader.lengths(rows)) for rows in largest]
    splits = max(stats.splits for stats, _ in measured)
    peak = max(peak for _, peak in measured)
    return max(tokens), peak, free, splits


def tokens_that_fit(low: tuple[int, int], high: tuple[int, int], *, free: int) -> int:
    """Extrapolate how many tokens fit into ``free`` bytes, from (tokens, bytes) of two batches.

    >>> tokens_that_fit((1000, 300_000), (2000, 500_000), free=900_000)
    4000
    """
    few, few_bytes = low
    many, many_bytes = high
    per_token = max((many_bytes - few_bytes) / max(many - few, 1), 1.0)
    return max(0, int(many + (free - many_bytes) / per_token))
