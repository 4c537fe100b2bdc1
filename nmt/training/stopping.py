"""The history of validation scores: which was best, and whether to stop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.checkpoint.retention import rank


@dataclass(frozen=True, slots=True)
class Entry:
    """One validation."""

    step: int
    """Update it was made after."""
    score: float
    """Higher is better: BLEU, chrF, or minus the loss."""


@dataclass(frozen=True, slots=True)
class History:
    """All validations of a run, oldest first.

    >>> history = History().add(10, 21.5).add(20, 24.0).add(30, 23.9)
    >>> history.best.step
    20
    >>> history.should_stop(patience=1), history.should_stop(patience=2)
    (True, False)
    """

    entries: tuple[Entry, ...] = ()

    def add(self, step: int, score: float) -> History:
        """Return the history with one more validation."""
        return History((*self.entries, Entry(step, score)))

    @property
    def best(self) -> Entry | None:
        """The validation with the highest score, the earlier of two equal ones; NaN is lowest."""
        return max(self.entries, key=lambda entry: rank(entry.score), default=None)

    def should_stop(self, patience: int | None) -> bool:
        """Whether the last ``patience`` validations were no better than one before them."""
        best = self.best
        if patience is None or best is None:
            return False
        return len(self.entries) - 1 - self.entries.index(best) >= patience

    def as_dict(self) -> list[list[float]]:
        """Return plain data for JSON."""
        return [[entry.step, entry.score] for entry in self.entries]

    @classmethod
    def from_dict(cls, values: Sequence[Sequence[float]]) -> History:
        """Take `as_dict` back."""
        return cls(tuple(Entry(int(step), float(score)) for step, score in values))
