"""Options of the commands: first those that several share, then each command's. Loads no torch.

A class with a ``title`` is a section of the help.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from nmt.config.flag import OF_THE_MODEL, Flag, changed, file_name
from nmt.errors import CheckpointError, ConfigError
from nmt.files.lines import is_standard
from nmt.metrics import DEFAULT_RESAMPLES, DEFAULT_SEED, DEFAULT_TRIALS
from nmt.metrics.metric import METRICS

Count = int | None
File = Path | None
Files = tuple[Path, ...]
Text = str | None
Texts = tuple[str, ...]
Format = Literal["text", "json"]  # how lines are read or written


def file_or_standard(text: str) -> Path | None:
    """Read the name of a file; ``-``, which is standard input or output, gives None."""
    return None if text == "-" else file_name(text)


def format_name(text: str) -> str:
    """Read the name of a format of lines; ``jsonl`` is ``json``.

    Raises:
        ValueError: There is no such format.
    """
    if text not in (*get_args(Format), "jsonl"):
        raise ValueError(f"{text!r} is not one of {', '.join(get_args(Format))}")
    return text.removesuffix("l")


def _override(text: str) -> str:
    """Refuse a key and its value as two words before the value counts as one argument too many."""
    if "=" not in text:
        key, _, value = text.partition(":")
        typed = f"`set` {key or 'KEY'}={value.strip() or 'VALUE'}"
        fix = f"Put an equals sign and no space between, as in {typed}."
        raise ConfigError(f"`set` {text}: write KEY=VALUE, as one argument.", fix=fix)
    return text


def _model_folder(text: str) -> Path:
    """Read the name of a folder that holds a model.

    Raises:
        CheckpointError: It may not be read.
    """
    folder = file_name(text)
    is_seen = os.access(folder, os.F_OK) and folder.is_dir()
    if is_seen and not os.access(folder, os.R_OK | os.X_OK):
        fix = "Let the model be read by you, or copy the folder again."
        raise CheckpointError(f"{folder} cannot be read: you have no permission.", fix=fix)
    return folder


_MODEL = "Run folder or exported model folder."
_OVERRIDE = "Change one key, as in batch.max_tokens=2048. Repeatable."
_CHECKPOINT = "Checkpoint of a run folder: best, last, step-N or average."
_OUTPUT = "File to write; .gz, .bz2 and .xz are compressed."
_FOLDER = "Model folder to write; it must be missing or empty."
_TAG = "Tag of each source: a target language (de for <2de>) or a domain."
_BEAM_SIZE = "Beam size; 1 is greedy search."
_PENALTY = "Exponent of the length normalisation."

ConfigFile = Annotated[Path, Flag("YAML configuration file.", argument=True)]
Model = Annotated[Path, Flag(_MODEL, argument=True, parser=_model_folder)]
Overrides = Annotated[Texts, Flag(_OVERRIDE, metavar="KEY=VALUE", parser=_override)]
Checkpoint = Annotated[str, Flag(_CHECKPOINT, metavar="NAME")]
OutputFile = Annotated[File, Flag(_OUTPUT, "o", parser=file_or_standard, shown="standard output")]
OutputFolder = Annotated[Path, Flag(_FOLDER, "o", "FOLDER")]
Tag = Annotated[Text, Flag(_TAG, metavar="TAG")]
Threads = Annotated[Count, Flag("CPU threads.", min=1, shown="all cores")]
BeamSize = Annotated[Count, Flag(_BEAM_SIZE, "b", min=1, shown=OF_THE_MODEL)]
BatchTokens = Annotated[Count, Flag("Source tokens of a batch.", min=1, shown=OF_THE_MODEL)]
SampleSeed = Annotated[Count, Flag("With `sample`: random seed.", min=0, shown=OF_THE_MODEL)]
LengthPenalty = Annotated[float | None, Flag(_PENALTY, min=0, shown=OF_THE_MODEL)]
Json = Annotated[bool, Flag("Print the result as one JSON object.")]

_DEVICE = Flag("Device; cuda:1 is the second GPU.", metavar="[auto|cpu|cuda|cuda:N]")
_WITH = Flag("Also search with this model of the same vocabulary. Repeatable.", metavar="MODEL2")
_WEIGHTS = Flag("Shares of all models.", separator=",", metavar="2,1,1", shown="equal")
_MEAN = Flag("Mean of probabilities or of log probabilities.", shown="arithmetic")
_ENGINE = "auto, torch or ctranslate2; auto is CTranslate2 on a CPU if it can do what is asked."
_DTYPE = "Weights: auto, float32, int8 (fast on CPUs), bfloat16, float16."


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which models, and where they compute."""

    title: ClassVar[str] = "Model"

    checkpoint: Checkpoint = "best"
    device: Annotated[str, _DEVICE] = "auto"
    threads: Threads = None
    with_: Annotated[Files, _WITH] = ()
    weights: Annotated[tuple[float, ...] | None, _WEIGHTS] = None
    ensemble_mean: Annotated[Literal["arithmetic", "geometric"] | None, _MEAN] = None

    def __post_init__(self) -> None:
        if not self.with_ and self.ensemble_mean is not None:
            fix = "Add `with` MODEL2, or leave it out."
            raise ConfigError("`ensemble_mean` needs `with`.", fix=fix)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ModelOptions):
    """Which models, where they compute, and what computes translations with them."""

    title: ClassVar[str] = "Model"

    engine: Annotated[str, Flag(_ENGINE, metavar="NAME")] = "auto"
    dtype: Annotated[str, Flag(_DTYPE, metavar="TYPE")] = "auto"


_SHORTLIST = "Score only likely words, which is faster."


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How translations are searched for."""

    title: ClassVar[str] = "Search"

    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    shortlist: Annotated[bool | None, Flag(_SHORTLIST, shown=OF_THE_MODEL)] = None
    batch_tokens: BatchTokens = None
    no_guard: Annotated[bool, Flag("Do not retry degenerate outputs (loops, odd length).")] = False
    no_split: Annotated[bool, Flag("Do not cut lines that are longer than in training.")] = False
    set_: Overrides = ()

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        return given(self, "beam_size", "length_penalty", "shortlist", "batch_tokens")


_CANDIDATES = Flag("With `mbr`: candidates per sentence.", min=2, shown="32")
_FROM = Flag("With `mbr`: take candidates from samples or from a beam.", shown="samples")


@dataclass(frozen=True, kw_only=True)
class MbrOptions:
    """Minimum Bayes risk decoding."""

    title: ClassVar[str] = "Minimum Bayes risk decoding"

    mbr: Annotated[Literal["chrf", "bleu"] | None, Flag("Decode by this utility.")] = None
    mbr_candidates: Annotated[Count, _CANDIDATES] = None
    mbr_from: Annotated[Literal["samples", "beam"] | None, _FROM] = None


def given(options: Any, *names: str) -> dict[str, Any]:
    """Return those of these options that were given: that are not None."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


_REPORT = Flag("Folder for report.json, report.html and lists of pairs.", metavar="DIR")
_WORKERS = Flag("Processes; the output is the same.", min=1, shown="this process")
_DASK = Flag("Work through Dask: its address, or local to start it.", metavar="local|ADDRESS")
_SCORE = Flag("Score pairs by a model for each direction.", separator=",", metavar="RUN,RUN")


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """How to prepare, whatever the configuration; training prepares with the defaults."""

    report_only: Annotated[bool, Flag("Print the report; write only `report`.")] = False
    report: Annotated[File, _REPORT] = None
    force: Annotated[bool, Flag("Prepare again even if nothing has changed.")] = False
    workers: Annotated[Count, _WORKERS] = None
    scheduler: Annotated[Text, _DASK] = None
    score_with: Annotated[Files, _SCORE] = ()


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(PreparationOptions):
    """Which experiment to prepare, and how."""

    config: ConfigFile
    verify: Annotated[bool, Flag("Only compare the prepared folder with its manifest.")] = False
    set_: Overrides = ()
    json: Json = False

    def __post_init__(self) -> None:
        others = changed(self, *PreparationOptions.__dataclass_fields__)
        if self.verify and others:
            problem = f"`verify` only reads the folder, so `{others[0]}` has no effect."
            raise ConfigError(problem, fix=f"Leave `{others[0]}` out.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train, and how to go on."""

    config: ConfigFile
    set_: Overrides = ()
    run_dir: Annotated[File, Flag("Run folder, not that of CONFIG.", metavar="FOLDER")] = None
    strict_resume: Annotated[bool, Flag("Fail if the newest checkpoint is damaged.")] = False
    exact: Annotated[bool, Flag("Refuse to resume where the result may not be bit-exact.")] = False
    devices: Annotated[int, Flag("Processes, each with one GPU or some CPU cores.", min=1)] = 1
    dry_run: Annotated[bool, Flag("Estimate memory, FLOPs and time; do not train.")] = False
    json: Json = False

    @property
    def overrides(self) -> tuple[str, ...]:
        """Changes of the configuration, that of the run folder among them."""
        if self.run_dir is None:
            return self.set_
        # A YAML string in single quotes takes any path as text.
        quoted = str(self.run_dir).replace("'", "''")
        return (*self.set_, f"run_dir='{quoted}'")


_LAST = Flag("Average the N newest checkpoints, or all.", min=1, shown="10")
_BEST = "Average the N checkpoints with the best validation score instead."


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Which checkpoints of a run to average."""

    run: Annotated[Path, Flag("Run folder that `nmt train` wrote.", argument=True)]
    output: OutputFolder
    last: Annotated[Count, _LAST] = None
    best: Annotated[Count, Flag(_BEST, min=1)] = None
    step: Annotated[tuple[int, ...], Flag("Average step S. Repeatable.", min=1, metavar="S")] = ()
    json: Json = False

    def __post_init__(self) -> None:
        names = changed(self, "last", "best", "step")
        if len(names) > 1:
            problem = f"`{'` and `'.join(names)}` choose checkpoints in different ways."
            raise ConfigError(problem, fix="Give one of them.")
        if twice := sorted({step for step in self.step if self.step.count(step) > 1}):
            fix = "Name every checkpoint once: all have the same weight in the mean."
            problem = f"`step` {', '.join(map(str, twice))} is given more than once."
            raise ConfigError(problem, fix=fix)


@dataclass(frozen=True, kw_only=True)
class AugmentOptions:
    """Which text to translate, and how."""

    text: Annotated[Path, Flag("Lines of one language; may be compressed.", argument=True)]
    with_: Annotated[Path, Flag("Model that translates them.", metavar="MODEL")]
    output: Annotated[Path, Flag("Folder to make.", short="o", metavar="FOLDER")]
    forward: Annotated[bool, Flag("The text is the source, not the target.")] = False
    tag: Tag = None
    sample: Annotated[bool, Flag("Draw from the model's distribution; do not search.")] = False
    seed: SampleSeed = None
    beam_size: BeamSize = None
    shard_lines: Annotated[int, Flag("Lines between two points to resume from.", min=1)] = 10_000
    checkpoint: Checkpoint = "best"
    threads: Threads = None
    set_: Overrides = ()
    json: Json = False
    engine: Literal["auto", "torch", "ctranslate2"] = "auto"
    guard: bool = True  # Search a second time for lines that look degenerate.


_OUTPUTS = ("alignments", "attention", "token_scores")
_INPUT = "Text to translate, one sentence per line; may be compressed."
_FORMAT = Flag("Output text, or a JSON object per line.", metavar="[text|json]", parser=format_name)
_INPUT_FORMAT = (
    'Input text, or JSON objects such as {"source": ..., "prefix": ..., "required": [...], '
    '"forbidden": [...], "tag": ...}. A required phrase may get an ending (Tokyos). Other fields '
    "pass through to JSON output, except those that have the name of a field of the output."
)
_N_BEST = "Translations per line; several are written as `number ||| text ||| score`."
_ALIGNMENTS = "Add word alignments in Pharaoh format (`0-0 1-2`), by attention."
_ATTENTION = "In JSON output: add the attention of each target word to each source word."
_MIN_CONFIDENCE = (
    "Mark lines whose confidence, the expected chrF from 0 to 100, is below X: in text by "
    "` ||| low confidence` behind them, in JSON by `low_confidence`: true."
)


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """How lines are read and written."""

    title: ClassVar[str] = "Input and output"

    input: Annotated[File, Flag(_INPUT, "i", parser=file_or_standard, shown="standard input")] = (
        None
    )
    output: OutputFile = None
    format: Annotated[Format, _FORMAT] = "text"
    input_format: Annotated[Format, replace(_FORMAT, help=_INPUT_FORMAT)] = "text"
    n_best: Annotated[Count, Flag(_N_BEST, min=1, shown=OF_THE_MODEL)] = None
    alignments: Annotated[bool, Flag(_ALIGNMENTS)] = False
    attention: Annotated[bool, Flag(_ATTENTION)] = False
    token_scores: Annotated[bool, Flag("In JSON output: add tokens with log probabilities.")] = (
        False
    )
    min_confidence: Annotated[float | None, Flag(_MIN_CONFIDENCE)] = None
    stream: Annotated[bool, Flag("Translate every line before reading the next one.")] = False
    tag: Tag = None

    @property
    def outputs(self) -> frozenset[str]:
        """Return what is asked for besides texts and scores."""
        return frozenset(name for name in _OUTPUTS if getattr(self, name))


_SAMPLE = "Draw `n_best` translations from the model's distribution; do not search."
_TEMPERATURE = "With `sample`: softmax temperature; below 1 sharpens the distribution."
_TOP_P = "With `sample`: nucleus sampling, from the fewest tokens of this probability together."
_TOP_K = "With `sample`: sample from the K most probable tokens; 0 for all."


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How translations are sampled."""

    title: ClassVar[str] = "Sampling"

    sample: Annotated[bool, Flag(_SAMPLE)] = False
    temperature: Annotated[float | None, Flag(_TEMPERATURE, shown=OF_THE_MODEL)] = None
    top_p: Annotated[float | None, Flag(_TOP_P, metavar="P", shown=OF_THE_MODEL)] = None
    top_k: Annotated[Count, Flag(_TOP_K, min=0, metavar="K", shown=OF_THE_MODEL)] = None
    seed: SampleSeed = None


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(LineOptions, SearchOptions, SamplingOptions, MbrOptions, EngineOptions):
    """Which lines to translate, with which model, and how they are written."""

    model: Model
    file: Annotated[File, Flag("Text to translate, instead of `input`.", argument=True)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.file is not None and self.input is not None:
            problem = f"Both {self.file} and `input` {self.input} are to be translated."
            raise ConfigError(problem, fix="Name one of them.")
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 100:
            fix = "Give an expected chrF, from 0 to 100."
            raise ConfigError(f"`min_confidence` is {self.min_confidence:g}.", fix=fix)
        self.check_output(self.n_best or 1)

    def check_output(self, n_best: int) -> None:
        """Refuse what text has no place for beside so many translations of a line.

        Raises:
            ConfigError: So it is.
        """
        several, problem = n_best > 1, ""
        if self.format == "json":
            return
        if self.min_confidence is not None and (self.alignments or several):
            problem = "`min_confidence` beside alignments or several translations"
        elif names := [f"`{name}`" for name in _OUTPUTS[1:] if getattr(self, name)]:
            problem = " and ".join(names)
        elif self.alignments and several:
            problem = f"the alignments of {n_best} translations"
        if problem:
            fix = "Add `format` json, or leave that out."
            raise ConfigError(f"Text output has no place for {problem}.", fix=fix)

    @property
    def source(self) -> Path | None:
        """Return the lines to translate; None is standard input."""
        return self.input or self.file

    @property
    def search(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        names = ("temperature", "top_p", "top_k", "seed", "n_best")
        return self.decoding() | given(self, *names) | ({"sampling": True} if self.sample else {})


_PAIRS = "Source lines. Without files, standard input has source<TAB>target."


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ModelOptions):
    """Which pairs to score, and how scores are written."""

    model: Model
    source: Annotated[File, Flag(_PAIRS)] = None
    target: Annotated[File, Flag("Translations, line by line.")] = None
    output: OutputFile = None
    sum: Annotated[bool, Flag("Write log probabilities without length normalisation.")] = False
    format: Annotated[Format, Flag("A number a line, or a JSON object with all tokens.")] = "text"
    length_penalty: LengthPenalty = None
    tag: Tag = None
    batch_tokens: BatchTokens = None
    set_: Overrides = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None):
            missing = "source" if self.source is None else "target"
            fix = "Give `source` and `target`, or neither and source<TAB>target on standard input."
            raise ConfigError(f"`{missing}` is missing.", fix=fix)
        if self.source and is_standard(self.source) and is_standard(self.target):
            raise ConfigError("Standard input can be read once only.", fix="Name files instead.")


_MODELS = "Run or model folders; or translations, and their reference as the last one."
_TEST = "Test set of the model's configuration, or one of sacrebleu's. Repeatable."
_ALL = "all of the configuration's"
_LANGUAGES = Flag("Languages, as in en-de, for BLEU's tokenizer.", short="l", metavar="PAIR")
_METRIC = f"{', '.join(METRICS)}, or several with commas. Repeatable."
_TOKENIZE = "BLEU's tokenizer: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200, none."
_BY_LANGUAGE = "by target language, else 13a"
_EXTERNAL = (
    "Also score with a program of yours (COMET, ...): it reads JSON lines with source, hypothesis "
    "and references, and writes one number a line; higher is better."
)
_BASELINE = "Compare, with p-values, with translations, a model, or an earlier `report`."
_PAIRED = "Paired test: bootstrap resampling, or approximate randomisation."
_BS = "bs; ar where a loss fails, as it raises fewer false alarms"
_WORSE = "Exit with code 6 if a `metric` or `external` is significantly worse."
_UNDER = "Exit with code 6 if a score is lower. Repeatable."
_RESAMPLES = "Resampled test sets, or exchanges of `significance` ar; 0: no intervals or p-values."
_NUM_RESAMPLES = f"{DEFAULT_RESAMPLES}; ar {DEFAULT_TRIALS}"
_SLICES = "Score by length, case, rare words, overlap with training, numbers, names and alarms."
_LABELS = "Score parts by a label for each sentence. Repeatable."
_ROBUSTNESS = "Translate again with typos, other case, spaces or lines: shows what is lost."
_CONTRASTIVE = (
    "Source, right and wrong translation, category, with tabs: how often right is likelier."
)
_REPORTS = (
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
    test: Annotated[Texts, Flag(_TEST, short="t", metavar="NAME", shown=_ALL)] = ()
    tag: Tag = None
    languages: Annotated[Text, _LANGUAGES] = None
    limit: Annotated[Count, Flag("Score the first N sentences only.", min=1)] = None
    list_: Annotated[bool, Flag("List what `test` accepts, and do nothing else.")] = False


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """How it is scored."""

    title: ClassVar[str] = "Scores"

    metric: Annotated[Texts, Flag(_METRIC, metavar="NAME")] = ("bleu", "chrf")
    tokenize: Annotated[Text, Flag(_TOKENIZE, metavar="NAME", shown=_BY_LANGUAGE)] = None
    lowercase: Annotated[bool, Flag("Ignore case.")] = False
    external: Annotated[Text, Flag(_EXTERNAL, metavar="COMMAND")] = None


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """What the scores are compared with, and when the command fails."""

    title: ClassVar[str] = "Comparison and gates"

    baseline: Annotated[File, Flag(_BASELINE, metavar="FILE|RUN|REPORT.json")] = None
    significance: Annotated[Literal["bs", "ar"] | None, Flag(_PAIRED, shown=_BS)] = None
    alpha: Annotated[float, Flag("p-values below are significant.", min=0, max=1)] = 0.05
    fail_if_worse: Annotated[bool, Flag(_WORSE)] = False
    fail_under: Annotated[Texts, Flag(_UNDER, metavar="bleu=27,chrf=55")] = ()
    resamples: Annotated[Count, Flag(_RESAMPLES, min=0, max=10**6, shown=_NUM_RESAMPLES)] = None
    seed: Annotated[int, Flag("Seed of the resamples.", min=0)] = DEFAULT_SEED


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions:
    """Where a system is weak."""

    title: ClassVar[str] = "Analysis"

    slices: Annotated[bool, Flag(_SLICES)] = False
    slice_: Annotated[Texts, Flag(_LABELS, metavar="NAME=FILE")] = ()
    robustness: Annotated[bool, Flag(_ROBUSTNESS)] = False
    contrastive: Annotated[File, Flag(_CONTRASTIVE)] = None


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is written."""

    title: ClassVar[str] = "Output"

    report: Annotated[Files, Flag(_REPORTS)] = ()
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


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """The schema has none."""


@dataclass(frozen=True, kw_only=True)
class KeysOptions:
    """Which keys to describe."""

    section: Annotated[str, Flag("A section or key; all if left out.", argument=True)] = ""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Which configuration to print."""

    config: ConfigFile
    set_: Overrides = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Which configurations to check."""

    configs: Annotated[Files, Flag("YAML configuration files.", argument=True, metavar="CONFIG")]
    set_: Overrides = ()
