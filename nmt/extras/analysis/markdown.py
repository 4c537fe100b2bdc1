"""An evaluation as a comment for a pull request: what changed, and whether the change is real."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nmt.commands.evaluate import EvaluatedModel
from nmt.extras.analysis.gates import gates_of
from nmt.metrics.metric import Score, as_quality, label_of
from nmt.metrics.result import (
    Evaluation,
    EvaluationReport,
    Section,
    paired_tests,
    prefixed,
    score_rows,
    show_p_value,
)

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_USUAL_ALPHA = 0.05


def as_markdown(report: EvaluationReport, _models: Sequence[EvaluatedModel] = ()) -> str:
    """Return headings, and tables that a click unfolds."""
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
    alpha = next((gate.alpha for gate in gates if gate.alpha is not None), _USUAL_ALPHA)
    blocks.append(_table(_changes(evaluations, alpha) if has_base else score_rows(evaluations)))
    sections += [(section, "") for section in report.sections]
    blocks += [_folded(name, section) for section, name in sections if section.rows]
    signatures = dict.fromkeys(
        f"{x.metric} `{x.signature}`" for each in evaluations for x in each.systems[0].scores
    )
    legend = ", ".join([*paired_tests(evaluations), *signatures])
    return "\n\n".join([*blocks, f"<sub>{legend}</sub>"]) + "\n"


def _changes(evaluations: Sequence[Evaluation], alpha: float) -> list[list[str]]:
    rows = [["system", "metric", "before", "now", "change", "95% interval", "real?"]]
    for each, prefix in prefixed(evaluations):
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
        word = "worse" if as_quality(score.metric, found.delta) < 0 else "better"
    return [
        *row,
        f"{found.low:+.2f} to {found.high:+.2f}",
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
