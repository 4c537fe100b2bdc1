"""Quality gates: minimum scores, and no significant loss against a baseline.

If a gate is missed, ``nmt evaluate`` prints the scores, then ends with exit code 6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from nmt.commands.evaluate import EvaluatedSet
from nmt.errors import ConfigError
from nmt.metrics.metric import (
    METRICS,
    Score,
    as_quality,
    format_score,
    given_values,
    label_of,
    registered_name,
)
from nmt.metrics.result import Evaluation, ReportSection, size_of


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Whether one system meets one gate, with the numbers that decide it."""

    # A minimum score, or no significant loss against the baseline.
    kind: Literal["fail-under", "fail-if-worse"] = "fail-under"
    system: str  # Name of the system.
    metric: str  # Name of the metric.
    required: float  # Minimum score, or the score of the baseline.
    value: float  # Score of the system, in full precision.
    met: bool  # Whether the system passes the gate.
    baseline: str | None = None  # Name of the baseline.
    p_value: float | None = None  # P-value of the difference from the baseline.
    alpha: float | None = None  # Significance level: smaller p-values are significant.
    part: str | None = None  # Size of the test set, if only its first sentences are scored.

    def __str__(self) -> str:
        subject = f"{self.system}: {label_of(self.metric)} is"
        if self.part:
            subject = f"{self.system}, {self.part}: {label_of(self.metric)} is"
        rounded = format_score(self.metric, self.value)
        if self.kind == "fail-if-worse":
            outcome = "not significantly worse" if self.met else "significantly worse"
            delta = format_score(self.metric, self.value - self.required, "+")
            test = f"(p = {self.p_value:.4f}, alpha {self.alpha:g})"
            return f"{subject} {rounded}, {delta} against {self.baseline}: {outcome} {test}"
        if self.met:
            return f"{subject} {rounded}, not below {self.required:g}"
        # Rounding could hide that the value is too low: 26.96 has the short form 27.0. Remove texts
        # until the first has enough decimals; the last text has all.
        texts = [rounded, f"{self.value:.4f}", f"{self.value:.6f}", str(self.value)]
        while len(texts) > 1 and float(texts[0]) >= self.required:
            del texts[0]
        return f"{subject} {texts[0]}, {self.required - self.value:.2g} below {self.required:g}"


def gate_section(scored: EvaluatedSet) -> ReportSection:
    """Check every system except the baseline at every gate.

    The values of the section are the fields of all results, so that `gates_of` can read the results
    back. Gates that are met are in its text.
    """
    options = scored.options
    results = []
    for system in scored.systems:
        results += check_gates(system.name, system.scores, scored.gates)
        if options.fail_if_worse:
            # Only requested metrics, not metrics that only `fail_under` uses.
            requested = [score for score in system.scores if score.metric in scored.metrics]
            results += check_regressions(system.name, requested, options.alpha)
    if scored.num_available:
        part = size_of(len(scored.test), scored.num_available)
        results = [replace(result, part=part) for result in results]
    values = [given_values(result) for result in results]
    met = "\n".join(f"gate met: {result}" for result in results if result.met)
    missed = [str(result) for result in results if not result.met]
    return ReportSection("gates", "Gates", (), values, met, missed)


def gates_of(*evaluations: Evaluation) -> list[GateResult]:
    """Read the results back from the sections that `gate_section` has added to evaluations."""
    results = list[GateResult]()
    for section in chain.from_iterable(evaluation.sections for evaluation in evaluations):
        if section.key == "gates":
            results += (GateResult(**values) for values in section.values)
    return results


def parse_gates(texts: Iterable[str]) -> dict[str, float]:
    """Parse minimum scores by metric.

    Args:
        texts: ``metric=score`` parts, separated by commas.

    Raises:
        ConfigError: A part is malformed, or has an unknown metric, an error rate, a repeated
            metric, or a score outside 0 to 100. The message lists all such parts.

    >>> parse_gates(["bleu=27,chrf=55.5"])
    {'bleu': 27.0, 'chrf': 55.5}
    """
    gates = {}
    problems = []
    for part in chain.from_iterable(text.split(",") for text in texts):
        name, equals_sign, number = part.strip().partition("=")
        name = registered_name(name.strip())
        number = number.strip()
        value = math.nan  # not between 0 and 100, as for a text that is no number
        with suppress(ValueError):
            value = float(number)
        if not equals_sign:
            problems.append(f"{part.strip()!r} has no equals sign")
        elif name not in METRICS:
            problems.append(f"{name!r} is not a metric (use {', '.join(METRICS)})")
        elif METRICS[name].lower_is_better:
            problems.append(f"{name} is an error rate, which cannot have a minimum score")
        elif name in gates:
            problems.append(f"{name} occurs twice")
        elif not 0 <= value <= 100:
            problems.append(f"{number!r} in {part.strip()!r} is not a number between 0 and 100")
        gates[name] = value  # after a problem as well, to find names that occur twice
    if problems:
        fix = "Write metric=score, separated by commas, for example bleu=27,chrf=55."
        raise ConfigError("`fail_under` is invalid: " + "; ".join(problems) + ".", fix=fix)
    return gates


def check_gates(
    system: str, scores: Iterable[Score], gates: Mapping[str, float]
) -> list[GateResult]:
    """Compare scores with the minimum scores from `parse_gates`; ignore missing metrics."""
    values = {score.metric: score.value for score in scores}
    results = []
    for metric, required in gates.items():
        if metric not in values:  # an external metric may have failed
            continue
        value = values[metric]
        met = value >= required
        gate = GateResult(system=system, metric=metric, required=required, value=value, met=met)
        results.append(gate)
    return results


def check_regressions(system: str, scores: Iterable[Score], alpha: float) -> list[GateResult]:
    """Check whether each score is significantly worse than that of the baseline.

    Args:
        system: Name of the system.
        scores: Scores with a p-value of the comparison with the baseline.
        alpha: Significance level: differences with a smaller p-value are significant.

    Raises:
        ValueError: A score has no p-value.
    """
    results = []
    for score in scores:
        change = score.comparison
        if change is None or change.p_value is None:
            raise ValueError(f"{system} has no p-value for {score.metric}")
        # ``delta`` is the score minus that of the baseline.
        is_worse = as_quality(score.metric, change.delta) < 0 and change.p_value < alpha
        gate = GateResult(
            kind="fail-if-worse",
            system=system,
            metric=score.metric,
            required=score.value - change.delta,
            value=score.value,
            met=not is_worse,
            baseline=change.baseline,
            p_value=change.p_value,
            alpha=alpha,
        )
        results.append(gate)
    return results
