"""Plans of a time budget: how many updates fit, and what they mean for the learning rate.

A budget of minutes is planned when training begins, and again while it runs. Everything here is a
pure function: the learning rate depends only on the number of the update and on the recorded plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

# One validation takes at most this share of the budget, and all validations between updates at most
# this share of the rest. With those after the last update, this is less than a tenth.
VALIDATION_SHARE = 0.02
_VALIDATIONS_SHARE = 0.05
_ASSUMED_SHARE = 0.2  # Part of the budget that assumed costs count for, beside measured ones.
_FEWEST_LINES = 100  # of the validation sets
CHECKS = 50  # The time is checked after each fiftieth of the planned updates.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan, and the costs that it assumes. All plans of a run are in ``plans.jsonl``."""

    step: int  # Updates made when it was made.
    total_steps: int  # Planned updates of the whole run.
    validate_every: int  # Updates between two validations: a multiple of the configured number.
    minutes: float  # `training.max_minutes`
    share: float = 1.0  # Part of each validation set that is used; the same in all plans of a run.
    loss: str | None = None  # Loss in place of R-Drop; None for the loss of the configuration.
    update_seconds: float  # Of an update, with the saves between two validations.
    validation_seconds: float  # Of a validation, with the save after it.
    at_end: float  # Work after the last update, in validations.
    threads: int | None = None  # Fewer CPU threads, because the processor is busy.

    def rest(self, step: int, seconds_left: float, every: int) -> Plan:
        """Return a plan for the rest of the budget, with the same costs.

        Args:
            step: Updates made.
            seconds_left: Rest of the budget.
            every: `training.validate_every`.
        """
        update = max(self.update_seconds, 1e-9)  # a clock may be coarse
        validation = self.validation_seconds
        fewest = validation / (_VALIDATIONS_SHARE * update)  # updates between two validations
        interval = every * max(1, math.ceil(fewest / every))
        num_left = int((seconds_left - self.at_end * validation) / (update + validation / interval))
        total_steps = step + max(num_left, 0)
        return replace(self, step=step, total_steps=total_steps, validate_every=interval)

    def measured(self, updates: int, seconds: float, validation_seconds: float | None) -> Plan:
        """Return the plan with the costs of ``updates`` that were made since it began.

        The assumed costs count as much as a fifth of the budget, in time. So a machine that is
        slow for a moment does not end training.

        Args:
            updates: Number of these updates.
            seconds: Their time, without validations.
            validation_seconds: Time of a validation. If None, it has become slower or faster as
                the updates have.
        """
        weight = _ASSUMED_SHARE * 60 * self.minutes / max(self.update_seconds, 1e-9)
        update_seconds = (weight * self.update_seconds + seconds) / (weight + updates)
        if validation_seconds is None:
            slowness = update_seconds / max(self.update_seconds, 1e-9)
            validation_seconds = slowness * self.validation_seconds
        else:
            validation_seconds = (self.validation_seconds + validation_seconds) / 2
        return replace(self, update_seconds=update_seconds, validation_seconds=validation_seconds)

    def with_threads(self, threads: int | None, gain: float) -> Plan:
        """Return the plan for another number of CPU threads, which are ``gain`` times as fast."""
        update_seconds = self.update_seconds / gain
        validation_seconds = self.validation_seconds / gain
        return replace(
            self,
            threads=threads,
            update_seconds=update_seconds,
            validation_seconds=validation_seconds,
        )

    @property
    def check_every(self) -> int:
        """Updates between two looks at the clock."""
        return max(self.total_steps // CHECKS, 1)

    def __str__(self) -> str:
        part = ""
        if self.share < 1:
            part = f" with 1/{1 / self.share:.0f} of the sentences"
        interval = f"validation every {self.validate_every:,} updates{part}"
        threads = ""
        if self.threads is not None:
            threads = f", CPU threads: {self.threads}, because other programs use the processor"
        updates = f"{self.total_steps:,} updates"
        return f"planned for {self.minutes:g} minutes: {updates}, {interval}{threads}"


def place_in_schedule(step: int, plans: Sequence[Plan], limit: int | None = None) -> float:
    """Return which step of the schedule of the first plan an update has.

    After a plan, what is left of that schedule is spread over what is left of the updates. So the
    rate is continuous at a plan, and the schedule ends with the last planned update.

    Args:
        step: Number of the update, from 1.
        plans: The plans of the run; the first one is made before the first update.
        limit: Largest number of updates, whatever the plans say.
    """
    totals = [plan.total_steps for plan in plans]
    if limit is not None:
        totals = [min(total, limit) for total in totals]
    ends = [*(plan.step for plan in plans[1:]), step]
    place = 0.0
    for plan, total, end in zip(plans, totals, ends, strict=True):
        planned = max(total - plan.step, 1)
        made = min(end, step, total) - plan.step
        place += (totals[0] - place) * max(made, 0) / planned
    return place


def share_of_validation(seconds: float, minutes: float, num_lines: int) -> float:
    """Return which part of the validation sets a budget has the time for: 1, 1/2, 1/3 and so on.

    At least 100 lines, because the scores of fewer say little.

    Args:
        seconds: Time of a validation with all lines.
        minutes: The budget.
        num_lines: Number of lines of all sets.

    >>> share_of_validation(10.0, minutes=3, num_lines=1000)
    0.3333333333333333
    >>> share_of_validation(500.0, minutes=3, num_lines=1000)
    0.1
    """
    parts = math.ceil(seconds / (VALIDATION_SHARE * 60 * minutes))
    return 1 / max(1, min(parts, num_lines // _FEWEST_LINES))
