"""How many updates a run makes, and what is measured for that once and for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.checkpoint.run import read_measured, write_measured
from nmt.config.training import TrainingConfig
from nmt.data.loader import Loader
from nmt.engine.distributed import Processes

TimeBudget = tuple[float, int]
"""Minutes, and the updates that they were measured to hold."""


@dataclass(frozen=True, slots=True)
class MeasuredOnce:
    """What the starts of a run before its first checkpoint measure, in all processes alike."""

    run_dir: Path
    conditions: Mapping[str, Any]
    """What else the result depends on, as plain data; under others it is measured anew."""
    processes: Processes

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return what a start that was killed has found, or measure.

        Raises:
            CheckpointError: The run folder cannot be written.
        """
        is_first = self.processes.rank == 0
        found = read_measured(self.run_dir, self.conditions) if is_first else {}
        known = self.processes.share(found)
        if name not in known:
            known = {**known, name: measure()}
            if is_first:
                write_measured(self.run_dir, self.conditions, known)
        return known[name]


def time_budget(
    minutes: float | None, recorded: TimeBudget | None, update_seconds: Callable[[], float]
) -> TimeBudget | None:
    """Return the minutes and the updates they hold; None without a limit of time.

    What a checkpoint has recorded counts, so that a resumed run ends where one that was not stopped
    does; if the minutes were changed since, the updates are in proportion.

    >>> time_budget(2.0, None, lambda: 0.5)
    (2.0, 240)
    >>> time_budget(3.0, (2.0, 240), lambda: 0.7)
    (3.0, 360)
    """
    if minutes is None:
        return None
    if recorded is None:
        return minutes, max(1, math.floor(minutes * 60 / update_seconds()))
    recorded_minutes, steps = recorded
    return minutes, max(1, round(steps * minutes / recorded_minutes))


def updates_in_all(
    training: TrainingConfig, loader: Loader, timed: TimeBudget | None
) -> int | None:
    """Return the number of updates in all, if it is known: the least of all limits."""
    limits = []
    if training.max_steps is not None:
        limits.append(training.max_steps)
    if training.max_epochs is not None:
        epochs = range(training.max_epochs)
        limits.append(sum(loader.updates_per_epoch(epoch) for epoch in epochs))
    if timed is not None:
        limits.append(timed[1])
    return min(limits, default=None)
