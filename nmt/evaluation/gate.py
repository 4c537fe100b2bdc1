"""Quality gates: scores that must be reached, or the exit code says so; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nmt.errors import ConfigError, GateError
from nmt.metrics.metric import METRICS, Score


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
        value = math.nan
        with suppress(ValueError):
            value = float(number)
        if not equals:
            problems.append(f"{part!r} has no equals sign")
        elif name not in METRICS:
            problems.append(f"there is no metric {name!r} (there are {', '.join(METRICS)})")
        elif METRICS[name].lower_is_better:
            problems.append(
                f"{name} counts errors: less is better, and a lowest score says nothing"
            )
        elif name in gates:
            problems.append(f"{name} is given twice")
        elif not 0 <= value <= 100:
            problems.append(f"{number!r} in {part!r} is not a number between 0 and 100")
        gates[name] = value
    if problems:
        raise ConfigError(
            "--fail-under cannot be understood: " + "; ".join(problems) + ".",
            fix="Write metric=score with commas between, for example bleu=27,chrf=55.",
        )
    return gates


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
    missed = []
    for result in results:
        if not result.met:
            # Two decimals, or more where two would hide that the value is too low.
            texts = (f"{result.value:.{places}f}" for places in (2, 4, 6))
            shown = next((text for text in texts if float(text) < result.required), result.value)
            below = f"{result.required - result.value:.2g} below {result.required:g}"
            missed.append(f"{result.system}: {result.metric} is {shown}, {below}")
    if missed:
        raise GateError(
            "A quality gate was not met.\n  " + "\n  ".join(missed),
            fix="Improve the system, or lower --fail-under if the gate is too strict.",
        )
