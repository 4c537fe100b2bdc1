"""Where training stands, what its validations found, and how it ended: plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import checkpoint_name
from nmt.checkpoint.retention import by_score
from nmt.data.loader import Position
from nmt.training.report import Event
from nmt.training.update import UpdateStats


class History(dict[int, float]):
    """Scores of all validations of a run by step, oldest first: BLEU, chrF, or minus the loss.

    >>> history = History({10: 21.5, 20: 24.0, 30: 23.9})
    >>> history.best
    20
    >>> history.should_stop(patience=1), history.should_stop(patience=2)
    (True, False)
    """

    @property
    def best(self) -> int | None:
        """The step with the highest score, the earlier of two equal ones; NaN is lowest."""
        return next(iter(by_score(self, self)), None)

    def should_stop(self, patience: int | None) -> bool:
        """Whether the last ``patience`` validations were no better than one before them."""
        if patience is None or self.best is None:
            return False
        return len(self) - 1 - list(self).index(self.best) >= patience


@dataclass(slots=True)
class Progress:
    """Where training stands. Written into every checkpoint."""

    step: int = 0  # Optimizer updates made.
    position: Position = field(default_factory=Position)  # The batch to be read next.
    total_steps: int | None = None  # Updates in all; None when only patience ends training.
    # A time budget in minutes, and the updates it was measured to hold.
    timed: tuple[float, int] | None = None
    # A budget of epochs, and the updates that these hold.
    epoch_updates: tuple[int, int] | None = None
    history: History = field(default_factory=History)  # Validation scores so far.
    # Loss summed since the last report, in nats, without that of skipped updates.
    loss_sum: float = 0.0
    scored_tokens: int = 0  # Target tokens that it is of.
    source_tokens: int = 0
    target_tokens: int = 0
    padded_tokens: int = 0  # Tokens since the last report.
    skipped: int = 0  # Updates left out in all, because loss or gradient was not finite.
    skipped_in_a_row: int = 0  # Of these, the ones since the last good update.

    def add(self, stats: UpdateStats, position: Position) -> None:
        """Count one update, which the device may not have made yet, and after which to read on."""
        self.step, self.position = self.step + 1, position
        self.source_tokens += stats.source_tokens
        self.target_tokens += stats.target_tokens
        self.padded_tokens += stats.padded_tokens

    def add_outcome(self, stats: UpdateStats) -> None:
        """Count what the device computed in one update."""
        if not stats.skipped:
            self.loss_sum += stats.loss_sum
            self.scored_tokens += stats.target_tokens
        self.skipped += stats.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if stats.skipped else 0

    def report(
        self,
        learning_rate: float,
        gradient_norm: float,
        seconds: float,
        before: tuple[int, int] = (0, 0),
    ) -> Event:
        """Report the updates since the last report, and begin a new interval.

        Args:
            learning_rate: Of the last of them.
            gradient_norm: Of the last of them, before clipping.
            seconds: That this process took for its part, without validation and saving.
            before: Source and target tokens of these updates that an earlier process read.
        """
        real = self.source_tokens + self.target_tokens
        # Smoothed objective per target token, in nats.
        loss = self.loss_sum / self.scored_tokens if self.scored_tokens else math.nan
        own = self.source_tokens - before[0], self.target_tokens - before[1]
        speed = own[1] / seconds
        values = {
            "epoch": self.position.epoch,
            "loss": loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "target_tokens_per_second": speed,
            "source_tokens_per_second": own[0] / seconds,
            "padding_waste": 1 - real / max(self.padded_tokens, 1),
            "seconds": seconds,
        }
        text = (
            f"step {self.step:,}  epoch {self.position.epoch}  loss {loss:.3f}  "
            f"lr {learning_rate:.2e}  norm {gradient_norm:.2f}  {speed:,.0f} target tokens/s"
        )
        self.loss_sum, self.scored_tokens = 0.0, 0
        self.source_tokens = self.target_tokens = self.padded_tokens = 0
        return Event(self.step, text, "update", values)

    def reason_to_end(self, patience: int | None) -> str | None:
        """Return ``budget`` or ``patience`` if one of them is used up, else None."""
        if self.total_steps is not None and self.step >= self.total_steps:
            return "budget"
        return "patience" if self.history.should_stop(patience) else None

    def summary(self, run_dir: Path, reason: str, metric: str, seconds: float) -> TrainingSummary:
        """Report how training ended, after ``seconds`` of updates."""
        best, score = self.history.best, None
        if best is not None:
            score = self.history[best]
        name = None if best is None else checkpoint_name(best)
        return TrainingSummary(run_dir, self.step, reason, name, score, metric, seconds)

    def describe(self) -> str:
        """Return where training stands, in a phrase."""
        start, total = self.step, self.total_steps
        if total is not None and start >= total:
            return f"at step {start:,}, and training ends at step {total:,}"
        where = f"resuming at step {start:,}" if start else "training"
        return where + (f" to step {total:,}" if total else " until patience ends")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for state.json."""
        return asdict(self) | {"history": list(self.history.items())}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """Take `as_dict` back."""
        position, history = Position(**values["position"]), History(values["history"])
        return cls(**{**values, "position": position, "history": history})

    @classmethod
    def resumed(cls, state: Mapping[str, Any], batch: Mapping[str, Any]) -> Progress:
        """Take that of a checkpoint, where updates may have had another number of batches.

        Args:
            state: Of the checkpoint.
            batch: The batch section of this process, now.
        """
        progress = cls.from_dict(state["progress"])
        updates = progress.position.batch // state["batch"]["accumulate"]
        there = updates * batch["accumulate"]
        progress.position = replace(progress.position, batch=there)
        return progress


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """How training ended."""

    run_dir: Path  # Where the model is.
    step: int  # Updates made.
    reason: str  # Why it ended: ``budget``, ``patience`` or ``signal``.
    best: str | None  # The best weights: the name of a checkpoint, or ``average``.
    best_score: float | None  # Its score (BLEU, chrF, or minus the loss).
    metric: str  # Of that score.
    training_seconds: float  # Time spent in updates by this process, without validation and saving.

    def as_text(self) -> str:
        """Return a line to read."""
        score = "" if self.best_score is None else f" ({self.metric} {self.best_score:.2f})"
        return f"{self.run_dir}: {self.step:,} steps; best: {self.best or 'none'}{score}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"run_dir": str(self.run_dir)}
