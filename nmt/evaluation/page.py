"""An evaluation as one page: scores, where systems are weak, confidence, and sentences to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup

from nmt.evaluation.render import (
    as_json,
    as_junit,
    as_markdown,
    confidence_rows,
    noise_rows,
    score_rows,
    slice_rows,
)
from nmt.evaluation.result import Evaluation, EvaluationReport, System
from nmt.metrics.metric import MetricOptions, Scorer
from nmt.report.page import Chart, Curve, render, render_chart

_SHOWN = 10
"""Sentences of each list."""


def as_page(report: EvaluationReport) -> Markup:
    """Return the page: no script, nothing fetched, all text escaped."""
    return render(
        "evaluation.html.j2",
        title="Translation quality",
        gates=[{"met": x.met, "text": f"{x.system}: {x.metric} {x.value:.2f}, asked for "
                f"{x.required:.2f} ({x.kind})"} for x in report.gates],
        tests=[_test(each) for each in report.evaluations],
        contrastive=[
            (x.system, x.category, f"{x.num_pairs:,}", f"{x.accuracy:.1%}")
            for x in report.contrastive
        ],
    )  # fmt: skip


def _test(each: Evaluation) -> dict[str, Any]:
    pairs = [
        [f"{x.second} \N{MINUS SIGN} {x.first}", x.metric, f"{x.delta:+.2f}", f"{x.p_value:.3f}"]
        for x in each.pairs
    ]
    tables = [
        ("Differences", [["systems", "metric", "difference", "p-value"], *pairs] if pairs else []),
        ("Slices", slice_rows(each) if each.slices else []),
        ("Robustness", noise_rows(each.robustness) if each.robustness else []),
        ("Confidence", confidence_rows(each.confidence) if each.confidence else []),
    ]
    signatures = {score.metric: score.signature for x in each.systems for score in x.scores}
    return {
        "name": each.test,
        "note": f"sentences: {each.num_sentences:,}, references of each: {each.num_references}",
        "scores": score_rows([each]),
        "signatures": signatures,
        "tables": [(name, rows) for name, rows in tables if rows],
        "charts": [
            render_chart(
                Chart(
                    f"Confidence of {x.system}", "mean chrF of each tenth of the sentences",
                    [Curve("actual", list(x.deciles), marked=True),
                     Curve("as expected", [(0.0, 0.0), (100.0, 100.0)])],
                    end=100.0, size=(500, 300), from_zero=True, x_name="expected chrF",
                )
            )
            for x in each.confidence
        ],
        "lists": [*_lists(each)],
    }  # fmt: skip


def _lists(each: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the worst and best sentences of the first system, and where two differ most."""
    scorer = Scorer("chrf", each.references, MetricOptions())
    shown = [*each.systems[:2], *([each.baseline] if each.baseline else [])][:2]
    scores = [scorer.sentence_scores(scorer.statistics(system.lines)) for system in shown]
    order = sorted(range(each.num_sentences), key=scores[0].__getitem__)
    count = min(_SHOWN, each.num_sentences)
    name = shown[0].name
    yield {"name": f"Worst of {name}", "sentences": _sentences(each, shown, scores, order[:count])}
    yield {
        "name": f"Best of {name}",
        "sentences": _sentences(each, shown, scores, order[::-1][:count]),
    }
    if len(shown) > 1:
        apart = sorted(order, key=lambda row: -abs(scores[0][row] - scores[1][row]))
        yield {
            "name": f"Most different: {name} and {shown[1].name}",
            "sentences": _sentences(each, shown, scores, apart[:count]),
        }


def _sentences(
    each: Evaluation,
    systems: Sequence[System],
    scores: Sequence[Sequence[float]],
    rows: Sequence[int],
) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        reference = each.references[0][row]
        parts = [("source", [(each.source[row], False)])] if each.source else []
        parts.append(("reference", [(reference, False)]))
        for system, own in zip(systems, scores, strict=True):
            label = f"{system.name}, chrF {own[row]:.1f}"
            known = system.results[row] if system.results else None
            if known and known.confidence is not None:
                label += f", confidence {known.confidence:.0f}"
            if known and known.alarms:
                label += f", alarms: {', '.join(known.alarms)}"
            parts.append((label, word_differences(system.lines[row], reference)))
        found.append({"line": row + 1, "parts": parts})
    return found


def word_differences(text: str, reference: str) -> list[tuple[str, bool]]:
    """Return the pieces of a text, and whether the reference lacks them in this place.

    >>> word_differences("a big dog runs", "a small dog runs")
    [('a', False), ('big', True), ('dog runs', False)]
    """
    words, others = text.split(), reference.split()
    found, place = list[tuple[str, bool]](), 0
    for start, _, size in SequenceMatcher(a=words, b=others, autojunk=False).get_matching_blocks():
        for begin, end, is_other in ((place, start, True), (start, start + size, False)):
            if begin < end:
                found.append((" ".join(words[begin:end]), is_other))
        place = start + size
    return found


REPORTS: dict[str, Callable[[EvaluationReport], str]] = {
    ".html": as_page,
    ".json": as_json,
    ".md": as_markdown,
    ".xml": as_junit,
}
"""What ``--report FILE`` writes, by the ending of the file's name."""
