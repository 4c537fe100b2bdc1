"""The budget of a run: when training ends, and the plans of `training.max_minutes`.

The first process measures, and all processes get its plan. A plan is written to ``plans.jsonl``
before the first update that follows it. A run that is resumed before the step of a recorded plan
repeats that plan and measures nothing, so that it makes the same updates.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import torch
from pydantic import TypeAdapter

from nmt.config.training import TrainingConfig
from nmt.device.threads import fastest_threads
from nmt.errors import CheckpointError
from nmt.files.atomic import write_errors, write_text
from nmt.inference.confidence import num_calibrated
from nmt.training.checkpoints import Progress
from nmt.training.losses import LOSSES, loss_name
from nmt.training.plan import Plan, place_in_schedule, share_of_validation
from nmt.training.timing import MOST_SECONDS, Costs, TrainingSetup, measure_costs

logger = logging.getLogger(__name__)

PLANS = "plans.jsonl"
_PLANS = TypeAdapter(list[Plan])
_MEASURING_SHARE = 0.1  # Largest part of the budget that the first measurement takes.
# Between validations, a plan is only replaced if the end of training would move by this part of the
# budget, and by this part of the time left.
_TOLERANCE = 0.01
_TOLERANCE_OF_REST = 0.1
_CALIBRATION = 3.0  # Time of a calibrated line, in validated lines; on a CPU, with beam 5.
# R-Drop is used if training without it reads the data at least this often. With 5,000 pairs and the
# same time, BLEU changes by -0.3 at 24 passes, and by +1.7 at 48; with 6,900, by -3 at about 30.
_PASSES_FOR_R_DROP = 36


class Budget:
    """Decides after which update training ends, and keeps `Progress.total_steps` up to date.

    Args:
        setup: The training.
        progress: Progress of the run; its plans and limits are updated in place.
        run_dir: The run folder, which contains the plans.
        begin: When the time of this command began, by ``clock``.
        clock: Returns the time in seconds.

    Attributes:
        progress: As above.
        validate_every: Updates between two validations now.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        progress: Progress,
        run_dir: Path,
        *,
        begin: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._setup = setup
        self._training = setup.training
        self._processes = setup.updater.processes
        self.progress = progress
        self._run_dir = run_dir
        self._clock = clock
        self._begin = begin - progress.seconds
        self._coming = list[Plan]()  # Recorded plans of later steps.
        self._most_threads = torch.get_num_threads()
        self._limit = self._updates_of_other_limits()
        self.validate_every = self._training.validate_every
        self._check_every = 1
        # The updates that the next plan measures.
        self._first_update = progress.step
        self._begin_of_updates = 0.0
        self._last_look = 0.0

    @property
    def seconds(self) -> float:
        """Time of the command, and of earlier commands in this run folder; 0 without minutes."""
        if self._training.max_minutes is None:
            return 0.0
        return self._clock() - self._begin

    def start(self) -> TrainingSetup:
        """Read the recorded plans, or measure and record the first one.

        Returns:
            The setup with the loss and the validation sentences of the plan.

        Raises:
            CheckpointError: The plans are damaged or cannot be written.
        """
        progress = self.progress
        setup = self._setup
        minutes = self._training.max_minutes
        plans = list[Plan]()
        if minutes is not None:
            plans = self._processes.share(read_plans(self._run_dir) or progress.plans)
            if not plans or plans[0].minutes != minutes:
                plans = [self._measured_plan(minutes)]
            progress.loss = plans[0].loss
        elif self._chooses_threads:
            self._warn_of_busy_processor()
        if progress.loss and self._training.loss == "auto":
            setup.updater.objective = LOSSES[progress.loss](self._training)
            logger.info("R-Drop is not used: training.max_minutes is too short for it")
        self._record(plans)
        # A plan of this step follows the validation of this step, which may still be to come.
        progress.plans = plans[:1]
        for plan in plans[1:]:
            later = self._coming if plan.step >= progress.step else progress.plans
            later.append(plan)
        self._follow()
        if not plans:
            return setup
        sets = [held_out.part(plans[0].share) for held_out in setup.validator.sets]
        return replace(setup, validator=replace(setup.validator, sets=sets))

    def place(self, step: int) -> float:
        """Return the step of the schedule that an update has; see `place_in_schedule`."""
        plans = self.progress.plans
        if not plans or not self._training.schedule.ends:
            return step
        return place_in_schedule(step, plans, self._limit)

    @property
    def schedule_length(self) -> int | None:
        """Updates of the whole schedule."""
        return self._total(*self.progress.plans[:1])

    def next_plan(self, validation_seconds: float | None = None) -> Plan | None:
        """Return the new plan that holds from here on, if there is one.

        Called after every update. Makes a plan after each validation, and whenever the old plan
        would end too early or too late.

        Args:
            validation_seconds: Time of a validation and its save after this update.
        """
        progress = self.progress
        if self._coming:
            if self._coming[0].step == progress.step:
                self._follow(self._coming.pop(0))
            return None
        is_check = progress.step % self._check_every == 0 or self._is_late()
        is_due = validation_seconds is not None or is_check
        if not progress.plans or not is_due:
            return None
        plan = None
        if self._processes.rank == 0:
            plan = self._plan_of_rest(validation_seconds)
        plan = self._processes.share(plan)
        if plan is not None:
            self._follow(plan)
        return plan

    def _is_late(self) -> bool:
        """Whether the updates since the last look at the clock took twice the planned time.

        Never with several processes, because all of them have to look at the same update.
        """
        if not self.progress.plans or self._processes.size > 1:
            return False
        planned = self._check_every * self.progress.plans[-1].update_seconds
        return self.seconds - self._last_look > 2 * planned

    def _plan_of_rest(self, validation_seconds: float | None) -> Plan | None:
        """Make and record a plan for the rest of the budget; None if the old one stays."""
        self._last_look = self.seconds
        progress = self.progress
        plan = progress.plans[-1]
        if progress.step == progress.total_steps:
            # Says to a repeated run that nothing follows.
            new: Plan | None = replace(plan, step=progress.step)
        else:
            new = self._changed_plan(plan, validation_seconds)
        if new is None:
            return None
        try:
            self._record([*progress.plans, new])
        except CheckpointError as error:  # the next save decides whether training stops
            logger.warning("training keeps its plan: %s", error.problem)
            return None
        return new

    def _changed_plan(self, plan: Plan, validation_seconds: float | None) -> Plan | None:
        """Plan with the costs measured since ``plan``; None if the end would hardly move.

        Args:
            plan: The present plan.
            validation_seconds: Time of the validation that has just ended, if there was one.
        """
        seconds = self.seconds - self._begin_of_updates - (validation_seconds or 0.0)
        num_updates = self.progress.step - self._first_update
        measured = plan.measured(num_updates, seconds, validation_seconds)
        is_validated = validation_seconds is not None
        new = self._rest(measured, is_validated)
        if not is_validated:
            seconds_left = 60 * plan.minutes - self.seconds
            tolerance = max(_TOLERANCE * 60 * plan.minutes, _TOLERANCE_OF_REST * seconds_left)
            change = abs(new.total_steps - plan.total_steps) * new.update_seconds
            if change < tolerance:
                return None
        fastest = self._with_fastest_threads(measured)
        num_threads = self._num_threads(fastest)
        has_more = num_threads > self._num_threads(measured)
        if has_more and not is_validated:
            return new  # more threads may seem faster for a moment
        return self._rest(fastest, is_validated)

    def _rest(self, costs: Plan, is_validated: bool) -> Plan:
        """Plan the rest of the budget; without a validation, training needs another update."""
        step = self.progress.step
        seconds_left = 60 * costs.minutes - self.seconds
        plan = costs.rest(step, seconds_left, self._training.validate_every)
        if is_validated:
            return plan
        return replace(plan, total_steps=max(plan.total_steps, step + 1))

    def _measured_plan(self, minutes: float) -> Plan:
        """Measure the costs of updates and validations, and plan the number of updates."""
        most = min(_MEASURING_SHARE * 60 * minutes, MOST_SECONDS)
        text = "timing updates and validation to plan the %g minutes; this takes at most %.0f s"
        logger.info(text, minutes, most)
        threads = None
        if self._chooses_threads:
            best, _rates = fastest_threads(self._most_threads)
            torch.set_num_threads(best)
            threads = self._fewer(best)
        costs = measure_costs(self._setup, most_seconds=most)
        seconds_left = 60 * minutes - self.seconds
        plan = first_plan(self._setup, costs, self.progress.step, seconds_left)
        return self._processes.share(replace(plan, threads=threads))

    @property
    def _chooses_threads(self) -> bool:
        """Whether the number of CPU threads follows what other programs leave of the processor."""
        on_cpu = self._setup.updater.device.type == "cpu"
        is_free = self._training.threads is None and self._processes.size == 1
        return on_cpu and is_free and self._most_threads > 1

    def _fewer(self, threads: int) -> int | None:
        """Return the number as a plan states it: None for all threads."""
        return threads if threads < self._most_threads else None

    def _num_threads(self, plan: Plan) -> int:
        """Return the number of CPU threads of a plan."""
        return plan.threads or self._most_threads

    def _with_fastest_threads(self, plan: Plan) -> Plan:
        """Return the plan with the number of CPU threads that is fastest now."""
        if not self._chooses_threads:
            return plan
        best, rates = fastest_threads(self._most_threads)
        # A plan of another machine may have a number of threads that was not timed here.
        present_rate = rates.get(self._num_threads(plan), rates[best])
        return plan.with_threads(self._fewer(best), rates[best] / present_rate)

    def _warn_of_busy_processor(self) -> None:
        """Say if fewer threads were faster. Equal runs stay equal, so that nothing is changed."""
        best, rates = fastest_threads(self._most_threads)
        if best < self._most_threads:
            gain = rates[best] / rates[self._most_threads]
            text = (
                "other programs use the processor: %d of %d CPU threads compute %.1f times as "
                "fast; set training.threads to %d, or stop the other programs"
            )
            logger.warning(text, best, self._most_threads, gain, best)

    def _follow(self, *new: Plan) -> None:
        """Let the limits of the run be those of its last plan, which may be new."""
        plans = self.progress.plans
        plans += new
        self.progress.total_steps = self._total(*plans[-1:])
        if plans:
            self.validate_every = plans[-1].validate_every
            self._check_every = plans[-1].check_every
            if self._chooses_threads:
                torch.set_num_threads(self._num_threads(plans[-1]))
        self._first_update = self.progress.step
        self._begin_of_updates = self.seconds
        self._last_look = self.seconds

    def _total(self, *plans: Plan) -> int | None:
        """Return the smallest limit: that of a plan, and of updates and epochs."""
        limits = [plan.total_steps for plan in plans]
        if self._limit is not None:
            limits.append(self._limit)
        return min(limits, default=None)

    def _updates_of_other_limits(self) -> int | None:
        """Return the smaller limit of `training.max_steps` and `training.max_epochs`."""
        progress = self.progress
        epochs = self._training.max_epochs
        limits = []
        if self._training.max_steps is not None:
            limits.append(self._training.max_steps)
        if epochs is None:
            progress.epoch_updates = None
        else:
            if progress.epoch_updates is None or progress.epoch_updates[0] != epochs:
                # Planning many epochs is slow, so one process does it for all.
                updates = 0
                if self._processes.rank == 0:
                    updates = sum(islice(self._setup.loader.epoch_updates(), epochs))
                progress.epoch_updates = (epochs, self._processes.share(updates))
            limits.append(progress.epoch_updates[1])
        return min(limits, default=None)

    def _record(self, plans: Sequence[Plan]) -> None:
        """Write and sync the plans, in the first process; without plans, remove the file."""
        if self._processes.rank != 0:
            return
        path = self._run_dir / PLANS
        fix = "Set run_dir to a folder you can write to, or free disk space."
        with write_errors(self._run_dir, CheckpointError, fix=fix):
            if plans:
                self._run_dir.mkdir(parents=True, exist_ok=True)
                write_text(path, "".join(json.dumps(asdict(plan)) + "\n" for plan in plans))
            else:
                path.unlink(missing_ok=True)


def read_plans(run_dir: Path) -> list[Plan]:
    """Read the plans of a run; none if nothing was planned.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = run_dir / PLANS
    if not path.is_file():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return _PLANS.validate_json(f"[{','.join(lines)}]")
    except (OSError, ValueError) as error:
        fix = "Restore the file. Without it, training makes new plans from its last checkpoint on."
        raise CheckpointError(f"{path} is damaged.", fix=fix) from error


def num_validated(setup: TrainingSetup) -> int:
    """Return the number of lines that a validation translates."""
    texts = [held_out.text for held_out in setup.validator.sets]
    return sum(len(text.sources) for text in texts if text is not None)


def work_at_end(training: TrainingConfig, num_lines: int, share: float) -> float:
    """Return the work after the last update, in validations of ``share`` of ``num_lines``."""
    validations = 1.0
    if training.average_last is not None:
        validations += 1
    calibrated = num_calibrated(num_lines, share)
    return validations + _CALIBRATION * calibrated / max(share * num_lines, 1)


def first_plan(setup: TrainingSetup, costs: Costs, step: int, seconds_left: float) -> Plan:
    """Return the first plan of `training.max_minutes`. Its schedule begins with the run.

    Args:
        setup: The training.
        costs: Its costs.
        step: Updates made.
        seconds_left: Rest of the budget.
    """
    training = setup.training
    minutes = training.max_minutes or 0.0
    num_lines = num_validated(setup)
    share = share_of_validation(costs.validation, minutes, num_lines)
    plan = Plan(
        step=0,
        total_steps=1,
        validate_every=training.validate_every,
        minutes=minutes,
        share=share,
        update_seconds=costs.update + costs.saving / training.save_every,
        validation_seconds=share * costs.validation + costs.saving,
        at_end=work_at_end(training, num_lines, share),
    )
    planned = plan.rest(step, seconds_left, training.validate_every)
    if wastes_r_drop(setup, planned.total_steps):
        half = plan.update_seconds / 2  # an update has one pass in place of two
        plan = replace(plan, loss="cross_entropy", update_seconds=half)
        planned = plan.rest(step, seconds_left, training.validate_every)
    return replace(planned, step=0, total_steps=max(planned.total_steps, 1))


def wastes_r_drop(setup: TrainingSetup, updates: int) -> bool:
    """Whether ``updates`` are too few to gain from R-Drop, and the loss is ``auto``.

    R-Drop doubles the work per update, so a short training learns more from twice the updates.
    """
    training = setup.training
    is_auto = training.loss == "auto" and loss_name(training) == "r_drop"
    if not is_auto:
        return False
    in_epoch = len(setup.loader.plan(0)) / setup.loader.config.gradient_accumulation
    return 2 * updates < _PASSES_FOR_R_DROP * in_epoch
