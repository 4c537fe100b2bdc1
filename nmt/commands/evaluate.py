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
from typing import Any

from nmt.checkpoint.files import checkpoints_dir
from nmt.checkpoint.model_folder import CONFIG, load_folder_config
from nmt.commands import evaluation_set
from nmt.commands.evaluation_set import ConfiguredSets, EvaluationSet, read_systems
from nmt.commands.loading import loading, mbr
from nmt.commands.options import EvaluateOptions, TextResult
from nmt.config.language_codes import primary_code
from nmt.config.loader import load_inference
from nmt.data.checks import likely_language
from nmt.errors import ConfigError, DataError, NmtError
from nmt.files.atomic import check_output, open_output
from nmt.files.progress import progress_bar
from nmt.inference.guard import GuardCounts
from nmt.inference.translator import Translator
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_TRIALS
from nmt.metrics.metric import (
    MetricOptions,
    MetricScorer,
    References,
    format_score,
    label_of,
    requested_metrics,
)
from nmt.metrics.result import Evaluation, EvaluationReport, ReportSection, System
from nmt.metrics.scoring import Resampling, odd_texts, score_systems
from nmt.metrics.selection import default_metrics
from nmt.registry import Registry
from nmt.text.loss import loss_of
from nmt.text.tokenizer import Tokenizer
from nmt.training.report import record_evaluation

logger = logging.getLogger(__name__)

_EXTERNAL = "external"
# What they are: see ``nmt/registry.toml``.
ANALYSES: Registry[Callable[..., Any]] = Registry("analysis")
# Content of a `report` file by its extension.
REPORTS: Registry[Callable[[EvaluationReport, Sequence[EvaluatedModel]], str]] = Registry(
    "report format"
)
REPORTS.register(".json", lambda report, _: json.dumps(report.as_dict(), ensure_ascii=False) + "\n")


def evaluate(options: EvaluateOptions) -> EvaluationReport | TextResult:
    """Score models or files of translations on test sets.

    Raises:
        ConfigError: Options contradict each other, a name is unknown, or an extra is missing.
        DataError: A file is missing, damaged or not parallel.
        CheckpointError: A model cannot be loaded.
    """
    options = evaluation_set.sort_files(options)
    if options.list_:
        return evaluation_set.list_test_sets(options.models)
    evaluation_set.check_options(options)
    # Report missing extras and invalid gates before the slow part.
    asked = {
        "slices": options.slices or options.slice_,
        "robustness": options.robustness,
        "confidence": ANALYSES.find("confidence"),  # always, if the extra is installed
        "gates": options.fail_under or options.fail_if_worse,
    }
    writers = {path: REPORTS[path.suffix] for path in options.report}
    gates = ANALYSES["fail_under"](options.fail_under) if options.fail_under else {}
    contrastive = ANALYSES["contrastive"](options.contrastive) if options.contrastive else None

    # Models (weights are not loaded yet) and test sets with their files.
    models = [EvaluatedModel(folder, options) for folder in options.models]
    base = options.baseline_model
    baseline = EvaluatedModel(base, options, is_baseline=True) if base else None
    everyone = [*models, *([baseline] if baseline else [])]
    has_languages = any(model.has_languages for model in everyone)
    asked["languages"] = has_languages and ANALYSES.find("languages")
    analyses = [ANALYSES[name] for name, is_asked in asked.items() if is_asked]
    configured = everyone[0].configured if everyone else None
    tests = evaluation_set.load_test_sets(options, configured)
    sets = [EvaluatedSet(test, options, gates, models, len(tests) == 1) for test in tests]
    inputs = [path for owner in sets for path in owner.inputs]
    inputs += [path for model in everyone for path in model.inputs]
    for path in filter(None, (*options.report, options.save_hypotheses)):
        check_output(path, *inputs, options.contrastive)

    # Hypotheses: files were read with the test sets; models translate one by one.
    failures = _translate(sets, models, baseline, options.save_hypotheses)

    # Statistics per sentence, scores of their sums, and analyses of both.
    evaluations = []
    for each in sets:
        _warn(each)
        failures += each.score()
        evaluations.append(each.evaluation([analyse(each) for analyse in analyses]))

    # The report: its `failure` sets the exit code after a failed gate, metric or output file.
    sections = (contrastive(models),) if contrastive else ()
    report = EvaluationReport(
        evaluations=tuple(evaluations), sections=sections, sentence_level=options.sentence_level
    )
    for path, write in writers.items():
        failures += _save(path, write(report, models))
    for each in sets:  # the page of the run links to the reports in its folder
        for model, system in zip(models, each.systems, strict=False):
            model.record(each.test, system)
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

    Raises:
        ConfigError: A flag or override is wrong.
        CheckpointError: The folder is not a model.
    """

    def __init__(self, folder: Path, options: EvaluateOptions, is_baseline: bool = False) -> None:
        load_folder_config(folder)  # explains why a folder is not a model
        # Decoding flags become overrides, so that they are validated with the configuration.
        # n_best is 1, because one translation is scored; otherwise a small beam would be refused.
        flags = [f"decoding.{name}={value}" for name, value in options.decoding().items()]
        overrides = [*options.set_, *flags, "decoding.n_best=1"]
        self.config, record = load_inference(folder / CONFIG, overrides, read=_READ)
        self.configured = ConfiguredSets.of(self.config, record, folder)
        self.folder, self.tag, self.loading = folder, options.tag, loading(options)
        # Several languages: tags choose them, or a group of languages (OPUS-MT) and `languages`.
        is_group = options.languages and len(primary_code(self.config.target_language)) > 2
        self.has_languages = bool(self.config.language_tags or is_group)
        self._mbr = None if is_baseline else mbr(options, options.beam_size)
        if is_baseline:  # always the best checkpoint, and not an ensemble
            self.loading |= {"checkpoint": "best", "ensemble": None}
        ensemble = self.loading["ensemble"]
        self.inputs = [folder, *(ensemble.others if ensemble else ())]
        self.name = " + ".join(map(str, self.inputs))
        self._translator: Translator | None = None

    def translate(self, name: str, lines: Sequence[str], test: EvaluationSet) -> System:
        """Translate lines of ``test``; ``name`` is the name of the text in the log."""
        if self._translator is None:
            language, device = self.config.target_language, self.loading["device"]
            utility = self._mbr and self._mbr.loaded(language, device)
            decoding = self.config.decoding.model_dump()
            self._translator = Translator.load(self.folder, mbr=utility, **self.loading | decoding)
        translator = self._translator
        logger.info("translating %s lines of %s with %s", f"{len(lines):,}", name, self.name)
        begin = time.perf_counter()
        with progress_bar("translating", unit="lines", total=len(lines)) as bar:
            chosen: dict[str, Any] = {"tag": self.tag or test.tag, "progress": bar.update}
            if self.has_languages:
                chosen["source_language"] = test.source_language
                chosen["target_language"] = test.target_language
            results = translator.with_options(**chosen).translate(lines)
        seconds = time.perf_counter() - begin
        if message := GuardCounts().add(dict(enumerate(results, 1))).message(seconds):
            logger.info("%s", message)
        texts = [result.text for result in results]
        return System(self.name, texts, self._settings(translator), results=results)

    @property
    def target_tokenizer(self) -> Tokenizer:
        """The tokenizer of the translations; only after a translation."""
        if self._translator is None:
            raise RuntimeError("nothing was translated")
        return self._translator.tokenizers.target

    def _settings(self, translator: Translator) -> dict[str, str | int | float]:
        engine, decoding, chosen = translator.engine, self.config.decoding, self._mbr
        settings: dict[str, str | int | float] = {"engine": engine.name, "dtype": engine.dtype}
        if checkpoints_dir(self.folder).is_dir():
            settings["checkpoint"] = self.loading["checkpoint"]
        if chosen is not None:
            return settings | {"mbr": chosen.utility, "mbr_candidates": chosen.num_candidates}
        return settings | {x: getattr(decoding, x) for x in ("beam_size", "length_penalty")}

    def release(self) -> None:
        """Free the weights."""
        self._translator = None

    def record(self, test: EvaluationSet, system: System) -> None:
        """Add the scores to the report of the run."""
        if not self.loading["ensemble"]:
            scores = {score.metric: score.value for score in system.scores}
            line = {"test": test.name, "checkpoint": self.loading["checkpoint"], "scores": scores}
            record_evaluation(self.folder, self.config.name, line | {"sentences": len(test)})


class EvaluatedSet:
    """A test set with systems and metrics: the input of analyses.

    Args:
        whole: The complete test set.
        options: Options of the evaluation.
        gates: Minimum score by metric.
        models: Models, whose translations become the first systems.
        is_only: Whether there is only one test set. Otherwise, files of translations and labels
            belong to the test set that was passed as files.
    """

    def __init__(
        self,
        whole: EvaluationSet,
        options: EvaluateOptions,
        gates: Mapping[str, float],
        models: Sequence[EvaluatedModel],
        is_only: bool,
    ) -> None:
        self.test, self.options = whole.first(options.limit), options
        self.gates, self.models = gates, models
        metrics = options.metric or default_metrics([self.test.target_language])
        self.metrics = requested_metrics(metrics)
        if options.external:
            self.metrics |= {_EXTERNAL: f"{_EXTERNAL}:{options.external}"}
        self.scorers = self.make_scorers(self.test.references, self.test.source)
        count = DEFAULT_RESAMPLES if options.resamples is None else options.resamples
        # Approximate randomization ("ar") raises fewer false alarms than the bootstrap ("bs").
        kind = options.significance or ("ar" if options.fail_if_worse else "bs")
        trials = options.resamples or DEFAULT_TRIALS
        self.resampling = Resampling(count, options.seed, kind, trials)
        owns_files, base = is_only or not whole.is_named, options.baseline
        files = options.hypothesis if owns_files else ()
        self.systems = read_systems(files, whole, options.limit)
        labels = options.slice_ if owns_files else ()
        self.labels = evaluation_set.read_labels(labels, whole, options.limit)
        self.baseline: System | None = None
        if base is not None and base.suffix == ".json":
            read = ANALYSES["baseline report"]
            self.baseline = read(base, whole.name, self.test.references, self.scorers)
        elif base is not None and not base.is_dir():
            (self.baseline,) = read_systems([base], whole, options.limit)
        self.pairs: ReportSection | None = None
        self.limits: list[dict[str, Any]] = []  # of models that cannot write some references
        paths = [Path(text.partition("=")[2]) for text in options.slice_]
        self.inputs = [*files, *paths, *whole.files, *([base] if base else [])]

    def make_scorers(
        self, references: References, source: Sequence[str] | None
    ) -> list[MetricScorer]:
        """Return scorers for the requested metrics and the metrics of the gates."""
        options = MetricOptions(
            tokenize=self.options.tokenize, lowercase=self.options.lowercase, source=source,
            target_language=self.test.target_language, device=self.options.device,
        )  # fmt: skip
        names = self.metrics | {name: name for name in self.gates if name not in self.metrics}
        return [MetricScorer(name, references, options) for name in names.values()]

    def translate(self, model: EvaluatedModel) -> System:
        """Translate the test set."""
        if self.test.source is None:
            raise ConfigError("There is no source text.", fix="Add `source` FILE.")
        return model.translate(self.test.name, self.test.source, self.test)

    def note_limit(self, model: EvaluatedModel) -> None:
        """Score the first reference as nearly as the model can write it, if it changes it."""
        loss = loss_of(self.test.references[0], model.target_tokenizer)
        if loss.changed:
            exact = [scorer for scorer in self.scorers if scorer.name in _EXACT]
            scores = {scorer.name: scorer.score(loss.nearest).value for scorer in exact}
            limit = {"system": model.name, "unreachable": len(loss.changed)}
            self.limits.append({**limit, "example": loss.example, "scores": scores})

    def _limit_section(self) -> ReportSection:
        """Return the scores of a model that makes no mistake."""
        table = [["system", "lines", "best possible scores", "for example line"]]
        for limit in self.limits:
            scores = [
                f"{label_of(x)} {format_score(x, value)}" for x, value in limit["scores"].items()
            ]
            lines = f"{limit['unreachable']:,} of {len(self.test):,}"
            table.append([limit["system"], lines, ", ".join(scores), limit["example"]])
        return ReportSection("limit", "Best possible scores", table, self.limits, _LIMIT)

    def score(self) -> list[DataError]:
        """Score and compare the systems. Return the errors of the external metric."""
        try:
            self._score()
        except DataError as error:  # keep the other scores
            self.scorers = [scorer for scorer in self.scorers if scorer.name != _EXTERNAL]
            self._score()
            return [error]
        return []

    def _score(self) -> None:
        systems, self.baseline, self.pairs = score_systems(
            self.systems, self.scorers, baseline=self.baseline, resampling=self.resampling
        )
        self.systems = list(systems)

    def evaluation(self, sections: Sequence[ReportSection | None]) -> Evaluation:
        """Return the values for the report."""
        if self.options.sentence_level:
            for number, system in enumerate(self.systems):
                tables = zip(self.scorers, system.tables, strict=True)
                scores = {scorer.name: scorer.sentence_scores(table) for scorer, table in tables}
                self.systems[number] = replace(system, sentence_scores=scores)
        is_tested = self.pairs or self.baseline
        codes = self.test.source_language, self.test.target_language
        has_languages = any(model.has_languages for model in self.models)
        limits = [self._limit_section()] if self.limits else []
        return Evaluation(
            test=self.test.name, references=self.test.references, source=self.test.source,
            languages=codes if has_languages else (None, None), systems=tuple(self.systems),
            baseline=self.baseline, paired_test=self.resampling.paired_test if is_tested else None,
            sections=tuple(section for section in (*limits, self.pairs, *sections) if section),
        )  # fmt: skip


def _translate(
    sets: Sequence[EvaluatedSet],
    models: Sequence[EvaluatedModel],
    baseline: EvaluatedModel | None,
    place: Path | None,
) -> list[NmtError]:
    """Translate all test sets with each model. Return the errors from saving translations."""
    failures: list[NmtError] = []
    for number, model in enumerate(models):
        for each in sets:
            system = each.translate(model)
            each.note_limit(model)
            seen = evaluation_set.rows_in_training(model.folder, each.test.source or ())
            count = None if seen is None else len(seen)
            each.systems.insert(number, replace(system, num_in_training=count))
        if len(models) > 1 or baseline:
            model.release()  # one model in memory at a time
        if place:
            failures += _save(place, "".join(f"{line}\n" for line in sets[0].systems[number].lines))
    if baseline:
        for each in sets:
            each.baseline = each.translate(baseline)
        baseline.release()
    return failures


def _warn(each: EvaluatedSet) -> None:
    test, options, systems = each.test, each.options, each.systems
    for text in odd_texts(systems, test.references[0], options.tokenize, test.target_language):
        logger.warning("%s", text)
    expected = likely_language(test.references[0])
    for system in systems:
        found = likely_language(system.lines)
        if expected and found and found != expected:
            text = "%s looks like %s, but the reference looks like %s: wrong file?"
            logger.warning(text, system.name, found, expected)
        if system.num_in_training:
            text = "%s: the training data contains %s of %s source lines of %s, so "
            text += "scores are too high; `slices` scores the other lines separately"
            seen = f"{system.num_in_training:,}"
            logger.warning(text, system.name, seen, f"{len(test):,}", test.name)
    utility = (options.mbr or "").partition(":")[0]
    if options.models and utility in {scorer.name for scorer in each.scorers}:
        text = "MBR decoding optimizes %s, so its %s is too high; also check other metrics."
        logger.warning(text, *[label_of(utility)] * 2)
    if len(systems) > 1 and not each.baseline:
        logger.info("to compare every system with one file, add `baseline` FILE")


def _save(path: Path, text: str) -> list[NmtError]:
    """Write text to a file. Return errors instead of raising them: scores are still printed."""
    try:
        with open_output(path) as stream:
            stream.write(text.encode("utf-8", "replace"))
    except DataError as error:
        return [error]
    return []
