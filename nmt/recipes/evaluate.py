"""Score translations: of models or of files, with confidence, significance and gates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from nmt.errors import ConfigError, DataError, NmtError
from nmt.evaluation.baseline import read_baseline_report
from nmt.evaluation.confidence import confidence_quality
from nmt.evaluation.contrastive import read_pairs
from nmt.evaluation.external import ExternalError, ExternalScorer
from nmt.evaluation.gates import USUAL_ALPHA, check_gates, check_regressions
from nmt.evaluation.page import REPORTS
from nmt.evaluation.result import (
    Evaluation,
    EvaluationReport,
    GateResult,
    NoiseLoss,
    Slice,
    System,
)
from nmt.evaluation.robustness import noise_losses, noisy_sources
from nmt.evaluation.scoring import Resampling, Scored, measure, odd_texts, score_systems
from nmt.evaluation.slices import (
    groups_of_source,
    groups_of_system,
    leakage_group,
    score_slices,
    user_group,
)
from nmt.evaluation.test_set import EvaluationSet, SetChoice, load_evaluation_set, read_text
from nmt.files.atomic import check_place, open_output
from nmt.files.lines import is_standard
from nmt.metrics.metric import METRICS, MetricOptions, References, Score, Scorer, check_metric
from nmt.metrics.significance import Floats

if TYPE_CHECKING:
    from nmt.recipes.evaluated_model import EvaluatedModel, ModelUse

logger = logging.getLogger(__name__)

_QUICKLY_SEARCHED = 1_000_000
"""Training pairs in which leaks are looked for without ``--slices``: in half a minute."""
DEFAULT_METRICS = ("bleu", "chrf")
"""What is computed when no metric is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """All options of ``nmt evaluate``."""

    models: tuple[ModelUse, ...] = ()
    """The models whose translations are scored."""
    hypotheses: tuple[Path, ...] = ()
    """Files of translations to score; ``-`` is standard input."""
    tests: tuple[SetChoice, ...] = (SetChoice(),)
    """What to score against; files of translations need just one."""
    limit: int | None = None
    """Score the first sentences only."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Names of metrics."""
    tokenize: str | None = None
    """BLEU's tokenizer; by target language when None."""
    lowercase: bool = False
    """Ignore case."""
    external: str | None = None
    """Command of an external metric; see `nmt.evaluation.external`."""
    baseline: Path | ModelUse | None = None
    """What every system is compared with: a file of translations, a report of an evaluation
    (``.json``), or a model."""
    gates: Mapping[str, float] = field(default_factory=dict)
    """Lowest scores allowed, by metric; their metrics are computed too."""
    fail_if_worse: bool = False
    """Whether a score that is significantly worse than the baseline's misses a gate."""
    alpha: float = USUAL_ALPHA
    """A difference whose p-value is below is significant."""
    resampling: Resampling = field(default_factory=Resampling)
    """Behind confidence intervals and p-values."""
    slices: bool = False
    """Whether to score parts of each test set by themselves."""
    labels: Mapping[str, Path] = field(default_factory=dict)
    """Groups of slices of the user's own: files with a label for each sentence, by name."""
    robustness: bool = False
    """Whether models translate the test set with noise in its source, too."""
    contrastive: Path | None = None
    """Right and wrong translations that models score; see `nmt.evaluation.contrastive`."""
    sentence_level: bool = False
    """Whether to score each sentence by itself, too."""
    reports: tuple[Path, ...] = ()
    """Files to write; their endings say what: see `nmt.evaluation.page.REPORTS`."""


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
    _check_options(options)
    models, base = _models(options)
    everyone = [*models, *([base] if base else [])]
    config = next((model.config for model in everyone), None)
    tests = [_TestSet(load_evaluation_set(test, config), options) for test in options.tests]
    inputs = [path for test in tests for path in test.inputs]
    inputs += [options.contrastive] if options.contrastive else []
    for model in models:
        model.check_place(inputs)
    for path in options.reports:
        check_place(path, [*inputs, *(model.use.folder for model in everyone)])
    pairs = read_pairs(options.contrastive) if options.contrastive else []
    failures = _translate(models, base, tests)
    contrastive = [found for model in models if pairs for found in model.compare(pairs)]
    evaluations = tuple(test.evaluate(failures) for test in tests)
    for number, model in enumerate(models):
        for test, found in zip(tests, evaluations, strict=True):
            model.record(test.chosen, found.systems[number])
    report = EvaluationReport(evaluations=evaluations, contrastive=tuple(contrastive))
    for path in options.reports:
        failures += _save(path, REPORTS[path.suffix](report).splitlines())
    return replace(report, failures=tuple(failures))


def _models(options: EvaluateOptions) -> tuple[list[EvaluatedModel], EvaluatedModel | None]:
    """Return the models to evaluate, and the baseline if it is a model."""
    use = None if isinstance(options.baseline, Path) else options.baseline
    if not (options.models or use):
        return [], None
    from nmt.recipes.evaluated_model import EvaluatedModel  # noqa: PLC0415 - files need no model

    return list(map(EvaluatedModel, options.models)), EvaluatedModel(use) if use else None


def _translate(
    models: Iterable[EvaluatedModel], base: EvaluatedModel | None, tests: Sequence[_TestSet]
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


class _TestSet:
    """A test set while it is evaluated: its systems, and what their scores are computed by.

    Args:
        whole: All of its sentences.
        options: Of the evaluation.
    """

    def __init__(self, whole: EvaluationSet, options: EvaluateOptions) -> None:
        self.chosen, self._options = whole.first(options.limit), options
        references = self.chosen.references
        self.scorers = self._make_scorers(references)
        self._losses = list[NoiseLoss]()
        self.systems, self._models = list[System](), list["EvaluatedModel"]()
        self._files = _read_systems(options.hypotheses, whole, options.limit)
        self._labels = {
            name: _fitting(read_text(path), path, whole, options.limit)
            for name, path in options.labels.items()
        }
        self.baseline: System | None = None
        self.inputs = [*options.hypotheses, *options.labels.values(), *whole.files]
        path = options.baseline
        if isinstance(path, Path):
            self.inputs.append(path)
            if path.suffix == ".json":
                self.baseline = read_baseline_report(path, whole.name, references, self.scorers)
            else:
                (self.baseline,) = _read_systems([path], whole, options.limit, is_baseline=True)

    def _make_scorers(self, references: References) -> list[Scorer]:
        options = self._options
        metric_options = MetricOptions(
            tokenize=options.tokenize,
            lowercase=options.lowercase,
            target_language=self.chosen.target_language,
        )
        metrics = dict.fromkeys(map(check_metric, (*options.metrics, *options.gates)))
        return [Scorer(metric, references, metric_options) for metric in metrics]

    @property
    def source(self) -> Sequence[str]:
        """Source lines.

        Raises:
            ConfigError: There are none.
        """
        if self.chosen.source is None:
            raise ConfigError("A model needs source lines.", fix="Add --source FILE.")
        return self.chosen.source

    def translate(self, model: EvaluatedModel) -> None:
        """Add a model's translations, and what noise in the source costs it."""
        name, tag, options = self.chosen.name, self.chosen.tag, self._options
        system = model.translate(name, self.source, tag)
        self.systems.append(system)
        self._models.append(model)
        if not options.robustness:
            return
        read, written = model.joiners
        for noisy in noisy_sources(self.source, read, options.resampling.seed):
            found = model.translate(f"{name} ({noisy.noise})", noisy.lines, tag)
            self._losses += noise_losses(
                system, noisy, found.lines, self.chosen.references, self._make_scorers, written,
                options.resampling,
            )  # fmt: skip

    def evaluate(self, failures: list[NmtError]) -> Evaluation:
        """Score all systems; what cannot be computed is added to ``failures``."""
        options, chosen = self._options, self.chosen
        systems = [*self.systems, *self._files]
        for text in odd_texts(
            systems, chosen.references[0], options.tokenize, chosen.target_language
        ):
            logger.warning("%s", text)
        utilities = {model.mbr.utility for model in options.models if model.mbr}
        for metric in utilities & {scorer.name for scorer in self.scorers}:
            text = "MBR with %s was asked for, so %s is optimistic; look at other metrics, too."
            logger.warning(text, *[METRICS[metric].label] * 2)
        scored, scorers = self._score(systems, failures)
        if len(systems) > 1 and not self.baseline:
            logger.info("--baseline FILE compares every system with FILE instead of each other")
        found = scored.systems
        if options.sentence_level:
            found = tuple(
                replace(system, sentence_scores={
                    scorer.name: scorer.sentence_scores(table)
                    for scorer, table in zip(scorers, tables, strict=True)
                })
                for system, tables in zip(found, scored.tables, strict=True)
            )  # fmt: skip
        return Evaluation(
            test=chosen.name,
            references=chosen.references,
            source=chosen.source,
            systems=found,
            baseline=scored.baseline,
            pairs=scored.pairs,
            gates=tuple(gate for system in found for gate in self._gates(system)),
            slices=tuple(self._slices(found, scored.tables, scorers)),
            robustness=tuple(self._losses),
            confidence=tuple(
                filter(None, (confidence_quality(x, chosen.references) for x in found))
            ),
        )

    def _slices(
        self,
        systems: Sequence[System],
        tables: Sequence[Sequence[Floats]],
        scorers: Sequence[Scorer],
    ) -> Iterator[Slice]:
        options, source = self._options, self.chosen.source
        common = [user_group(name, labels) for name, labels in self._labels.items()]
        seen = [model.training_text() for model in self._models]
        if options.slices and source is not None:
            counts = seen[0].counts(source) if seen and seen[0] else None
            common += groups_of_source(source, counts)
        groups = {system.name: list(common) for system in systems}
        for system, text in zip(systems, seen, strict=False):
            if source is not None and text and (options.slices or len(text) <= _QUICKLY_SEARCHED):
                leaks = text.leaks(source)
                if leaks or options.slices:
                    groups[system.name].insert(0, leakage_group(leaks, len(source)))
        if options.slices:
            for system in systems:
                own = groups_of_system(system, source, self.chosen.references)
                groups[system.name] += own
        return score_slices(systems, tables, scorers, options.resampling, groups)

    def _score(
        self, systems: Sequence[System], failures: list[NmtError]
    ) -> tuple[Scored, Sequence[Scorer]]:
        """Score with the external metric, too; without it if that fails."""
        options, chosen = self._options, self.chosen
        score = partial(score_systems, baseline=self.baseline, resampling=options.resampling)
        if options.external is not None:
            external = ExternalScorer(options.external, chosen.references, chosen.source)
            scorers = [*self.scorers, external]
            try:
                return score(systems, scorers), scorers
            except ExternalError as error:
                failures.append(error)
        return score(systems, self.scorers), self.scorers

    def _gates(self, system: System) -> Iterable[GateResult]:
        options = self._options
        found = check_gates(system.name, system.scores, options.gates)
        if options.fail_if_worse:
            # Metrics that only --fail-under names do not count, an external one does.
            names = [score.metric for score in system.scores]
            chosen = [name for name in names if name in options.metrics or name not in METRICS]
            found += check_regressions(system, chosen, options.alpha)
        return found


def _check_options(options: EvaluateOptions) -> None:
    """Check what can be checked before anything is read."""
    if not (options.models or options.hypotheses):
        raise ConfigError(
            "There is nothing to score.", fix="Name a model folder, or give --hypothesis FILE."
        )
    baseline = options.baseline if isinstance(options.baseline, Path) else None
    files = [x for test in options.tests for x in (*test.references, test.source)]
    if [*options.hypotheses, *files, baseline].count(Path("-")) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Name files instead.")
    _check_models(options)
    if len(options.tests) > 1 and (
        options.hypotheses or options.labels or (baseline and baseline.suffix != ".json")
    ):
        raise ConfigError(
            "A file of translations or labels belongs to one test set, and several are given.",
            fix="Name one test set, or models and reports instead of the file.",
        )
    if options.fail_if_worse and (options.baseline is None or not options.resampling.count):
        what = "--baseline" if options.baseline is None else "resamples"
        raise ConfigError(
            f"--fail-if-worse needs {what}.", fix="Add --baseline FILE, and leave --resamples out."
        )
    for path in options.reports:
        if path.suffix not in REPORTS:
            raise ConfigError(
                f"--report {path}: the ending says what to write, and {path.suffix or 'none'} is "
                "unknown.",
                fix=f"Name it {', '.join(f'*{ending}' for ending in REPORTS)}.",
            )


def _check_models(options: EvaluateOptions) -> None:
    """Check what is only for models, or for one of them."""
    if (options.robustness or options.contrastive) and not options.models:
        flag = "--robustness" if options.robustness else "--contrastive"
        raise ConfigError(f"{flag} needs a model.", fix="Name a model folder, or drop the flag.")
    is_single = len(options.models) <= 1 and len(options.tests) == 1
    for use in options.models:
        if use.save_hypotheses and not is_single:
            raise ConfigError(
                "--save-hypotheses is for one model and one test set.",
                fix="Use --report FILE.json, which keeps the translations of all.",
            )
        if use.loading.get("ensemble") and len(options.models) > 1:
            raise ConfigError(
                "--with does not go with several models.", fix="Evaluate the ensemble by itself."
            )


def _read_systems(
    paths: Sequence[Path], whole: EvaluationSet, limit: int | None, *, is_baseline: bool = False
) -> list[System]:
    """Read translations of the whole set, or of just the sentences that are scored.

    Systems are named after their files: shortly if that tells them apart.
    """
    names = ["standard input" if is_standard(path) else path.name for path in paths]
    if len(set(names)) < len(names):
        names = list(map(str, paths))
    systems = []
    for name, path in zip(names, paths, strict=True):
        systems.append(System(name, _fitting(read_text(path), path, whole, limit, is_baseline)))
    return systems


def _fitting(
    lines: Sequence[str],
    path: Path,
    whole: EvaluationSet,
    limit: int | None,
    is_baseline: bool = False,
) -> Sequence[str]:
    """Return the lines of the sentences that are scored.

    Raises:
        DataError: There are more or fewer than the test set or its chosen part has.
        ConfigError: So has a baseline, which is one of another test set then.
    """
    if len(lines) not in (len(whole), limit):
        if is_baseline:
            raise ConfigError(
                f"{path} is a baseline of another test set: it has {len(lines):,} lines, "
                f"{whole.name} has {len(whole):,}.",
                fix="Translate this test set with the baseline, too.",
            )
        raise DataError.not_parallel(
            str(path),
            whole.name,
            (len(lines), len(whole)),
            fix="Line i must translate sentence i of the test set: translate all of it, and "
            "drop no line.",
        )
    return lines[:limit]


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
