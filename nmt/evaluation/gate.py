"""Quality gates: scores that must be reached, or the exit code says so; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nmt.errors import ConfigError, GateError
from nmt.metrics.metric import METRICS, Score

_HIGHEST = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One system at one gate."""

    system: str
    """Name of the system."""
    metric: str
    """Name of the metric."""
    required: float
    """What was asked for."""
    value: float
    """What was found; full precision."""
    met: bool
    """The value is not below what was asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def parse_gates(texts: Iterable[str]) -> dict[str, float]:
    """Read ``bleu=27,chrf=55``.

    Args:
        texts: Each holds one or more ``metric=score`` parts with commas between.

    Returns:
        The lowest score allowed, by metric, in the order given.

    Raises:
        ConfigError: A part is malformed, or names an unknown metric, an error rate, a metric twice,
            or a score that is not between 0 and 100. Lists every such part.

    >>> parse_gates(["bleu=27,chrf=55.5"])
    {'bleu': 27.0, 'chrf': 55.5}
    """
    gates: dict[str, float] = {}
    problems = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        problem = _problem(part, name, number if equals else None, gates)
        if problem:
            problems.append(problem)
        else:
            gates[name] = float(number)
    if problems:
        raise ConfigError(
            "--fail-under cannot be understood: " + "; ".join(problems) + ".",
            fix="Write metric=score with commas between, for example bleu=27,chrf=55.",
        )
    return gates


def _problem(part: str, name: str, number: str | None, earlier: Mapping[str, float]) -> str | None:
    if number is None:
        return f"{part!r} has no equals sign"
    if name not in METRICS:
        return f"there is no metric {name!r} (there are {', '.join(METRICS)})"
    if METRICS[name].lower_is_better:
        return f"{name} counts errors, so less is better and a lowest score says nothing"
    if name in earlier:
        return f"{name} is given twice"
    try:
        value = float(number)
    except ValueError:
        return f"{number!r} in {part!r} is not a number"
    if math.isnan(value) or not 0 <= value <= _HIGHEST:
        return f"{number} in {part!r} is not between 0 and 100"
    return None


def check_gates(
    system: str, scores: Iterable[Score], gates: Mapping[str, float]
) -> list[GateResult]:
    """Compare the scores of one system with the gates.

    Args:
        system: Name of the system.
        scores: Its scores; one for each gate at least.
        gates: What `parse_gates` returned.

    Returns:
        One result for each gate, in the order of the gates.
    """
    values = {score.metric: score.value for score in scores}
    return [
        GateResult(
            system=system,
            metric=metric,
            required=required,
            value=values[metric],
            met=values[metric] >= required,
        )
        for metric, required in gates.items()
    ]


def raise_if_missed(results: Iterable[GateResult]) -> None:
    """Raise one error that names every gate that was not met, and by how much.

    Raises:
        GateError: At least one result is not met.
    """
    missed = [
        f"{result.system}: {result.metric} is {_digits(result.value, result.required)}, "
        f"{result.required - result.value:.2g} below {result.required:g}"
        for result in results
        if not result.met
    ]
    if missed:
        raise GateError(
            "A quality gate was not met.\n  " + "\n  ".join(missed),
            fix="Improve the system, or lower --fail-under if the gate is too strict.",
        )


def _digits(value: float, required: float) -> str:
    """Two decimals, or more where two would hide that the value is below what is required."""
    texts = (f"{value:.{places}f}" for places in (2, 4, 6))
    return next((text for text in texts if float(text) < required), repr(value))
