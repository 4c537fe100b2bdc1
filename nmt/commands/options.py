"""Options of the commands: first those that several share, then each command's. Loads no torch.

A class with a ``title`` is a section of the help.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from nmt.config.flag import OF_THE_MODEL, Flag, Options, changed, file_name
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
_PENALTY = "Exponent of the length normalisation; higher favours longer translations."

ConfigFile = Annotated[Path, Flag("YAML configuration file.", argument=True)]
Model = Annotated[Path, Flag(_MODEL, argument=True, parser=_model_folder)]
Overrides = Annotated[Texts, Flag(_OVERRIDE, metavar="KEY=VALUE", parser=_override)]
Checkpoint = Annotated[str, Flag(_CHECKPOINT, metavar="NAME")]
OutputFile = Annotated[File, Flag(_OUTPUT, "o", parser=file_or_standard, shown="standard output")]
OutputFolder = Annotated[Path, Flag(_FOLDER, "o", "FOLDER")]
Tag = Annotated[Text, Flag(_TAG, metavar="TAG")]
Threads = Annotated[Count, Flag("CPU threads.", min=1, shown="all cores")]
BeamSize = Annotated[Count, Flag("Beam size; 1 is greedy search.", "b", min=1, shown=OF_THE_MODEL)]
BatchTokens = Annotated[Count, Flag("Source tokens of a batch.", min=1, shown=OF_THE_MODEL)]
SampleSeed = Annotated[Count, Flag("With `sample`: random seed.", min=0, shown=OF_THE_MODEL)]
LengthPenalty = Annotated[float | None, Flag(_PENALTY, min=0, shown=OF_THE_MODEL)]
Json = Annotated[bool, Flag("Print the result as one JSON object.")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Which models, and where they compute.

    Args:
        device: Device to compute on; cuda is the first GPU, cuda:1 the second.
        with_: Another model with the same languages and vocabulary; the predictions of all models
            are averaged (ensemble). Repeatable.
        weights: Weights of MODEL and of each `with`, as in 2,1,1.
        ensemble_mean: Average probabilities (arithmetic) or log probabilities (geometric).
    """

    title: ClassVar[str] = "Model"

    checkpoint: Checkpoint = "best"
    device: Annotated[str, Flag(metavar="[auto|cpu|cuda|cuda:N]")] = "auto"
    threads: Threads = None
    with_: Annotated[Files, Flag(metavar="MODEL2")] = ()
    weights: Annotated[
        tuple[float, ...] | None, Flag(separator=",", metavar="2,1,1", shown="equal")
    ] = None
    ensemble_mean: Annotated[
        Literal["arithmetic", "geometric"] | None, Flag(shown="arithmetic")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.with_ and self.ensemble_mean is not None:
            fix = "Add `with` MODEL2, or leave it out."
            raise ConfigError("`ensemble_mean` needs `with`.", fix=fix)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ModelOptions):
    """Which models, where they compute, and what computes translations with them.

    Args:
        engine: auto, torch or ctranslate2. auto is CTranslate2 on a CPU if it is installed and has
            all that is asked for, otherwise torch; `verbose` says which and why.
        dtype: Type of the weights: auto (float32; on a GPU 16 bits), float32, int8 (CTranslate2;
            fastest on CPUs), bfloat16 (hardware that computes in it), float16 (GPUs).
    """

    title: ClassVar[str] = "Model"

    engine: Annotated[str, Flag(metavar="NAME")] = "auto"
    dtype: Annotated[str, Flag(metavar="TYPE")] = "auto"


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Options):
    """How translations are searched for.

    Args:
        shortlist: Score only the target tokens that the source words were translated to in the
            training data. Faster; a few translations differ.
        no_guard: Do not retry translations that look degenerate (loops, odd length).
        no_split: Translate lines whole that are longer than those of training, instead of in
            segments; not with learned positions.
    """

    title: ClassVar[str] = "Search"

    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    shortlist: Annotated[bool | None, Flag(shown=OF_THE_MODEL)] = None
    batch_tokens: BatchTokens = None
    no_guard: bool = False
    no_split: bool = False
    set_: Overrides = ()

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        return given(self, "beam_size", "length_penalty", "shortlist", "batch_tokens")


@dataclass(frozen=True, kw_only=True)
class MbrOptions(Options):
    """Minimum Bayes risk decoding.

    Args:
        mbr: Minimum Bayes risk decoding with this utility.
        mbr_candidates: With `mbr`: candidates per sentence.
        mbr_from: With `mbr`: take candidates from samples or from a beam.
    """

    title: ClassVar[str] = "Minimum Bayes risk decoding"

    mbr: Literal["chrf", "bleu"] | None = None
    mbr_candidates: Annotated[Count, Flag(min=2, shown="32")] = None
    mbr_from: Annotated[Literal["samples", "beam"] | None, Flag(shown="samples")] = None


def given(options: Any, *names: str) -> dict[str, Any]:
    """Return those of these options that were given: that are not None."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class PreparationOptions(Options):
    """How to prepare, whatever the configuration; training prepares with the defaults.

    Args:
        report_only: Print the report; write only `report`.
        report: Folder for report.json, report.html and lists of pairs.
        force: Prepare again even if nothing has changed.
        workers: Processes; the output is the same.
        scheduler: Work through Dask: its address, or local to start it.
        score_with: Score pairs by two models, one a direction.
    """

    report_only: bool = False
    report: Annotated[File, Flag(metavar="DIR")] = None
    force: bool = False
    workers: Annotated[Count, Flag(min=1, shown="this process")] = None
    scheduler: Annotated[Text, Flag(metavar="local|ADDRESS")] = None
    score_with: Annotated[Files, Flag(separator=",", metavar="RUN,RUN")] = ()


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(PreparationOptions):
    """Which experiment to prepare, and how.

    Args:
        verify: Only compare the prepared folder with its manifest.
    """

    config: ConfigFile
    verify: bool = False
    set_: Overrides = ()
    json: Json = False

    def __post_init__(self) -> None:
        super().__post_init__()
        others = changed(self, *PreparationOptions.__dataclass_fields__)
        if self.verify and others:
            problem = f"`verify` only reads the folder, so `{others[0]}` has no effect."
            raise ConfigError(problem, fix=f"Leave `{others[0]}` out.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Options):
    """What to train, and how to go on.

    Args:
        run_dir: Run folder, instead of the configuration's.
        strict_resume: Fail if the newest checkpoint is damaged.
        exact: Refuse to resume where the result may not be bit-exact.
        devices: Processes, each with one GPU or some CPU cores.
        dry_run: Estimate memory, FLOPs and time; do not train.
    """

    config: ConfigFile
    set_: Overrides = ()
    run_dir: Annotated[File, Flag(metavar="FOLDER")] = None
    strict_resume: bool = False
    exact: bool = False
    devices: Annotated[int, Flag(min=1)] = 1
    dry_run: bool = False
    json: Json = False

    @property
    def overrides(self) -> tuple[str, ...]:
        """Changes of the configuration, that of the run folder among them."""
        if self.run_dir is None:
            return self.set_
        # A YAML string in single quotes takes any path as text.
        quoted = str(self.run_dir).replace("'", "''")
        return (*self.set_, f"run_dir='{quoted}'")


@dataclass(frozen=True, kw_only=True)
class AverageOptions(Options):
    """Which checkpoints of a run to average.

    Args:
        run: Run folder that `nmt train` wrote.
        last: Average the N newest checkpoints, or all.
        best: Average the N checkpoints with the best validation score instead.
        step: Average the checkpoint of step S. Repeatable.
    """

    run: Annotated[Path, Flag(argument=True)]
    output: OutputFolder
    last: Annotated[Count, Flag(min=1, shown="10")] = None
    best: Annotated[Count, Flag(min=1)] = None
    step: Annotated[tuple[int, ...], Flag(min=1, metavar="S")] = ()
    json: Json = False

    def __post_init__(self) -> None:
        super().__post_init__()
        names = changed(self, "last", "best", "step")
        if len(names) > 1:
            problem = f"`{'` and `'.join(names)}` choose checkpoints in different ways."
            raise ConfigError(problem, fix="Give one of them.")
        if twice := sorted({step for step in self.step if self.step.count(step) > 1}):
            fix = "Name every checkpoint once: all have the same weight in the mean."
            problem = f"`step` {', '.join(map(str, twice))} is given more than once."
            raise ConfigError(problem, fix=fix)


@dataclass(frozen=True, kw_only=True)
class AugmentOptions(Options):
    """Which text to translate, and how.

    Args:
        text: Lines of one language; may be compressed.
        with_: Model that translates them.
        output: Folder to make.
        forward: The text is the source of the new corpus, not the target.
        sample: Draw from the model's distribution; do not search.
        shard_lines: Lines between two points to resume from.
        engine: What computes; auto is CTranslate2 on a CPU if it can do what is asked.
        guard: Search a second time for lines that look degenerate.
    """

    text: Annotated[Path, Flag(argument=True)]
    with_: Annotated[Path, Flag(metavar="MODEL")]
    output: Annotated[Path, Flag(short="o", metavar="FOLDER")]
    forward: bool = False
    tag: Tag = None
    sample: bool = False
    seed: SampleSeed = None
    beam_size: BeamSize = None
    shard_lines: Annotated[int, Flag(min=1)] = 10_000
    checkpoint: Checkpoint = "best"
    threads: Threads = None
    set_: Overrides = ()
    json: Json = False
    engine: Annotated[Literal["auto", "torch", "ctranslate2"], Flag(hidden=True)] = "auto"
    guard: Annotated[bool, Flag(hidden=True)] = True


_OUTPUTS = ("alignments", "attention", "token_scores")
_FORMAT = Flag(metavar="[text|json]", parser=format_name)


@dataclass(frozen=True, kw_only=True)
class LineOptions(Options):
    """How lines are read and written.

    Args:
        input: Text to translate, one sentence per line; may be compressed.
        format: Output plain text, or one JSON object per line.
        input_format: Input plain text, or JSON objects such as {"source": ..., "prefix": ...,
            "required": [...], "forbidden": [...], "tag": ...}. A required phrase may get an ending
            (Tokyos). Other fields pass through to JSON output, except those that have the name of a
            field of the output.
        n_best: Translations per line; several are written as `number ||| text ||| score`, with
            one row for a blank line.
        alignments: Add word alignments in Pharaoh format (`0-0 1-2`), by attention.
        attention: In JSON output: add the attention of each target word to each source word.
        token_scores: In JSON output: add every token with its natural-log probability.
        min_confidence: Mark lines whose confidence, the expected chrF from 0 to 100, is below X: in
            text by ` ||| low confidence` behind them, in JSON by `low_confidence`: true.
        stream: Translate every line before reading the next one.
    """

    title: ClassVar[str] = "Input and output"

    input: Annotated[File, Flag(short="i", parser=file_or_standard, shown="standard input")] = None
    output: OutputFile = None
    format: Annotated[Format, _FORMAT] = "text"
    input_format: Annotated[Format, _FORMAT] = "text"
    n_best: Annotated[Count, Flag(min=1, shown=OF_THE_MODEL)] = None
    alignments: bool = False
    attention: bool = False
    token_scores: bool = False
    min_confidence: float | None = None
    stream: bool = False
    tag: Tag = None

    @property
    def outputs(self) -> frozenset[str]:
        """Return what is asked for besides texts and scores."""
        return frozenset(name for name in _OUTPUTS if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """How translations are sampled.

    Args:
        sample: Draw `n_best` translations from the model's distribution; do not search.
        temperature: With `sample`: softmax temperature; below 1 sharpens the distribution.
        top_p: With `sample`: nucleus sampling, from the fewest tokens of this probability together.
        top_k: With `sample`: sample from the K most probable tokens; 0 for all.
    """

    title: ClassVar[str] = "Sampling"

    sample: bool = False
    temperature: Annotated[float | None, Flag(shown=OF_THE_MODEL)] = None
    top_p: Annotated[float | None, Flag(metavar="P", shown=OF_THE_MODEL)] = None
    top_k: Annotated[Count, Flag(min=0, metavar="K", shown=OF_THE_MODEL)] = None
    seed: SampleSeed = None


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(LineOptions, SearchOptions, SamplingOptions, MbrOptions, EngineOptions):
    """Which lines to translate, with which model, and how they are written.

    Args:
        file: Text to translate, instead of `input`.
    """

    model: Model
    file: Annotated[File, Flag(argument=True)] = None

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


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(ModelOptions):
    """Which pairs to score, and how scores are written.

    Args:
        source: Source lines. Without files, standard input has source<TAB>target.
        target: Translations, line by line.
        sum: Write log probabilities without length normalisation.
        format: A number a line, or a JSON object with all tokens.
    """

    model: Model
    source: File = None
    target: File = None
    output: OutputFile = None
    sum: bool = False
    format: Format = "text"
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


_METRIC = f"{', '.join(METRICS)}, or several with commas. Repeatable."
_BS = "bs; ar where a loss fails, as it raises fewer false alarms"
_NUM_RESAMPLES = f"{DEFAULT_RESAMPLES}; ar {DEFAULT_TRIALS}"


@dataclass(frozen=True, kw_only=True)
class TestOptions(Options):
    """What is scored, and against what.

    Args:
        models: Run or model folders; or translations, and their reference as the last one.
        hypothesis: Translations; - is standard input. Repeatable.
        source: Source lines, which the model translates.
        reference: References. Repeatable: several for each sentence.
        test: Test set of the model's configuration, or one of sacrebleu's. Repeatable.
        languages: Languages, as in en-de, for BLEU's tokenizer.
        limit: Score the first N sentences only.
        list_: List what `test` accepts, and do nothing else.
    """

    title: ClassVar[str] = "Test set and systems"

    models: Annotated[Files, Flag(argument=True, metavar="MODEL")] = ()
    hypothesis: Files = ()
    source: File = None
    reference: Files = ()
    test: Annotated[Texts, Flag(short="t", metavar="NAME", shown="all of the configuration's")] = ()
    tag: Tag = None
    languages: Annotated[Text, Flag(short="l", metavar="PAIR")] = None
    limit: Annotated[Count, Flag(min=1)] = None
    list_: bool = False


@dataclass(frozen=True, kw_only=True)
class MetricOptions(Options):
    """How it is scored.

    Args:
        tokenize: BLEU's tokenizer: 13a, zh, ja-mecab, ko-mecab, intl, char, flores200, none.
        lowercase: Ignore case.
        external: Also score with a program of yours (COMET, ...): it reads JSON lines with source,
            hypothesis and references, and writes one number a line; higher is better.
    """

    title: ClassVar[str] = "Scores"

    metric: Annotated[Texts, Flag(_METRIC, metavar="NAME")] = ("bleu", "chrf")
    tokenize: Annotated[Text, Flag(metavar="NAME", shown="by target language, else 13a")] = None
    lowercase: bool = False
    external: Annotated[Text, Flag(metavar="COMMAND")] = None


@dataclass(frozen=True, kw_only=True)
class GateOptions(Options):
    """What the scores are compared with, and when the command fails.

    Args:
        baseline: Compare, with p-values, with translations, a model, or an earlier `report`.
        significance: Paired test: bootstrap resampling, or approximate randomisation.
        alpha: p-values below are significant.
        fail_if_worse: Exit with code 6 if a `metric` or `external` is significantly worse.
        fail_under: Exit with code 6 if a score is lower. Repeatable.
        resamples: Resampled test sets, or exchanges of `significance` ar; 0: no intervals or
            p-values.
        seed: Seed of the resamples.
    """

    title: ClassVar[str] = "Comparison and gates"

    baseline: Annotated[File, Flag(metavar="FILE|RUN|REPORT.json")] = None
    significance: Annotated[Literal["bs", "ar"] | None, Flag(shown=_BS)] = None
    alpha: Annotated[float, Flag(min=0, max=1)] = 0.05
    fail_if_worse: bool = False
    fail_under: Annotated[Texts, Flag(metavar="bleu=27,chrf=55")] = ()
    resamples: Annotated[Count, Flag(min=0, max=10**6, shown=_NUM_RESAMPLES)] = None
    seed: Annotated[int, Flag(min=0)] = DEFAULT_SEED


@dataclass(frozen=True, kw_only=True)
class AnalysisOptions(Options):
    """Where a system is weak.

    Args:
        slices: Score by length, case, rare words, overlap with training, numbers, names and alarms.
        slice_: Score parts by a label for each sentence. Repeatable.
        robustness: Translate again with typos, other case, spaces or lines: shows what is lost.
        contrastive: Source, right and wrong translation, category, with tabs: how often right is
            likelier.
    """

    title: ClassVar[str] = "Analysis"

    slices: bool = False
    slice_: Annotated[Texts, Flag(metavar="NAME=FILE")] = ()
    robustness: bool = False
    contrastive: File = None


@dataclass(frozen=True, kw_only=True)
class OutputOptions(Options):
    """What is written.

    Args:
        report: Also write the result, by the ending of FILE: .json (a later `baseline`), .md (a
            comment for a pull request), .xml (JUnit, for a CI), .html (a page). Repeatable.
        sentence_level: Print a line of JSON for each sentence instead.
        save_hypotheses: Write the model's translations here.
    """

    title: ClassVar[str] = "Output"

    report: Files = ()
    sentence_level: bool = False
    save_hypotheses: File = None
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
class SchemaOptions(Options):
    """The schema has none."""


@dataclass(frozen=True, kw_only=True)
class KeysOptions(Options):
    """Which keys to describe.

    Args:
        section: Section, such as model, or one key; all if left out.
    """

    section: Annotated[str, Flag(argument=True)] = ""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """Which configuration to print."""

    config: ConfigFile
    set_: Overrides = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """Which configurations to check.

    Args:
        configs: YAML configuration files.
    """

    configs: Annotated[Files, Flag(argument=True, metavar="CONFIG")]
    set_: Overrides = ()
