"""The HTML report of an evaluation: scores, analyses, charts, and the worst and best sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup

from nmt.commands.evaluate import EvaluatedModel
from nmt.extras.analysis.gates import gates_of
from nmt.extras.analysis.robustness import load_scorer
from nmt.inference.request import Links
from nmt.metrics.metric import MetricOptions, Scorer, label_of
from nmt.metrics.result import Evaluation, EvaluationReport, Section, paired_tests, score_rows
from nmt.report.page import Bar, Chart, Curve, render, render_bars, render_chart
from nmt.training.report import learning_curves

_SHOWN = 10  # Number of sentences in each list.


def as_page(report: EvaluationReport, models: Sequence[EvaluatedModel] = ()) -> Markup:
    """Render a report as a self-contained HTML page without scripts.

    Args:
        report: The report.
        models: Models of the first systems, for learning curves. The first model also aligns words.
    """
    curves = {model.name: learning_curves(model.folder) for model in models}
    return render(
        "evaluation.html.j2",
        title="Translation quality",
        gates=[
            {"met": x.met, "text": str(x)} for each in report.evaluations for x in gates_of(each)
        ],
        summary=score_rows(report.evaluations) if len(report.evaluations) > 1 else [],
        tests=[_test(each, models) for each in report.evaluations],
        sections=report.sections,
        curves={
            name: [render_chart(x) for x in charts] for name, charts in curves.items() if charts
        },
    )


def _test(each: Evaluation, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    signatures = {score.metric: score.signature for x in each.systems for score in x.scores}
    count, references = len(each.references[0]), len(each.references)
    counts = f"sentences: {count:,}, references per sentence: {references}"
    return {
        "name": each.test,
        "note": ", ".join([counts, *paired_tests([each])]),
        "scores": score_rows([each]),
        "signatures": signatures,
        "tables": [section for section in each.sections if section.rows],
        "charts": [chart for section in each.sections for chart in _charts(section)],
        "lists": [*_lists(each, models)],
    }


def _charts(section: Section) -> Iterator[Markup]:
    """Yield charts of confidence, and of the loss by noise for each system and metric."""
    losses: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for values in section.values:
        if section.key == "confidence":
            curves = [Curve("actual", list(values["deciles"]), marked=True),
                      Curve("as expected", [(0.0, 0.0), (100.0, 100.0)])]  # fmt: skip
            title, unit = f"Confidence of {values['system']}", "mean chrF per decile"
            size, name = (500, 300), "expected chrF"
            chart = Chart(title, unit, curves, 100.0, size=size, from_zero=True, x_name=name)
            yield render_chart(chart)
        elif section.key == "robustness":
            losses.setdefault((values["system"], values["metric"]), []).append(values)
    for (system, metric), own in losses.items():
        bars = []
        for x in own:
            interval = x.get("confidence") or {"low": x["loss"], "high": x["loss"]}
            bars.append(Bar(x["noise"], x["loss"], interval["low"], interval["high"]))
        yield render_bars(f"{label_of(metric)} lost to noise: {system}", bars)


def _lists(each: Evaluation, models: Sequence[EvaluatedModel]) -> Iterator[dict[str, Any]]:
    """Yield the worst and best sentences of the first system, and the most different of two."""
    shown = [*each.systems[:2], *([each.baseline] if each.baseline else [])][:2]
    scorer, count = Scorer("chrf", each.references, MetricOptions()), len(each.references[0])
    scores = [scorer.sentence_scores(scorer.statistics(system.lines)) for system in shown]
    order = sorted(range(count), key=scores[0].__getitem__)
    name, links = shown[0].name, dict[int, Links]()
    chosen = {f"Worst of {name}": order, f"Best of {name}": order[::-1]}
    if len(shown) > 1:
        apart = sorted(order, key=lambda row: -abs(scores[0][row] - scores[1][row]))
        chosen[f"Most different: {name} and {shown[1].name}"] = apart
    if models and each.source:  # word alignments of the worst sentences
        worst = order[:_SHOWN]
        pairs = [(each.source[row], shown[0].lines[row]) for row in worst]
        aligned = load_scorer(models[0]).align(pairs, tag=models[0].tag)
        links = dict(zip(worst, aligned, strict=True))

    def sentence(row: int) -> dict[str, Any]:
        source, reference = each.source[row] if each.source else "", each.references[0][row]
        parts = [("source", [(source, False)])] if each.source else []
        parts.append(("reference", [(reference, False)]))
        for system, own in zip(shown, scores, strict=True):
            label = f"{system.name}, chrF {own[row]:.1f}"
            known = system.results[row] if system.results else None
            if known and known.confidence is not None:
                label += f", confidence {known.confidence:.0f}"
            if known and known.alarms:
                label += f", flagged: {', '.join(known.alarms)}"
            parts.append((label, word_differences(system.lines[row], reference)))
        glosses = gloss(source, shown[0].lines[row], links.get(row, ()))
        return {"line": row + 1, "parts": parts, "gloss": glosses}

    for title, rows in chosen.items():
        yield {"name": title, "sentences": [sentence(row) for row in rows[:_SHOWN]]}


def gloss(source: str, output: str, links: Links) -> list[tuple[str, str]]:
    """Return each source word with the output words that are aligned to it.

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
    """Split a text into parts, each with whether it differs from the reference.

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
