"""Which precision is fastest for this model on this machine: measured before the first update.

Setups of the same training, one for each precision, make updates of the same pairs in turn. Parts
of batches grow until they are whole, and those who are clearly slower drop out, so that large
models are compared within the same few seconds as small ones.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Self

import torch

from nmt.config.run import RunConfig
from nmt.data.prepared import PreparedData
from nmt.device.device import choose_device
from nmt.device.memory import free_bytes
from nmt.device.precision import PrecisionName, precisions_to_compare
from nmt.extras.planning.advice import Plan
from nmt.model.transformer import build_model, count_parameters
from nmt.training.setup import Rows, TrainingSetup

logger = logging.getLogger(__name__)

SECONDS = 10.0
"""Most time that a comparison takes, about."""
_FIRST_SHARE = 1 / 8
_FULL_ROUNDS = 4
_SLOWER, _SLOWER_IN_PART = 1.15, 1.5
"""Times the fastest, for whole batches and for parts: who is slower drops out."""
_LEAST_FLOPS, _LEAST_MINUTES = 2e14, 10.0
"""Of a training: 300 GFLOP/s for so long. In shorter ones a comparison might not pay."""
_BYTES_OF_PARAMETER = 24
"""With gradient, moments, a second copy and what an update takes."""
_TOKENS_OF_PAIR, _TOKENS_OF_BATCH = 32, 4096
"""Of both sides, where the configuration does not say."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared before the first update."""

    chosen: str
    """The fastest precision."""
    rates: Mapping[str, float]
    """Tokens of both sides in a second by precision, as last measured."""

    @classmethod
    def recorded(cls, found: Any) -> Self | None:
        """Return what a start that was killed had written down; None if that is damaged."""
        try:
            rates = {str(name): float(rate) for name, rate in found["rates"].items()}
            return cls(found["chosen"], rates) if found["chosen"] in rates else None
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def __str__(self) -> str:
        ranked = sorted(self.rates.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {rate:,.0f}" for name, rate in ranked) + " tokens/s"


def with_precision(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration with another precision."""
    training = config.training.model_copy(update={"precision": name})
    return config.model_copy(update={"training": training})


def to_compare(config: RunConfig, data: PreparedData) -> list[PrecisionName]:
    """Return the precisions that a comparison pays for; none if the configuration names one."""
    device = choose_device(config.training.device)
    names = precisions_to_compare(device)
    if config.training.precision != "auto" or len(names) == 1:
        return []
    sizes = data.manifest.source_vocab_size, data.manifest.target_vocab_size
    with torch.device("meta"):  # to be counted
        count = sum(count_parameters(build_model(config.model, *sizes)).values())
    needed = len(names) * count * _BYTES_OF_PARAMETER
    is_short = training_flops(config, count) < _LEAST_FLOPS
    return [] if is_short or needed > free_bytes(device) / 2 else names


def training_flops(config: RunConfig, num_parameters: int) -> float:
    """Return about what a training takes; infinite where nothing tells how long it is.

    6 for each parameter and token (Chowdhery et al. 2022, appendix B); about half of these meet.
    """
    training, batch = config.training, config.batch
    tokens = batch.tokens_per_update or batch.max_tokens
    if not isinstance(tokens, int):
        tokens = (batch.max_sentences or 1) * _TOKENS_OF_PAIR
    updates = Plan.estimate(config).total_steps or math.inf
    by_time = (training.max_minutes or math.inf) / _LEAST_MINUTES * _LEAST_FLOPS
    return min(3 * num_parameters * tokens * batch.accumulate * updates, by_time)


def compare_precisions(
    names: Sequence[PrecisionName], config: RunConfig, data: PreparedData
) -> Comparison:
    """Train ``config`` in each precision for some seconds, and throw that away."""
    logger.info(
        "comparing the speed of %s: about %g s, more on a busy machine", ", ".join(names), SECONDS
    )
    batch = config.batch
    if batch.max_tokens == "auto":
        own = {"max_tokens": _TOKENS_OF_BATCH, "tokens_per_update": None}
        batch = batch.model_copy(update=own)
    return compare(
        {name: TrainingSetup.build(with_precision(config, name), batch, data) for name in names}
    )


def compare(
    setups: Mapping[str, TrainingSetup],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time updates of ``setups`` that change no weight, and find the fastest.

    Each is timed the second time that it sees a batch: kernels are made the first time.

    Args:
        setups: By precision; not to be used afterwards.
        seconds: About the most that this takes.
        clock: Tells the time, in seconds.
    """
    end, share, full_rounds = clock() + seconds, _FIRST_SHARE, 0
    times, rates = dict.fromkeys(setups, 0.0), dict.fromkeys(setups, 0.0)
    first = next(iter(setups.values()))
    for rows in cycle(first.loader.plan(0)):
        begin, part = clock(), rows[: max(1, round(share * len(rows)))]
        tokens = sum(int(side.sum()) for side in first.lengths(part))
        for name in times:
            spent = _seconds(setups[name], part, clock)
            times[name] += spent
            rates[name] = tokens / spent
        limit = min(times.values()) * (_SLOWER if share == 1 else _SLOWER_IN_PART)
        cost = clock() - begin
        left = {name: spent for name, spent in times.items() if spent <= limit}
        cost *= sum(left.values()) / sum(times.values())
        full_rounds += share == 1
        grown = min(1.0, 2 * share)
        if len(left) == 1 or full_rounds == _FULL_ROUNDS or clock() + cost * grown / share > end:
            break
        times = left if share == 1 else dict.fromkeys(left, 0.0)
        share = grown
    return Comparison(min(times, key=lambda name: times[name]), rates)


def _seconds(setup: TrainingSetup, rows: Rows, clock: Callable[[], float]) -> float:
    setup.update(rows)
    begin = clock()
    setup.update(rows)
    setup.updater.pace.wait()
    return max(clock() - begin, 1e-9)
