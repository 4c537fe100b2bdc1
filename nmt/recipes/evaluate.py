"""Score translations: of a model or of files, with confidence, significance and gates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from nmt.config.loader import load_config, refuse_idle
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError, ConfigError, DataError
from nmt.evaluation.gate import check_gates
from nmt.evaluation.report import Evaluation
from nmt.evaluation.scoring import (
    Resampling,
    System,
    measure,
    score_systems,
    tokenized_systems,
    unfit_tokenizer,
)
from nmt.evaluation.test_set import (
    STANDARD_INPUT,
    EvaluationSet,
    ModelSets,
    SetChoice,
    load_evaluation_set,
    read_text,
)
from nmt.files.line_streams import check_output, is_standard, open_output
from nmt.metrics.metric import METRICS, MetricOptions, Score, Scorer, check_metric
from nmt.runtime.engine import Dtype
from nmt.runtime.ensemble import Ensemble
from nmt.translation.guard import GuardCount
from nmt.translation.mbr import MbrChoice

logger = logging.getLogger(__name__)

DEFAULT_METRICS = ("bleu", "chrf")
"""What is computed when no metric is named."""
_READ = ("decoding", "data", "source_language", "target_language")
"""Sections of a model's configuration that an evaluation reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUse:
    """How the model is loaded and searched. Each field is a flag that needs a model."""

    checkpoint: str = "best"
    """Which checkpoint of a run folder."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to translate."""
    dtype: Dtype = "float32"
    """What the model's weights are multiplied in."""
    threads: int | None = None
    """CPU threads for translating."""
    ensemble: Ensemble | None = None
    """Models that translate together with it."""
    mbr: MbrChoice | None = None
    """Choose among many candidates by a metric."""
    guard: bool = True
    """Retry translations that look degenerate."""
    overrides: tuple[str, ...] = ()
    """``key=value`` changes of the model's configuration."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the decoding section to change, for example ``beam_size``."""
    save_hypotheses: Path | None = None
    """Write the translations to this file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """Everything that ``nmt evaluate`` can be told."""

    model: Path | None = None
    """Run folder or model folder whose translations are scored."""
    use: ModelUse = field(default_factory=ModelUse)
    """How the model translates."""
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
    return [measure(scorer, hypotheses, Resampling(resamples)).score for scorer in scorers]


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
    config = _load_model_config(options.model, options.use) if options.model else None
    whole = load_evaluation_set(options.test, _model_sets(config))
    chosen = whole.first(options.limit)
    metric_options = MetricOptions(
        tokenize=options.tokenize,
        lowercase=options.lowercase,
        target_language=chosen.target_language,
    )
    metrics = dict.fromkeys(map(check_metric, (*options.metrics, *options.gates)))
    scorers = [Scorer(metric, chosen.references, metric_options) for metric in metrics]
    systems = _read_systems(options.hypotheses, whole, options.limit)
    (baseline,) = (
        _read_systems([options.baseline], whole, options.limit) if options.baseline else (None,)
    )
    _check_place(options, whole)
    unsaved = None
    if config is not None and options.model is not None:
        translated = _translate(options.model, options.use, config, chosen)
        systems.insert(0, translated)
        if options.use.save_hypotheses is not None:
            unsaved = _save(options.use.save_hypotheses, translated.lines)
    _warn(systems, chosen, options)
    scored, base = score_systems(systems, scorers, baseline=baseline, resampling=options.resampling)
    return Evaluation(
        test=chosen.name,
        num_sentences=len(chosen),
        num_references=len(chosen.references),
        systems=tuple(scored),
        baseline=base,
        gates=tuple(
            result
            for each in scored
            for result in check_gates(each.name, each.scores, options.gates)
        ),
        unsaved=unsaved,
    )


def _check_options(options: EvaluateOptions) -> None:
    """Check what can be checked before anything is read."""
    if options.model is None:
        if not options.hypotheses:
            raise ConfigError(
                "There is nothing to score.", fix="Name a model folder, or give --hypothesis FILE."
            )
        _refuse_model_flags(options.use)
    inputs = [*options.hypotheses, *options.test.references, options.test.source, options.baseline]
    if inputs.count(STANDARD_INPUT) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Name files instead.")


def _check_place(options: EvaluateOptions, chosen: EvaluationSet) -> None:
    """Refuse to save translations where they cannot be, or over something that is read."""
    place = options.use.save_hypotheses
    if place is None:
        return
    if is_standard(place):
        raise ConfigError(
            "--save-hypotheses - is standard output, which gets the scores.", fix="Name a file."
        )
    if not place.parent.is_dir():
        raise ConfigError(f"The folder of {place} does not exist.", fix="Create it first.")
    ensemble = options.use.ensemble
    models = (options.model, *(ensemble.others if ensemble else ()))
    check_output(place, *models, *options.hypotheses, options.baseline, *chosen.files)


_FLAGS = {"ensemble": "--with", "guard": "--no-guard", "overrides": "--set"}
"""Of fields of `ModelUse` that have another name than their flag."""


def _refuse_model_flags(use: ModelUse) -> None:
    default = ModelUse()
    changed = [
        each.name for each in fields(use) if getattr(use, each.name) != getattr(default, each.name)
    ]
    names = [name for each in changed for name in (use.decoding if each == "decoding" else [each])]
    flags = [_FLAGS.get(name, f"--{name.replace('_', '-')}") for name in names]
    if flags:
        verb = "needs" if len(flags) == 1 else "need"
        raise ConfigError(
            f"{', '.join(flags)} {verb} a model.",
            fix=f"Name a model folder, or drop the flag{'s' if len(flags) > 1 else ''}.",
        )


def _load_model_config(model: Path, use: ModelUse) -> RunConfig:
    """Read the configuration of the model, before anything slow is loaded.

    Decoding flags are overrides of its decoding section, so that they are checked as such.
    """
    path = model / "config.yaml"
    if not path.is_file():
        if model.is_dir():
            problem = f"{path} does not exist."
        else:
            problem = f"{model} {'is no folder' if model.exists() else 'does not exist'}."
        raise CheckpointError(
            problem,
            fix="Name a run folder or an exported model folder, for example runs/demo.",
        )
    flags = [f"decoding.{name}={value}" for name, value in use.decoding.items()]
    # One translation is scored; a beam smaller than the model's n_best is no contradiction here.
    config = load_config(path, [*use.overrides, *flags, "decoding.n_best=1"])
    refuse_idle(use.overrides, _READ)
    return config


def _model_sets(config: RunConfig | None) -> ModelSets | None:
    if config is None:
        return None
    return ModelSets(
        tests=config.data.test,
        source_language=config.source_language,
        target_language=config.target_language,
    )


def _read_systems(paths: Sequence[Path], whole: EvaluationSet, limit: int | None) -> list[System]:
    """Read translations of the whole set, or of just the sentences that are scored.

    Systems are named after their files: shortly if that tells them apart.
    """
    names = ["standard input" if path == STANDARD_INPUT else path.name for path in paths]
    if len(set(names)) < len(names):
        names = list(map(str, paths))
    systems = []
    for name, path in zip(names, paths, strict=True):
        lines = read_text(path)
        if len(lines) != len(whole) and len(lines) != limit:
            raise DataError.not_parallel(
                str(path),
                whole.name,
                (len(lines), len(whole)),
                fix="Line i must translate sentence i of the test set: translate all of it, and "
                "drop no line.",
            )
        systems.append(System(name, lines[:limit]))
    return systems


def _translate(model: Path, use: ModelUse, config: RunConfig, chosen: EvaluationSet) -> System:
    """Translate the source lines with the model."""
    if chosen.source is None:
        raise ConfigError("A model needs source lines.", fix="Add --source FILE.")
    from nmt.translation.translator import Translator  # noqa: PLC0415 - files need no torch

    translator = Translator.load(
        model,
        device=use.device,
        dtype=use.dtype,
        checkpoint=use.checkpoint,
        threads=use.threads,
        ensemble=use.ensemble,
        guard=use.guard,
    )
    if use.mbr is not None:
        translator = translator.with_mbr(use.mbr.build(config.target_language))
    name = model_name(model, use.ensemble)
    logger.info("translating %s lines of %s with %s", f"{len(chosen):,}", chosen.name, name)
    results = translator.translate(chosen.source, **config.decoding.model_dump())
    if found := GuardCount.of(results).message():
        logger.info("%s", found)
    return System(name, [result.text for result in results])


def model_name(model: Path, ensemble: Ensemble | None) -> str:
    """Name a model in reports, with those that translate together with it."""
    return " + ".join(map(str, (model, *(ensemble.others if ensemble else ()))))


def _save(path: Path, lines: Iterable[str]) -> DataError | None:
    """Write lines to a file. Return why that is impossible: the scores must not be lost by it."""
    try:
        with open_output(path) as stream:
            stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    except DataError as error:
        return error
    return None


def _warn(systems: Sequence[System], chosen: EvaluationSet, options: EvaluateOptions) -> None:
    """Say what looks like a mistake but may be meant."""
    warnings = list(tokenized_systems(systems))
    mbr = options.use.mbr
    if mbr is not None and mbr.utility in (*options.metrics, *options.gates):
        name = METRICS[mbr.utility].label
        warnings.append(
            f"MBR with {name} was asked for, so {name} is optimistic; look at other metrics, too."
        )
    warnings.append(unfit_tokenizer(options.tokenize, chosen.target_language, chosen.references[0]))
    for text in filter(None, warnings):
        logger.warning("%s", text)
