"""The HTML report of an evaluation: scores, analyses, charts, and the worst and best sentences."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from nmt.training.report import RunRecord, run_charts

_SHOWN = 10  # Number of sentences in each list.


def as_page(report: EvaluationReport, models: Sequence[EvaluatedModel] = ()) -> Markup:
    """Render a report as a self-contained HTML page.

    Args:
        report: The report.
        models: Models of the first systems of the report, for learning curves. The first model also
            aligns words.
    """
    evaluations = report.evaluations
    changes = []
    if any(evaluation.baseline for evaluation in evaluations):
        changes = change_rows(evaluations)
    charts = run_charts({model.name: RunRecord.read(model.folder) for model in models})
    titles = ("Loss", "Translation quality")  # other charts, such as speed, say nothing here
    curves = [chart for chart in charts if chart.title.startswith(titles)]
    return render(
        "evaluation.html.j2",
        title="Translation quality",
        date=time.strftime("%Y-%m-%d %H:%M"),
        report=report,
        label_of=label_of,
        gates=gates_of(*evaluations),
        changes=changes,
        summary=score_rows(evaluations) if len(evaluations) > 1 else [],
        tests=[_test(evaluation, models) for evaluation in evaluations],
        curves=list(map(render_chart, curves)),
    )


def _test(evaluation: Evaluation, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """Return the values of the template for one test set."""
    signatures = {}  # metric -> signature
    for system in evaluation.systems:
        for score in system.scores:
            signatures[score.metric] = score.signature
    charts = list[Markup]()
    for section in evaluation.sections:
        if section.key == "confidence":
            charts += map(_calibration, section.values)
    return {
        "data": evaluation,
        "scores": score_rows([evaluation]),
        "signatures": signatures,
        "tests": paired_tests([evaluation]),
        "tables": [section for section in evaluation.sections if section.rows],
        "charts": charts,
        "lists": list(_lists(evaluation, models)),
    }


def _calibration(values: Mapping[str, Any]) -> Markup:
    """Return a chart of expected and measured quality of one system."""
    deciles = values["deciles"]  # pairs of expected and measured chrF
    means = list(chain.from_iterable(deciles))
    lowest = min(means)
    highest = max(means)
    # Both axes have the same range: that of the round ticks around all values.
    low, *_, high = round_ticks(lowest, highest)
    low = max(low, 0)
    high = min(high, 100)
    measured = Curve("measured", deciles, marked=True)
    perfect = Curve("perfect confidence", [(low, low), (high, high)])
    chart = Chart(
        title=f"Confidence of {values['system']}",
        unit="mean chrF of each tenth of the lines",
        curves=[measured, perfect],
        start=low,
        end=high,
        size=(500, 300),
        limits=(0, 100),
        x_name="expected chrF",
    )
    return render_chart(chart)


def _lists(evaluation: Evaluation, models: Sequence[EvaluatedModel]) -> Iterator[dict[str, Any]]:
    """Yield the worst and best sentences of a system, and the most different of two systems.

    The system is the first of the evaluation; the second system may be the baseline.
    """
    systems = list(evaluation.systems[:2])
    if evaluation.baseline and len(systems) == 1:
        systems.append(evaluation.baseline)
    source = evaluation.source
    references = list(zip(*evaluation.references, strict=True))  # of each line
    name = systems[0].name
    lines = systems[0].lines
    scorer = MetricScorer("chrf", evaluation.references, MetricOptions())
    statistics = [scorer.statistics(system.lines) for system in systems]
    scores = list(map(scorer.sentence_scores, statistics))  # of each system: a score for each line
    # Indices of the lines, from the lowest to the highest score of the first system.
    ascending = sorted(range(len(lines)), key=scores[0].__getitem__)
    worst = [row for row in ascending if lines[row] not in references[row]]
    worst = worst[:_SHOWN]
    descending = ascending[::-1]
    rows_by_title = {f"Worst of {name}": worst, f"Best of {name}": descending[:_SHOWN]}
    if len(systems) > 1:
        second = systems[1]
        different = [row for row in ascending if lines[row] != second.lines[row]]
        first_scores, second_scores = scores
        # The largest difference comes first.
        different.sort(key=lambda row: -abs(first_scores[row] - second_scores[row]))
        rows_by_title[f"Most different: {name} and {second.name}"] = different[:_SHOWN]
    links = {}  # index of a line -> word alignment; only for the worst sentences
    if models and source:
        pairs = [(source[row], lines[row]) for row in worst]
        languages = LanguageOptions(*evaluation.languages, models[0].tag)
        model_scorer = load_scorer(models[0])
        aligned = model_scorer.align(pairs, languages)
        links = dict(zip(worst, aligned, strict=True))

    def sentence(row: int) -> dict[str, Any]:
        """Return one sentence: labelled texts in parts, as `word_differences` returns them."""
        texts = [("reference", [(reference, "")]) for reference in references[row]]
        glosses = []
        if source:
            texts.insert(0, ("source", [(source[row], "")]))
            glosses = gloss(source[row], lines[row], links.get(row, ()))
        for system, system_scores in zip(systems, scores, strict=True):
            label = f"{system.name}, chrF {system_scores[row]:.1f}"
            if system.results:
                result = system.results[row]
                if result.confidence is not None:
                    label += f", confidence {result.confidence:.0f}"
                if result.alarms:
                    label += f", suspicious: {', '.join(result.alarms)}"
            line = system.lines[row]
            differences = word_differences(line, references[row])
            texts.append((label, differences))
        return {"line": row + 1, "parts": texts, "gloss": glosses}

    for title, rows in rows_by_title.items():
        yield {"name": title, "sentences": [sentence(row) for row in rows]}


def gloss(source: str, output: str, links: Links) -> list[tuple[str, str]]:
    """Return each source word with the output words that are aligned to it; empty without links.

    >>> gloss("Hunde laufen schnell", "dogs run", ((0, 0), (1, 1)))
    [('Hunde', 'dogs'), ('laufen', 'run'), ('schnell', '')]
    """
    if not links:
        return []
    source_words = source.split()
    output_words = output.split()
    aligned: list[list[str]] = [[] for _ in source_words]  # output words of each source word
    for source_index, output_index in links:
        # A tokenizer can split words at spaces where `str.split` does not.
        if source_index < len(source_words) and output_index < len(output_words):
            word = output_words[output_index]
            aligned[source_index].append(word)
    return list(zip(source_words, map(" ".join, aligned), strict=True))


def word_differences(text: str, references: Iterable[str]) -> list[tuple[str, str]]:
    """Compare a text with the most similar reference.

    Returns:
        Parts of both texts in order: "missing" parts are only in the reference, "different" parts
        only in the text; parts with an empty kind are in both.

    >>> word_differences("a big dog runs", ["a small dog runs fast", "it runs"])
    [('a', ''), ('small', 'missing'), ('big', 'different'), ('dog runs', ''), ('fast', 'missing')]
    """
    words = text.split()
    matches = []
    for reference in references:
        expected = reference.split()
        matcher = SequenceMatcher(None, words, expected, autojunk=False)
        matches.append((matcher, expected))
    matcher, expected = max(matches, key=lambda match: match[0].ratio())
    parts = []
    for tag, start, end, expected_start, expected_end in matcher.get_opcodes():
        if tag == "equal":
            parts.append((words[start:end], ""))
            continue
        parts.append((expected[expected_start:expected_end], "missing"))
        parts.append((words[start:end], "different"))
    return [(" ".join(part), kind) for part, kind in parts if part]
