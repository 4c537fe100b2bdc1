"""Quality gates: lowest scores, and no significant loss against a baseline. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nmt.errors import ConfigError, GateError
from nmt.metrics.metric import METRICS, Score, as_quality
from nmt.metrics.result import GateResult, System

USUAL_ALPHA = 0.05
"""A difference whose p-value is below is significant, unless another limit is asked for."""


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


def check_regressions(system: System, metrics: Iterable[str], alpha: float) -> list[GateResult]:
    """Find which scores are significantly worse than the baseline's.

    Args:
        system: Compared with the baseline, with p-values.
        metrics: The metrics that count.
        alpha: A difference whose p-value is below is significant.

    Returns:
        One result for each metric, in their order.
    """
    scores = {score.metric: score for score in system.scores}
    found = []
    for metric in metrics:
        score = scores[metric]
        comparison = score.comparison
        if comparison is None or comparison.p_value is None:
            raise ValueError(f"{system.name} has no p-value for {metric}")
        is_worse = as_quality({metric: comparison.delta}, metric) < 0 and comparison.p_value < alpha
        found.append(
            GateResult(
                kind="fail-if-worse",
                system=system.name,
                metric=metric,
                required=score.value - comparison.delta,
                value=score.value,
                met=not is_worse,
                baseline=comparison.baseline,
                p_value=comparison.p_value,
                alpha=alpha,
            )
        )
    return found


def describe(result: GateResult) -> str:
    """Say in a line what was asked for and what was found."""
    name = f"{result.system}: {result.metric}"
    if result.kind == "fail-if-worse":
        change = f"{result.value - result.required:+.2f} against {result.baseline}"
        outcome = "not significantly worse" if result.met else "significantly worse"
        return (
            f"{name} is {result.value:.2f}, {change}: {outcome} "
            f"(p = {result.p_value:.4f}, alpha {result.alpha:g})"
        )
    if result.met:
        return f"{name} is {result.value:.2f}, not below {result.required:g}"
    # Two decimals, or more where two would hide that the value is too low.
    texts = (f"{result.value:.{places}f}" for places in (2, 4, 6))
    shown = next((text for text in texts if float(text) < result.required), result.value)
    return f"{name} is {shown}, {result.required - result.value:.2g} below {result.required:g}"


def raise_if_missed(results: Iterable[GateResult]) -> None:
    """Raise one error that names every gate that was not met, and by how much.

    Raises:
        GateError: At least one result is not met.
    """
    missed = [result for result in results if not result.met]
    if missed:
        flags = " and ".join(dict.fromkeys(f"--{result.kind}" for result in missed))
        raise GateError(
            "A quality gate was not met.\n  " + "\n  ".join(map(describe, missed)),
            fix=f"Improve the system, or loosen {flags} if the gate is too strict.",
        )
