"""Systems and references -> scores with confidence intervals and significance. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import Score, Scorer
from nmt.metrics.result import PairComparison, System
from nmt.metrics.sacrebleu import default_tokenizer
from nmt.metrics.significance import (
    Comparison,
    Floats,
    Significance,
    confidence_interval,
    least_p_value,
    paired_p_value,
    randomised_differences,
    resample_scores,
    share_of_chance,
)

_TOKENIZED_ENDINGS = 100
"""So many lines ending in a space and a full stop look as if they were tokenized."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """What is behind confidence intervals and p-values."""

    count: int = DEFAULT_RESAMPLES
    """Resampled test sets; 0 leaves intervals and p-values out."""
    seed: int = DEFAULT_SEED
    significance: Significance = "bs"
    """The paired test."""
    trials: int = DEFAULT_TRIALS
    """Of approximate randomisation."""

    @property
    def paired_test(self) -> str | None:
        """Where p-values come from, in words; None where there are none.

        >>> Resampling().paired_test, Resampling(significance="ar").paired_test
        ('paired bootstrap, 1,000 resamples', 'approximate randomisation, 10,000 exchanges')
        """
        if not self.count:
            return None
        if self.significance == "bs":
            return f"paired bootstrap, {self.count:,} resamples"
        return f"approximate randomisation, {self.trials:,} exchanges"


@dataclass(frozen=True, slots=True)
class Measured:
    """One system under one metric."""

    score: Score
    table: Floats
    """Statistics of each sentence. (n, D)."""
    samples: Floats | None = None
    """Scores of the resampled test sets, if there are any. (R,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Systems with their scores, and what these were made of."""

    systems: tuple[System, ...]
    baseline: System | None
    pairs: tuple[PairComparison, ...]
    tables: tuple[tuple[Floats, ...], ...]
    """For each system, the statistics of each sentence under each metric. (n, D)."""


def score_systems(
    systems: Sequence[System],
    scorers: Sequence[Scorer],
    *,
    baseline: System | None,
    resampling: Resampling,
) -> Scored:
    """Score systems, and compare each with the baseline, or else every two of several.

    Returns:
        The systems and the baseline, with one score for each scorer, in their order; and the pairs.

    Raises:
        DataError: A system has more or fewer lines than the references.
    """
    everyone = [*systems, *([baseline] if baseline else [])]
    tables = [tuple(s.statistics(system.lines) for s in scorers) for system in everyone]
    measured = measure(tables, scorers, resampling)
    scored = [
        replace(system, scores=tuple(found.score for found in own))
        for system, own in zip(everyone, measured, strict=True)
    ]
    if baseline is None:
        pairs = tuple(_every_two(scored, measured, scorers, resampling))
        return Scored(systems=tuple(scored), baseline=None, pairs=pairs, tables=tuple(tables))
    *compared, base = scored
    for number, system in enumerate(compared):
        scores = (
            replace(one.score, comparison=_compare(one, other, baseline.name, scorer, resampling))
            for one, other, scorer in zip(measured[number], measured[-1], scorers, strict=True)
        )
        compared[number] = replace(system, scores=tuple(scores))
    return Scored(systems=tuple(compared), baseline=base, pairs=(), tables=tuple(tables[:-1]))


def measure(
    tables: Sequence[Sequence[Floats]], scorers: Sequence[Scorer], resampling: Resampling
) -> list[list[Measured]]:
    """Score systems by the statistics of their sentences, with intervals if those are asked for.

    Args:
        tables: For each system, the statistics of each sentence under each metric. (n, D).
        scorers: The metrics.
        resampling: All systems get the same draws.
    """
    flat = [table for own in tables for table in own]
    metrics = [scorer.metric for _ in tables for scorer in scorers]
    samples: Sequence[Floats | None] = [None] * len(flat)
    if resampling.count and flat:
        scores = [metric.score for metric in metrics]
        samples = resample_scores(flat, scores, resamples=resampling.count, seed=resampling.seed)
    rest = iter(samples)
    found = []
    for own in tables:
        row = []
        for scorer, table in zip(scorers, own, strict=True):
            score, drawn = scorer.total(table), next(rest)
            if drawn is not None:
                interval = confidence_interval(drawn, seed=resampling.seed)
                score = replace(score, confidence=interval)
            row.append(Measured(score, table, drawn))
        found.append(row)
    return found


def _every_two(
    systems: Sequence[System],
    measured: Sequence[Sequence[Measured]],
    scorers: Sequence[Scorer],
    resampling: Resampling,
) -> Iterator[PairComparison]:
    """Yield the differences of every two systems under each metric."""
    for first, second in combinations(range(len(systems)), 2):
        for one, other, scorer in zip(measured[first], measured[second], scorers, strict=True):
            p_value = _p_value(other, one, scorer, resampling)
            if p_value is not None:
                yield PairComparison(
                    first=systems[first].name,
                    second=systems[second].name,
                    metric=one.score.metric,
                    delta=other.score.value - one.score.value,
                    p_value=p_value,
                )


def _compare(
    found: Measured, base: Measured, name: str, scorer: Scorer, resampling: Resampling
) -> Comparison:
    interval = None
    if found.samples is not None and base.samples is not None:
        interval = confidence_interval(found.samples - base.samples, seed=resampling.seed)
    is_bootstrap = resampling.significance == "bs" or not resampling.count
    return Comparison(
        baseline=name,
        delta=found.score.value - base.score.value,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        p_value=_p_value(found, base, scorer, resampling),
        significance=resampling.significance,
        resamples=resampling.count if is_bootstrap else resampling.trials,
        seed=resampling.seed,
    )


def _p_value(
    found: Measured, base: Measured, scorer: Scorer, resampling: Resampling
) -> float | None:
    """Return the p-value of a difference; None without resampling."""
    if found.samples is None or base.samples is None:
        return None
    delta = found.score.value - base.score.value
    if resampling.significance == "bs":
        p_value = paired_p_value(found.samples, base.samples, delta=delta)
    else:
        differences = randomised_differences(
            found.table,
            base.table,
            scorer.metric.score,
            trials=resampling.trials,
            seed=resampling.seed,
        )
        p_value = share_of_chance(differences, delta=delta)
    return max(p_value, least_p_value(found.table, base.table))


def odd_texts(
    systems: Sequence[System], reference: Sequence[str], tokenize: str | None, language: str | None
) -> Iterator[str]:
    """Yield warnings: systems that look tokenized, and a script that BLEU's tokenizer does not fit.

    Args:
        systems: Translations.
        reference: Lines of text.
        tokenize: The tokenizer asked for; None for that of the language.
        language: Code of the target language, if known.
    """
    for system in systems:
        endings = sum(line.endswith(" .") for line in system.lines)
        if endings >= min(_TOKENIZED_ENDINGS, len(system.lines)):
            yield (
                f"{system.name}: {endings:,} lines end in a space and a full stop; scores of "
                "tokenized text cannot be compared with others."
            )
    sample = "".join(reference[:100])
    is_east_asian = sum("\u3040" <= c <= "\u9fff" for c in sample) > len(sample) / 3
    if is_east_asian and (tokenize or default_tokenizer(language)) == "13a":
        is_japanese = sum("\u3041" <= c <= "\u30fa" for c in sample) > len(sample) / 10  # kana
        name, code, fitting = (
            ("Japanese", "ja", "ja-mecab or char") if is_japanese else ("Chinese", "zh", "zh")
        )
        yield (
            f"The references look {name}, but BLEU's tokenizer is 13a; name the languages "
            f"(-l en-{code}) or the tokenizer (--tokenize {fitting})."
        )
