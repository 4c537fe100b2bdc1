"""Options that several commands share, as classes to inherit from. Loads no torch.

A class with a ``title`` is a section of the help.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from nmt.config.flag import OF_THE_MODEL, Flag, file_name
from nmt.errors import CheckpointError, ConfigError

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
