"""Options of `nmt.evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from nmt.commands.options import EngineOptions, Json, MbrOptions, SearchOptions, Tag
from nmt.config.flag import Flag, changed
from nmt.errors import ConfigError, shell_command
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import METRICS

File = Path | None
Files = tuple[Path, ...]
Text = str | None
Texts = tuple[str, ...]

_MODELS = "Run or model folders; or translations, and their reference as the last one."
_TEST = "Test set of the model's configuration, or one of sacrebleu's. Repeatable."
_ALL = "all of the configuration's"
_TOKENIZE = "BLEU's tokenizer: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200, none."
_BY_LANGUAGE = "by target language, else 13a"
_EXTERNAL = (
    "Also score with a program of yours (COMET, ...): it reads JSON lines with source, hypothesis "
    "and references, and writes one number a line; higher is better."
)
_BASELINE = "Compare, with p-values, with translations, a model, or an earlier `report`."
_PAIRED = "Paired test: bootstrap resampling, or approximate randomisation."
_BS = "bs; ar where a loss fails, as it raises fewer false alarms"
_RESAMPLES = "Resampled test sets, or exchanges of `significance` ar; 0: no intervals or p-values."
_NUM_RESAMPLES = f"{DEFAULT_RESAMPLES}; ar {DEFAULT_TRIALS}"
_SLICES = "Score by length, case, rare words, overlap with training, numbers, names and alarms."
_ROBUSTNESS = "Translate again with typos, other case, spaces or lines: shows what is lost."
_CONTRASTIVE = (
    "Source, right and wrong translation, category, with tabs: how often right is likelier."
)
_REPORT = (
    "Also write the result, by the ending of FILE: .json (a later `baseline`), .md (a comment for "
    "a pull request), .xml (JUnit, for a CI), .html (a page). Repeatable."
)


@dataclass(frozen=True, kw_only=True)
class TestOptions:
    """What is scored, and against what."""

    title: ClassVar[str] = "Test set and systems"

    models: Annotated[Files, Flag(_MODELS, argument=True, metavar="MODEL")] = ()
    hypothesis: Annotated[Files, Flag("Translations; - is standard input. Repeatable.")] = ()
    source: Annotated[File, Flag("Source lines, which the model translates.")] = None
    reference: Annotated[Files, Flag("References. Repeatable: several for each sentence.")] = ()
    test: Annotated[Texts, Flag(_TEST, short="t", metavar="NAME", shown_default=_ALL)] = ()
    tag: Tag = None
    languages: Annotated[
        Text, Flag("Languages, as in en-de, for BLEU's tokenizer.", short="l", metavar="PAIR")
    ] = None
    limit: Annotated[int | None, Flag("Score the first N sentences only.", min=1)] = None
    list_: Annotated[bool, Flag("List what `test` accepts, and do nothing else.")] = False


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """How it is scored."""

    title: ClassVar[str] = "Scores"

    metric: Annotated[
        Texts, Flag(f"{', '.join(METRICS)}, or several with commas. Repeatable.", metavar="NAME")
    ] = ("bleu", "chrf")
    tokenize: Annotated[Text, Flag(_TOKENIZE, metavar="NAME", shown_default=_BY_LANGUAGE)] = None
    lowercase: Annotated[bool, Flag("Ignore case.")] = False
    external: Annotated[Text, Flag(_EXTERNAL, metavar="COMMAND")] = None


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What the scores are compared with, and when the command fails."""

    title: ClassVar[str] = "Comparison and gates"

    baseline: Annotated[File, Flag(_BASELINE, metavar="FILE|RUN|REPORT.json")] = None
    significance: Annotated[Literal["bs", "ar"] | None, Flag(_PAIRED, shown_default=_BS)] = None
    alpha: Annotated[float, Flag("p-values below are significant.", min=0, max=1)] = 0.05
    fail_if_worse: Annotated[
        bool, Flag("Exit with code 6 if a `metric` or `external` is significantly worse.")
    ] = False
    fail_under: Annotated[
        Texts, Flag("Exit with code 6 if a score is lower. Repeatable.", metavar="bleu=27,chrf=55")
    ] = ()
    resamples: Annotated[
        int | None, Flag(_RESAMPLES, min=0, max=1_000_000, shown_default=_NUM_RESAMPLES)
    ] = None
    seed: Annotated[int, Flag("Seed of the resamples.", min=0)] = DEFAULT_SEED


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Where a system is weak."""

    title: ClassVar[str] = "Analysis"

    slices: Annotated[bool, Flag(_SLICES)] = False
    slice_: Annotated[
        Texts, Flag("Score parts by a label for each sentence. Repeatable.", metavar="NAME=FILE")
    ] = ()
    robustness: Annotated[bool, Flag(_ROBUSTNESS)] = False
    contrastive: Annotated[File, Flag(_CONTRASTIVE)] = None


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written."""

    title: ClassVar[str] = "Output"

    report: Annotated[Files, Flag(_REPORT)] = ()
    sentence_level: Annotated[bool, Flag("Print a line of JSON for each sentence instead.")] = False
    save_hypotheses: Annotated[File, Flag("Write the model's translations here.")] = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(
    TestOptions, MetricOptions, GateOptions, AnalysisOptions, OutputOptions,
    SearchOptions, MbrOptions, EngineOptions,
):  # fmt: skip
    """What to score, against what, how, and when to fail."""

    @property
    def baseline_model(self) -> Path | None:
        """The baseline if it is a model."""
        return self.baseline if self.baseline and self.baseline.is_dir() else None


def sort_files(options: EvaluateOptions) -> EvaluateOptions:
    """Return options whose models are folders: files given by position are named.

    Raises:
        ConfigError: What the files are is not clear; names the command that says it.
    """
    paths = options.models
    if all(path.is_dir() or path.suffix == ".yaml" for path in paths) or (
        len(paths) == 1 and not paths[0].is_file()
    ):
        return options
    first, *others = paths
    systems, references = [first, *others[:-1]], others[-1:] or [Path("REFERENCE")]
    if first.is_dir():
        problem = f"{first} is a model: say what the files are."
        fix = shell_command("evaluate", first, source=others[:-1], reference=references)
        raise ConfigError(problem, fix=f"Type: {fix}")
    if len(others) == 1 and not (options.hypothesis or options.reference):
        return replace(options, models=(), hypothesis=(first,), reference=tuple(others))
    if not (others or options.hypothesis) and (options.test or options.reference):
        return replace(options, models=(), hypothesis=(first,))
    problem = f"{first} is not a model."
    if len(others) > 1:
        problem = f"Which of {', '.join(map(str, paths))} is the reference is not clear."
    systems += options.hypothesis
    fix = shell_command("evaluate", hypothesis=systems, reference=references)
    raise ConfigError(problem, fix=f"Type: {fix}")


def check_options(options: EvaluateOptions) -> None:
    """Refuse options that contradict each other, before anything is read."""
    models, base = options.models, options.baseline
    if not (models or options.hypothesis):
        fix = f"Pass a run folder, as in `{shell_command('evaluate', 'RUN', test=options.test)}`, "
        raise ConfigError("There is nothing to score.", fix=f"{fix}or `hypothesis` FILE.")
    files = [*options.hypothesis, *options.reference, options.source, base]
    if files.count(Path("-")) > 1:
        raise ConfigError("Standard input can be read once only.", fix="Pass files instead.")
    _check_models(options)
    if options.fail_if_worse and base is None:
        raise ConfigError("`fail_if_worse` needs `baseline`.", fix="Add `baseline` FILE.")
    if options.fail_if_worse and options.resamples == 0:
        raise ConfigError("`fail_if_worse` needs resamples.", fix="Leave `resamples` 0 out.")


def _check_models(options: EvaluateOptions) -> None:
    """Refuse what needs a model without one, or needs a single model."""
    models, base = options.models, options.baseline_model
    needing = [] if models else ["robustness", "contrastive", "save_hypotheses", "tag"]
    if not (models or base):
        for group in (EngineOptions, SearchOptions, MbrOptions):
            needing += group.__dataclass_fields__
    if needing and (idle := changed(options, *needing)):
        verb, flags = ("needs", "flag") if len(idle) == 1 else ("need", "flags")
        raise ConfigError(
            f"{', '.join(f'`{name}`' for name in idle)} {verb} a model.",
            fix=f"Pass a model folder, or leave the {flags} out.",
        )
    if options.with_ and len(models) > 1:
        raise ConfigError(
            "`with` cannot be combined with several models.", fix="Evaluate the ensemble by itself."
        )
    if options.save_hypotheses and (len(models) > 1 or options.save_hypotheses == Path("-")):
        raise ConfigError(
            "`save_hypotheses` takes the translations of one model; standard output gets scores.",
            fix="Use `report` FILE.json, which keeps the translations of all models.",
        )
    is_itself = base and any(folder.resolve() == base.resolve() for folder in models)
    # Other options of the search change both sides alike.
    if is_itself and not changed(options, "checkpoint", "mbr", "with_"):
        command = shell_command("translate", base, input="SOURCE", output="FILE", beam_size=5)
        raise ConfigError(
            f"`baseline` {base}: both sides are the same model with the same options.",
            fix=f"Translate one side with options of its own: `{command}`; pass `baseline` FILE.",
        )
