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
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from nmt.checkpoint.files import MODEL, OPTIMIZER, list_checkpoints
from nmt.errors import CheckpointError
from nmt.extras.planning.watched import WatchedTraining, compare_runs, last_hashes, read_metrics
from nmt.files.atomic import write_errors
from nmt.training.signals import Interrupted, StoppedBySignal, StopSignal

logger = logging.getLogger(__name__)

_LEAST_KILLS = 2
_MOST_ATTEMPTS = 3
UPDATES = 60  # Of each training where they are not slow.
_GAUGE_SECONDS = 15.0  # Time after which the speed of the updates counts as known.
_POLL_SECONDS = 0.004
_SAVING_POLL_SECONDS = 0.0005
_SHOWN_CHARACTERS = 12


def choose_updates(seconds_per_update: float, training_seconds: float) -> int:
    """Return how many updates to make: fewer, but 8 at least, if `UPDATES` took far too long."""
    if UPDATES * seconds_per_update <= 1.5 * training_seconds:
        return UPDATES
    return min(UPDATES, max(8, int(training_seconds / seconds_per_update)))


def save_interval(updates: int) -> int:
    """Return the updates between two saves of a training of so many.

    It shares no factor with the intervals of reports (2) and, as a rule, of validations (25): kills
    and saves cut the intervals between the others in two.
    """
    return min(7, max(2, updates // 4))


def settings(updates: int) -> list[str]:
    """Return overrides of a configuration for a training of so many updates."""
    values: dict[str, object] = {
        **dict.fromkeys(("max_minutes", "max_epochs", "patience", "average_last")),
        "max_steps": updates,
        "report_every": 2,
        "save_every": save_interval(updates),
        "validate_every": min(25, max(3, updates * 5 // 12)),
        "validation.max_sentences": 8,
        "keep_last": 2,
        "keep_best": 1,
        "on_full_disk": "stop",
    }
    return [f"training.{key}={json.dumps(value)}" for key, value in values.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was seen. The pairs are of the training in one go and of the killed one."""

    updates: int  # Updates of each training.
    kills: int  # SIGKILLs that met a living process.
    killed_at_steps: tuple[int, ...]  # The last update known of at each of them.
    kills_while_saving: int  # Those that left a half-written or half-removed checkpoint.
    weights_sha256: tuple[str, str]  # Hashes of model.safetensors of the last update.
    # Hashes of optimizer.safetensors, which holds the random generators too.
    optimizer_sha256: tuple[str, str]
    metrics_lines: int  # Lines of metrics.jsonl; compared without times.
    equal: bool  # Whether hashes and lines are equal.

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
    training_seconds: float = 30.0,
    total_seconds: float = 120.0,
) -> Proof:
    """Train shortly in one go, train the same with kills at random moments, and compare.

    Nothing is left: both run folders are beside ``run_dir`` for as long as this takes, about two
    minutes.

    Args:
        command: Trains, without a run folder; settings and flags of `nmt train` are appended.
        run_dir: Folder of the run that is proved to resume; not touched.
        kills: How often to kill, 2 at least; fewer where a start takes long.
        seed: Of the random moments; others each time when None.
        training_seconds: How long one training should take; slow models make fewer updates.
        total_seconds: About how long all should take; slow starts mean fewer kills.

    Raises:
        CheckpointError: The ends differ, or a training failed; see the message.
        StoppedBySignal: The process was asked to stop.
    """
    if kills < _LEAST_KILLS:
        raise ValueError(f"kills must be at least {_LEAST_KILLS}, not {kills}")
    parent, fix = run_dir.parent, "Set run_dir to a folder you can write to."
    with write_errors(parent, CheckpointError, fix=fix):
        parent.mkdir(parents=True, exist_ok=True)
        place = TemporaryDirectory(prefix=f".{run_dir.name}.prove-resume-", dir=parent)
    with place as folder, StopSignal() as stop:
        trainings = _Trainings(command, Path(folder), random.Random(seed), stop)
        try:
            return trainings.prove(kills, training_seconds, total_seconds)
        except Interrupted as interrupted:
            raise StoppedBySignal(interrupted.number) from None


class _Trainings:
    """Both trainings, and their comparison."""

    def __init__(
        self, command: Sequence[str], folder: Path, draw: random.Random, stop: StopSignal
    ) -> None:
        self._command, self._folder, self._draw, self._stop = command, folder, draw, stop
        self._updates, self._kills_while_saving = UPDATES, 0
        self._killed_at: list[int] = []

    def prove(self, kills: int, training_seconds: float, total_seconds: float) -> Proof:
        """Train in one go, train with kills, and compare."""
        begin = time.monotonic()
        whole = self._train_whole(training_seconds)
        # A kill costs a start and, on the average, half of what is between two saves.
        between = whole.seconds_per_update * save_interval(self._updates)
        cost = whole.start_seconds + between / 2
        left = total_seconds - (time.monotonic() - begin) - whole.seconds
        affordable = max(_LEAST_KILLS, int(left / cost))
        if affordable < kills:
            start = f"a start takes {whole.start_seconds:.1f} s"
            logger.info(f"{affordable} kills, not {kills}: {start}")
        killed = self._train_killed(min(kills, affordable), whole)
        runs, updates = (whole.run_dir, killed), self._updates
        if differences := list(compare_runs(*runs, updates)):
            steps = ", ".join(map(str, self._killed_at))
            raise CheckpointError(
                f"Not equal: the training that was killed at steps {steps} ended otherwise than "
                "the one in one go.\n  " + "\n  ".join(differences),
                fix="Prove it with training.device=cpu, as on a GPU sums may be taken in any "
                "order; if that differs too, resuming is broken: please report it.",
            )
        one, other = (last_hashes(run_dir, updates) for run_dir in runs)
        return Proof(
            updates=updates,
            kills=len(self._killed_at),
            killed_at_steps=tuple(self._killed_at),
            kills_while_saving=self._kills_while_saving,
            weights_sha256=(one[MODEL], other[MODEL]),
            optimizer_sha256=(one[OPTIMIZER], other[OPTIMIZER]),
            metrics_lines=len(read_metrics(killed)),
            equal=True,
        )

    def _train_whole(self, training_seconds: float) -> WatchedTraining:
        """Train in one go; if that turns out to be slow, again with fewer updates."""
        is_gauged = False
        while True:
            updates = self._updates
            logger.info(f"training {updates} updates in one go")
            with self._start(self._folder / f"whole-{updates}") as training:
                while updates == self._updates and not training.has_ended():
                    self._rest(_POLL_SECONDS)
                    training.look()
                    is_known = training.seconds - training.start_seconds > _GAUGE_SECONDS
                    if not is_gauged and (is_known or list_checkpoints(training.run_dir)):
                        is_gauged = True
                        self._updates = choose_updates(
                            training.seconds_per_update, training_seconds
                        )
            if updates == self._updates:
                logger.info(f"  done in {training.seconds:.1f} s")
                return training
            logger.info(f"  that would be long: {training.seconds_per_update:.1f} s an update")

    def _train_killed(self, kills: int, whole: WatchedTraining) -> Path:
        """Train with kills; again if that was over too soon for two of them. Return the folder."""
        updates, save_every = self._updates, save_interval(self._updates)
        save_seconds = whole.saving_seconds / max(1, updates // save_every)
        limit = 60 + 10 * whole.seconds
        for attempt in range(_MOST_ATTEMPTS):
            run_dir = self._folder / f"killed-{attempt}"
            logger.info(f"training {updates} updates again, killed {kills} times")
            self._killed_at, self._kills_while_saving = [], 0
            # One kill in each part of the run; every other one is aimed at a save.
            at_saves = [part % 2 == 0 for part in range(kills)]
            self._draw.shuffle(at_saves)
            for part, at_save in enumerate(at_saves):
                target = int((updates - save_every) * (part + self._draw.random()) / kills)
                most = save_seconds if at_save else 3 * whole.seconds_per_update
                with self._start(run_dir) as training:
                    if not self._wait(training, target, limit, at_save=at_save):
                        break
                    self._rest(self._draw.uniform(0, most))
                    if not training.kill():
                        break
                    moment = ("between two saves", "in the middle of a save")[training.is_saving]
                    logger.info(f"  killed at step {training.step}, {moment}")
                    self._killed_at.append(training.step)
                    self._kills_while_saving += training.is_saving
            if len(self._killed_at) >= _LEAST_KILLS:
                begin = time.monotonic()
                with self._start(run_dir) as training:
                    self._wait(training, None, limit)
                logger.info(f"  went on to step {updates} in {time.monotonic() - begin:.1f} s")
                return run_dir
            logger.info("  it was over too soon")
        raise CheckpointError(
            "The training was over each time before it could be killed twice.",
            fix="Start the proof again; if it stays so, take a larger model or more updates.",
        )

    def _start(self, run_dir: Path) -> WatchedTraining:
        # Kills damage no checkpoint, and nothing else changes: both flags make errors of that.
        flags = [f"--run-dir={run_dir}", "--exact", "--strict-resume"]
        flags += [f"--set={text}" for text in settings(self._updates)]
        return WatchedTraining([*self._command, *flags], run_dir)

    def _wait(
        self, training: WatchedTraining, step: int | None, limit: float, *, at_save: bool = False
    ) -> bool:
        """Wait for an update, or for a save after it; return False if the process ended before.

        With ``step`` None, wait for the end.
        """
        end = time.monotonic() + limit
        while not training.has_ended():
            is_there = step is not None and training.step >= max(step, 1)
            if is_there and (training.is_saving or not at_save):
                return True
            self._rest(_SAVING_POLL_SECONDS if is_there else _POLL_SECONDS)
            if time.monotonic() > end:
                raise CheckpointError(
                    f"A training that was killed and started again hangs: after {limit:.0f} s it "
                    f"is at step {training.step} of {self._updates}.",
                    fix="If the machine is not busy with something else, please report this.",
                )
        return False

    def _rest(self, seconds: float) -> None:
        """Sleep, but notice signals."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._stop.check()
            time.sleep(min(left, 0.05))
