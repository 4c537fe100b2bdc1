"""Learning rates as pure functions of the update, counted from 1."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from nmt.config.training import ScheduleConfig

Schedule = Callable[[int], float]


def noam(step: int, *, model_dim: int, warmup_steps: int, factor: float) -> float:
    """Rise for ``warmup_steps``, then fall with 1 / sqrt(step) (Vaswani et al. 2017, section 5.3).

    >>> round(noam(4000, model_dim=512, warmup_steps=4000, factor=1.0), 7)
    0.0006988
    """
    warmup = max(warmup_steps, 1)
    return float(factor * model_dim**-0.5 * min(step**-0.5, step * warmup**-1.5))


def inverse_sqrt(step: int, *, peak_lr: float, warmup_steps: int) -> float:
    """Rise in a straight line to the peak, then fall with 1 / sqrt(step).

    >>> inverse_sqrt(2_000, peak_lr=1e-3, warmup_steps=4_000)
    0.0005
    >>> inverse_sqrt(16_000, peak_lr=1e-3, warmup_steps=4_000)
    0.0005
    """
    warmup = max(warmup_steps, 1)
    return float(peak_lr * min(step / warmup, (warmup / step) ** 0.5))


def constant(step: int, *, peak_lr: float, warmup_steps: int) -> float:
    """Rise to the peak and stay there."""
    return peak_lr * min(step / max(warmup_steps, 1), 1.0)


def linear(
    step: int, *, peak_lr: float, warmup_steps: int, total_steps: int, final_share: float
) -> float:
    """Rise to the peak, then fall in a straight line to its ``final_share`` at the last update.

    >>> linear(55, peak_lr=1.0, warmup_steps=10, total_steps=100, final_share=0.0)
    0.5
    """
    return constant(step, peak_lr=peak_lr, warmup_steps=warmup_steps) * (
        1 - (1 - final_share) * _share(step, warmup_steps, total_steps)
    )


def cosine(
    step: int, *, peak_lr: float, warmup_steps: int, total_steps: int, final_share: float
) -> float:
    """Rise to the peak, then fall along half a cosine (Loshchilov and Hutter 2017)."""
    fallen = (1 - math.cos(math.pi * _share(step, warmup_steps, total_steps))) / 2
    rising = constant(step, peak_lr=peak_lr, warmup_steps=warmup_steps)
    return rising * (1 - (1 - final_share) * fallen)


def warmup_stable_decay(
    step: int,
    *,
    peak_lr: float,
    warmup_steps: int,
    total_steps: int,
    decay_share: float,
    final_share: float,
) -> float:
    """Rise, hold the peak, and fall in a straight line over the last share (Hu et al. 2024)."""
    begin = max(warmup_steps, total_steps - max(round(decay_share * total_steps), 1))
    rising = constant(step, peak_lr=peak_lr, warmup_steps=warmup_steps)
    return rising * (1 - (1 - final_share) * _share(step, begin, total_steps))


def _share(step: int, begin: int, end: int) -> float:
    """How far ``step`` is from ``begin`` to ``end``, in [0, 1]."""
    if end <= begin:
        return 0.0
    return min(max((step - begin) / (end - begin), 0.0), 1.0)


def build_schedule(config: ScheduleConfig, *, model_dim: int, total_steps: int | None) -> Schedule:
    """Return the configured schedule.

    Args:
        config: The schedule section.
        model_dim: Width of the model; scales ``noam``.
        total_steps: Updates in all; `linear`, `cosine` and ``wsd`` need it.

    Raises:
        ValueError: A schedule that ends has no ``total_steps``.
    """
    peak, warmup = config.peak_lr, config.warmup_steps
    if config.shape == "noam":
        return partial(noam, model_dim=model_dim, warmup_steps=warmup, factor=peak)
    if config.shape in ("inverse_sqrt", "constant"):
        shape = inverse_sqrt if config.shape == "inverse_sqrt" else constant
        return partial(shape, peak_lr=peak, warmup_steps=warmup)
    if total_steps is None:
        raise ValueError(f"schedule {config.shape} needs a budget")
    # A budget shorter than the warm-up still rises and falls.
    ending = {
        "peak_lr": peak,
        "warmup_steps": min(warmup, max(total_steps // 2, 1)),
        "total_steps": total_steps,
        "final_share": config.final_share,
    }
    if config.shape == "wsd":
        return partial(warmup_stable_decay, **ending, decay_share=config.decay_share)  # type: ignore[arg-type]
    return partial(linear if config.shape == "linear" else cosine, **ending)  # type: ignore[arg-type]
