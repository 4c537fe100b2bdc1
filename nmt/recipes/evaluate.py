"""Score translations: of a model or of files, with confidence, significance and gates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from nmt.evaluation.options import DEFAULT_METRICS, EvaluateOptions, check_options
from nmt.evaluation.report import Evaluation, SystemScores
from nmt.evaluation.systems import (
    find_remarks,
    load_model_config,
    model_name,
    name_systems,
    read_hypotheses,
    save_lines,
    shown_name,
    translate_set,
)
from nmt.evaluation.test_set import (
    EvaluationSet,
    load_evaluation_set,
)
from nmt.metrics.base import Score
from nmt.metrics.gate import check_gates
from nmt.metrics.sacrebleu import (
    MetricOptions,
    Scorer,
    SystemStatistics,
    check_metric,
)
from nmt.metrics.significance import (
    DEFAULT_SEED,
    Comparison,
    Floats,
    confidence_interval,
    paired_p_value,
    resample_scores,
)


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    metrics: Iterable[str] = DEFAULT_METRICS,
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
    target_language: str | None = None,
    resamples: int = 0,
) -> list[Score]:
    """Score translations with sacrebleu.

    Args:
        hypotheses: Line i translates sentence i.
        references: Lines, or several streams of lines; line i of each is a reference of sentence i.
        metrics: Names out of bleu, chrf, chrf++ and ter.
        tokenize: Tokenizer of BLEU; by target language when None (13a when that is None too).
        lowercase: Ignore case in BLEU and chrF.
        target_language: Language code of the hypotheses.
        resamples: Resampled test sets for the confidence interval; 0 leaves it out.

    Returns:
        One score for each metric, in their order.

    Raises:
        ConfigError: An unknown metric or tokenizer.
        DataError: No lines, or not equally many.

    >>> [round(score.value) for score in evaluate(["a b c d e"], ["a b c d e"])]
    [100, 100]
    """
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise TypeError("evaluate needs lists of lines, not one string")
    streams = _streams(references)
    options = MetricOptions(tokenize=tokenize, lowercase=lowercase, target_language=target_language)
    found = (Scorer(metric, streams, options).statistics(hypotheses) for metric in metrics)
    return [_with_confidence(each, _resampled(each, resamples, DEFAULT_SEED)) for each in found]


def run_evaluation(options: EvaluateOptions, *, say: Callable[[str], None]) -> Evaluation:
    """Do what ``nmt evaluate`` does, up to printing.

    Args:
        options: What to score, against what, and how.
        say: Receives remarks for the user, one line each.

    Returns:
        The scores of every system, whether the gates were met, and what kept the translations
        from being saved.

    Raises:
        ConfigError: Flags that contradict each other, unknown names.
        DataError: Files that are missing, damaged or not parallel.
        CheckpointError: The model cannot be loaded.
    """
    check_options(options)
    config = load_model_config(options)
    whole = load_evaluation_set(options.test, config)
    chosen = whole.first(options.limit)
    metrics = tuple(dict.fromkeys(map(check_metric, (*options.metrics, *options.gates))))
    scorers = _make_scorers(metrics, chosen, options)

    systems = [
        (name, read_hypotheses(path, whole, options.limit))
        for name, path in name_systems(options.hypotheses).items()
    ]
    baseline = None
    if options.baseline is not None:
        lines = read_hypotheses(options.baseline, whole, options.limit)
        baseline = (shown_name(options.baseline), lines)
    unsaved = None
    if config is not None:
        lines = translate_set(options, config, chosen, say)
        systems.insert(0, (model_name(options), lines))
        if options.save_hypotheses is not None:
            unsaved = save_lines(options.save_hypotheses, lines)
    for remark in find_remarks(systems, chosen, options):
        say(remark)
    return replace(_score(systems, baseline, scorers, chosen, options), unsaved=unsaved)


def _streams(references: Sequence[str] | Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
    if references and isinstance(references[0], str):
        return [cast("Sequence[str]", references)]
    return references


def _make_scorers(
    metrics: Sequence[str], chosen: EvaluationSet, options: EvaluateOptions
) -> list[Scorer]:
    metric_options = MetricOptions(
        tokenize=options.tokenize,
        lowercase=options.lowercase,
        target_language=chosen.target_language,
    )
    return [Scorer(metric, chosen.references, metric_options) for metric in metrics]


def _score(
    systems: Sequence[tuple[str, Sequence[str]]],
    baseline: tuple[str, Sequence[str]] | None,
    scorers: Sequence[Scorer],
    chosen: EvaluationSet,
    options: EvaluateOptions,
) -> Evaluation:
    table: list[list[Score]] = [[] for _ in systems]
    base_scores: list[Score] = []
    for scorer in scorers:
        base = base_samples = None
        if baseline is not None:
            base = scorer.statistics(baseline[1])
            base_samples = _resampled(base, options.resamples, options.seed)
            base_scores.append(_with_confidence(base, base_samples, options.seed))
        for (_, lines), scores in zip(systems, table, strict=True):
            found = scorer.statistics(lines)
            samples = _resampled(found, options.resamples, options.seed)
            score = _with_confidence(found, samples, options.seed)
            if base is not None and baseline is not None:
                score = _compared(score, samples, base.score, base_samples, baseline[0], options)
            scores.append(score)
    results = [
        SystemScores(name, tuple(scores)) for (name, _), scores in zip(systems, table, strict=True)
    ]
    return Evaluation(
        test=chosen.name,
        num_sentences=len(chosen),
        num_references=len(chosen.references),
        systems=tuple(results),
        baseline=SystemScores(baseline[0], tuple(base_scores)) if baseline else None,
        gates=tuple(
            result
            for system in results
            for result in check_gates(system.name, system.scores, options.gates)
        ),
    )


def _resampled(found: SystemStatistics, resamples: int, seed: int) -> Floats | None:
    if not resamples:
        return None
    return resample_scores(found.statistics, resamples=resamples, seed=seed)


def _with_confidence(
    found: SystemStatistics, samples: Floats | None, seed: int = DEFAULT_SEED
) -> Score:
    if samples is None:
        return found.score
    return replace(found.score, confidence=confidence_interval(samples, seed=seed))


def _compared(
    score: Score,
    samples: Floats | None,
    base: Score,
    base_samples: Floats | None,
    baseline: str,
    options: EvaluateOptions,
) -> Score:
    delta = score.value - base.value
    p_value = None
    if samples is not None and base_samples is not None:
        p_value = paired_p_value(samples, base_samples, delta=delta)
    return replace(
        score,
        comparison=Comparison(
            baseline=baseline,
            delta=delta,
            p_value=p_value,
            resamples=options.resamples,
            seed=options.seed,
        ),
    )
