"""Measures how well the confidence of translations predicts their quality."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from nmt.commands.evaluate import EvaluatedSet
from nmt.metrics.metric import Floats, MetricOptions, MetricScorer
from nmt.metrics.result import ReportSection, System

_MEANING = (
    "confidence: correlation with sentence chrF (1 is perfect). The calibration error is the mean "
    "difference between confidence and chrF over ten groups of lines."
)
_PARTS = 10
_FEWEST = 30
_FLAT = 1e-6  # Smaller ranges are rounding errors.


def confidence_section(scored: EvaluatedSet) -> ReportSection | None:
    """Compare the confidence of each system with chrF; None if no system has confidence."""
    qualities = []
    rows = [["confidence", "sentences", "Pearson", "Spearman", "calibration error"]]
    for system in scored.systems:
        quality = confidence_quality(system, scored.test.references)
        if quality is not None:
            qualities.append(quality)
            row = [system.name, f"{quality['num_sentences']:,}"]
            row.append(f"{quality['pearson']:.3f}")
            row.append(f"{quality['spearman']:.3f}")
            row.append(f"{quality['calibration_error']:.2f} chrF")
            rows.append(row)
    if not qualities:
        return None
    return ReportSection("confidence", "Confidence", rows, qualities, _MEANING)


def confidence_quality(
    system: System, references: Sequence[Sequence[str]]
) -> dict[str, Any] | None:
    """Compare the confidence of each line with its sentence chrF.

    Args:
        system: A system. Lines without confidence, for example blank lines, are ignored.
        references: Streams of reference lines.

    Returns:
        None if fewer than 30 lines have confidence, or if all of them have the same confidence or
        the same chrF. Otherwise:

        - ``num_sentences``: number of lines with confidence.
        - ``pearson`` and ``spearman``: correlations with chrF, of values and of ranks.
        - ``deciles``: mean expected and mean actual chrF of ten groups of lines, by confidence.
        - ``calibration_error``: mean absolute difference of expected and actual chrF.
    """
    rows = [row for row, result in enumerate(system.results) if result.confidence is not None]
    if len(rows) < _FEWEST:
        return None
    confidences = [system.results[row].confidence for row in rows]
    expected = np.array(confidences, np.float64)
    select = itemgetter(*rows)
    streams = [list(select(stream)) for stream in references]
    scorer = MetricScorer("chrf", streams, MetricOptions())
    table = scorer.statistics(select(system.lines))
    actual = np.array(scorer.sentence_scores(table), np.float64)
    smallest_range = min(np.ptp(expected), np.ptp(actual))
    if smallest_range < _FLAT:  # there is no correlation
        return None
    order = np.argsort(expected, kind="stable")
    parts = np.array_split(order, _PARTS)
    mean_expected = [float(expected[part].mean()) for part in parts]
    mean_actual = [float(actual[part].mean()) for part in parts]
    errors = np.abs(np.subtract(mean_expected, mean_actual))
    pearson = np.corrcoef(expected, actual)[0, 1]
    both_ranks = ranks(expected), ranks(actual)
    spearman = np.corrcoef(*both_ranks)[0, 1]
    return {
        "system": system.name,
        "num_sentences": len(rows),
        "pearson": float(pearson),
        "spearman": float(spearman),
        "calibration_error": float(errors.mean()),
        "deciles": list(zip(mean_expected, mean_actual, strict=True)),
    }


def ranks(values: Floats) -> Floats:
    """Return ranks from 1. Equal values get the mean of their ranks.

    >>> ranks(np.array([5.0, 1.0, 5.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[inverse]
