"""Score translations: of models or of files, with confidence, significance and gates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from nmt.commands.evaluate_options import DEFAULT_METRICS, EvaluateOptions, check_options
from nmt.commands.evaluated_set import EvaluatedSet
from nmt.errors import DataError, NmtError
from nmt.extras.analysis.contrastive import read_pairs
from nmt.files.atomic import check_place, open_output
from nmt.metrics.metric import MetricOptions, Score, Scorer
from nmt.metrics.render import REPORTS
from nmt.metrics.result import Evaluation, EvaluationReport
from nmt.metrics.scoring import Resampling, measure
from nmt.metrics.test_set import load_evaluation_set

if TYPE_CHECKING:
    from nmt.commands.evaluated_model import EvaluatedModel


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
        metrics: Names of metrics, for example bleu, chrf, chrf++ and ter.
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
    if references and isinstance(references[0], str):
        references = [cast("Sequence[str]", references)]
    options = MetricOptions(tokenize=tokenize, lowercase=lowercase, target_language=target_language)
    scorers = [Scorer(metric, references, options) for metric in metrics]
    tables = [scorer.statistics(hypotheses) for scorer in scorers]
    (found,) = measure([tables], scorers, Resampling(resamples))
    return [each.score for each in found]


def run_evaluation(options: EvaluateOptions) -> EvaluationReport:
    """Do what ``nmt evaluate`` does, up to printing.

    Args:
        options: What to score, against what, and how.

    Returns:
        The scores of every system on every test set, whether the gates were met, and what could not
        be computed or saved.

    Raises:
        ConfigError: Flags that contradict each other, unknown names.
        DataError: Files that are missing, damaged or not parallel.
        CheckpointError: A model cannot be loaded.
    """
    check_options(options)
    models, base = _models(options)
    everyone = [*models, *([base] if base else [])]
    config = next((model.config for model in everyone), None)
    tests = [
        EvaluatedSet(
            load_evaluation_set(choice, config),
            options,
            owns_files=len(options.tests) == 1 or bool(choice.references),
        )
        for choice in options.tests
    ]
    inputs = [path for test in tests for path in test.inputs]
    inputs += [options.contrastive] if options.contrastive else []
    for model in models:
        model.check_place(inputs)
    for path in options.reports:
        check_place(path, [*inputs, *(model.use.folder for model in everyone)])
    pairs = read_pairs(options.contrastive) if options.contrastive else []
    failures = _translate(models, base, tests)
    contrastive = [found for model in models if pairs for found in model.compare(pairs)]
    evaluations = [test.evaluate(failures) for test in tests]
    for number, model in enumerate(models):
        for test, found in zip(tests, evaluations, strict=True):
            model.record(test.chosen, found.systems[number])
    if models and any(path.suffix == ".html" for path in options.reports):
        evaluations = [_aligned(each, models[0]) for each in evaluations]
    report = EvaluationReport(evaluations=tuple(evaluations), contrastive=tuple(contrastive))
    for path in options.reports:
        failures += _save(path, REPORTS[path.suffix](report).splitlines())
    return replace(report, failures=tuple(failures))


def _models(options: EvaluateOptions) -> tuple[list[EvaluatedModel], EvaluatedModel | None]:
    """Return the models to evaluate, and the baseline if it is a model."""
    use = None if isinstance(options.baseline, Path) else options.baseline
    if not (options.models or use):
        return [], None
    from nmt.commands.evaluated_model import EvaluatedModel  # noqa: PLC0415 - files need no model

    return list(map(EvaluatedModel, options.models)), EvaluatedModel(use) if use else None


def _translate(
    models: Iterable[EvaluatedModel], base: EvaluatedModel | None, tests: Sequence[EvaluatedSet]
) -> list[NmtError]:
    """Translate all test sets, one model after the other. Return what could not be saved."""
    failures: list[NmtError] = []
    for model in models:
        for test in tests:
            test.translate(model)
        model.release()
        failures += _save(model.use.save_hypotheses, tests[0].systems[-1].lines)
    if base:
        for test in tests:
            test.baseline = base.translate(test.chosen.name, test.source, test.chosen.tag)
        base.release()
    return failures


def _aligned(each: Evaluation, model: EvaluatedModel) -> Evaluation:
    """Return an evaluation whose first system, a model's, has alignments of its worst sentences."""
    from nmt.extras.analysis.page import worst_rows  # noqa: PLC0415 - pages are rare

    system, rows = each.systems[0], worst_rows(each)
    if each.source is None or not system.results:
        return each
    found = model.align([(each.source[row], system.lines[row]) for row in rows])
    results = list(system.results)
    for row, links in zip(rows, found, strict=True):
        results[row] = replace(results[row], alignment=links)
    return replace(each, systems=(replace(system, results=results), *each.systems[1:]))


def _save(path: Path | None, lines: Iterable[str]) -> list[NmtError]:
    """Write lines to a file. Return why that is impossible: the scores must not be lost by it."""
    if path is None:
        return []
    try:
        with open_output(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except DataError as error:
        return [error]
    return []
