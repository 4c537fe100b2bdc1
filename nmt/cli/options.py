"""Flags that several commands share: arguments, groups of options, and what they mean.

A command is a function whose parameters have flags as defaults, or are groups of flags (dataclasses
with a ``title``). `nmt.cli.app` makes a command of it, with one flag for each field of its groups.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import typer

from nmt.config.flag import OF_THE_MODEL
from nmt.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from nmt.config.run import RunConfig
    from nmt.inference.mbr import Mbr
    from nmt.inference.options import Ensemble

logger = logging.getLogger(__name__)

Format = Literal["text", "json"]  # How lines are read or written.


def flag(*names: str, default: Any = None, **settings: Any) -> Any:
    """Return an option: the default of a command's parameter, or of a field of an option group.

    Args:
        names: Of the flag; as the parameter is called when none are given.
        default: None, unless shown otherwise, for what the model's configuration says.
        settings: Of `typer.Option`.
    """
    if default is None:
        settings.setdefault("show_default", OF_THE_MODEL)
    return typer.Option(default, *names, **settings)


def _with_equals_sign(overrides: list[str]) -> list[str]:
    """Refuse ``--set KEY VALUE`` before the value is taken for an argument too many."""
    bad = [text for text in overrides if "=" not in text]
    if bad:
        raise ConfigError(
            f"--set {bad[0]}: write KEY=VALUE, as one argument.",
            fix=f"Put an equals sign and no space between, as in --set {_with_value(bad[0])}.",
        )
    return overrides


def _with_value(text: str) -> str:
    key, _, value = text.partition(":")
    return shlex.quote(f"{key or 'KEY'}={value.strip() or 'VALUE'}")


def file_name(text: str) -> Path:
    """Read the name of a file, which is opened, and checked, by whoever needs it.

    Raises:
        BadParameter: It is empty, which would name the working directory.
    """
    if not text:
        raise typer.BadParameter("the name is empty. Is a variable of the shell not set?")
    return Path(text)


def file_or_standard(text: str) -> Path | None:
    """Read the name of a file; ``-``, which is standard input or output, gives None."""
    return None if text == "-" else file_name(text)


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


def _device(text: str) -> str:
    """Read the name of a device; ``gpu`` is ``cuda``.

    Raises:
        ConfigError: There is none of this name.
    """
    if text == "auto":  # the default loads nothing
        return text
    from nmt.inference.options import parse_device

    return parse_device(text)


def format_name(text: str) -> str:
    """Read the name of a format of lines; ``jsonl`` is ``json``.

    Raises:
        BadParameter: There is none of this name.
    """
    name = "json" if text == "jsonl" else text
    if name not in get_args(Format):
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(get_args(Format))}.")
    return name


def dtype_name(text: str) -> str:
    """Read the name of a dtype; bf16, fp16 and half are other names.

    Raises:
        ConfigError: There is none of this name.
    """
    if text == "auto":
        return text
    from nmt.inference.options import parse_dtype

    return parse_dtype(text) or "auto"


CONFIG: Any = typer.Argument(
    metavar="CONFIG", parser=file_name, help="YAML configuration file.", show_default=False
)
MODEL: Any = typer.Argument(
    metavar="MODEL",
    parser=_model_folder,
    help="Run folder or exported model folder.",
    show_default=False,
)
SET: Any = flag(
    "--set",
    default=[],
    metavar="KEY=VALUE",
    callback=_with_equals_sign,
    help="Change one key of the configuration, for example batch.max_tokens=2048. Repeatable.",
)
CHECKPOINT: Any = flag(
    default="best",
    metavar="NAME",
    help="Checkpoint of a run folder: best, last, step-N or average.",
)
OUTPUT_FILE: Any = flag(
    "-o",
    "--output",
    metavar="FILE",
    parser=file_or_standard,
    help="File to write, compressed if its name ends in .gz, .bz2 or .xz.",
    show_default="standard output",
)
OUTPUT_FOLDER: Any = typer.Option(
    ...,
    "-o",
    "--output",
    metavar="FOLDER",
    help="Model folder to write; it must be missing or empty.",
    show_default=False,
)
TAG: Any = flag(
    metavar="TAG",
    help="What sources begin with, if the model was trained with tags: a target language (de for "
    "<2de>) or a domain.",
    show_default=False,
)
JSON: Any = flag("--json", default=False, help="Print the result as one JSON object.")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which models, and where they compute."""

    title: ClassVar[str] = "Model"

    checkpoint: str = CHECKPOINT
    device: str = flag(
        default="auto",
        metavar="[auto|cpu|cuda|cuda:N]",
        parser=_device,
        help="Device to compute on; cuda is the first GPU, cuda:1 the second.",
    )
    threads: int | None = flag(min=1, metavar="N", help="CPU threads.", show_default="all cores")
    with_: list[Path] = flag(
        "--with",
        default=[],
        metavar="MODEL2",
        help="Another model with the same languages and vocabulary; the predictions of all models "
        "are averaged (ensemble). Repeatable.",
    )
    weights: str | None = flag(
        metavar="W,W,...",
        help="Weights of MODEL and of each --with, as in 2,1,1.",
        show_default="equal",
    )
    ensemble_mean: Literal["arithmetic", "geometric"] | None = flag(
        help="Average probabilities (arithmetic) or log probabilities (geometric).",
        show_default="arithmetic",
    )

    def ensemble(self) -> Ensemble | None:
        """Return the other models; None without them and without weights.

        Raises:
            ConfigError: The weights are wrong, or not as many as the models; or a mean of one model
                is asked for.
        """
        if not self.with_ and self.ensemble_mean is not None:
            raise ConfigError(
                "--ensemble-mean needs --with.", fix="Add --with MODEL2, or leave it out."
            )
        if not self.with_ and self.weights is None:
            return None
        from nmt.inference.options import Ensemble

        mean = self.ensemble_mean or "arithmetic"
        ensemble = Ensemble(
            tuple(self.with_),
            tuple(map(float, (self.weights or "").split(","))) if self.weights else (),
            mean,
        )
        ensemble.shares()  # before anything slow is loaded
        return ensemble

    def loading(self) -> dict[str, Any]:
        """Return the arguments by which a model is loaded."""
        return {
            "checkpoint": self.checkpoint,
            "device": self.device,
            "threads": self.threads,
            "ensemble": self.ensemble(),
        }


@dataclass(frozen=True, slots=True)
class EngineOptions(ModelOptions):
    """Which models, where they compute, and what computes translations with them."""

    engine: Literal["auto", "torch", "ctranslate2"] = flag(
        default="auto",
        help="auto: CTranslate2 on a CPU if it is installed and has all that is asked for, "
        "otherwise torch; -v says which and why.",
    )
    dtype: str = flag(
        default="auto",
        metavar="TYPE",
        parser=dtype_name,
        help="Type of the weights: auto (float32; on a GPU 16 bits), float32, int8 (CTranslate2; "
        "fastest on CPUs), bfloat16 (hardware that computes in it), float16 (GPUs).",
    )

    def loading(self) -> dict[str, Any]:
        """Return the arguments by which a model is loaded."""
        return ModelOptions.loading(self) | {"engine": self.engine, "dtype": self.dtype}


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How translations are searched for."""

    title: ClassVar[str] = "Search"

    beam_size: int | None = flag(
        "--beam-size", "-b", min=1, metavar="N", help="Beam size; 1 is greedy search."
    )
    length_penalty: float | None = flag(
        min=0,
        metavar="X",
        help="Exponent of the length normalisation; higher favours longer translations.",
    )
    shortlist: bool | None = flag(
        "--shortlist/--no-shortlist",
        help="Score only the target tokens that the source words were translated to in the "
        "training data. Faster; a few translations differ.",
    )
    batch_tokens: int | None = flag(
        min=1, metavar="N", help="Source tokens of a batch; translations do not depend on it."
    )
    no_guard: bool = flag(
        default=False,
        help="Do not retry translations that look degenerate (loops, odd length, low coverage).",
    )
    no_split: bool = flag(
        default=False,
        help="Translate lines whole that are longer than those of training, instead of in "
        "segments; not with learned positions.",
    )
    set_: list[str] = flag(
        "--set",
        default=[],
        metavar="KEY=VALUE",
        callback=_with_equals_sign,
        help="Change one key of the model's configuration, for example decoding.patience=2. "
        "Repeatable.",
    )

    def loading(self) -> dict[str, Any]:
        """Return the arguments by which a model is loaded."""
        return {"guard": not self.no_guard, "split": not self.no_split}

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        names = ("beam_size", "length_penalty", "shortlist", "batch_tokens")
        return given(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class MbrOptions:
    """Minimum Bayes risk decoding."""

    title: ClassVar[str] = "Minimum Bayes risk decoding"

    mbr: Literal["chrf", "bleu"] | None = flag(
        help="Minimum Bayes risk decoding with this utility.", show_default=False
    )
    mbr_candidates: int | None = flag(
        min=2, metavar="N", help="With --mbr: candidates per sentence.", show_default="32"
    )
    mbr_from: Literal["samples", "beam"] | None = flag(
        help="With --mbr: take candidates from samples or from a beam.", show_default="samples"
    )

    def choice(self, beam_size: int | None) -> Mbr | None:
        """Return what the flags ask for; None without ``--mbr``.

        Raises:
            ConfigError: A beam size was given too, or the others without ``--mbr``.
        """
        if self.mbr is None:
            if self.mbr_candidates is not None or self.mbr_from is not None:
                flag = "--mbr-from" if self.mbr_candidates is None else "--mbr-candidates"
                raise ConfigError(f"{flag} needs --mbr.", fix="Add --mbr chrf, or leave it out.")
            return None
        from nmt.inference.mbr import Mbr

        choice = Mbr(self.mbr, self.mbr_candidates or 32, self.mbr_from or "samples")
        if beam_size is not None:
            raise ConfigError(
                f"--beam-size {beam_size} does not go with --mbr, which compares "
                f"{choice.num_candidates} candidates.",
                fix="Leave --beam-size out, and set --mbr-candidates.",
            )
        return choice


def given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given: those that are not None.

    >>> given(beam_size=1, top_k=None)
    {'beam_size': 1}
    """
    return {name: value for name, value in flags.items() if value is not None}


def given_flags(ctx: typer.Context, *groups: Any) -> list[str]:
    """Return the flags of option groups, or with these names, that were given to the command."""
    names: set[str] = set()
    for group in groups:
        names |= {group} if isinstance(group, str) else {x.name for x in fields(group)}
    return [
        max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if parameter.name in names
        and getattr(ctx.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]


def print_result(text: str, values: Mapping[str, Any], *, json: bool) -> None:
    """Print a result on standard output: its text, or its values as one line of JSON."""
    typer.echo(dumps(values, ensure_ascii=False) if json else text)


def log_next_commands(folder: Path, config: RunConfig) -> None:
    """Say what a new model is for: the commands to type next."""
    name = shlex.quote(str(folder))
    tested = f"nmt evaluate {name}, " if config.data.test else ""
    logger.info("next: %snmt translate %s -i FILE -o FILE", tested, name)
