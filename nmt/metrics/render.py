"""An evaluation as text for a terminal, Markdown for a pull request, and JUnit XML for a CI."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.extras.analysis.gates import USUAL_ALPHA, describe
from nmt.extras.analysis.slices import LEAKAGE
from nmt.metrics.metric import Score, as_quality, label_of
from nmt.metrics.result import (
    SMALL_SLICE,
    ConfidenceQuality,
    Evaluation,
    EvaluationReport,
    NoiseLoss,
    Slice,
    System,
)

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document may hold."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_SLICES_MEAN = (
    f"slices: scores of parts of the test set; those of fewer than {SMALL_SLICE} sentences (few) "
    "say little."
)
_LEAKS_MEAN = (
    "source in training data: exact, or near (all but one or two words). Such sentences are "
    "easier: the scores of those not found tell how the model does with new text."
)
_LOSSES_MEAN = "robustness: what each noise in the source costs."
_CONFIDENCE_MEANS = (
    "confidence: how well it predicts the chrF of a sentence. Correlations: 1 is perfect, 0 none. "
    "The calibration error is how far it is off on average, in chrF."
)


@dataclass(frozen=True, slots=True)
class DetailTable:
    """A table of a test set beside its scores."""

    title: str
    rows: Sequence[Sequence[str]]
    """The first is the head."""
    meaning: str = ""
    """How to read it; empty where p-values say it."""


def as_text(report: EvaluationReport) -> str:
    """Return tables with two decimals, the 95% intervals, and the signatures below."""
    evaluations = report.evaluations
    parts = [_title(each) for each in evaluations]
    blocks = ["\n".join(parts), _columns(score_rows(evaluations))]
    for each in evaluations:
        prefix = f"{each.test}: " if len(evaluations) > 1 else ""
        blocks += (prefix + _columns(table.rows) for table in detail_tables(each))
    if report.contrastive:
        rows = [[x.system, x.category, f"{x.num_pairs:,}", f"{100 * x.accuracy:.1f}%"]
                for x in report.contrastive]  # fmt: skip
        blocks.append(_columns([["system", "contrastive pairs", "number", "accuracy"], *rows]))
    settings = dict.fromkeys(
        f"{system.name}: {_shown(system.settings)}"
        for each in evaluations
        for _, system in _named(each)
        if system.settings
    )
    signatures = dict.fromkeys(
        (score.metric, score.signature) for each in evaluations for score in each.systems[0].scores
    )
    meanings = dict.fromkeys(x.meaning for each in evaluations for x in detail_tables(each))
    scores = (score for each in evaluations for x in each.systems for score in x.scores)
    has_intervals = any(score.confidence is not None for score in scores)
    if has_intervals:
        meanings["±: the 95% interval, by bootstrap resampling."] = None
    gates = [f"gate met: {describe(gate)}" for gate in report.gates if gate.met]
    notes = [*filter(None, meanings), *paired_tests(evaluations), *settings, *gates]
    return "\n\n".join([*blocks, *notes, _columns(list(map(list, signatures)))])


def _shown(settings: Mapping[str, str | int | float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def paired_tests(evaluations: Iterable[Evaluation]) -> list[str]:
    """Say where the p-values come from; nothing where there are none."""
    return list(dict.fromkeys(f"p: {x.paired_test}" for x in evaluations if x.paired_test))


def _title(evaluation: Evaluation) -> str:
    count, references = evaluation.num_sentences, evaluation.num_references
    sentences = "1 sentence" if count == 1 else f"{count:,} sentences"
    return f"{evaluation.test}: {sentences}, {references} reference{'s' * (references != 1)}"


def score_rows(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """One row for each system, one column for each metric of each test set."""
    columns = [dict(_named(each)) for each in evaluations]
    head, rows = ["system"], {name: [name] for named in columns for name in named}
    for each, named in zip(evaluations, columns, strict=True):
        prefix = f"{each.test} " if len(evaluations) > 1 else ""
        metrics = [score.metric for score in each.systems[0].scores]
        head += (prefix + metric for metric in metrics)
        for name, row in rows.items():
            row += map(_cell, named[name].scores) if name in named else ["-"] * len(metrics)
    return [head, *rows.values()]


def _named(each: Evaluation) -> Iterator[tuple[str, System]]:
    if each.baseline:
        yield f"{each.baseline.name} (baseline)", each.baseline
    for system in each.systems:
        yield system.name, system


def detail_tables(evaluation: Evaluation) -> Iterator[DetailTable]:
    """Yield the tables of a test set beside its scores."""
    if evaluation.pairs:
        yield DetailTable("Differences", _pair_rows(evaluation))
    if evaluation.slices:
        has_leaks = any(each.group == LEAKAGE for each in evaluation.slices)
        meaning = f"{_SLICES_MEAN} {_LEAKS_MEAN}" if has_leaks else _SLICES_MEAN
        yield DetailTable("Slices", _slice_rows(evaluation), meaning)
    if evaluation.robustness:
        yield DetailTable("Robustness", _noise_rows(evaluation.robustness), _LOSSES_MEAN)
    if evaluation.confidence:
        yield DetailTable("Confidence", _confidence_rows(evaluation.confidence), _CONFIDENCE_MEANS)


def _pair_rows(evaluation: Evaluation) -> list[list[str]]:
    """Return a table of differences: a row for every two systems, a column for each metric."""
    rows: dict[str, list[str]] = {}
    for pair in evaluation.pairs:
        name = f"{pair.second} - {pair.first}"
        cell = f"{pair.delta:+.2f} ({_probability(pair.p_value)})"
        rows.setdefault(name, [name]).append(cell)
    return [
        ["difference", *dict.fromkeys(pair.metric for pair in evaluation.pairs)],
        *rows.values(),
    ]


def _slice_rows(evaluation: Evaluation) -> list[list[str]]:
    """Return a table of slices: group, slice, and sentences and scores of each system."""
    names = [system.name for system in evaluation.systems]
    head = ["slice", ""]
    for system in evaluation.systems:
        prefix = f"{system.name} " if len(names) > 1 else ""
        head += (prefix + text for text in ("sentences", *(x.metric for x in system.scores)))
    return [head, *(_slice_row(each, names, len(head)) for each in evaluation.slices)]


def _slice_row(found: Slice, names: Sequence[str], width: int) -> list[str]:
    row = [found.group, found.name]
    num_metrics = (width - 2) // len(names) - 1
    for name in names:
        own = found.systems.get(name)
        if own is None:
            row += ["-"] * (num_metrics + 1)
            continue
        mark = " (few)" if own.num_sentences and own.is_small else ""
        row.append(f"{own.num_sentences:,}{mark}")
        row += map(_cell, own.scores) if own.scores else ["-"] * num_metrics
    return row


def _noise_rows(losses: Sequence[NoiseLoss]) -> list[list[str]]:
    """Return a table of losses to noise: system, noise, and a column for each metric."""
    rows: dict[tuple[str, str], list[str]] = {}
    for loss in losses:
        cell = f"{loss.clean:.2f} -> {loss.noisy:.2f}, loss {loss.loss:.2f}"
        if loss.confidence is not None:
            cell += f" ± {loss.confidence.half_width:.2f}"
        rows.setdefault((loss.system, loss.noise), [loss.system, loss.noise]).append(cell)
    return [["system", "noise", *dict.fromkeys(loss.metric for loss in losses)], *rows.values()]


def _confidence_rows(found: Sequence[ConfidenceQuality]) -> list[list[str]]:
    """Return a table of how well the confidence of each system predicts sentence chrF."""
    head = ["confidence", "sentences", "Pearson", "Spearman", "calibration error"]
    rows = [
        [x.system, f"{x.num_sentences:,}", f"{x.pearson:.3f}", f"{x.spearman:.3f}",
         f"{x.calibration_error:.2f} chrF"]
        for x in found
    ]  # fmt: skip
    return [head, *rows]


def _cell(score: Score) -> str:
    text = f"{score.value:.2f}"
    if score.confidence is not None:
        text += f" ± {score.confidence.half_width:.2f}"
    if (found := score.comparison) is not None:
        p_value = "" if found.p_value is None else f", {_probability(found.p_value)}"
        text += f" ({found.delta:+.2f}{p_value})"
    return text


def _probability(p_value: float) -> str:
    return f"p = {p_value:.3f}" if p_value >= 0.0005 else "p < 0.001"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def as_markdown(report: EvaluationReport) -> str:
    """Return a comment for a pull request: what changed, by how much, and whether it is real."""
    missed = [gate for gate in report.gates if not gate.met]
    outcome = f": {len(missed)} of {len(report.gates)} gates missed" if missed else ""
    passed = ": all gates met" if report.gates and not missed else ""
    blocks = [f"### Translation quality{outcome or passed}"]
    if missed:
        blocks.append("\n".join(f"- **missed** {_escaped(describe(gate))}" for gate in missed))
    evaluations = report.evaluations
    blocks += [f"**{_escaped(_title(each))}**" for each in evaluations]
    has_base = any(each.baseline for each in evaluations)
    blocks.append(_markdown_table(_changes(evaluations) if has_base else score_rows(evaluations)))
    for each in evaluations:
        prefix = f"{each.test}: " if len(evaluations) > 1 else ""
        blocks += (_folded(prefix, table) for table in detail_tables(each))
    signatures = dict.fromkeys(
        f"{x.metric} `{x.signature}`" for each in evaluations for x in each.systems[0].scores
    )
    legend = ", ".join([*paired_tests(evaluations), *signatures])
    return "\n\n".join([*blocks, f"<sub>{legend}</sub>"]) + "\n"


def _changes(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    rows = [["system", "metric", "before", "now", "change", "95% interval", "real?"]]
    alphas = {gate.alpha for each in evaluations for gate in each.gates if gate.alpha is not None}
    alpha = next(iter(alphas), USUAL_ALPHA)
    for each in evaluations:
        prefix = f"{each.test}: " if len(evaluations) > 1 else ""
        for system in each.systems:
            rows += (_change(prefix + system.name, score, alpha) for score in system.scores)
    return rows


def _change(name: str, score: Score, alpha: float) -> list[str]:
    found = score.comparison
    row = [name, label_of(score.metric)]
    if found is None:
        return [*row, "", f"{score.value:.2f}", "", "", ""]
    row += [f"{score.value - found.delta:.2f}", f"{score.value:.2f}", f"{found.delta:+.2f}"]
    if found.p_value is None or found.low is None or found.high is None:
        return [*row, "", "not tested"]
    word = "no significant difference"
    if found.p_value < alpha:
        word = "worse" if as_quality({score.metric: found.delta}, score.metric) < 0 else "better"
    return [
        *row,
        f"{found.low:+.2f} to {found.high:+.2f}",
        f"{word} ({_probability(found.p_value)})",
    ]


def _folded(prefix: str, table: DetailTable) -> str:
    title = _escaped(prefix + table.title)
    inner = "\n\n".join(filter(None, [_markdown_table(table.rows), _escaped(table.meaning)]))
    return f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>"


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(map(_escaped, row))} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text.replace("\n", " "))


def as_junit(report: EvaluationReport) -> str:
    """Return JUnit XML: a test case for each gate, or for each score where there are no gates."""
    from xml.etree import ElementTree  # noqa: PLC0415 - rare

    def add_case(suite: Any, evaluation: Evaluation, name: str) -> Any:
        names = {"classname": _clean(f"nmt.evaluate.{evaluation.test}"), "name": _clean(name)}
        return ElementTree.SubElement(suite, "testcase", names)

    root = ElementTree.Element("testsuites", name="nmt evaluate")
    for each in report.evaluations:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(each.test))
        for gate in each.gates:
            limit = f" {gate.required:g}" if gate.kind == "fail-under" else ""
            name = f"{gate.system}: {gate.metric} {gate.kind}{limit}"
            case = add_case(suite, each, name)
            if not gate.met:
                kind = {"message": _clean(describe(gate)), "type": gate.kind}
                ElementTree.SubElement(case, "failure", kind)
        if not each.gates:
            for system in each.systems:
                for score in system.scores:
                    add_case(suite, each, f"{system.name}: {score.metric} {_cell(score)}")
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(sum(not gate.met for gate in each.gates)))
        suite.set("errors", "0")
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def as_json(report: EvaluationReport) -> str:
    """Return the object that ``--json`` prints, which also serves as a baseline."""
    return json.dumps(report.as_dict(), ensure_ascii=False) + "\n"


def _as_page(report: EvaluationReport) -> str:
    from nmt.extras.analysis.page import as_page  # noqa: PLC0415 - pages are rare

    return as_page(report)


REPORTS: dict[str, Callable[[EvaluationReport], str]] = {
    ".html": _as_page,
    ".json": as_json,
    ".md": as_markdown,
    ".xml": as_junit,
}
"""What ``--report FILE`` writes, by the ending of the file's name."""
