"""``nmt evaluate``: translations and references -> scores, results of analyses, and an exit code.

`evaluate` is the main function; models, test sets and reports follow. `nmt.metrics` computes the
scores: `metric.py` explains how to add a metric, `scoring.py` compares systems. All other results
are analyses, listed in `ANALYSES`. A failed gate becomes the `failure` of the report, which ends
the command with exit code 6 after the scores are printed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.files import checkpoints_dir
from nmt.checkpoint.model_folder import CONFIG, load_folder_config
from nmt.commands import evaluation_set
from nmt.commands.evaluation_set import (
    ConfiguredSets,
    EvaluationSet,
    file_of,
    is_pattern,
    paths_of,
    read_systems,
)
from nmt.commands.loading import check_output, loading_arguments, mbr
from nmt.commands.options import EvaluateOptions, TextResult
from nmt.config.flag import as_overrides
from nmt.config.language_codes import is_same_language, primary_code
from nmt.config.loader import load_inference
from nmt.data.checks import likely_language
from nmt.errors import ConfigError, DataError, NmtError
from nmt.files.atomic import open_output
from nmt.files.progress import progress_bar
from nmt.inference.guard import GuardCounts
from nmt.inference.translator import Translator
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_TRIALS
from nmt.metrics.metric import (
    MetricOptions,
    MetricScorer,
    References,
    default_metrics,
    format_score,
    label_of,
    requested_metrics,
)
from nmt.metrics.plausibility import odd_texts
from nmt.metrics.result import (
    Evaluation,
    EvaluationReport,
    ReportSection,
    System,
    hash_references,
)
from nmt.metrics.scoring import Resampling, score_systems
from nmt.registry import Registry
from nmt.text.loss import loss_of
from nmt.text.tokenizer import Tokenizer
from nmt.training.report import record_evaluation

if TYPE_CHECKING:
    from nmt.inference.mbr import Mbr

logger = logging.getLogger(__name__)

_EXTERNAL = "external"
# What they are: see ``nmt/registry.toml``.
Analysis = Callable[..., Any]
ANALYSES = Registry[Analysis]("analysis")
# Content of a `report` file by its extension.
ReportWriter = Callable[[EvaluationReport, Sequence["EvaluatedModel"]], str]
REPORTS = Registry[ReportWriter]("report format")
REPORTS.register(
    ".json",
    lambda report, _: json.dumps(report.as_dict(with_texts=True), ensure_ascii=False) + "\n",
)


def evaluate(
    options: EvaluateOptions | None = None, **texts: Sequence[object]
) -> EvaluationReport | TextResult:
    """Score models or translations on test sets.

    Args:
        options: Options, with files.
        texts: ``hypothesis``, ``reference`` or ``source`` as a list of texts instead of a file;
            several hypotheses or references are a list of lists.

    Raises:
        ConfigError: Options contradict each other, a name is unknown, or an extra is missing.
        DataError: A file is missing, damaged or not parallel.
        CheckpointError: A model cannot be loaded.
    """
    options = options or EvaluateOptions()
    if texts:
        with TemporaryDirectory() as folder:
            files = evaluation_set.write_texts(Path(folder), texts)
            return evaluate(replace(options, **files))
    options = evaluation_set.sort_files(options)
    if options.list_:
        return evaluation_set.list_test_sets(options.models)
    evaluation_set.check_options(options)
    # Report missing extras and invalid gates before the slow part.
    writers = {path: REPORTS[path.suffix] for path in options.report}
    gates = {}  # metric -> minimum score
    if options.fail_under:
        gates = ANALYSES["fail_under"](options.fail_under)
    score_contrastive = None  # takes the models; returns a section
    if options.contrastive:
        score_contrastive = ANALYSES["contrastive"](options.contrastive)

    # Models (weights are not loaded yet) and test sets with their files.
    models = [EvaluatedModel(folder, options) for folder in options.models]
    models_and_baseline = list(models)
    if options.baseline_model:
        models_and_baseline.append(
            EvaluatedModel(options.baseline_model, options, is_baseline=True)
        )
    has_languages = any(model.has_languages for model in models_and_baseline)
    # Analysis -> a true value if it is requested.
    requested = {
        "trivial": ANALYSES.find("trivial"),  # always, if the extra is installed
        "slices": options.slices or options.slice_,
        "robustness": options.robustness,
        "glossary": options.glossary,
        "confidence": ANALYSES.find("confidence"),
        "gates": options.fail_under or options.fail_if_worse,
        "languages": has_languages and ANALYSES.find("languages"),
    }
    analyses = [ANALYSES[name] for name, is_requested in requested.items() if is_requested]
    # The first model's configuration has the test sets.
    configured = models_and_baseline[0].configured if models_and_baseline else None
    tests = evaluation_set.load_test_sets(options, configured)
    sets = [EvaluatedSet(test, options, gates, models, len(tests) == 1) for test in tests]
    inputs = [options.contrastive, options.glossary]
    for test in tests:
        inputs += test.files
        inputs += (file_of(path, test.name) for path in paths_of(options))
    for model in models_and_baseline:
        inputs += model.files
    # The test sets are those of the first model, or have the languages that the user says.
    compared = models_and_baseline[1:] if models else models_and_baseline
    for model in compared:
        for test in tests:
            model.check_languages(test)
    for path in (*options.report, options.save_hypotheses):
        check_output(path, *inputs)

    # Hypotheses: files were read with the test sets; models translate one by one.
    failures = _translate(sets, models_and_baseline, options.save_hypotheses)

    # Statistics per sentence, scores of their sums, and analyses of both.
    evaluations = []
    for evaluated_set in sets:
        _warn(evaluated_set)
        failures += evaluated_set.score()
        sections = [analyse(evaluated_set) for analyse in analyses]
        evaluations.append(evaluated_set.evaluation(sections))

    # The report: its `failure` sets the exit code after a failed gate, metric or output file.
    report = EvaluationReport(
        evaluations=tuple(evaluations),
        sections=(score_contrastive(models),) if score_contrastive else (),
        sentence_level=options.sentence_level,
        score_only=tuple(requested_metrics(options.score_only)),
        alpha=options.alpha,
    )
    for path, write in writers.items():
        failures += _save(path, write(report, models))
    for evaluated_set in sets:  # the page of the run links to the reports in its folder
        if evaluated_set.num_available:
            continue  # the page has scores of whole test sets, so that they can be compared
        # The systems of the models come first; those of files follow.
        for model, system in zip(models, evaluated_set.systems, strict=False):
            model.record(evaluated_set.test, system)
    return replace(report, failures=tuple(failures))


# Metrics that a translation equal to the reference maximizes.
_EXACT = ("bleu", "chrf", "chrf++", "ter")
_LIMIT = (
    "lines: references that the model cannot write, because its tokenizer changes them. A model "
    "without any other mistake would get these scores."
)
# Keys of the configuration that an evaluation reads.
_READ = ("decoding", "data", "source_language", "target_language")


class EvaluatedModel:
    """A model and its configuration; the weights are loaded by the first translation.

    Args:
        folder: The model folder.
        options: Options of the evaluation.
        is_baseline: Whether the systems of all other models are compared with this model.

    Raises:
        ConfigError: A flag or override is wrong.
        CheckpointError: The folder is not a model.
    """

    def __init__(self, folder: Path, options: EvaluateOptions, is_baseline: bool = False) -> None:
        load_folder_config(folder)  # explains why a folder is not a model
        # Decoding flags become overrides, so that they are validated with the configuration.
        # n_best is 1, because one translation is scored; otherwise a small beam would be refused.
        flags = as_overrides(options.decoding(), "decoding.")
        overrides = [*options.set_, *flags, "decoding.n_best=1"]
        self.config, record = load_inference(folder / CONFIG, overrides, read=_READ)
        self.configured = ConfiguredSets.of(self.config, record, folder)
        self.folder = folder
        self.is_baseline = is_baseline
        self.tag = options.tag
        # Models of OPUS-MT have no language tags, but the target can be a group of languages, whose
        # code has three letters. Then `languages` chooses one of them.
        is_group = options.languages and len(primary_code(self.config.target_language)) > 2
        # Whether the model has several languages, so that it needs those of each test set.
        self.has_languages = bool(self.config.language_tags or is_group)
        self.loading = loading_arguments(options)  # arguments of `Translator.load`
        self._mbr: Mbr | None = None
        if is_baseline:  # always the best checkpoint, and not an ensemble
            self.loading |= {"checkpoint": "best", "ensemble": None}
        else:
            self._mbr = mbr(options, options.beam_size)
        self.files = [folder]
        if self.loading["ensemble"]:
            self.files += self.loading["ensemble"].others
        self.name = " + ".join(map(str, self.files))
        self._translator: Translator | None = None
        self.target_tokenizer: Tokenizer | None = None  # known after a translation

    def check_languages(self, test: EvaluationSet) -> None:
        """Check that the model, if it has one language pair, translates a test set of this pair.

        Raises:
            ConfigError: It translates other languages.
        """
        pair: tuple[Any, Any] = (test.source_language, test.target_language)
        if self.has_languages or None in pair:
            return
        for direction in self.configured.directions:
            # A code with three letters may mean a group of languages.
            codes = zip(pair, direction, strict=True)
            if all(is_same_language(a, b) or len(primary_code(b)) > 2 for a, b in codes):
                return
        directions = ", ".join(map(str, self.configured.directions))
        raise ConfigError(
            f"{self.name} translates {directions}, but {test.name} is {'-'.join(pair)}.",
            fix="Compare models and test sets of one language pair.",
        )

    def translate(
        self, name: str, lines: Sequence[str], test: EvaluationSet, **options: Any
    ) -> System:
        """Translate lines.

        Args:
            name: Name of the text in the log.
            lines: Source lines: of the test set, or changed ones.
            test: Set that the lines come from. It has their languages and their tag.
            options: Other options of the translator.

        Returns:
            The translations, in the same order.
        """
        if self._translator is None:
            self._translator = self._load()
        logger.info("translating %s lines of %s with %s", f"{len(lines):,}", name, self.name)
        begin = time.perf_counter()
        languages = dict[str, Any]()
        if self.has_languages:
            languages["source_language"] = test.source_language
            languages["target_language"] = test.target_language
        with progress_bar("translating", unit="lines", total=len(lines)) as bar:
            translator = self._translator.with_options(
                tag=self.tag or test.tag, progress=bar.update, **languages, **options
            )
            results = translator.translate(lines)
        counts = GuardCounts().add(dict(enumerate(results, 1)))
        message = counts.message(time.perf_counter() - begin)
        if message:
            logger.info("%s", message)
        num_split = sum(bool(result.parts) for result in results)
        settings = self._settings(translator)
        if num_split:
            settings["split_lines"] = num_split
        texts = [result.text for result in results]
        return System(self.name, texts, settings, results=results)

    def _load(self) -> Translator:
        """Load the weights, and set ``target_tokenizer``."""
        utility = None
        if self._mbr:
            utility = self._mbr.loaded(self.config.target_language, self.loading["device"])
        decoding = self.config.decoding.model_dump()
        translator = Translator.load(self.folder, mbr=utility, **self.loading | decoding)
        self.target_tokenizer = translator.tokenizers.target
        return translator

    def _settings(self, translator: Translator) -> dict[str, str | int | float]:
        """Return the settings that the report shows for the translations, by name."""
        engine = translator.engine
        settings: dict[str, str | int | float] = {"engine": engine.name, "dtype": engine.dtype}
        if checkpoints_dir(self.folder).is_dir():
            settings["checkpoint"] = self.loading["checkpoint"]
        if self._mbr is not None:
            settings["mbr"] = self._mbr.utility
            settings["mbr_candidates"] = self._mbr.num_candidates
        else:
            settings["beam_size"] = self.config.decoding.beam_size
            settings["length_penalty"] = self.config.decoding.length_penalty
        return settings

    def release(self) -> None:
        """Free the weights."""
        self._translator = None

    def record(self, test: EvaluationSet, system: System) -> None:
        """Add the scores to the report of the run."""
        if self.loading["ensemble"]:
            return  # these are not the scores of one run
        entry = {
            "test": test.name,
            "checkpoint": self.loading["checkpoint"],
            "scores": {score.metric: score.value for score in system.scores},
            "sentences": len(test),
            "beam_size": system.settings.get("beam_size"),
            "references_sha256": hash_references(test.references),
        }
        record_evaluation(self.folder, self.config.name, entry)


class EvaluatedSet:
    """A test set with systems and metrics: the input of analyses.

    Args:
        full_set: The complete test set.
        options: Options of the evaluation.
        gates: Minimum score by metric.
        models: Models, whose translations become the first systems.
        is_only: Whether there is only one test set. Otherwise, files of translations and labels
            belong to the test set that was passed as files.
    """

    def __init__(
        self,
        full_set: EvaluationSet,
        options: EvaluateOptions,
        gates: Mapping[str, float],
        models: Sequence[EvaluatedModel],
        is_only: bool,
    ) -> None:
        self.test = full_set.first(options.limit)
        # Sentences of the whole test set, if only its first ones are scored; otherwise 0.
        self.num_available = len(full_set) if len(self.test) < len(full_set) else 0
        self.options = options
        self.gates = gates
        self.models = models
        metrics = (*options.metric, *options.score_only)
        metrics = metrics or default_metrics([self.test.target_language])
        self.metrics = requested_metrics(metrics)  # name -> name with its argument
        if options.external:
            self.metrics[_EXTERNAL] = f"{_EXTERNAL}:{options.external}"
        self.scorers = self.make_scorers(self.test.references, self.test.source)
        num_resamples = DEFAULT_RESAMPLES if options.resamples is None else options.resamples
        # Approximate randomization ("ar") raises fewer false alarms than the bootstrap ("bs").
        significance = options.significance or ("ar" if options.fail_if_worse else "bs")
        num_trials = options.resamples or DEFAULT_TRIALS  # not used if `resamples` is 0
        self.resampling = Resampling(
            num_resamples, options.seed, significance, num_trials, options.alpha
        )
        self.pairs: ReportSection | None = None  # differences of all pairs of systems
        hypotheses = options.hypothesis
        labels = options.slice_
        if not is_only and full_set.is_named:  # files belong to another test set, except patterns
            hypotheses = tuple(filter(is_pattern, hypotheses))
            labels = tuple(filter(is_pattern, labels))
        self.systems = read_systems(hypotheses, full_set, options.limit)
        self.labels = evaluation_set.read_labels(labels, full_set, options.limit)
        # The baseline is a report, a model, which translates later, or a file of translations.
        self.baseline: System | None = None
        path = options.baseline
        if path is None:
            return
        if path.suffix == ".json":
            read_report = ANALYSES["baseline report"]
            self.baseline = read_report(path, full_set.name, self.test.references, self.scorers)
        elif not path.is_dir():
            (self.baseline,) = read_systems([path], full_set, options.limit)

    def make_scorers(
        self, references: References, source: Sequence[str] | None
    ) -> list[MetricScorer]:
        """Return scorers for the requested metrics and the metrics of the gates.

        Args:
            references: One or more references, each with a line per sentence.
            source: Source lines; None if there are only references.
        """
        options = MetricOptions(
            tokenize=self.options.tokenize,
            lowercase=self.options.lowercase,
            source=source,
            target_language=self.test.target_language,
            device=self.options.device,
        )
        metrics = dict(self.metrics)
        for name in self.gates:
            metrics.setdefault(name, name)
        return [MetricScorer(metric, references, options) for metric in metrics.values()]

    def score(self) -> list[DataError]:
        """Score and compare the systems. Return the error of the external metric, if it fails."""
        try:
            self._score()
        except DataError as error:  # score again without the external metric
            self.scorers = [scorer for scorer in self.scorers if scorer.name != _EXTERNAL]
            self._score()
            return [error]
        return []

    def _score(self) -> None:
        self.systems, self.baseline, self.pairs = score_systems(
            self.systems, self.scorers, baseline=self.baseline, resampling=self.resampling
        )

    def evaluation(self, sections: Sequence[ReportSection | None]) -> Evaluation:
        """Return the values for the report.

        Args:
            sections: Results of the requested analyses; None if an analysis has no result.
        """
        if self.options.sentence_level:
            for index, system in enumerate(self.systems):
                scores = {}  # metric -> a score for each sentence
                for scorer, table in zip(self.scorers, system.tables, strict=True):
                    scores[scorer.name] = scorer.sentence_scores(table)
                self.systems[index] = replace(system, sentence_scores=scores)
        languages: tuple[str | None, str | None] = (None, None)
        if any(model.has_languages for model in self.models):
            languages = (self.test.source_language, self.test.target_language)
        paired_test = None
        if self.pairs or self.baseline:
            paired_test = self.resampling.paired_test
            num_systems = len(self.systems)
            if paired_test and self.baseline and num_systems > 1:
                paired_test += f", not corrected for {num_systems} comparisons"
        all_sections = (limit_section(self), self.pairs, *sections)
        return Evaluation(
            test=self.test.name,
            references=self.test.references,
            source=self.test.source,
            num_available=self.num_available,
            languages=languages,
            systems=tuple(self.systems),
            baseline=self.baseline,
            paired_test=paired_test,
            sections=tuple(filter(None, all_sections)),
        )


def limit_section(evaluated_set: EvaluatedSet) -> ReportSection | None:
    """Score the text that is as close to a reference as each model can write.

    Of several references, the one is used of which the model can write the most lines.

    Returns:
        The best possible scores of the models; None if all models can write the whole reference.
    """
    values = []
    rows = [["system", "lines", "best possible scores", "for example line"]]
    for model in evaluated_set.models:
        assert model.target_tokenizer is not None
        references = evaluated_set.test.references
        losses = [loss_of(reference, model.target_tokenizer) for reference in references]
        loss = min(losses, key=lambda loss: len(loss.changed))
        num_changed = len(loss.changed)
        if not num_changed:
            continue
        scores = {}  # metric -> score
        for scorer in evaluated_set.scorers:
            if scorer.name in _EXACT:
                scores[scorer.name] = scorer.score(loss.nearest).value
        value = {"system": model.name, "unreachable": num_changed, "example": loss.example}
        values.append({**value, "scores": scores})
        texts = [f"{label_of(name)} {format_score(name, score)}" for name, score in scores.items()]
        share = f"{num_changed:,} of {len(evaluated_set.test):,}"
        rows.append([model.name, share, ", ".join(texts), loss.example])
    if not values:
        return None
    return ReportSection("limit", "Best possible scores", rows, values, _LIMIT)


def _translate(
    sets: Sequence[EvaluatedSet], models: Sequence[EvaluatedModel], output: Path | None
) -> list[NmtError]:
    """Translate all test sets with each model, and add the translations to the sets.

    Args:
        sets: Test sets. The systems of models are put in front of the systems of files.
        models: Models in the order of the report; the baseline is last.
        output: File for the translations; None unless there is one test set and one model besides
            the baseline.

    Returns:
        The errors from saving translations.
    """
    failures = list[NmtError]()
    for index, model in enumerate(models):
        for evaluated_set in sets:
            test = evaluated_set.test
            if test.source is None:
                raise ConfigError("There is no source text.", fix="Add `source` FILE.")
            system = model.translate(test.name, test.source, test)
            if model.is_baseline:
                evaluated_set.baseline = system
                continue
            rows = evaluation_set.rows_in_training(model.folder, test.source)
            if rows is not None:
                system = replace(system, num_in_training=len(rows))
            evaluated_set.systems.insert(index, system)
        if len(models) > 1:
            model.release()  # one model in memory at a time
        if output and not model.is_baseline:
            lines = sets[0].systems[index].lines
            failures += _save(output, "".join(f"{line}\n" for line in lines))
    return failures


def _warn(evaluated_set: EvaluatedSet) -> None:
    """Warn of texts that look wrong, and of scores that are too high."""
    test = evaluated_set.test
    options = evaluated_set.options
    systems = [*filter(None, [*evaluated_set.systems, evaluated_set.baseline])]
    reference = test.references[0]
    for text in odd_texts(systems, reference, options.tokenize, test.target_language, test.source):
        logger.warning("%s", text)
    expected_language = likely_language(reference)  # None if it is unclear
    for system in systems:
        language = likely_language(system.lines)
        if expected_language and language not in (None, expected_language):
            text = "%s looks like %s, but the reference looks like %s: wrong file?"
            logger.warning(text, system.name, language, expected_language)
        if system.num_in_training:
            text = "%s: the training data contains %s of %s source lines of %s, so "
            text += "scores are too high; `slices` scores the other lines separately"
            num_in_training = f"{system.num_in_training:,}"
            logger.warning(text, system.name, num_in_training, f"{len(test):,}", test.name)
    utility = (options.mbr or "").partition(":")[0]  # `mbr` is METRIC or METRIC:MODEL
    metrics = [scorer.name for scorer in evaluated_set.scorers]
    if options.models and utility in metrics:
        text = "MBR decoding optimizes %s, so its %s is too high; also check other metrics."
        label = label_of(utility)
        logger.warning(text, label, label)
    if len(systems) > 1 and not evaluated_set.baseline:
        logger.info("to compare every system with one file, add `baseline` FILE")


def _save(path: Path, text: str) -> list[NmtError]:
    """Write text to a file. Return errors instead of raising them: scores are still printed."""
    try:
        with open_output(path) as stream:
            stream.write(text.encode("utf-8", "replace"))
    except DataError as error:
        return [error]
    return []
