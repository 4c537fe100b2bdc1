"""Reports of an evaluation as Markdown and JUnit XML, and a JSON report used as a baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nmt.commands.evaluate import EvaluatedModel
from nmt.errors import ConfigError
from nmt.extras.analysis.gates import gates_of
from nmt.files.json_file import field, read_json
from nmt.metrics.metric import Score, Scorer, as_quality, label_of, rounded
from nmt.metrics.result import (
    Evaluation,
    EvaluationReport,
    Section,
    System,
    hash_references,
    paired_tests,
    prefixed,
    score_rows,
    show_p_value,
    show_score,
)

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_USUAL_ALPHA = 0.05
# Characters that are not allowed in XML.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_VERSION = re.compile(r"\|version:[^|]*")
_AGAIN = "Create it again with `report` FILE.json on this test set."


def as_markdown(report: EvaluationReport, _models: Sequence[EvaluatedModel] = ()) -> str:
    """Format a report as Markdown for a pull request, with collapsed tables of analyses."""
    evaluations = report.evaluations
    sections = [(x, name) for each, name in prefixed(evaluations) for x in each.sections]
    gates = [gate for each in evaluations for gate in gates_of(each)]
    missed = [gate for gate in gates if not gate.met]
    outcome = f": {len(missed)} of {len(gates)} gates missed" if missed else ": all gates met"
    blocks = [f"### Translation quality{outcome if gates else ''}"]
    if missed:
        blocks.append("\n".join(f"- **missed** {_escaped(str(gate))}" for gate in missed))
    blocks += [f"**{_escaped(each.title)}**" for each in evaluations]
    has_base = any(each.baseline for each in evaluations)
    blocks.append(_table(change_rows(evaluations) if has_base else score_rows(evaluations)))
    sections += [(section, "") for section in report.sections]
    blocks += [_folded(name, section) for section, name in sections if section.rows]
    scores = [score for each in evaluations for score in each.systems[0].scores]
    signatures = dict.fromkeys(f"{label_of(x.metric)} `{x.signature}`" for x in scores)
    legend = ", ".join([*paired_tests(evaluations), *signatures])
    return "\n\n".join([*blocks, f"<sub>{legend}</sub>"]) + "\n"


def change_rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return a table of the changes against the baseline, with their intervals."""
    gates = [gate for each in evaluations for gate in gates_of(each)]
    alpha = next((gate.alpha for gate in gates if gate.alpha is not None), _USUAL_ALPHA)
    rows = [["system", "metric", "before", "now", "change", "95% interval", "significant?"]]
    for each, prefix in prefixed(evaluations):
        for system in each.systems:
            rows += (_change(prefix + system.name, score, alpha) for score in system.scores)
    return rows


def _change(name: str, score: Score, alpha: float) -> list[str]:
    found, shown = score.comparison, partial(rounded, score.metric)
    row = [name, label_of(score.metric)]
    if found is None:
        return [*row, "", shown(score.value), "", "", ""]
    row += [shown(score.value - found.delta), shown(score.value), shown(found.delta, "+")]
    if found.p_value is None or found.low is None or found.high is None:
        return [*row, "", "not tested"]
    word = "no significant difference"
    if found.p_value < alpha:
        word = "worse" if as_quality(score.metric, found.delta) < 0 else "better"
    return [
        *row,
        f"{shown(found.low, '+')} to {shown(found.high, '+')}",
        f"{word} ({show_p_value(found.p_value)})",
    ]


def _folded(prefix: str, section: Section) -> str:
    title = _escaped(prefix + section.title)
    inner = "\n\n".join(filter(None, [_table(section.rows), _escaped(section.meaning)]))
    return f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(map(_escaped, row))} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text.replace("\n", " "))


def as_junit(report: EvaluationReport, _models: Sequence[EvaluatedModel] = ()) -> str:
    """Format a report as JUnit XML: one test case for each gate, or for each score."""
    root = ElementTree.Element("testsuites", name="nmt evaluate")
    for each in report.evaluations:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(each.test))
        gates = gates_of(each)
        for gate in gates:
            limit = f" {gate.required:g}" if gate.kind == "fail-under" else ""
            case = _add(suite, f"{gate.system}: {gate.metric} {gate.kind}{limit}")
            if not gate.met:
                failure = {"message": _clean(str(gate)), "type": gate.kind}
                ElementTree.SubElement(case, "failure", failure)
        for system in each.systems if not gates else ():
            for score in system.scores:
                _add(suite, f"{system.name}: {score.metric} {show_score(score)}")
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(sum(not gate.met for gate in gates)))
        suite.set("errors", "0")
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    place = {"classname": f"nmt.evaluate.{suite.get('name')}", "name": _clean(name)}
    return ElementTree.SubElement(suite, "testcase", place)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def read_baseline_report(
    path: Path, test: str, references: Sequence[Sequence[str]], scorers: Sequence[Scorer]
) -> System:
    """Read the system of a JSON report, to score it again as a baseline.

    Args:
        path: JSON output or report of ``nmt evaluate``.
        test: Name of the test set, for messages.
        references: Streams of reference lines.
        scorers: Metrics. Their signatures must equal those in the report, except for the version of
            sacrebleu.

    Raises:
        ConfigError: The file is not a report of one system on this test set with translations, or
            was scored with other settings.
    """
    try:
        document = field(read_json(path), kind=dict)
        found = document.get("evaluations", [document])
        wanted = hash_references(references)
        fitting = [each for each in found if each.get("references_sha256") == wanted]
        if not fitting:
            names = ", ".join(str(each.get("test")) for each in found)
            raise ConfigError(
                f"{path} is a report of another test set: the references of {names} and {test} "
                "differ.",
                fix="Evaluate the baseline on the same sentences and references.",
            )
        (system, *others) = field(fitting[0], "systems", kind=list)
        if others:
            raise ConfigError(
                f"{path} contains {len(others) + 1} systems, but a baseline must be one system.",
                fix="Create a report of one system.",
            )
        _check_signatures(path, system, scorers)
        lines = system.get("hypotheses")
        if not lines or len(lines) != len(references[0]) or set(map(type, lines)) != {str}:
            problem = f"{path} does not contain the translations (hypotheses) of {test}."
            raise ConfigError(problem, fix=_AGAIN)
        return System(f"{field(system, 'name', kind=str)} ({path.name})", lines)
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        problem = f"{path} is not a JSON report of nmt evaluate: {error}."
        raise ConfigError(problem, fix=_AGAIN) from error


def _check_signatures(path: Path, system: Any, scorers: Sequence[Scorer]) -> None:
    then = {score["metric"]: score["signature"] for score in system.get("scores", ())}
    for scorer in scorers:
        now = scorer.metric.signature
        before = then.get(scorer.name, now)
        if _VERSION.sub("", before) != _VERSION.sub("", now):
            problem = f"{path} was scored with {scorer.name} {before}; the options now give {now}."
            fix = "Use the same `tokenize`, `lowercase` and references for both."
            raise ConfigError(problem, fix=fix)
