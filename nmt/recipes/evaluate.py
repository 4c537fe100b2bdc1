"""Score translations: of a model or of files, with confidence, significance and gates."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nmt.checkpoint.model_folder import load_folder_config
from nmt.config.loader import load_config, refuse_idle
from nmt.config.run import RunConfig
from nmt.errors import ConfigError, DataError
from nmt.evaluation.scoring import (
    Evaluation,
    Resampling,
    System,
    check_gates,
    measure,
    odd_texts,
    score_systems,
)
from nmt.evaluation.test_set import EvaluationSet, SetChoice, load_evaluation_set, read_text
from nmt.files.atomic import check_output, open_output
from nmt.files.lines import is_standard
from nmt.files.progress import progress_bar
from nmt.metrics.metric import METRICS, MetricOptions, Score, Scorer, check_metric
from nmt.translation.mbr import Mbr
from nmt.translation.result import GuardCounts

logger = logging.getLogger(__name__)

DEFAULT_METRICS = ("bleu", "chrf")
"""What is computed when no metric is named."""
_READ = ("decoding", "data", "source_language", "target_language")
"""Sections of a model's configuration that an evaluation reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """A model, and how it is loaded and searched."""

    folder: Path
    """Run folder or model folder."""
    loading: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Translator.load`, for example ``checkpoint``."""
    mbr: Mbr | None = None
    """Minimum Bayes risk decoding."""
    overrides: Sequence[str] = ()
    """``key=value`` changes of the model's configuration."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the decoding section to change, for example ``beam_size``."""
    save_hypotheses: Path | None = None
    """Write the translations to this file."""

    @property
    def name(self) -> str:
        """The model, with those that translate together with it, in reports."""
        ensemble = self.loading.get("ensemble")
        return " + ".join(map(str, (self.folder, *(ensemble.others if ensemble else ()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """All options of ``nmt evaluate``."""

    model: ModelUse | None = None
    """The model whose translations are scored."""
    hypotheses: tuple[Path, ...] = ()
    """Files of translations to score; ``-`` is standard input."""
    test: SetChoice = field(default_factory=SetChoice)
    """What to score against."""
    limit: int | None = None
    """Score the first sentences only."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Names of metrics."""
    tokenize: str | None = None
    """BLEU's tokenizer; by target language when None."""
    lowercase: bool = False
    """Ignore case."""
    baseline: Path | None = None
    """File of translations that every system is compared with."""
    gates: Mapping[str, float] = field(default_factory=dict)
    """Lowest scores allowed, by metric; their metrics are computed too."""
    resampling: Resampling = field(default_factory=Resampling)
    """Behind confidence intervals and p-values."""


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
    return [measure(scorer, hypotheses, Resampling(resamples))[0] for scorer in scorers]


def run_evaluation(options: EvaluateOptions) -> Evaluation:
    """Do what ``nmt evaluate`` does, up to printing.

    Args:
        options: What to score, against what, and how.

    Returns:
        The scores of every system, whether the gates were met, and what kept the translations
        from being saved.

    Raises:
        ConfigError: Flags that contradict each other, unknown names.
        DataError: Files that are missing, damaged or not parallel.
        CheckpointError: The model cannot be loaded.
    """
    _check_options(options)
    model = options.model
    config = _load_model_config(model) if model else None
    whole = load_evaluation_set(options.test, config)
    chosen = whole.first(options.limit)
    tokenize, language = options.tokenize, chosen.target_language
    metric_options = MetricOptions(
        tokenize=tokenize, lowercase=options.lowercase, target_language=language
    )
    metrics = dict.fromkeys(map(check_metric, (*options.metrics, *options.gates)))
    scorers = [Scorer(metric, chosen.references, metric_options) for metric in metrics]
    systems = _read_systems(options.hypotheses, whole, options.limit)
    others = [options.baseline] if options.baseline else []
    baseline = next(iter(_read_systems(others, whole, options.limit)), None)
    unsaved = None
    if model and config:
        _check_place(model, [*options.hypotheses, *others, *whole.files])
        systems.insert(0, _translate(model, config, chosen))
        unsaved = _save(model.save_hypotheses, systems[0].lines)
    for text in odd_texts(systems, chosen.references[0], tokenize, language):
        logger.warning("%s", text)
    if model and model.mbr and model.mbr.utility in metrics:
        text = "MBR with %s was asked for, so %s is optimistic; look at other metrics, too."
        logger.warning(text, *[METRICS[model.mbr.utility].label] * 2)
    scored, base, pairs = score_systems(
        systems, scorers, baseline=baseline, resampling=options.resampling
    )
    if len(systems) > 1 and not baseline:
        logger.info("--baseline FILE compares every system with FILE instead of each other")
    if model and config and not model.loading.get("ensemble"):
        _record(model, config, chosen, scored[0])
    return Evaluation(
        test=chosen.name,
        num_sentences=len(chosen),
        num_references=len(chosen.references),
        systems=scored,
        baseline=base,
        pairs=pairs,
        gates=tuple(
            gate for each in scored for gate in check_gates(each.name, each.scores, options.gates)
        ),
        unsaved=unsaved,
    )


def _check_options(options: EvaluateOptions) -> None:
    """Check what can be checked before anything is read."""
    if options.model is None and not options.hypotheses:
        raise ConfigError(
            "There is nothing to score.", fix="Name a model folder, or give --hypothesis FILE."
        )
    inputs = [*options.hypotheses, *options.test.references, options.test.source, options.baseline]
    if inputs.count(Path("-")) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Name files instead.")


def _check_place(model: ModelUse, inputs: Iterable[Path]) -> None:
    """Refuse to save translations where they cannot be, or over something that is read."""
    place, ensemble = model.save_hypotheses, model.loading.get("ensemble")
    if place is None:
        return
    if is_standard(place):
        raise ConfigError(
            "--save-hypotheses - is standard output, which gets the scores.", fix="Name a file."
        )
    if not place.parent.is_dir():
        raise ConfigError(f"The folder of {place} does not exist.", fix="Create it first.")
    check_output(place, model.folder, *(ensemble.others if ensemble else ()), *inputs)


def _load_model_config(model: ModelUse) -> RunConfig:
    """Read the configuration of the model, before anything slow is loaded.

    Decoding flags are overrides of its decoding section, so that they are checked as such.
    """
    load_folder_config(model.folder)  # says what is no model
    flags = [f"decoding.{name}={value}" for name, value in model.decoding.items()]
    # One translation is scored; a beam smaller than the model's n_best is no contradiction here.
    overrides = [*model.overrides, *flags, "decoding.n_best=1"]
    config = load_config(model.folder / "config.yaml", overrides)
    refuse_idle(model.overrides, _READ)
    return config


def _read_systems(paths: Sequence[Path], whole: EvaluationSet, limit: int | None) -> list[System]:
    """Read translations of the whole set, or of just the sentences that are scored.

    Systems are named after their files: shortly if that tells them apart.
    """
    names = ["standard input" if is_standard(path) else path.name for path in paths]
    if len(set(names)) < len(names):
        names = list(map(str, paths))
    systems = []
    for name, path in zip(names, paths, strict=True):
        lines = read_text(path)
        if len(lines) not in (len(whole), limit):
            raise DataError.not_parallel(
                str(path),
                whole.name,
                (len(lines), len(whole)),
                fix="Line i must translate sentence i of the test set: translate all of it, and "
                "drop no line.",
            )
        systems.append(System(name, lines[:limit]))
    return systems


def _translate(model: ModelUse, config: RunConfig, chosen: EvaluationSet) -> System:
    if chosen.source is None:
        raise ConfigError("A model needs source lines.", fix="Add --source FILE.")
    from nmt.translation.translator import Translator  # noqa: PLC0415 - files need no torch

    translator = Translator.load(model.folder, prepare=False, **model.loading)
    if model.mbr is not None:
        translator = translator.with_mbr(model.mbr.of_language(config.target_language))
    logger.info("translating %s lines of %s with %s", f"{len(chosen):,}", chosen.name, model.name)
    translator = translator.with_options(**config.decoding.model_dump())
    with progress_bar("translating", unit="lines", total=len(chosen)) as bar:
        begin = time.perf_counter()
        results = translator.with_progress(bar.update).translate(chosen.source)
    seconds, retries = time.perf_counter() - begin, translator.retry_seconds
    counts = GuardCounts.of(results, retry_seconds=retries, seconds=seconds)
    if found := counts.message(len(results)):
        logger.info("%s", found)
    engine = translator.engine
    return System(model.name, [result.text for result in results], engine.name, engine.dtype)


def _record(model: ModelUse, config: RunConfig, chosen: EvaluationSet, system: System) -> None:
    """Have the page of a run show its scores."""
    from nmt.training.html_report import record_evaluation  # noqa: PLC0415 - draws with jinja2

    scores = {score.metric: score.value for score in system.scores}
    checkpoint = model.loading.get("checkpoint", "best")
    line = {"test": chosen.name, "checkpoint": checkpoint, "scores": scores}
    record_evaluation(model.folder, config.name, line | {"sentences": len(chosen)})


def _save(path: Path | None, lines: Iterable[str]) -> DataError | None:
    """Write lines to a file. Return why that is impossible: the scores must not be lost by it."""
    if path is None:
        return None
    try:
        with open_output(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except DataError as error:
        return error
    return None
