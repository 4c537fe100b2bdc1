"""Systems and a test set -> scores with confidence intervals and significance. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nmt.evaluation.report import SystemScores
from nmt.metrics.metric import Score, Scorer, SystemStatistics
from nmt.metrics.sacrebleu import default_tokenizer
from nmt.metrics.significance import (
    DEFAULT_RESAMPLES,
    DEFAULT_SEED,
    Comparison,
    Floats,
    confidence_interval,
    paired_p_value,
    resample_scores,
)

_TOKENIZED_ENDINGS = 100
"""So many lines ending in a space and a full stop look as if they were tokenized."""


class System(NamedTuple):
    """Translations and what they are called."""

    name: str
    lines: Sequence[str]
    engine: str | None = None
    """What translated; None for a file."""
    dtype: str | None = None
    """What the model's weights were multiplied in."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """Bootstrap resampling behind confidence intervals and p-values."""

    count: int = DEFAULT_RESAMPLES
    """Resampled test sets; 0 leaves intervals and p-values out."""
    seed: int = DEFAULT_SEED


class _Measured(NamedTuple):
    score: Score
    samples: Floats | None
    """Scores of the resampled test sets."""


def score_systems(
    systems: Sequence[System],
    scorers: Sequence[Scorer],
    *,
    baseline: System | None,
    resampling: Resampling,
) -> tuple[list[SystemScores], SystemScores | None]:
    """Score systems, and compare each with the baseline.

    Returns:
        The scores of the systems, and those of the baseline. One for each scorer, in their order.

    Raises:
        DataError: A system has more or fewer lines than the references.
    """
    rows: list[list[Score]] = [[] for _ in systems]
    base_scores = []
    for scorer in scorers:
        base = measure(scorer, baseline.lines, resampling) if baseline else None
        for system, row in zip(systems, rows, strict=True):
            found = measure(scorer, system.lines, resampling)
            if baseline and base:
                found = _compared(found, base, baseline.name, resampling)
            row.append(found.score)
        if base:
            base_scores.append(base.score)
    scored = [
        SystemScores(system.name, tuple(row), system.engine, system.dtype)
        for system, row in zip(systems, rows, strict=True)
    ]
    return scored, SystemScores(baseline.name, tuple(base_scores)) if baseline else None


def measure(scorer: Scorer, lines: Sequence[str], resampling: Resampling) -> _Measured:
    """Score one system, with a confidence interval if resampling is asked for."""
    found: SystemStatistics = scorer.statistics(lines)
    if not resampling.count:
        return _Measured(found.score, None)
    samples = resample_scores(
        found.table, found.score_sums, resamples=resampling.count, seed=resampling.seed
    )
    confidence = confidence_interval(samples, seed=resampling.seed)
    return _Measured(replace(found.score, confidence=confidence), samples)


def _compared(found: _Measured, base: _Measured, name: str, resampling: Resampling) -> _Measured:
    delta = found.score.value - base.score.value
    p_value = None
    if found.samples is not None and base.samples is not None:
        p_value = paired_p_value(found.samples, base.samples, delta=delta)
    comparison = Comparison(
        baseline=name,
        delta=delta,
        p_value=p_value,
        resamples=resampling.count,
        seed=resampling.seed,
    )
    return found._replace(score=replace(found.score, comparison=comparison))


def tokenized_systems(systems: Sequence[System]) -> Iterator[str]:
    """Yield a warning for each system whose lines look as if they were tokenized."""
    for system in systems:
        endings = sum(line.endswith(" .") for line in system.lines)
        if endings >= min(_TOKENIZED_ENDINGS, len(system.lines)):
            yield (
                f"{system.name}: {endings:,} lines end in a space and a full stop; scores of "
                "tokenized text cannot be compared with others."
            )


def unfit_tokenizer(tokenize: str | None, language: str | None, reference: Sequence[str]) -> str:
    """Return a warning if BLEU's tokenizer does not fit the script of the references, or nothing.

    Args:
        tokenize: The tokenizer asked for; None for that of the language.
        language: Code of the target language, if known.
        reference: Lines of text.
    """
    sample = "".join(reference[:100])
    is_13a = (tokenize or default_tokenizer(language)) == "13a"
    if not is_13a or sum("\u3040" <= c <= "\u9fff" for c in sample) <= len(sample) / 3:
        return ""
    is_japanese = sum("\u3041" <= c <= "\u30fa" for c in sample) > len(sample) / 10  # kana
    name, code, fitting = (
        ("Japanese", "ja", "ja-mecab or char") if is_japanese else ("Chinese", "zh", "zh")
    )
    return (
        f"The references look {name}, but BLEU's tokenizer is 13a; name the languages "
        f"(-l en-{code}) or the tokenizer (--tokenize {fitting})."
    )
