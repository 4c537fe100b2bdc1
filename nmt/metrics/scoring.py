"""Systems and references -> scores with confidence intervals and significance. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import Score, Scorer
from nmt.metrics.result import Section, System, show_p_value
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

# So many lines ending in a space and a full stop look as if they were tokenized.
_TOKENIZED_ENDINGS = 100


@dataclass(frozen=True, slots=True)
class Resampling:
    """What is behind confidence intervals and p-values."""

    count: int = DEFAULT_RESAMPLES  # Resampled test sets; 0 leaves intervals and p-values out.
    seed: int = DEFAULT_SEED
    significance: Significance = "bs"  # The paired test.
    trials: int = DEFAULT_TRIALS  # Of approximate randomisation.

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
    table: Floats  # Statistics of each sentence. (n, D).
    samples: Floats | None = None  # Scores of the resampled test sets, if there are any. (R,).


def score_systems(
    systems: Sequence[System],
    scorers: Sequence[Scorer],
    *,
    baseline: System | None,
    resampling: Resampling,
) -> tuple[tuple[System, ...], System | None, Section | None]:
    """Score systems, and compare each with the baseline, or else every two of several.

    Returns:
        The systems and the baseline, with one score for each scorer, in their order; and the
        differences of every two systems, if there is no baseline.

    Raises:
        DataError: A system has more or fewer lines than the references.
    """
    everyone = [*systems, *([baseline] if baseline else [])]
    tables = [tuple(s.statistics(system.lines) for s in scorers) for system in everyone]
    measured = measure(tables, scorers, resampling)
    scored = [
        replace(system, tables=table, scores=tuple(each.score for each in row))
        for system, table, row in zip(everyone, tables, measured, strict=True)
    ]
    if baseline is None:
        named = zip(scored, measured, strict=True)
        return tuple(scored), None, _every_two(list(named), scorers, resampling)
    *compared, base = scored
    for number, system in enumerate(compared):
        rows = zip(measured[number], measured[-1], scorers, strict=True)
        scores = (
            replace(new.score, comparison=_compare(new, old, base.name, scorer, resampling))
            for new, old, scorer in rows
        )
        compared[number] = replace(system, scores=tuple(scores))
    return tuple(compared), base, None


def _every_two(
    systems: Sequence[tuple[System, Sequence[Measured]]],
    scorers: Sequence[Scorer],
    resampling: Resampling,
) -> Section | None:
    """Return the differences of every two systems: a row for each two, a column for each metric."""
    values, rows = [], {"": ["difference", *(scorer.name for scorer in scorers)]}
    for (one, first), (other, second) in combinations(systems, 2):
        for old, new, scorer in zip(first, second, scorers, strict=True):
            found = _compare(new, old, one.name, scorer, resampling)
            if found.p_value is None:
                return None
            pair = {"first": one.name, "second": other.name, "metric": scorer.name}
            values.append({**pair, "delta": found.delta, "p_value": found.p_value})
            name = f"{other.name} - {one.name}"
            cell = f"{found.delta:+.2f} ({show_p_value(found.p_value)})"
            rows.setdefault(name, [name]).append(cell)
    if not values:
        return None
    return Section(key="pairs", title="Differences", rows=list(rows.values()), values=values)


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


def _compare(
    new: Measured, old: Measured, baseline: str, scorer: Scorer, resampling: Resampling
) -> Comparison:
    delta = new.score.value - old.score.value
    is_bootstrap = resampling.significance == "bs" or not resampling.count
    found = Comparison(
        baseline=baseline,
        delta=delta,
        p_value=None,
        significance=resampling.significance,
        resamples=resampling.count if is_bootstrap else resampling.trials,
        seed=resampling.seed,
    )
    if new.samples is None or old.samples is None:
        return found
    if is_bootstrap:
        p_value = paired_p_value(new.samples, old.samples, delta=delta)
    else:
        score, trials, seed = scorer.metric.score, resampling.trials, resampling.seed
        drawn = randomised_differences(new.table, old.table, score, trials=trials, seed=seed)
        p_value = share_of_chance(drawn, delta=delta)
    interval = confidence_interval(new.samples - old.samples, seed=resampling.seed)
    p_value = max(p_value, least_p_value(new.table, old.table))
    return replace(found, low=interval.low, high=interval.high, p_value=p_value)


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
            f"The references look {name}, but BLEU's tokenizer is 13a; set `languages` to "
            f"en-{code} or `tokenize` to {fitting}."
        )
