"""The HTML report of an evaluation: the verdict, scores, analyses, charts, and all sentences."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain
from typing import Any

import numpy as np
from markupsafe import Markup

from nmt.commands.evaluate import EvaluatedModel
from nmt.extras.analysis.gates import gates_of
from nmt.extras.analysis.reports import change_rows
from nmt.extras.analysis.robustness import load_scorer
from nmt.inference.direction import LanguageOptions
from nmt.inference.request import Links
from nmt.metrics.metric import MetricOptions, MetricScorer, as_quality, format_score, label_of
from nmt.metrics.result import (
    Evaluation,
    EvaluationReport,
    System,
    paired_tests,
    score_rows,
    show_p_value,
    show_score,
)
from nmt.report.page import Chart, Curve, render, render_chart, round_ticks, visible
from nmt.training.report import RunRecord, run_charts

_SHOWN = 10  # Number of sentences that are shown without a script.
_BINS = 30  # Approximate number of bars of a histogram.


def as_page(report: EvaluationReport, models: Sequence[EvaluatedModel] = ()) -> Markup:
    """Render a report as a self-contained HTML page.

    Args:
        report: The report.
        models: Models of the first systems of the report, for learning curves. The first model also
            aligns words.
    """
    evaluations = report.evaluations
    charts = run_charts({model.name: RunRecord.read(model.folder) for model in models})
    titles = ("Loss", "Translation quality")  # other charts, such as speed, say nothing here
    curves = [chart for chart in charts if chart.title.startswith(titles)]
    return render(
        "evaluation.html.j2",
        title="Translation quality",
        date=time.strftime("%Y-%m-%d %H:%M"),
        report=report,
        label_of=label_of,
        as_quality=as_quality,
        format_score=format_score,
        show_score=show_score,
        show_p_value=show_p_value,
        score_rows=score_rows,
        round_ticks=round_ticks,
        gates=gates_of(*evaluations),
        changes=change_rows(report),
        tests=[_test(evaluation, models) for evaluation in evaluations],
        curves=list(map(render_chart, curves)),
    )


def _test(evaluation: Evaluation, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """Return the values of the template for one test set."""
    charts = list[Markup]()
    for section in evaluation.sections:
        if section.key == "confidence":
            charts += _calibrations(section.values)
    return {
        "data": evaluation,
        "tests": paired_tests([evaluation]),
        "charts": charts,
        **_sentences(evaluation, models),
    }


def _calibrations(qualities: Sequence[Mapping[str, Any]]) -> Iterator[Markup]:
    """Yield a chart of expected and measured quality of each system, all with the same axes."""
    means = list[float]()
    for quality in qualities:
        means += chain.from_iterable(quality["deciles"])  # pairs of expected and measured chrF
    # Both axes have the same range: that of the round ticks around all values.
    low, *_, high = round_ticks(min(means), max(means))
    low = max(low, 0)
    high = min(high, 100)
    for quality in qualities:
        chart = Chart(
            title=f"Confidence of {quality['system']}",
            unit="mean chrF of each tenth of the lines",
            curves=[
                Curve("measured", quality["deciles"], marked=True),
                Curve("perfect confidence", [(low, low), (high, high)]),
            ],
            start=low,
            end=high,
            size=(500, 300),
            limits=(0, 100),
            x_name="expected chrF",
        )
        yield render_chart(chart)


def _sentences(evaluation: Evaluation, models: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """Return the sentences of a system and of one to compare with, which may be the baseline.

    Returns:
        ``compared``: the one or two systems; ``worst``: sentences of the first system with
        the lowest chrF; ``packed``: all sentences, for the script of the page; ``histogram``.
    """
    compared = list(evaluation.systems[:2])
    if evaluation.baseline and len(compared) == 1:
        compared.append(evaluation.baseline)
    # Texts as the page shows them.
    source = list(map(visible, evaluation.source or ()))
    streams = [list(map(visible, stream)) for stream in evaluation.references]
    references = list(zip(*streams, strict=True))  # of each line
    scorer = MetricScorer("chrf", evaluation.references, MetricOptions())
    systems = []  # texts and scores of each system
    for system in compared:
        statistics = scorer.statistics(system.lines)
        scores = scorer.sentence_scores(statistics)
        values: dict[str, Any] = {
            "name": visible(system.name),
            "lines": list(map(visible, system.lines)),
            "scores": np.round(scores, 1).tolist(),
            "notes": _notes(system),
        }
        systems.append(values)
    first = systems[0]
    lines = first["lines"]
    # Indices of the lines, from the lowest to the highest score of the first system.
    ascending = sorted(range(len(lines)), key=first["scores"].__getitem__)
    worst = [row for row in ascending if lines[row] not in references[row]]
    worst = worst[:_SHOWN]
    links = {}  # index of a line -> word alignment; only for the worst sentences
    if models and evaluation.source:
        translations = compared[0].lines
        pairs = [(evaluation.source[row], translations[row]) for row in worst]
        model = models[0]
        languages = LanguageOptions(*evaluation.languages, model.tag)
        model_scorer = load_scorer(model)
        aligned = model_scorer.align(pairs, languages)
        links = dict(zip(worst, aligned, strict=True))

    def sentence(row: int) -> dict[str, Any]:
        """Return one sentence: labelled texts in parts, as `word_differences` returns them."""
        texts = [("reference", [(reference, "")]) for reference in references[row]]
        glosses = []
        if source:
            texts.insert(0, ("source", [(source[row], "")]))
            glosses = gloss(source[row], lines[row], links.get(row, ()))
        for system in systems:
            label = f"{system['name']}, chrF {system['scores'][row]:.1f}{system['notes'][row]}"
            differences = word_differences(system["lines"][row], references[row])
            texts.append((label, differences))
        return {"line": row + 1, "parts": texts, "gloss": glosses}

    bins = None
    if len(systems) > 1:
        bins = histogram(first["scores"], systems[1]["scores"])
    return {
        "compared": compared,
        "worst": list(map(sentence, worst)),
        "packed": packed({"source": source, "references": streams, "systems": systems}),
        "histogram": bins,
    }


def _notes(system: System) -> list[str]:
    """Return the confidence and the alarms of each line of a system, as text."""
    notes = [""] * len(system.lines)
    for row, result in enumerate(system.results):
        if result.confidence is not None:
            notes[row] += f", confidence {result.confidence:.0f}"
        if result.alarms:
            notes[row] += f", suspicious: {', '.join(result.alarms)}"
    return notes


def packed(values: Any) -> str:
    """Return values as compressed JSON in Base64, which a script of the page unpacks."""
    text = json.dumps(values, ensure_ascii=False)
    data = text.encode()
    compressed = zlib.compress(data)
    return base64.b64encode(compressed).decode()


def histogram(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], list[int]]:
    """Count the sentences whose scores differ, by their difference.

    Returns:
        The edges of the bins, of which one is 0; and the number of sentences in each bin.
    """
    differences = np.subtract(first, second)
    unequal = differences[differences != 0]
    values = [0, *unequal]
    edges = round_ticks(min(values), max(values), _BINS)
    counts, _ = np.histogram(unequal, edges)
    return edges, counts.tolist()


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
