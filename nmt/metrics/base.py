"""What a score is, and which metrics there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nmt.metrics.significance import Comparison, Confidence

METRICS = ("bleu", "chrf", "chrf++", "ter")
"""Names of the metrics, as flags and results spell them."""

LOWER_IS_BETTER = frozenset({"ter"})
"""Metrics that count errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number for one system under one metric."""

    metric: str
    """One of `METRICS`."""
    value: float
    """From 0 to 100 (TER may exceed it); full precision."""
    signature: str
    """sacrebleu's record of how it was computed: with it, anyone can repeat the number."""
    confidence: Confidence | None = None
    """95% interval by bootstrap resampling, if it was asked for."""
    comparison: Comparison | None = None
    """Difference from a baseline, if one was given."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what was not asked for is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}
