"""Where training stands, and how it ended: plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nmt.checkpoint.files import checkpoint_name
from nmt.data.loader import Position
from nmt.training.report import UpdateReport
from nmt.training.stopping import History
from nmt.training.update import UpdateStats


@dataclass(slots=True)
class Progress:
    """Where training stands. Written into every checkpoint."""

    step: int = 0
    """Optimizer updates made."""
    position: Position = field(default_factory=Position)
    """The batch to be read next."""
    total_steps: int | None = None
    """Updates in all; None when only patience ends training."""
    timed: tuple[float, int] | None = None
    """A time budget in minutes, and the updates it was measured to hold."""
    history: History = field(default_factory=History)
    """Validation scores so far."""
    loss_sum: float = 0.0
    """Loss summed since the last report, in nats, without that of skipped updates."""
    scored_tokens: int = 0
    """Target tokens that it is of."""
    source_tokens: int = 0
    target_tokens: int = 0
    padded_tokens: int = 0
    """Tokens since the last report."""
    skipped: int = 0
    """Updates left out in all, because loss or gradient was not finite."""
    skipped_in_a_row: int = 0
    """Of these, the ones since the last good update."""

    def add(self, stats: UpdateStats) -> None:
        """Count one update, which the device may not have made yet."""
        self.step += 1
        self.source_tokens += stats.source_tokens
        self.target_tokens += stats.target_tokens
        self.padded_tokens += stats.padded_tokens

    def add_outcome(self, stats: UpdateStats) -> None:
        """Count what the device worked out in one update."""
        if not stats.skipped:
            self.loss_sum += stats.loss_sum
            self.scored_tokens += stats.target_tokens
        self.skipped += stats.skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if stats.skipped else 0

    def report(self, learning_rate: float, gradient_norm: float, seconds: float) -> UpdateReport:
        """Tell of the updates since the last report.

        Args:
            learning_rate: Of the last of them.
            gradient_norm: Of the last of them.
            seconds: That all of them took.
        """
        real = self.source_tokens + self.target_tokens
        return UpdateReport(
            step=self.step,
            epoch=self.position.epoch,
            loss=self.loss_sum / self.scored_tokens if self.scored_tokens else math.nan,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            target_tokens_per_second=self.target_tokens / seconds,
            source_tokens_per_second=self.source_tokens / seconds,
            padding_waste=1 - real / max(self.padded_tokens, 1),
            seconds=seconds,
        )

    def clear_sums(self) -> None:
        """Begin a new interval between reports."""
        self.loss_sum, self.scored_tokens = 0.0, 0
        self.source_tokens = self.target_tokens = self.padded_tokens = 0

    def summary(self, reason: str, seconds: float) -> TrainingSummary:
        """Tell how training ended, after ``seconds`` of updates."""
        best = self.history.best
        return TrainingSummary(
            step=self.step,
            reason=reason,
            best=checkpoint_name(best.step) if best else None,
            best_score=best.score if best else None,
            training_seconds=seconds,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for state.json."""
        tokens = ("scored_tokens", "source_tokens", "target_tokens", "padded_tokens")
        names = ("step", "total_steps", "timed", "loss_sum", *tokens, "skipped", "skipped_in_a_row")
        values = {name: getattr(self, name) for name in names}
        return values | {"position": asdict(self.position), "history": self.history.as_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Progress:
        """Take `as_dict` back."""
        plain = dict(values)
        timed = plain.pop("timed", None)
        if "nats" in plain:  # of an earlier release
            plain["loss_sum"] = plain.pop("nats")
        plain.setdefault("scored_tokens", plain["target_tokens"])  # of an earlier release
        return cls(
            position=Position(**plain.pop("position")),
            history=History.from_dict(plain.pop("history")),
            timed=(float(timed[0]), int(timed[1])) if timed else None,
            **plain,
        )


@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """How training ended."""

    step: int
    """Updates made."""
    reason: str
    """Why it ended: ``budget``, ``patience`` or ``signal``."""
    best: str | None
    """The best weights: the name of a checkpoint, or ``average``."""
    best_score: float | None
    """Its score (BLEU, chrF, or minus the loss)."""
    training_seconds: float
    """Time spent in updates by this process, without validation and saving."""
