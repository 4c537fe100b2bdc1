"""The HTML report of an evaluation: scores, analyses, charts, and the worst and best sentences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Any

from markupsafe import Markup

from nmt.commands.evaluate import EvaluatedModel
from nmt.extras.analysis.gates import gates_of
from nmt.extras.analysis.reports import change_rows
from nmt.extras.analysis.robustness import load_scorer
from nmt.inference.direction import LanguageOptions
from nmt.inference.request import Links
from nmt.metrics.metric import MetricOptions, MetricScorer, label_of
from nmt.metrics.result import Evaluation, EvaluationReport, paired_tests, score_rows
from nmt.report.page import Chart, Curve, render, render_chart, round_ticks
from nmt.training.report import run_charts

_SHOWN = 10  # Number of sentences in each list.


def as_page(report: EvaluationReport, models: Sequence[EvaluatedModel] = ()) -> Markup:
    """Render a report as a self-contained HTML page.

    Args:
        report: The report.
        models: Models of the first systems of the report, for learning curves. The first model also
            aligns words.
    """
    evaluations = report.evaluations
    has_base = any(each.baseline for each in evaluations)
    return render(
        "evaluation.html.j2",
        title="Translation quality",
        date=time.strftime("%Y-%m-%d %H:%M"),
        report=report,
        label_of=label_of,
        gates=[gate for each in evaluations for gate in gates_of(each)],
        changes=change_rows(evaluations) if has_base else [],
        summary=score_rows(evaluations) if len(evaluations) > 1 else [],
        tests=[_test(each, models) for each in evaluations],
        curves=[
            render_chart(chart)
            for chart in run_charts({model.name: model.folder for model in models})
            if chart.title.startswith(("Loss", "Translation quality"))
        ],
    )


def _test(each: Evaluation, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    return {
        "data": each,
        "scores": score_rows([each]),
        "signatures": {x.metric: x.signature for own in each.systems for x in own.scores},
        "tests": paired_tests([each]),
        "tables": [section for section in each.sections if section.rows],
        "charts": [
            _calibration(values)
            for section in each.sections
            if section.key == "confidence"
            for values in section.values
        ],
        "lists": [*_lists(each, models)],
    }


def _calibration(values: Mapping[str, Any]) -> Markup:
    """Return a chart of expected and measured quality of one system."""
    ticks = round_ticks(*(pick(chain(*values["deciles"])) for pick in (min, max)))
    low, high = max(ticks[0], 0), min(ticks[-1], 100)
    curves = [Curve("measured", list(values["deciles"]), marked=True),
              Curve("perfect confidence", [(low, low), (high, high)])]  # fmt: skip
    title, unit = f"Confidence of {values['system']}", "mean chrF of each tenth of the lines"
    return render_chart(Chart(title, unit, curves, high, low, (500, 300), False, (0, 100),
                              x_name="expected chrF"))  # fmt: skip


def _lists(each: Evaluation, models: Sequence[EvaluatedModel]) -> Iterator[dict[str, Any]]:
    """Yield the worst and best sentences of a system, and the most different of two systems."""
    shown = [*each.systems[:2], *([each.baseline] if each.baseline else [])][:2]
    scorer, lines = MetricScorer("chrf", each.references, MetricOptions()), shown[0].lines
    scores = [scorer.sentence_scores(scorer.statistics(system.lines)) for system in shown]
    order = sorted(range(len(lines)), key=scores[0].__getitem__)
    worst = [row for row in order if lines[row] != each.references[0][row]][:_SHOWN]
    name, links = shown[0].name, dict[int, Links]()
    chosen = {f"Worst of {name}": worst, f"Best of {name}": order[: -_SHOWN - 1 : -1]}
    if len(shown) > 1:
        differing = [row for row in order if lines[row] != shown[1].lines[row]]
        apart = sorted(differing, key=lambda row: -abs(scores[0][row] - scores[1][row]))
        chosen[f"Most different: {name} and {shown[1].name}"] = apart[:_SHOWN]
    if models and each.source:  # word alignments of the worst sentences
        pairs = [(each.source[row], shown[0].lines[row]) for row in worst]
        languages = LanguageOptions(*each.languages, models[0].tag)
        aligned = load_scorer(models[0]).align(pairs, languages)
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
                label += f", suspicious: {', '.join(known.alarms)}"
            parts.append((label, word_differences(system.lines[row], reference)))
        glosses = gloss(source, shown[0].lines[row], links.get(row, ()))
        return {"line": row + 1, "parts": parts, "gloss": glosses}

    for title, rows in chosen.items():
        yield {"name": title, "sentences": [sentence(row) for row in rows]}


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
    """Split a text into parts. True marks a part that is not in the reference.

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
