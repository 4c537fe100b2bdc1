"""An evaluation as one page: scores, where systems are weak, confidence, and sentences to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from nmt.extras.analysis.gates import describe
from nmt.metrics.metric import MetricOptions, Scorer, label_of
from nmt.metrics.render import (
    detail_tables,
    paired_tests,
    score_rows,
)
from nmt.metrics.result import (
    ConfidenceQuality,
    Evaluation,
    EvaluationReport,
    NoiseLoss,
    System,
)
from nmt.report.page import Bar, Chart, Curve, render, render_bars, render_chart

if TYPE_CHECKING:
    from nmt.inference.alignment import Links

_SHOWN = 10
"""Sentences of each list."""


def as_page(report: EvaluationReport) -> Markup:
    """Return the page: no script, nothing fetched, all text escaped."""
    gates = [{"met": x.met, "text": describe(x)} for x in report.gates]
    systems = [system for each in report.evaluations for system in each.systems]
    curves = {system.name: system.curves for system in systems if system.curves}
    pairs = [
        [x.system, x.category, f"{x.num_pairs:,}", f"{x.accuracy:.1%}"] for x in report.contrastive
    ]
    return render(
        "evaluation.html.j2",
        title="Translation quality",
        gates=gates,
        summary=score_rows(report.evaluations) if len(report.evaluations) > 1 else [],
        tests=[_test(each) for each in report.evaluations],
        contrastive=[["system", "category", "pairs", "accuracy"], *pairs] if pairs else [],
        curves={name: [render_chart(x) for x in charts] for name, charts in curves.items()},
    )


def worst_rows(each: Evaluation) -> list[int]:
    """Return the sentences that the first system translates worst, by chrF, the worst first."""
    scores = _sentence_chrf(each, each.systems[0])
    return sorted(range(each.num_sentences), key=scores.__getitem__)[:_SHOWN]


def _sentence_chrf(each: Evaluation, system: System) -> Sequence[float]:
    scorer = Scorer("chrf", each.references, MetricOptions())
    return scorer.sentence_scores(scorer.statistics(system.lines))


def _test(each: Evaluation) -> dict[str, Any]:
    signatures = {score.metric: score.signature for x in each.systems for score in x.scores}
    counts = f"sentences: {each.num_sentences:,}, references of each: {each.num_references}"
    return {
        "name": each.test,
        "note": ", ".join([counts, *paired_tests([each])]),
        "scores": score_rows([each]),
        "signatures": signatures,
        "tables": list(detail_tables(each)),
        "charts": [*map(_confidence_chart, each.confidence), *_noise_charts(each.robustness)],
        "lists": [*_lists(each)],
    }


def _confidence_chart(found: ConfidenceQuality) -> Markup:
    chart = Chart(
        f"Confidence of {found.system}", "mean chrF of each tenth of the sentences",
        [Curve("actual", list(found.deciles), marked=True),
         Curve("as expected", [(0.0, 0.0), (100.0, 100.0)])],
        end=100.0, size=(500, 300), from_zero=True, x_name="expected chrF",
    )  # fmt: skip
    return render_chart(chart)


def _noise_charts(losses: Sequence[NoiseLoss]) -> Iterator[Markup]:
    """Yield for each system and metric how much each kind of noise costs, as bars."""
    shown: dict[tuple[str, str], list[NoiseLoss]] = {}
    for loss in losses:
        shown.setdefault((loss.system, loss.metric), []).append(loss)
    for (system, metric), own in shown.items():
        ends = [(x.confidence.low, x.confidence.high) if x.confidence else (x.loss,) * 2
                for x in own]  # fmt: skip
        bars = [Bar(x.noise, x.loss, *end) for x, end in zip(own, ends, strict=True)]
        yield render_bars(f"{label_of(metric)} lost to noise: {system}", bars)


def _lists(each: Evaluation) -> Iterator[dict[str, Any]]:
    """Yield the worst and best sentences of the first system, and where two differ most."""
    shown = [*each.systems[:2], *([each.baseline] if each.baseline else [])][:2]
    scores = [_sentence_chrf(each, system) for system in shown]
    order = sorted(range(each.num_sentences), key=scores[0].__getitem__)
    name = shown[0].name
    chosen = {f"Worst of {name}": order, f"Best of {name}": order[::-1]}
    if len(shown) > 1:
        apart = sorted(order, key=lambda row: -abs(scores[0][row] - scores[1][row]))
        chosen[f"Most different: {name} and {shown[1].name}"] = apart
    for title, rows in chosen.items():
        sentences = [_sentence(each, shown, scores, row) for row in rows[:_SHOWN]]
        yield {"name": title, "sentences": sentences}


def _sentence(
    each: Evaluation, systems: Sequence[System], scores: Sequence[Sequence[float]], row: int
) -> dict[str, Any]:
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
    first = systems[0].results[row] if systems[0].results else None
    links = (first.alignment if first else None) or ()
    glosses = gloss(each.source[row], systems[0].lines[row], links) if each.source else []
    return {"line": row + 1, "parts": parts, "gloss": glosses}


def gloss(source: str, output: str, links: Links) -> list[tuple[str, str]]:
    """Return each source word with the words of the output that were made of it.

    >>> gloss("Hunde laufen schnell", "dogs run", ((0, 0), (1, 1)))
    [('Hunde', 'dogs'), ('laufen', 'run'), ('schnell', '')]
    """
    words, others = source.split(), output.split()
    under: list[list[str]] = [[] for _ in words]
    for place, target in links:
        if place < len(words) and target < len(others):
            under[place].append(others[target])
    return [(word, " ".join(made)) for word, made in zip(words, under, strict=True) if links]


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
