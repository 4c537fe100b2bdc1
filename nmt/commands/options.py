"""Options of the commands: first those that several share, then each command's. Loads no torch.

A class with a ``title`` is a section of the help. Those of `nmt.evaluate` have a module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from nmt.config.flag import OF_THE_MODEL, Flag, changed, file_name
from nmt.errors import CheckpointError, ConfigError
from nmt.files.lines import is_standard

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
        raise ConfigError(
            f"`set` {text}: write KEY=VALUE, as one argument.",
            fix="Put an equals sign and no space between, as in "
            f"`set` {key or 'KEY'}={value.strip() or 'VALUE'}.",
        )
    return text


def _model_folder(text: str) -> Path:
    """Read the name of a folder that holds a model.

    Raises:
        CheckpointError: It may not be read.
    """
    folder = file_name(text)
    is_seen = os.access(folder, os.F_OK) and folder.is_dir()
    if is_seen and not os.access(folder, os.R_OK | os.X_OK):
        raise CheckpointError(
            f"{folder} cannot be read: you have no permission.",
            fix="Let the model be read by you, or copy the folder again.",
        )
    return folder


ConfigFile = Annotated[Path, Flag("YAML configuration file.", argument=True)]
Model = Annotated[
    Path, Flag("Run folder or exported model folder.", argument=True, parser=_model_folder)
]
_OVERRIDE = "Change one key, as in batch.max_tokens=2048. Repeatable."
Overrides = Annotated[tuple[str, ...], Flag(_OVERRIDE, metavar="KEY=VALUE", parser=_override)]
Checkpoint = Annotated[
    str, Flag("Checkpoint of a run folder: best, last, step-N or average.", metavar="NAME")
]
_OUTPUT = "File to write; .gz, .bz2 and .xz are compressed."
OutputFile = Annotated[
    Path | None,
    Flag(_OUTPUT, short="o", parser=file_or_standard, shown_default="standard output"),
]
OutputFolder = Annotated[
    Path, Flag("Model folder to write; it must be missing or empty.", short="o", metavar="FOLDER")
]
Tag = Annotated[
    str | None,
    Flag("Tag of each source: a target language (de for <2de>) or a domain.", metavar="TAG"),
]
Threads = Annotated[int | None, Flag("CPU threads.", min=1, shown_default="all cores")]
BeamSize = Annotated[
    int | None, Flag("Beam size; 1 is greedy search.", short="b", min=1, shown_default=OF_THE_MODEL)
]
BatchTokens = Annotated[
    int | None, Flag("Source tokens of a batch.", min=1, shown_default=OF_THE_MODEL)
]
SampleSeed = Annotated[
    int | None, Flag("With `sample`: random seed.", min=0, shown_default=OF_THE_MODEL)
]
LengthPenalty = Annotated[
    float | None, Flag("Exponent of the length normalisation.", min=0, shown_default=OF_THE_MODEL)
]
Json = Annotated[bool, Flag("Print the result as one JSON object.")]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which models, and where they compute."""

    title: ClassVar[str] = "Model"

    checkpoint: Checkpoint = "best"
    device: Annotated[
        str, Flag("Device; cuda:1 is the second GPU.", metavar="[auto|cpu|cuda|cuda:N]")
    ] = "auto"
    threads: Threads = None
    with_: Annotated[
        tuple[Path, ...],
        Flag("Also search with this model of the same vocabulary. Repeatable.", metavar="MODEL2"),
    ] = ()
    weights: Annotated[
        tuple[float, ...] | None,
        Flag("Shares of all models.", separator=",", metavar="2,1,1", shown_default="equal"),
    ] = None
    ensemble_mean: Annotated[
        Literal["arithmetic", "geometric"] | None,
        Flag("Mean of probabilities or of log probabilities.", shown_default="arithmetic"),
    ] = None

    def __post_init__(self) -> None:
        if not self.with_ and self.ensemble_mean is not None:
            fix = "Add `with` MODEL2, or leave it out."
            raise ConfigError("`ensemble_mean` needs `with`.", fix=fix)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(ModelOptions):
    """Which models, where they compute, and what computes translations with them."""

    title: ClassVar[str] = "Model"

    engine: Annotated[
        str,
        Flag(
            "auto, torch or ctranslate2; auto is CTranslate2 on a CPU if it can do what is asked.",
            metavar="NAME",
        ),
    ] = "auto"
    dtype: Annotated[
        str, Flag("Weights: auto, float32, int8 (fast on CPUs), bfloat16, float16.", metavar="TYPE")
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How translations are searched for."""

    title: ClassVar[str] = "Search"

    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    shortlist: Annotated[
        bool | None, Flag("Score only likely words, which is faster.", shown_default=OF_THE_MODEL)
    ] = None
    batch_tokens: BatchTokens = None
    no_guard: Annotated[
        bool, Flag("Do not retry translations that look degenerate (loops, odd length).")
    ] = False
    no_split: Annotated[
        bool, Flag("Translate lines whole that are longer than those of training.")
    ] = False
    set_: Overrides = ()

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        return given(self, "beam_size", "length_penalty", "shortlist", "batch_tokens")


@dataclass(frozen=True, kw_only=True)
class MbrOptions:
    """Minimum Bayes risk decoding."""

    title: ClassVar[str] = "Minimum Bayes risk decoding"

    mbr: Annotated[
        Literal["chrf", "bleu"] | None, Flag("Minimum Bayes risk decoding with this utility.")
    ] = None
    mbr_candidates: Annotated[
        int | None, Flag("With `mbr`: candidates per sentence.", min=2, shown_default="32")
    ] = None
    mbr_from: Annotated[
        Literal["samples", "beam"] | None,
        Flag("With `mbr`: take candidates from samples or from a beam.", shown_default="samples"),
    ] = None


def given(options: Any, *names: str) -> dict[str, Any]:
    """Return those of these options that were given: that are not None."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """How to prepare, whatever the configuration; training prepares with the defaults."""

    report_only: Annotated[bool, Flag("Print the report; write only `report`.")] = False
    report: Annotated[
        Path | None, Flag("Folder for report.json, report.html and lists of pairs.", metavar="DIR")
    ] = None
    force: Annotated[bool, Flag("Prepare again even if nothing has changed.")] = False
    workers: Annotated[
        int | None, Flag("Processes; the output is the same.", min=1, shown_default="this process")
    ] = None
    scheduler: Annotated[
        str | None,
        Flag("Work through Dask: its address, or local to start it.", metavar="local|ADDRESS"),
    ] = None
    score_with: Annotated[
        tuple[Path, ...],
        Flag("Score pairs by two models, one a direction.", separator=",", metavar="RUN,RUN"),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(PreparationOptions):
    """Which experiment to prepare, and how."""

    config: ConfigFile
    verify: Annotated[bool, Flag("Only compare the prepared folder with its manifest.")] = False
    set_: Overrides = ()
    json: Json = False

    def __post_init__(self) -> None:
        names = ("report_only", "report", "force", "workers", "scheduler", "score_with")
        if self.verify and (others := changed(self, *names)):
            problem = f"`verify` only reads the folder, so `{others[0]}` has no effect."
            raise ConfigError(problem, fix=f"Leave `{others[0]}` out.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train, and how to go on."""

    config: ConfigFile
    set_: Overrides = ()
    run_dir: Annotated[
        Path | None, Flag("Run folder, instead of the configuration's.", metavar="FOLDER")
    ] = None
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


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Which checkpoints of a run to average."""

    run: Annotated[Path, Flag("Run folder that `nmt train` wrote.", argument=True)]
    output: OutputFolder
    last: Annotated[
        int | None, Flag("Average the N newest checkpoints, or all.", min=1, shown_default="10")
    ] = None
    best: Annotated[
        int | None, Flag("Average the N checkpoints with the best validation score instead.", min=1)
    ] = None
    step: Annotated[
        tuple[int, ...], Flag("Average the checkpoint of step S. Repeatable.", min=1, metavar="S")
    ] = ()
    json: Json = False

    def __post_init__(self) -> None:
        names = changed(self, "last", "best", "step")
        if len(names) > 1:
            problem = f"`{'` and `'.join(names)}` choose checkpoints in different ways."
            raise ConfigError(problem, fix="Give one of them.")
        if twice := sorted({step for step in self.step if self.step.count(step) > 1}):
            raise ConfigError(
                f"`step` {', '.join(map(str, twice))} is given more than once.",
                fix="Name every checkpoint once: all have the same weight in the mean.",
            )


@dataclass(frozen=True, kw_only=True)
class AugmentOptions:
    """Which text to translate, and how."""

    text: Annotated[Path, Flag("Lines of one language; may be compressed.", argument=True)]
    with_: Annotated[Path, Flag("Model that translates them.", metavar="MODEL")]
    output: Annotated[Path, Flag("Folder to make.", short="o", metavar="FOLDER")]
    forward: Annotated[bool, Flag("The text is the source of the new corpus, not the target.")] = (
        False
    )
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

_FORMAT = "Output plain text, or one JSON object per line."

_INPUT_FORMAT = (
    'Input plain text, or JSON objects such as {"source": ..., "prefix": ..., "required": [...], '
    '"forbidden": [...], "tag": ...}. A required phrase may get an ending (Tokyos). Other fields '
    "pass through to JSON output, except those that have the name of a field of the output."
)

_N_BEST = "Translations per line; several are written as `number ||| text ||| score`."

_MIN_CONFIDENCE = (
    "Mark lines whose confidence, the expected chrF from 0 to 100, is below X: in text by "
    "` ||| low confidence` behind them, in JSON by `low_confidence`: true."
)

_TEMPERATURE = "With `sample`: softmax temperature; below 1 sharpens the distribution."

_TOP_P = "With `sample`: nucleus sampling, from the fewest tokens of this probability together."

_TOP_K = "With `sample`: sample from the K most probable tokens; 0 for all."


@dataclass(frozen=True, kw_only=True)
class LineOptions:
    """How lines are read and written."""

    title: ClassVar[str] = "Input and output"

    input: Annotated[
        Path | None,
        Flag(_INPUT, short="i", parser=file_or_standard, shown_default="standard input"),
    ] = None
    output: OutputFile = None
    format: Annotated[Format, Flag(_FORMAT, metavar="[text|json]", parser=format_name)] = "text"
    input_format: Annotated[
        Format, Flag(_INPUT_FORMAT, metavar="[text|json]", parser=format_name)
    ] = "text"
    n_best: Annotated[int | None, Flag(_N_BEST, min=1, shown_default=OF_THE_MODEL)] = None
    alignments: Annotated[
        bool, Flag("Add word alignments in Pharaoh format (`0-0 1-2`), by attention.")
    ] = False
    attention: Annotated[
        bool, Flag("In JSON output: add the attention of each target word to each source word.")
    ] = False
    token_scores: Annotated[
        bool, Flag("In JSON output: add every token with its natural-log probability.")
    ] = False
    min_confidence: Annotated[float | None, Flag(_MIN_CONFIDENCE)] = None
    stream: Annotated[bool, Flag("Translate every line before reading the next one.")] = False
    tag: Tag = None

    @property
    def outputs(self) -> frozenset[str]:
        """Return what is asked for besides texts and scores."""
        return frozenset(name for name in _OUTPUTS if getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How translations are sampled."""

    title: ClassVar[str] = "Sampling"

    sample: Annotated[
        bool, Flag("Draw `n_best` translations from the model's distribution; do not search.")
    ] = False
    temperature: Annotated[float | None, Flag(_TEMPERATURE, shown_default=OF_THE_MODEL)] = None
    top_p: Annotated[float | None, Flag(_TOP_P, metavar="P", shown_default=OF_THE_MODEL)] = None
    top_k: Annotated[int | None, Flag(_TOP_K, min=0, metavar="K", shown_default=OF_THE_MODEL)] = (
        None
    )
    seed: SampleSeed = None


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(LineOptions, SearchOptions, SamplingOptions, MbrOptions, EngineOptions):
    """Which lines to translate, with which model, and how they are written."""

    model: Model
    file: Annotated[Path | None, Flag("Text to translate, instead of `input`.", argument=True)] = (
        None
    )

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
    """Which pairs to score, and how scores are written."""

    model: Model
    source: Annotated[
        Path | None, Flag("Source lines. Without files, standard input has source<TAB>target.")
    ] = None
    target: Annotated[Path | None, Flag("Translations, line by line.")] = None
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


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """The schema has none."""


@dataclass(frozen=True, kw_only=True)
class KeysOptions:
    """Which keys to describe."""

    section: Annotated[
        str, Flag("Section, such as model, or one key; all if left out.", argument=True)
    ] = ""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Which configuration to print."""

    config: ConfigFile
    set_: Overrides = ()


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Which configurations to check."""

    configs: Annotated[
        tuple[Path, ...], Flag("YAML configuration files.", argument=True, metavar="CONFIG")
    ]
    set_: Overrides = ()
