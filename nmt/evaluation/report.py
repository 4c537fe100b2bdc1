"""What an evaluation found, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nmt.errors import DataError
from nmt.evaluation.gate import GateResult
from nmt.metrics.metric import Score


@dataclass(frozen=True, slots=True)
class SystemScores:
    """One system under every metric."""

    name: str
    """The model folder or the name of the file of translations."""
    scores: tuple[Score, ...]
    """One for each metric, in the order asked for."""
    engine: str | None = None
    """What translated: ``torch`` or ``ctranslate2``; None for a file of translations."""
    dtype: str | None = None
    """What the model's weights were multiplied in."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        result = {"name": self.name, "scores": [score.as_dict() for score in self.scores]}
        return (
            result if self.engine is None else result | {"engine": self.engine, "dtype": self.dtype}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The scores of some systems on one test set."""

    test: str
    """Name of the test set."""
    num_sentences: int
    """Sentences scored."""
    num_references: int
    """References of each sentence."""
    systems: tuple[SystemScores, ...]
    """What was scored."""
    baseline: SystemScores | None = None
    """What it was compared with."""
    gates: tuple[GateResult, ...] = ()
    """Every system at every gate."""
    unsaved: DataError | None = None
    """Why the model's translations could not be saved; to be raised once the scores are told."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what was not asked for is left out."""
        result: dict[str, Any] = {
            "systems": [system.as_dict() for system in self.systems],
            "test": self.test,
            "num_sentences": self.num_sentences,
            "num_references": self.num_references,
        }
        if self.baseline is not None:
            result["baseline"] = self.baseline.as_dict()
        if self.gates:
            result["gates"] = [gate.as_dict() for gate in self.gates]
        return result

    def as_text(self) -> str:
        """A table with two decimals, the 95% intervals, and the signatures below."""
        rows = [] if self.baseline is None else [_row(self.baseline, " (baseline)")]
        rows += [_row(system) for system in self.systems]
        metrics = [score.metric for score in self.systems[0].scores]
        table = _columns([["system", *metrics], *rows])
        references = (
            "1 reference" if self.num_references == 1 else (f"{self.num_references} references")
        )
        sentences = "1 sentence" if self.num_sentences == 1 else f"{self.num_sentences:,} sentences"
        signatures = _columns([[score.metric, score.signature] for score in self.systems[0].scores])
        engines = [
            f"{system.name}: engine {system.engine}, dtype {system.dtype}"
            for system in self.systems
            if system.engine is not None
        ]
        parts = [f"{self.test}: {sentences}, {references}", table, *engines, signatures]
        return "\n\n".join(parts)


def _row(system: SystemScores, mark: str = "") -> list[str]:
    return [system.name + mark, *map(_cell, system.scores)]


def _cell(score: Score) -> str:
    text = f"{score.value:.2f}"
    if score.confidence is not None:
        text += f" ± {score.confidence.half_width:.2f}"
    if score.comparison is not None:
        text += f" ({score.comparison.delta:+.2f}"
        if score.comparison.p_value is not None:
            text += f", p = {score.comparison.p_value:.3f}"
        text += ")"
    return text


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
