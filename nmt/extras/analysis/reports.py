"""Reports of an evaluation as Markdown and JUnit XML, and a JSON report used as a baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from nmt.commands.evaluate import EvaluatedModel
from nmt.errors import ConfigError
from nmt.extras.analysis.gates import gates_of
from nmt.files.json_file import what_is_wrong
from nmt.metrics.metric import MetricScorer, Score, as_quality, format_score, label_of
from nmt.metrics.result import (
    EvaluationReport,
    System,
    SystemRecord,
    hash_references,
    paired_tests,
    prefixed,
    read_report,
    score_rows,
    show_p_value,
    show_score,
)
from nmt.report.page import render

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_VERSION = re.compile(r"\|version:[^|]*")
_AGAIN = "Create the report again with `report` FILE.json on this test set."


def as_markdown(report: EvaluationReport, _models: Sequence[EvaluatedModel] = ()) -> str:
    """Format a report as Markdown for a pull request, with collapsed tables of analyses."""
    evaluations = report.evaluations
    legend = paired_tests(evaluations)
    # All systems of an evaluation have the same metrics and signatures.
    for score in chain.from_iterable(evaluation.systems[0].scores for evaluation in evaluations):
        legend.append(f"{label_of(score.metric)} `{score.signature}`")
    return render(
        "evaluation.md.j2",
        report=report,
        gates=gates_of(*evaluations),
        rows=change_rows(report) or score_rows(evaluations),
        legend=dict.fromkeys(legend),  # each line once
        escaped=lambda text: _MARKDOWN.sub(r"\\\1", str(text).replace("\n", " ")),
    )


def change_rows(report: EvaluationReport) -> list[list[str]]:
    """Return a table of the changes against the baseline, with their intervals; or no rows."""
    if not any(evaluation.baseline for evaluation in report.evaluations):
        return []
    rows = [["system", "metric", "before", "now", "change", "95% interval", "significant?"]]
    for evaluation, prefix in prefixed(report.evaluations):
        for system in evaluation.systems:
            rows += (_change(prefix + system.name, score, report.alpha) for score in system.scores)
    return rows


def _change(name: str, score: Score, alpha: float) -> list[str]:
    """Return the seven cells of one row; cells without a baseline or a test are empty."""
    shown = partial(format_score, score.metric)
    change = score.comparison
    row = [name, label_of(score.metric)]
    if change is None:
        return [*row, "", shown(score.value), "", "", ""]
    row += [shown(score.value - change.delta), shown(score.value), shown(change.delta, "+")]
    if change.p_value is None or change.low is None or change.high is None:
        return [*row, "", "not tested"]
    verdict = "no significant difference"
    if change.p_value < alpha:
        verdict = "better"
        if as_quality(score.metric, change.delta) < 0:
            verdict = "worse"
    interval = f"{shown(change.low, '+')} to {shown(change.high, '+')}"
    return [*row, interval, f"{verdict} ({show_p_value(change.p_value)})"]


def as_junit(report: EvaluationReport, _models: Sequence[EvaluatedModel] = ()) -> str:
    """Format a report as JUnit XML: one test case for each gate, or for each score."""
    return render("junit.xml.j2", report=report, gates_of=gates_of, show_score=show_score)


def read_baseline_report(
    path: Path, test: str, references: Sequence[Sequence[str]], scorers: Sequence[MetricScorer]
) -> System:
    """Read the translations in a JSON report, to score them again as a baseline.

    Args:
        path: JSON output or report of ``nmt evaluate``.
        test: Name of the test set, for messages.
        references: Streams of reference lines.
        scorers: Metrics. Their signatures must equal those in the report, except for the version of
            sacrebleu.

    Raises:
        ConfigError: The file is not a JSON report, is of several systems or a different test set,
            contains no translations, or was scored with other settings.
    """
    try:
        evaluations = read_report(path)
    except (OSError, ValueError) as error:
        problem = f"{path} is not a JSON report of nmt evaluate: {what_is_wrong(error)}."
        raise ConfigError(problem, fix=_AGAIN) from error
    # A report may have several test sets. The references identify the set, not its name.
    references_hash = hash_references(references)
    same_set = [
        evaluation for evaluation in evaluations if evaluation.references_sha256 == references_hash
    ]
    if not same_set:
        names = ", ".join(evaluation.test for evaluation in evaluations)
        problem = f"the references of {names} and {test} differ"
        fix = "Evaluate the baseline on the same sentences and references."
        raise ConfigError(f"{path} is a report of a different test set: {problem}.", fix=fix)
    system, *more_systems = same_set[0].systems
    if more_systems:
        problem = (
            f"{path} contains {len(more_systems) + 1} systems, but a baseline must be one system."
        )
        raise ConfigError(problem, fix="Create the report again with one system.")
    _check_signatures(path, system, scorers)
    if len(system.lines) != len(references[0]):  # a report may leave the translations out
        problem = f"{path} does not contain the translations (hypotheses) of {test}."
        raise ConfigError(problem, fix=_AGAIN)
    return System(f"{system.name} ({path.name})", system.lines)


def _check_signatures(path: Path, system: SystemRecord, scorers: Sequence[MetricScorer]) -> None:
    """Raise an error if a metric has other settings than in a report; versions may differ.

    Metrics that the report does not have are not checked.
    """
    signatures = {score.metric: score.signature for score in system.scores}
    for scorer in scorers:
        new = scorer.metric.signature
        old = signatures.get(scorer.name, new)
        if _VERSION.sub("", old) != _VERSION.sub("", new):
            problem = f"{path} was scored with {scorer.name} {old}; the options now give {new}."
            fix = "Use the same `tokenize`, `lowercase`, model and references for both."
            raise ConfigError(problem, fix=fix)
