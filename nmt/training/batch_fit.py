"""``batch.max_tokens: auto`` -> how many tokens are computed at once on this device."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from nmt.config.data import BatchConfig
from nmt.config.run import RunConfig
from nmt.engine import local_size
from nmt.engine.distributed import Processes
from nmt.engine.memory import free_bytes, measure_peak
from nmt.errors import DeviceError
from nmt.training.setup import TrainingSetup

_SHARE = 0.75
"""Of the free memory, how much may be used: other programs and the allocator need some, too."""
_FIRST_PROBE = 2048


def fit_batches(config: RunConfig, processes: Processes) -> BatchConfig:
    """Return the batch section with numbers in place of ``auto``; else the section as it is.

    Measures what the largest batches of two sizes take, and lays a line through them. Updates keep
    their size: what does not fit at once is accumulated.

    Raises:
        DeviceError: Memory does not hold the longest pair.
    """
    batch = config.batch
    if batch.max_tokens != "auto" or batch.tokens_per_update is None:
        return batch
    own = -(-batch.tokens_per_update // processes.size)
    smallest = 2 * config.filters.max_length + 2
    first = min(own, max(smallest, _FIRST_PROBE))
    second = min(own, 2 * first)
    fits = own
    if second > first:
        probes = [_probe(config, tokens) for tokens in (first, second)]
        free = int(_SHARE * min(probe.free for probe in probes))
        low, high = ((probe.tokens, probe.peak) for probe in probes)
        fits = tokens_that_fit(low, high, free=free)
    fits = min(processes.gather(min(fits, own)))
    if fits < smallest:
        raise DeviceError(
            f"Memory holds batches of about {fits:,} tokens, fewer than a pair with "
            f"filters.max_length ({config.filters.max_length}) tokens on each side.",
            fix="Lower filters.max_length, set training.activation_checkpointing, or choose a "
            "smaller model.",
        )
    accumulate = -(-own // fits)
    numbers = {
        "max_tokens": max(smallest, -(-own // accumulate)),
        "accumulate": accumulate,
        "tokens_per_update": None,
    }
    return batch.model_copy(update=numbers)


class _Probe(NamedTuple):
    """What one size of batches takes."""

    tokens: int
    peak: int
    """Bytes of an update at its peak, besides what training holds all the time."""
    free: int
    """Bytes that there are for it."""


def _probe(config: RunConfig, tokens: int) -> _Probe:
    trial = config.batch.model_copy(update={"max_tokens": tokens, "tokens_per_update": None})
    # Compiled, layers take less memory; but that takes a minute, and would be for small batches.
    plain = config.training.model_copy(update={"compile": False})
    setup = TrainingSetup.build(config.model_copy(update={"batch": trial, "training": plain}))
    plan = setup.loader.plan(0)
    setup.update(plan[0][:1])  # what the first update makes and keeps is not to be measured
    free = free_bytes(setup.device)
    if setup.device.type == "cpu":
        free //= local_size()
    largest = setup.largest_batches(plan)
    peaks = [measure_peak(partial(setup.update, rows), setup.device)[1] for rows in largest]
    most = max(sum(int(side.sum()) for side in setup.lengths(rows)) for rows in largest)
    return _Probe(most, max(peaks), free)


def tokens_that_fit(low: tuple[int, int], high: tuple[int, int], *, free: int) -> int:
    """Return how many tokens fit, from (tokens, bytes) of two sizes of batches.

    >>> tokens_that_fit((1000, 300_000), (2000, 500_000), free=900_000)
    4000
    """
    (few, few_bytes), (many, many_bytes) = low, high
    per_token = max((many_bytes - few_bytes) / max(many - few, 1), 1.0)
    return max(0, int(many + (free - many_bytes) / per_token))
