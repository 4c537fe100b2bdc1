"""Learning rate schedules: functions from the number of the update, from 1, to the learning rate.

To add a schedule, register it in `SCHEDULES` in a new file. The key ``training.schedule.shape``
chooses a schedule by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from nmt.config.training import ScheduleConfig
from nmt.registry import Registry

# Takes the number of the update, from 1; between two numbers after a plan of the time.
Schedule = Callable[[float], float]
# (schedule section, model width, planned updates or None) -> `Schedule`.
ScheduleConstructor = Callable[[ScheduleConfig, int, int | None], Schedule]

SCHEDULES = Registry[ScheduleConstructor]("schedule")


def build_schedule(config: ScheduleConfig, *, model_dim: int, total_steps: int | None) -> Schedule:
    """Return the configured schedule.

    Args:
        config: The ``schedule`` section.
        model_dim: Width of the model; scales ``noam``.
        total_steps: Planned updates; required by ``linear``, ``cosine`` and ``wsd``.

    Raises:
        ConfigError: No schedule is registered as `shape`.
        ValueError: The schedule needs ``total_steps``, which is None.
    """
    construct = SCHEDULES[config.shape]
    warmup_steps = config.warmup_updates(total_steps)
    config = config.model_copy(update={"warmup_steps": warmup_steps})
    return construct(config, model_dim, total_steps)


def noam(step: float, *, model_dim: int, warmup_steps: int, factor: float) -> float:
    """Rise linearly, then fall with 1 / sqrt(step) (Vaswani et al. 2017, section 5.3).

    >>> round(noam(4000, model_dim=512, warmup_steps=4000, factor=1.0), 7)
    0.0006988
    """
    rising = step * max(warmup_steps, 1) ** -1.5
    return float(factor * model_dim**-0.5 * min(step**-0.5, rising))


def inverse_sqrt(step: float, *, peak_lr: float, warmup_steps: int) -> float:
    """Rise linearly to ``peak_lr``, then fall with 1 / sqrt(step).

    >>> inverse_sqrt(2_000, peak_lr=1e-3, warmup_steps=4_000)
    0.0005
    >>> inverse_sqrt(16_000, peak_lr=1e-3, warmup_steps=4_000)
    0.0005
    """
    warmup = max(warmup_steps, 1)
    return float(peak_lr * min(step / warmup, (warmup / step) ** 0.5))


def constant(step: float, *, peak_lr: float, warmup_steps: int) -> float:
    """Rise linearly to ``peak_lr``, then stay there."""
    return peak_lr * min(step / max(warmup_steps, 1), 1.0)


def _falling(fallen: Callable[[float], float], *, holds_peak: bool = False) -> ScheduleConstructor:
    """Return the constructor of a schedule that rises to the peak, then decays until the end.

    Args:
        fallen: Maps the completed fraction of the decay to the fraction by which the peak has
            fallen, both in [0, 1].
        holds_peak: Decay only in the last ``decay_ratio`` of the updates, and stay at the peak
            until then. Otherwise, decay right after the warm-up.
    """

    def construct(config: ScheduleConfig, _model_dim: int, total_steps: int | None) -> Schedule:
        if total_steps is None:
            raise ValueError(f"the schedule {config.shape} needs total_steps")
        # At most half of the updates are warm-up, so that a short training run still decays.
        warmup_steps = min(config.warmup_steps, max(total_steps // 2, 1))
        decay_begin = warmup_steps
        if holds_peak:
            decay_steps = max(round(config.decay_ratio * total_steps), 1)
            decay_begin = max(warmup_steps, total_steps - decay_steps)

        def learning_rate(step: float) -> float:
            # Completed fraction of the decay; outside of [0, 1] before its begin and after its end.
            # 0 if no update is left for the decay, as in a run of one update.
            completed = 0.0
            if total_steps > decay_begin:
                completed = (step - decay_begin) / (total_steps - decay_begin)
            # By which fraction the decay has lowered the rate: at the end min_lr_ratio is left.
            lost = (1 - config.min_lr_ratio) * fallen(min(max(completed, 0.0), 1.0))
            rate = constant(step, peak_lr=config.peak_lr, warmup_steps=warmup_steps)
            return rate * (1 - lost)

        return learning_rate

    return construct


def _lasting(shape: Callable[..., float]) -> ScheduleConstructor:
    """Return the constructor of a schedule that does not depend on the number of updates."""

    def construct(config: ScheduleConfig, _model_dim: int, _total_steps: int | None) -> Schedule:
        return partial(shape, peak_lr=config.peak_lr, warmup_steps=config.warmup_steps)

    return construct


def noam_schedule(config: ScheduleConfig, model_dim: int, _total_steps: int | None) -> Schedule:
    """Return `noam` for a width of the model; ``peak_lr`` is its factor."""
    warmup = config.warmup_steps
    return partial(noam, model_dim=model_dim, warmup_steps=warmup, factor=config.peak_lr)


# More entries of registry.toml.
INVERSE_SQRT = _lasting(inverse_sqrt)
CONSTANT = _lasting(constant)
LINEAR = _falling(lambda completed: completed)
# Half a cosine (Loshchilov and Hutter 2017).
COSINE = _falling(lambda completed: (1 - math.cos(math.pi * completed)) / 2)
# Warm-up, stable, decay (Hu et al. 2024).
WSD = _falling(lambda completed: completed, holds_peak=True)
