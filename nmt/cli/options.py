"""Flags that several commands share: arguments, groups of options, and how they reach a command.

A command is a function whose parameters are flags or groups of flags (dataclasses with a
``title``); `command` registers it with one flag for each field, and adds ``-q`` and ``-v``.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    get_args,
    get_type_hints,
)

import typer
from typer.core import TyperCommand
from typing_extensions import override

from nmt.cli.logs import configure_logging
from nmt.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from nmt.runtime.engine import Ensemble
    from nmt.translation.mbr import MbrChoice

_LOG_FLAGS = "nmt.log_flags"


def _with_equals_sign(overrides: list[str]) -> list[str]:
    """Refuse ``--set KEY VALUE`` before the value is taken for an argument too many."""
    bad = [text for text in overrides if "=" not in text]
    if bad:
        raise ConfigError(
            f"--set {bad[0]}: write KEY=VALUE, as one argument.",
            fix=f"Put an equals sign and no space between, as in --set {bad[0]}=VALUE.",
        )
    return overrides


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


def _dtype(text: str) -> str:
    """Read the name of a dtype; bf16 and fp16 are other names.

    Raises:
        ConfigError: There is none of this name.
    """
    from nmt.runtime.engine import parse_dtype

    return parse_dtype(text) or "auto"


def _set_level(ctx: typer.Context, parameter: Any, value: Any) -> Any:
    """Configure logging by what is known of -q and -v so far."""
    flags = ctx.meta.setdefault(_LOG_FLAGS, {})
    flags[parameter.name] = value
    configure_logging(quiet=flags.get("quiet", False), verbosity=flags.get("verbose", 0))
    return value


def log_flags(ctx: typer.Context) -> list[str]:
    """Return the flags by which another process logs as this one does."""
    flags = ctx.meta.get(_LOG_FLAGS, {})
    return ["-q"] * bool(flags.get("quiet")) + ["-v"] * flags.get("verbose", 0)


Format = Literal["text", "json"]
"""How lines are read or written."""


def of_model(**settings: Any) -> Any:
    """Return an option whose default is in the model's configuration."""
    return typer.Option(show_default="the model's", **settings)


def flag(*names: str, default: Any = None, **settings: Any) -> Any:
    """Return a field of an option group.

    Args:
        names: Of the flag; as the field is called when none are given.
        default: None, unless shown otherwise, for what the model's configuration says.
        settings: Of `typer.Option`.
    """
    if default is None:
        settings.setdefault("show_default", "the model's")
    option = {"option": typer.Option(*names, **settings)}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=option)
    return field(default=default, metadata=option)


Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", parser=file_name, help="YAML configuration file.", show_default=False
    ),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=_with_equals_sign,
        help="Change one key of the configuration, for example batch.max_tokens=2048. Repeatable.",
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        parser=_model_folder,
        help="Run folder or exported model folder.",
        show_default=False,
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(metavar="NAME", help="Checkpoint of a run folder: best, last, step-N or average."),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        parser=file_or_standard,
        help="File to write, compressed if its name ends in .gz, .bz2 or .xz.",
        show_default="standard output",
    ),
]
OutputFolder = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="FOLDER",
        help="Model folder to write; it must be missing or empty.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
_Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_set_level, help="Print results, warnings and errors only."
    ),
]
_Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=_set_level,
        help="Print details, and the traceback of errors; -vv: log messages of libraries, too.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which models, and where they compute."""

    title: ClassVar[str] = "Model"

    checkpoint: Checkpoint = "best"
    device: Literal["auto", "cpu", "cuda"] = flag(default="auto", help="Device to compute on.")
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
        from nmt.runtime.engine import Ensemble, parse_weights

        mean = self.ensemble_mean or "arithmetic"
        ensemble = Ensemble(tuple(self.with_), parse_weights(self.weights), mean)
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
class EngineOptions:
    """What computes a translation."""

    title: ClassVar[str] = "Model"

    engine: Literal["auto", "torch", "ctranslate2"] = flag(
        default="auto",
        help="auto: CTranslate2 on a CPU if it is installed and has all that is asked for, "
        "otherwise torch; -v says which and why.",
    )
    dtype: str = flag(
        default="auto",
        metavar="TYPE",
        parser=_dtype,
        help="Type of the weights: auto (float32), float32, int8 (CTranslate2; fastest on CPUs), "
        "bfloat16 (hardware that computes in it), float16 (GPUs).",
    )

    def loading(self) -> dict[str, Any]:
        """Return the arguments by which a model is loaded."""
        return {"engine": self.engine, "dtype": self.dtype}


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
    set_: list[str] = flag(
        "--set",
        default=[],
        metavar="KEY=VALUE",
        callback=_with_equals_sign,
        help="Change one key of the model's configuration, for example decoding.patience=2. "
        "Repeatable.",
    )

    def decoding(self) -> dict[str, Any]:
        """Return the decoding options that were given."""
        return given(
            beam_size=self.beam_size,
            length_penalty=self.length_penalty,
            shortlist=self.shortlist,
            batch_tokens=self.batch_tokens,
        )


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

    def choice(self, beam_size: int | None) -> MbrChoice | None:
        """Return what the flags ask for; None without ``--mbr``.

        Raises:
            ConfigError: A beam size was given too, or the others without ``--mbr``.
        """
        if self.mbr is None:
            if self.mbr_candidates is not None or self.mbr_from is not None:
                flag = "--mbr-from" if self.mbr_candidates is None else "--mbr-candidates"
                raise ConfigError(f"{flag} needs --mbr.", fix="Add --mbr chrf, or leave it out.")
            return None
        from nmt.translation.mbr import MbrChoice

        choice = MbrChoice(self.mbr, self.mbr_candidates or 32, self.mbr_from or "samples")
        if beam_size is not None:
            raise ConfigError(
                f"--beam-size {beam_size} does not go with --mbr, which compares "
                f"{choice.num_candidates} candidates.",
                fix="Leave --beam-size out, and set --mbr-candidates.",
            )
        return choice


class Command(TyperCommand):
    """A command whose help lists options by group."""

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None)
                title = "Arguments" if is_argument else panel or "General"
                sections.setdefault(title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def command(app: typer.Typer, epilog: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a command, with a flag for each field of its groups."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(epilog=epilog, cls=Command)(_with_flags(function))
        return function

    return register


def _with_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function`` with parameters for the fields of its option groups, and -q and -v."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if is_dataclass(kind):
            groups[name] = kind
            parameters += _flags_of(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))
    for name, kind, default in (("quiet", _Quiet, False), ("verbose", _Verbose, 0)):
        parameters.append(_parameter(name, kind, default))

    @wraps(function)
    def call(**values: Any) -> None:
        del values["quiet"], values["verbose"]  # their callbacks have done it
        for name, group in groups.items():
            values[name] = group(**{x.name: values.pop(x.name) for x in fields(group)})
        function(**values)

    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _flags_of(group: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a group, shown in help under its title."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        kind, option = hints[each.name], each.metadata.get("option")
        if option is None:
            kind, option = get_args(kind)
        option = copy(option)
        option.rich_help_panel = group.title
        if default is False and not option.param_decls:  # without --no-...
            option.param_decls = (f"--{each.name.replace('_', '-')}",)
        yield _parameter(each.name, Annotated[kind, option], default)


def given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given: those that are not None.

    >>> given(beam_size=1, top_k=None)
    {'beam_size': 1}
    """
    return {name: value for name, value in flags.items() if value is not None}


def given_flags(ctx: typer.Context, *groups: Any) -> list[str]:
    """Return the flags of option groups, or with these names, that were given to the command."""
    names = {
        name
        for group in groups
        for name in ([group] if isinstance(group, str) else [x.name for x in fields(group)])
    }
    return [
        max(parameter.opts, key=len)
        for parameter in ctx.command.params
        if parameter.name in names
        and getattr(ctx.get_parameter_source(parameter.name), "name", "") == "COMMANDLINE"
    ]


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))
