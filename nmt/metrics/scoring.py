"""Scores systems, with confidence intervals and significance tests.

A corpus score is a function of sums over sentences, so resampling does not need texts. A bootstrap
sample (n sentences drawn with replacement) is a row of counts. One matrix product of counts and
statistics computes all samples. In approximate randomization, a row of zeros and ones marks the
sentences whose outputs two systems exchange.

Source: paired bootstrap as in Koehn (2004), approximate randomization as in Riezler and Maxwell
(2005). The random draws and their order are sacrebleu's, so all numbers are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import TypeAlias

import numpy as np
import regex

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
from nmt.metrics.sacrebleu import default_tokenizer
from nmt.text.languages import UNSPACED, script_class
from nmt.text.preprocessing import TOKENIZED, find_preprocessing

# Takes statistics summed over the sentences of R corpora, (R, D); returns their scores, (R,).
CorpusScore: TypeAlias = Callable[[Floats], Floats]

_CHUNK_DRAWS = 1 << 22  # Draws held in memory at once.
# numpy draws this many booleans at once: chunks must be multiples, to draw the same values.
_BITS_AT_ONCE = 32
# Characters of the scripts without spaces between words.
_UNSPACED = regex.compile(script_class(*sorted(UNSPACED)) + "+")
_SLACK = 1e-9  # Tolerance for equal scores: the order of a sum changes its last digits.


@dataclass(frozen=True)
class Resampling:
    """Options of confidence intervals and significance tests."""

    count: int = DEFAULT_RESAMPLES  # Resampled test sets; 0 for no intervals and no p-values.
    seed: int = DEFAULT_SEED
    significance: Significance = "bs"  # The significance test.
    trials: int = DEFAULT_TRIALS  # Trials of approximate randomization.

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
    everyone = list(systems)
    if baseline is not None:
        everyone.append(baseline)
    tables = []
    for system in everyone:
        statistics = (scorer.statistics(system.lines) for scorer in scorers)
        tables.append(tuple(statistics))
    measured = measure(tables, scorers, resampling)
    scored = []
    for system, table, row in zip(everyone, tables, measured, strict=True):
        scores = tuple(each.score for each in row)
        scored_system = replace(system, tables=table, scores=scores)
        scored.append(scored_system)
    if baseline is None:
        return scored, None, _every_two(scored, measured, scorers, resampling)
    *compared, base = scored
    for number, system in enumerate(compared):
        scores = _compare(measured[number], measured[-1], base.name, scorers, resampling)
        compared[number] = replace(system, scores=scores)
    return compared, base, None


def _every_two(
    systems: Sequence[System],
    measured: Sequence[Sequence[MeasuredScore]],
    scorers: Sequence[MetricScorer],
    resampling: Resampling,
) -> ReportSection | None:
    """Return a table of the differences of all pairs of systems; None without p-values."""
    if len(systems) < 2 or not (scorers and resampling.count):
        return None
    values = []
    rows = [["difference", *(scorer.metric.label for scorer in scorers)]]
    for first, second in combinations(range(len(systems)), 2):
        one = systems[first].name
        other = systems[second].name
        row = [f"{other} - {one}"]
        for score in _compare(measured[second], measured[first], one, scorers, resampling):
            comparison = score.comparison
            assert comparison is not None
            assert comparison.p_value is not None
            value = {
                "first": one,
                "second": other,
                "metric": score.metric,
                "delta": comparison.delta,
                "p_value": comparison.p_value,
            }
            values.append(value)
            delta = format_score(score.metric, comparison.delta, "+")
            row.append(f"{delta} ({show_p_value(comparison.p_value)})")
        rows.append(row)
    return ReportSection("pairs", "Differences", rows, values)


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
    flat_tables = list(chain.from_iterable(tables))
    flat_scorers = list(scorers) * len(tables)
    samples: Sequence[Floats | None] = [None] * len(flat_tables)
    seed = resampling.seed
    if resampling.count and flat_tables:
        functions = [scorer.metric.score for scorer in flat_scorers]
        samples = resample_scores(flat_tables, functions, resampling)
    measured = []
    for scorer, table, drawn in zip(flat_scorers, flat_tables, samples, strict=True):
        score = scorer.total(table)
        if drawn is not None:
            interval = confidence_interval(drawn, seed=seed)
            score = replace(score, confidence=interval)
        measured_score = MeasuredScore(score, table, drawn)
        measured.append(measured_score)
    rest = iter(measured)
    return [list(islice(rest, len(scorers))) for _ in tables]


def _compare(
    system: Sequence[MeasuredScore],
    baseline: Sequence[MeasuredScore],
    name: str,
    scorers: Sequence[MetricScorer],
    resampling: Resampling,
) -> tuple[Score, ...]:
    """Return the scores of a system, each with its difference from the baseline of this name."""
    scores = []
    seed = resampling.seed
    uses_trials = resampling.significance == "ar" and resampling.count > 0
    for new, old, scorer in zip(system, baseline, scorers, strict=True):
        now = new.score.value
        before = old.score.value
        delta = now - before
        comparison = Comparison(
            baseline=name,
            delta=delta,
            p_value=None,
            significance=resampling.significance,
            resamples=resampling.trials if uses_trials else resampling.count,
            seed=seed,
        )
        if new.samples is not None and old.samples is not None:
            if uses_trials:
                function = scorer.metric.score
                differences = randomised_differences(new.table, old.table, function, resampling)
                p_value = share_of_chance(differences, delta=delta)
            else:
                p_value = paired_p_value(new.samples, old.samples, delta=delta)
            least = least_p_value(new.table, old.table)
            p_value = max(p_value, least)
            interval = confidence_interval(new.samples - old.samples, seed=seed)
            comparison = replace(comparison, low=interval.low, high=interval.high, p_value=p_value)
        score = replace(new.score, comparison=comparison)
        scores.append(score)
    return tuple(scores)


def odd_texts(
    systems: Sequence[System], reference: Sequence[str], tokenize: str | None, language: str | None
) -> Iterator[str]:
    """Yield warnings about systems that look tokenized, and an unsuitable tokenizer of BLEU.

    Args:
        systems: Systems to check.
        reference: Reference lines.
        tokenize: Tokenizer of BLEU; None for the default of the language.
        language: Code of the target language, if known.
    """
    for system in systems:
        traces = find_preprocessing(system.lines, [TOKENIZED])
        if traces is not None:
            yield f"{system.name} {traces[1]}\n  Scores of tokenized text are not comparable."
    sample = "".join(reference[:100])
    num_unspaced = sum(map(len, _UNSPACED.findall(sample)))
    is_unspaced = num_unspaced > len(sample) / 3
    if is_unspaced and (tokenize or default_tokenizer(language)) == "13a":
        fix = "set `languages` to en-zh, en-ja or en-th, or `tokenize` to zh, ja-mecab or char."
        yield f"The references are written without spaces, but BLEU's tokenizer is 13a; {fix}"


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
    joined = np.hstack(tables)
    widths = [table.shape[1] for table in tables]
    ends = np.cumsum(widths)[:-1]
    generator = np.random.default_rng(resampling.seed)
    rows = max(1, _CHUNK_DRAWS // num_sentences)
    parts: list[list[Floats]] = [[] for _ in tables]
    count = resampling.count
    for start in range(0, count, rows):
        size = min(rows, count - start)
        draws = generator.choice(num_sentences, size=(size, num_sentences), replace=True)
        draws += num_sentences * np.arange(size)[:, None]
        counts = np.bincount(draws.ravel(), minlength=size * num_sentences)
        sums = counts.reshape(size, num_sentences).astype(np.float64) @ joined
        sums_of_tables = np.split(sums, ends, axis=1)
        for number, score in enumerate(scores):
            samples = score(sums_of_tables[number])
            parts[number].append(samples)
    return [np.concatenate(part) for part in parts]


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
    rows = max(1, _CHUNK_DRAWS // num_sentences // _BITS_AT_ONCE) * _BITS_AT_ONCE
    gain = baseline - system
    sum_of_system = system.sum(0)
    sum_of_baseline = baseline.sum(0)
    differences = []
    trials = resampling.trials
    for start in range(0, trials, rows):
        size = min(rows, trials - start)
        is_exchanged = generator.integers(2, size=(size, num_sentences), dtype=bool)
        moved = is_exchanged.astype(np.float64) @ gain
        new = score(sum_of_system + moved)
        old = score(sum_of_baseline - moved)
        difference = np.abs(new - old)
        differences.append(difference)
    return np.concatenate(differences)


def confidence_interval(scores: Floats, *, seed: int) -> ConfidenceInterval:
    """Return the 95% interval of resampled scores, equal to sacrebleu's.

    Args:
        scores: From `resample_scores`. (R,).
        seed: Seed of the resampling, to be stored.
    """
    ordered = np.sort(scores)
    resamples = len(ordered)
    cut = resamples // 40
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

    Ties do not count as larger, as in sacrebleu.

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
