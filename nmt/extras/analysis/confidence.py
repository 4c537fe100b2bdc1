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
    "difference between confidence and chrF over ten groups of lines. Lines without confidence are "
    "left out: they are blank, or unlike the validation set."
)
_NUM_GROUPS = 10  # Groups of lines for the calibration error.
_MIN_SENTENCES = 30  # With fewer sentences, correlations mean nothing.
_MIN_RANGE = 1e-6  # Smaller ranges of confidence or chrF are rounding errors.


def confidence_section(scored: EvaluatedSet) -> ReportSection | None:
    """Compare the confidence of each system with chrF; None if no system has confidence."""
    qualities = []
    rows = [["confidence", "sentences", "Pearson", "Spearman", "calibration error"]]
    for system in scored.systems:
        quality = confidence_quality(system, scored.test.references)
        if quality is not None:
            qualities.append(quality)
            row = [
                system.name,
                f"{quality['num_sentences']:,}",
                f"{quality['pearson']:.3f}",
                f"{quality['spearman']:.3f}",
                f"{quality['calibration_error']:.2f} chrF",
            ]
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
    if len(rows) < _MIN_SENTENCES:
        return None
    confidences = [system.results[row].confidence for row in rows]
    expected = np.array(confidences, np.float64)
    # Returns a tuple of the lines in ``rows``, because there are at least two rows.
    select = itemgetter(*rows)
    streams = [list(select(stream)) for stream in references]
    scorer = MetricScorer("chrf", streams, MetricOptions())
    statistics = scorer.statistics(select(system.lines))
    actual = np.array(scorer.sentence_scores(statistics), np.float64)
    smaller_range = min(np.ptp(expected), np.ptp(actual))
    if smaller_range < _MIN_RANGE:  # the correlation with a constant is not defined
        return None
    # Indices of the lines in ten groups of about the same size, from low to high confidence.
    order = np.argsort(expected, kind="stable")
    groups = np.array_split(order, _NUM_GROUPS)
    mean_expected = [float(expected[group].mean()) for group in groups]
    mean_actual = [float(actual[group].mean()) for group in groups]
    errors = np.abs(np.subtract(mean_expected, mean_actual))
    # A matrix of 2 x 2; the entry (0, 1) is the correlation of the first with the second.
    pearson = np.corrcoef(expected, actual)[0, 1]
    spearman = np.corrcoef(ranks(expected), ranks(actual))[0, 1]
    return {
        "system": system.name,
        "num_sentences": len(rows),
        "pearson": float(pearson),
        "spearman": float(spearman),
        "calibration_error": float(errors.mean()),
        "deciles": list(zip(mean_expected, mean_actual, strict=True)),
    }


def ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1 for the smallest; equal values get their mean rank.

    >>> ranks(np.array([5.0, 1.0, 5.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    # ``inverse`` is the index of each value among the sorted different values.
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    # n equal values have the ranks last - n + 1 to last. The mean is last - (n - 1) / 2.
    mean_ranks: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[inverse]
