"""Scores systems, with confidence intervals and significance tests.

A corpus score is a function of sums over sentences, so resampling does not need texts. A bootstrap
sample (n sentences drawn with replacement) is a row of counts. One matrix product of counts and
statistics computes all samples. In approximate randomization, a row of zeros and ones marks the
sentences whose outputs two systems exchange.

Source: paired bootstrap as in Koehn (2004), approximate randomization as in Riezler and Maxwell
(2005). The random draws and their order are sacrebleu's, so all numbers are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import Any

import numpy as np

from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import (
    Comparison,
    ConfidenceInterval,
    Floats,
    MetricScorer,
    Score,
    Significance,
    format_score,
)
from nmt.metrics.result import ReportSection, System, show_p_value

# Takes statistics summed over the sentences of R corpora, (R, D); returns their scores, (R,).
CorpusScore = Callable[[Floats], Floats]

_CHUNK_DRAWS = 1 << 22  # Draws held in memory at once.
# numpy draws this many booleans at once. A chunk must be a multiple of it, so that the chunks
# together get the same draws as one large call.
_BITS_AT_ONCE = 32
_SLACK = 1e-9  # Tolerance for equal scores: the order of a sum changes its last digits.


@dataclass(frozen=True)
class Resampling:
    """Options of confidence intervals and significance tests."""

    count: int = DEFAULT_RESAMPLES  # Resampled test sets; 0 for no intervals and no p-values.
    seed: int = DEFAULT_SEED
    significance: Significance = "bs"  # The significance test.
    trials: int = DEFAULT_TRIALS  # Trials of approximate randomization.
    alpha: float = 0.05  # Significance level: smaller p-values are significant.

    @property
    def num_draws(self) -> int:
        """Resamples or trials of the significance test."""
        return self.trials if self.significance == "ar" else self.count

    @property
    def paired_test(self) -> str | None:
        """Description of the significance test for reports; None without p-values.

        >>> Resampling().paired_test, Resampling(significance="ar").paired_test
        ('paired bootstrap, 1,000 resamples', 'approximate randomization, 10,000 trials')
        """
        if not self.count:
            return None
        if self.significance == "bs":
            return f"paired bootstrap, {self.count:,} resamples"
        return f"approximate randomization, {self.trials:,} trials"


@dataclass(frozen=True)
class MeasuredScore:
    """The score of one system under one metric, with the statistics that it comes from."""

    score: Score
    table: Floats  # Statistics of each sentence. (n, D).
    samples: Floats | None = None  # Scores of resampled test sets. (R,). None without resampling.


def score_systems(
    systems: Sequence[System],
    scorers: Sequence[MetricScorer],
    *,
    baseline: System | None,
    resampling: Resampling,
) -> tuple[list[System], System | None, ReportSection | None]:
    """Score systems, and compare each with the baseline; without a baseline, compare all pairs.

    Args:
        systems: Systems to score.
        scorers: One for each metric.
        baseline: System to compare with.
        resampling: Options of intervals and tests.

    Returns:
        The systems and the baseline, with one score for each scorer. Without a baseline also a
        section with the differences of all pairs of systems.

    Raises:
        DataError: A system does not have as many lines as the references.
    """
    to_score = list(systems)
    if baseline is not None:
        to_score.append(baseline)
    tables_by_system = []  # For each system, the statistics of each metric.
    for system in to_score:
        tables = tuple(scorer.statistics(system.lines) for scorer in scorers)
        tables_by_system.append(tables)
    measured_by_system = measure(tables_by_system, scorers, resampling)
    scored = []
    for system, tables, measured in zip(
        to_score, tables_by_system, measured_by_system, strict=True
    ):
        scores = tuple(result.score for result in measured)
        scored.append(replace(system, tables=tables, scores=scores))
    if baseline is None:
        return scored, None, _compare_pairs(scored, measured_by_system, scorers, resampling)
    *compared, scored_baseline = scored
    measured_baseline = measured_by_system[-1]
    for index, system in enumerate(compared):
        measured = measured_by_system[index]
        scores = _compare(measured, measured_baseline, baseline.name, scorers, resampling)
        compared[index] = replace(system, scores=scores)
    return compared, scored_baseline, None


def _compare_pairs(
    systems: Sequence[System],
    measured: Sequence[Sequence[MeasuredScore]],
    scorers: Sequence[MetricScorer],
    resampling: Resampling,
) -> ReportSection | None:
    """Return a table of the differences of all pairs of systems.

    None if there is no pair, no metric or no resampling, without which there are no p-values.
    """
    if len(systems) < 2 or not (scorers and resampling.count):
        return None
    values = list[dict[str, Any]]()
    rows = [["difference", *(scorer.metric.label for scorer in scorers)]]
    for first, second in combinations(range(len(systems)), 2):
        # The first system of a pair is the baseline of the second.
        baseline = systems[first].name
        system = systems[second].name
        row = [f"{system} - {baseline}"]
        for score in _compare(measured[second], measured[first], baseline, scorers, resampling):
            comparison = score.comparison
            assert comparison is not None
            assert comparison.p_value is not None
            value = {
                "first": baseline,
                "second": system,
                "metric": score.metric,
                "delta": comparison.delta,
                "p_value": comparison.p_value,
            }
            values.append(value)
            delta = format_score(score.metric, comparison.delta, "+")
            row.append(f"{delta} ({show_p_value(comparison.p_value)})")
        rows.append(row)
    num_pairs = len(rows) - 1
    if num_pairs == 1:
        return ReportSection("pairs", "Differences", rows, values)
    alpha = resampling.alpha
    num_metrics = len(scorers)
    for column in range(num_metrics):
        values_of_metric = values[column::num_metrics]
        corrected = holm([value["p_value"] for value in values_of_metric])
        for row, value, p_value in zip(rows[1:], values_of_metric, corrected, strict=True):
            value["holm_p_value"] = p_value
            if p_value < alpha:
                row[column + 1] += " *"
    meaning = f"{num_pairs} pairs are compared, so some p-values are small by chance. "
    meaning += f"*: below {alpha:g} after Holm's correction for {num_pairs} tests."
    # The smallest p-value is 1 / (draws + 1).
    if alpha and resampling.num_draws < num_pairs / alpha:
        fewest = math.ceil(num_pairs / alpha)
        meaning += f" This needs {fewest:,} resamples or more."
    return ReportSection("pairs", "Differences", rows, values, meaning)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for the number of tests.

    Below a level alpha, at least one of them is wrong with a probability of at most alpha. The
    tests may depend on each other, as those of pairs with a common system do.
    Source: Holm (1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    num_left = np.arange(len(p_values), 0, -1)  # tests that are not decided yet
    products = np.sort(p_values) * num_left
    corrected = np.maximum.accumulate(products).clip(max=1)
    return corrected[np.argsort(order)].tolist()


def measure(
    tables: Sequence[Sequence[Floats]], scorers: Sequence[MetricScorer], resampling: Resampling
) -> list[list[MeasuredScore]]:
    """Score systems by the statistics of their sentences, with intervals if configured.

    Args:
        tables: For each system and each metric, the statistics of each sentence. (n, D).
        scorers: One for each metric.
        resampling: Options of the intervals. All systems get the same draws.

    Returns:
        For each system, one result for each metric.
    """
    # All metrics of the first system, then all metrics of the second, and so on.
    flat_tables = list(chain.from_iterable(tables))
    flat_scorers = list(scorers) * len(tables)
    flat_samples: Sequence[Floats | None] = [None] * len(flat_tables)
    seed = resampling.seed
    if resampling.count and flat_tables:
        functions = [scorer.metric.score for scorer in flat_scorers]
        flat_samples = resample_scores(flat_tables, functions, resampling)
    flat_results = []
    for scorer, table, samples in zip(flat_scorers, flat_tables, flat_samples, strict=True):
        score = scorer.total(table)
        if samples is not None:
            interval = confidence_interval(samples, seed=seed)
            score = replace(score, confidence=interval)
        result = MeasuredScore(score, table, samples)
        flat_results.append(result)
    # Each slice takes the results of one system.
    remaining = iter(flat_results)
    return [list(islice(remaining, len(scorers))) for _ in tables]


def _compare(
    system: Sequence[MeasuredScore],
    baseline: Sequence[MeasuredScore],
    name: str,
    scorers: Sequence[MetricScorer],
    resampling: Resampling,
) -> tuple[Score, ...]:
    """Return the scores of a system, each with its difference from the baseline.

    Args:
        system: Results of the system, one for each metric.
        baseline: Results of the baseline, one for each metric.
        name: Name of the baseline.
        scorers: One for each metric.
        resampling: Options of the test. Without resampling, the differences have no p-values.
    """
    scores = []
    seed = resampling.seed
    uses_trials = resampling.significance == "ar" and resampling.count > 0
    for new, old, scorer in zip(system, baseline, scorers, strict=True):
        delta = new.score.value - old.score.value
        comparison = Comparison(
            baseline=name,
            delta=delta,
            p_value=None,
            significance=resampling.significance,
            resamples=resampling.num_draws if resampling.count else 0,
            seed=seed,
        )
        if new.samples is not None and old.samples is not None:
            if uses_trials:
                function = scorer.metric.score
                differences = randomised_differences(new.table, old.table, function, resampling)
                p_value = share_of_chance(differences, delta=delta)
            else:
                p_value = paired_p_value(new.samples, old.samples, delta=delta)
            smallest = least_p_value(new.table, old.table)
            p_value = max(p_value, smallest)
            # The interval of the difference comes from the bootstrap, whatever the test is.
            interval = confidence_interval(new.samples - old.samples, seed=seed)
            comparison = replace(comparison, low=interval.low, high=interval.high, p_value=p_value)
        score = replace(new.score, comparison=comparison)
        scores.append(score)
    return tuple(scores)


def resample_scores(
    tables: Sequence[Floats], scores: Sequence[CorpusScore], resampling: Resampling
) -> list[Floats]:
    """Score test sets that are drawn from the sentences with replacement (bootstrap).

    All tables get the same draws, so that systems can be compared. Draws equal sacrebleu's.

    Args:
        tables: Statistics of each sentence, one table for each system and metric. (n, D).
        scores: The score function of each table.
        resampling: Number of resampled test sets, at least 1, and seed of the draws.

    Returns:
        For each table, one score for each resampled test set. (R,).
    """
    num_sentences = len(tables[0])
    # All tables side by side, so that one matrix product sums all of them.
    joined = np.hstack(tables)
    widths = [table.shape[1] for table in tables]
    borders = np.cumsum(widths)[:-1]  # Columns at which the second and all later tables start.
    generator = np.random.default_rng(resampling.seed)
    chunk_size = max(1, _CHUNK_DRAWS // num_sentences)
    chunks_by_table: list[list[Floats]] = [[] for _ in tables]
    count = resampling.count
    for start in range(0, count, chunk_size):
        size = min(chunk_size, count - start)  # Resampled test sets in this chunk.
        draws = generator.choice(num_sentences, size=(size, num_sentences), replace=True)
        # Each test set gets its own range of numbers, so that one call counts all test sets.
        draws += num_sentences * np.arange(size)[:, None]
        counts = np.bincount(draws.ravel(), minlength=size * num_sentences)
        sums = counts.reshape(size, num_sentences).astype(np.float64) @ joined
        sums_by_table = np.split(sums, borders, axis=1)
        for chunks, score, table_sums in zip(chunks_by_table, scores, sums_by_table, strict=True):
            samples = score(table_sums)
            chunks.append(samples)
    return [np.concatenate(chunks) for chunks in chunks_by_table]


def randomised_differences(
    system: Floats, baseline: Floats, score: CorpusScore, resampling: Resampling
) -> Floats:
    """Return absolute score differences after random exchanges of the outputs of two systems.

    In every trial the outputs of each sentence are exchanged with probability 1/2. Draws equal
    sacrebleu's.

    Args:
        system: Statistics of each sentence of the system. (n, D).
        baseline: Statistics of each sentence of the baseline. (n, D).
        score: The score function.
        resampling: Number of trials, at least 1, and seed of the draws.

    Returns:
        One difference for each trial. (trials,).
    """
    num_sentences = len(system)
    generator = np.random.default_rng(resampling.seed)
    # The number of trials in a chunk is a multiple of `_BITS_AT_ONCE`.
    chunk_size = max(1, _CHUNK_DRAWS // num_sentences // _BITS_AT_ONCE) * _BITS_AT_ONCE
    # What an exchange of a sentence adds to the system and takes from the baseline. (n, D).
    change = baseline - system
    system_sum = system.sum(0)
    baseline_sum = baseline.sum(0)
    chunks = []
    trials = resampling.trials
    for start in range(0, trials, chunk_size):
        size = min(chunk_size, trials - start)  # Trials in this chunk.
        is_exchanged = generator.integers(2, size=(size, num_sentences), dtype=bool)
        changes = is_exchanged.astype(np.float64) @ change  # (size, D)
        system_scores = score(system_sum + changes)
        baseline_scores = score(baseline_sum - changes)
        chunks.append(np.abs(system_scores - baseline_scores))
    return np.concatenate(chunks)


def confidence_interval(scores: Floats, *, seed: int) -> ConfidenceInterval:
    """Return the 95% interval of resampled scores, equal to sacrebleu's.

    Args:
        scores: From `resample_scores`. (R,).
        seed: Seed of the resampling, to be stored.
    """
    ordered = np.sort(scores)
    resamples = len(ordered)
    cut = resamples // 40  # 2.5% of the scores lie below the interval, and 2.5% above it.
    low = float(ordered[cut])
    high = float(ordered[resamples - cut - 1])
    return ConfidenceInterval(
        mean=float(ordered.mean()),
        half_width=(high - low) / 2,
        low=low,
        high=high,
        resamples=resamples,
        seed=seed,
    )


def paired_p_value(system: Floats, baseline: Floats, *, delta: float) -> float:
    """Return the p-value of the paired bootstrap test.

    The test statistic is the centred absolute difference on each resampled test set, as in
    sacrebleu and Moses.

    Args:
        system: Resampled scores of the system. (R,).
        baseline: Resampled scores of the baseline, from the same draws. (R,).
        delta: Difference of the scores on the whole test set. The sign does not matter.

    Returns:
        A p-value above 0, at most 1. See also `least_p_value`.

    >>> paired_p_value(np.array([20.0, 21.0, 22.0]), np.array([20.0, 22.0, 20.0]), delta=-0.5)
    0.5
    """
    differences = np.abs(system - baseline)
    mean = differences.mean()
    return share_of_chance(differences - mean, delta=delta)


def share_of_chance(differences: Floats, *, delta: float) -> float:
    """Return the share of random differences that are larger than ``delta``.

    Ties do not count as larger, as in sacrebleu. The real test set counts as one more difference
    that is larger, so the share is never 0.

    Args:
        differences: Differences of resampled or exchanged test sets. (R,).
        delta: Difference of the scores on the whole test set. The sign does not matter.
    """
    larger = int(np.count_nonzero(differences > abs(delta) + _SLACK))
    return (larger + 1) / (len(differences) + 1)


def least_p_value(system: Floats, baseline: Floats) -> float:
    """Return the smallest meaningful p-value for two systems, at most 1.

    If two systems differ in k sentences, there are 2^k exchanges, and at least 2 of them have a
    difference as large as the observed one. So a p-value below 2^(1-k) has no meaning, but both
    tests return smaller values, for example 1 / (R + 1) for equal systems. From k = 15 on the limit
    is below the resolution of 10,000 trials.

    Args:
        system: Statistics of each sentence of the system. (n, D).
        baseline: Statistics of each sentence of the baseline. (n, D).
    """
    differs = (system != baseline).any(axis=1)
    num_different = int(np.count_nonzero(differs))
    exponent = 1 - num_different
    return min(1.0, 2.0**exponent)
