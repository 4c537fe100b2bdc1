"""A short training in one go, and the same killed and resumed -> proof of equal bytes.

Each training is a process of its own, ``nmt train`` as a user starts it. SIGKILL cannot be caught:
what a killed training finds when it starts again is what a full queue or a lost node would leave.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.checkpoint.files import list_checkpoints
from nmt.diagnostics.trainings import Stopwatch, WatchedTraining, compare_runs
from nmt.errors import CheckpointError
from nmt.files.atomic import write_errors
from nmt.training.signals import Interrupted, StoppedBySignal, StopSignal

logger = logging.getLogger(__name__)

_LEAST_KILLS = 2
_MOST_ATTEMPTS = 3
_WHOLE = "whole"
_POLL_SECONDS = 0.004
_SAVING_POLL_SECONDS = 0.0005
_SHOWN_CHARACTERS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """The short training that is made twice, and how long all of it may take.

    The intervals share no factor, so that saving and validating come at different updates, and
    kills and saves cut the intervals between reports in two.
    """

    updates: int = 60
    """Optimizer updates of each training."""
    save_every: int = 7
    """Updates between two checkpoints."""
    validate_every: int = 25
    """Updates between two validations."""
    report_every: int = 2
    """Updates between two lines of metrics.jsonl."""
    max_sentences: int = 8
    """Sentences to decode in a validation."""
    training_seconds: float = 30.0
    """How long one training should take after its start; slow models make fewer updates."""
    total_seconds: float = 120.0
    """About how long all should take; where starting is slow, there are fewer kills."""
    gauge_seconds: float = 15.0
    """Time after which the speed of the updates counts as known."""

    def fit(self, seconds_per_update: float) -> Plan:
        """Return the plan with fewer updates, 8 at least, if it would take far too long."""
        if self.updates * seconds_per_update <= 1.5 * self.training_seconds:
            return self
        updates = min(self.updates, max(8, int(self.training_seconds / seconds_per_update)))
        return replace(
            self,
            updates=updates,
            save_every=min(self.save_every, max(2, updates // 4)),
            validate_every=min(self.validate_every, max(3, updates * 2 // 5)),
        )

    def settings(self) -> list[str]:
        """Return the plan as overrides of a configuration."""
        values: dict[str, object] = {
            "max_steps": self.updates,
            "max_minutes": None,
            "max_epochs": None,
            "patience": None,
            "report_every": self.report_every,
            "save_every": self.save_every,
            "validate_every": self.validate_every,
            "validation.max_sentences": self.max_sentences,
            "keep_last": 2,
            "keep_best": 1,
            "average_last": None,
            "on_full_disk": "stop",
        }
        return [f"training.{key}={json.dumps(value)}" for key, value in values.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was seen. The pairs are of the training in one go and of the killed one."""

    updates: int
    """Updates of each training."""
    kills: int
    """SIGKILLs that met a living process."""
    killed_at_steps: tuple[int, ...]
    """The last update known of at each of them."""
    kills_while_saving: int
    """Those that left a half-written or half-removed checkpoint."""
    weights_sha256: tuple[str, str]
    """Hashes of model.safetensors of the last update."""
    optimizer_sha256: tuple[str, str]
    """Hashes of optimizer.safetensors, which holds the random generators too."""
    metrics_lines: int
    """Lines of metrics.jsonl; compared without times."""
    equal: bool
    """Whether hashes and lines are equal."""

    def as_text(self) -> str:
        """Return a few lines to read."""
        steps = ", ".join(map(str, self.killed_at_steps))
        weights, optimizer = (
            " = ".join(sha256[:_SHOWN_CHARACTERS] for sha256 in pair)
            for pair in (self.weights_sha256, self.optimizer_sha256)
        )
        return (
            f"killed     {self.kills} times, at steps {steps}; {self.kills_while_saving} of them "
            "in the middle of a save\n"
            f"weights    sha256 {weights}\n"
            f"optimizer  sha256 {optimizer}\n"
            f"losses     {self.metrics_lines} lines of metrics.jsonl = {self.metrics_lines} lines\n"
            f"equal: {self.updates} updates end with the same bytes, killed or not"
        )


def prove(
    command: Sequence[str],
    run_dir: Path,
    *,
    kills: int = 5,
    seed: int | None = None,
    plan: Plan | None = None,
) -> Proof:
    """Train shortly in one go, train the same with kills at random moments, and compare.

    Nothing is left: both run folders are beside ``run_dir`` for as long as this takes, about two
    minutes.

    Args:
        command: Trains, without a run folder; settings and flags of `nmt train` are appended.
        run_dir: Folder of the run that is proved to resume; not touched.
        kills: How often to kill, 2 at least; fewer where a start takes long.
        seed: Of the random moments; others each time when None.
        plan: The training to be made; `Plan` itself when None.

    Raises:
        CheckpointError: The ends differ, or a training failed; see the message.
        StoppedBySignal: The process was asked to stop.
    """
    if kills < _LEAST_KILLS:
        raise ValueError(f"kills must be at least {_LEAST_KILLS}, not {kills}")
    parent = run_dir.parent
    fix = "Set run_dir to a folder you can write to."
    with ExitStack() as cleanup:
        with write_errors(parent, CheckpointError, fix=fix):
            parent.mkdir(parents=True, exist_ok=True)
            place = TemporaryDirectory(prefix=f".{run_dir.name}.prove-resume-", dir=parent)
        folder, stop = cleanup.enter_context(place), cleanup.enter_context(StopSignal())
        trainings = _Trainings(command, Path(folder), plan or Plan(), random.Random(seed), stop)
        try:
            return trainings.prove(kills)
        except Interrupted as interrupted:
            raise StoppedBySignal(interrupted.number) from None


class _Trainings:
    """Both trainings, and their comparison."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        plan: Plan,
        draw: random.Random,
        stop: StopSignal,
    ) -> None:
        self._command, self._folder, self._plan = command, folder, plan
        self._draw, self._stop = draw, stop
        self._killed_at: list[int] = []
        self._kills_while_saving = 0

    def prove(self, kills: int) -> Proof:
        """Train in one go, train with kills, and compare."""
        begin = time.monotonic()
        watch, length = self._train_whole()
        # A kill costs a start and, on the average, half of what is between two saves.
        cost = watch.start_seconds + watch.seconds_per_update * self._plan.save_every / 2
        left = self._plan.total_seconds - (time.monotonic() - begin) - length
        affordable = max(_LEAST_KILLS, int(left / cost))
        if affordable < kills:
            logger.info(
                f"{affordable} kills, not {kills}: a start takes {watch.start_seconds:.1f} s"
            )
        run_dir = self._train_killed(min(kills, affordable), watch, limit=60 + 10 * length)
        return self._compare(run_dir)

    def _train_whole(self, *, may_break_off: bool = True) -> tuple[Stopwatch, float]:
        """Train in one go; if that turns out to be slow, anew with fewer updates.

        Returns:
            The measured training, and the seconds it took.
        """
        logger.info(f"training {self._plan.updates} updates in one go")
        watch, fitting = Stopwatch(), self._plan
        with self._start(self._folder / _WHOLE) as training:
            while fitting == self._plan and not training.has_ended():
                self._rest(_POLL_SECONDS)
                watch.look(training, report_every=self._plan.report_every)
                if may_break_off and self._is_gauged(training, watch):
                    may_break_off = False
                    fitting = self._plan.fit(watch.seconds_per_update)
        if fitting == self._plan:
            seconds = watch.seconds
            logger.info(f"  done in {seconds:.1f} s")
            return watch, seconds
        logger.info(f"  that would be long: {watch.seconds_per_update:.1f} s an update")
        training.run_dir.rename(training.run_dir.with_name("broken-off"))
        self._plan = fitting
        return self._train_whole(may_break_off=False)

    def _is_gauged(self, training: WatchedTraining, watch: Stopwatch) -> bool:
        since = watch.seconds - watch.start_seconds
        return since > self._plan.gauge_seconds or bool(list_checkpoints(training.run_dir))

    def _train_killed(self, kills: int, whole: Stopwatch, *, limit: float) -> Path:
        """Train with kills; anew if the training was over too soon for two of them.

        Returns:
            The run folder.
        """
        for attempt in range(_MOST_ATTEMPTS):
            run_dir = self._folder / f"killed-{attempt}"
            logger.info(f"training {self._plan.updates} updates again, killed {kills} times")
            self._killed_at.clear()
            self._kills_while_saving = 0
            self._kill_repeatedly(run_dir, kills, whole, limit)
            if len(self._killed_at) >= _LEAST_KILLS:
                watch = Stopwatch()
                with self._start(run_dir) as training:
                    self._wait(training, None, limit)
                logger.info(f"  went on to step {self._plan.updates} in {watch.seconds:.1f} s")
                return run_dir
            logger.info("  it was over too soon")
        raise CheckpointError(
            "The training was over each time before it could be killed twice.",
            fix="Start the proof again; if it stays so, take a larger model or more updates.",
        )

    def _kill_repeatedly(self, run_dir: Path, kills: int, whole: Stopwatch, limit: float) -> None:
        # One kill in each part of the run; every other one is aimed at a save.
        last = self._plan.updates - self._plan.save_every
        targets = [int(last * (part + self._draw.random()) / kills) for part in range(kills)]
        at_saves = [part % 2 == 0 for part in range(kills)]
        self._draw.shuffle(at_saves)
        for target, at_save in zip(targets, at_saves, strict=True):
            most = whole.save_seconds if at_save else 3 * whole.seconds_per_update
            with self._start(run_dir) as training:
                if not self._wait(training, target, limit, at_save=at_save):
                    return
                self._rest(self._draw.uniform(0, most))
                if not training.kill():
                    return
                self._killed_at.append(training.step)
                self._kills_while_saving += training.is_saving
                moment = "in the middle of a save" if training.is_saving else "between two saves"
                logger.info(f"  killed at step {training.step}, {moment}")

    def _start(self, run_dir: Path) -> WatchedTraining:
        settings = [f"--set={text}" for text in self._plan.settings()]
        # Kills damage no checkpoint, and nothing else changes: both flags make errors of that.
        flags = [f"--run-dir={run_dir}", "--exact", "--strict-resume"]
        return WatchedTraining([*self._command, *settings, *flags], run_dir)

    def _wait(
        self, training: WatchedTraining, step: int | None, limit: float, *, at_save: bool = False
    ) -> bool:
        """Wait for an update, or for a save after it; return False if the process ended before.

        With ``step`` None, wait for the end.
        """
        watch = Stopwatch()
        while not training.has_ended():
            is_there = step is not None and training.step >= max(step, 1)
            if is_there and (training.is_saving or not at_save):
                return True
            self._rest(_SAVING_POLL_SECONDS if is_there else _POLL_SECONDS)
            if watch.seconds > limit:
                raise CheckpointError(
                    f"A training that was killed and started again hangs: after {limit:.0f} s it "
                    f"is at step {training.step} of {self._plan.updates}.",
                    fix="If the machine is not busy with something else, please report this.",
                )
        return False

    def _rest(self, seconds: float) -> None:
        """Sleep, but notice signals."""
        end = time.monotonic() + seconds
        while True:
            self._stop.check()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.05))

    def _compare(self, killed: Path) -> Proof:
        found = compare_runs(self._folder / _WHOLE, killed, self._plan.updates)
        if found.differences:
            steps = ", ".join(map(str, self._killed_at))
            raise CheckpointError(
                f"Not equal: the training that was killed at steps {steps} ended otherwise than "
                "the one in one go.\n  " + "\n  ".join(found.differences),
                fix="Prove it with training.device=cpu, as on a GPU sums may be taken in any "
                "order; if that differs too, resuming is broken: please report it.",
            )
        return Proof(
            updates=self._plan.updates,
            kills=len(self._killed_at),
            killed_at_steps=tuple(self._killed_at),
            kills_while_saving=self._kills_while_saving,
            weights_sha256=found.weights_sha256,
            optimizer_sha256=found.optimizer_sha256,
            metrics_lines=found.metrics_lines,
            equal=True,
        )
