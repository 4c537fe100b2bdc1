"""Flags that several commands share, and what they mean."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nmt.cli.logs import configure_logging
from nmt.errors import CheckpointError, ConfigError


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
    """Read the name of a file; ``-``, which is standard input or output, is none."""
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
SetOfModel = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=_with_equals_sign,
        help="Change one key of the model's configuration, for example decoding.patience=2. "
        "Repeatable.",
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", parser=_model_folder, help="Run or model folder.", show_default=False
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="NAME", help="Of a run folder: best, last, step-N or average."
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        parser=file_or_standard,
        help="Where to write; standard output if not given, or -.",
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
BeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size",
        "-b",
        min=1,
        metavar="N",
        help="Hypotheses kept per sentence; 1 is greedy.",
        show_default="the model's",
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        min=0,
        metavar="X",
        help="Exponent of the length normalisation; higher favours longer output.",
        show_default="the model's",
    ),
]
Shortlist = Annotated[
    bool | None,
    typer.Option(
        "--shortlist/--no-shortlist",
        help="Score only the few hundred tokens that the words of a line became in the training "
        "data: faster, mostly with a wide beam or many tokens; some lines come out otherwise.",
        show_default="the model's",
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        metavar="N",
        help="Source tokens searched at once; the text does not depend on it.",
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, metavar="N", help="CPU threads.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
NoGuard = Annotated[
    bool,
    typer.Option(
        "--no-guard",
        help="Keep every translation: search none again that loops, has an odd length or leaves "
        "out too much.",
    ),
]


class Format(StrEnum):
    """How lines are read or written."""

    text = "text"
    json = "json"


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[Device, typer.Option("--device", help="Where to compute.")]


class DtypeKind(StrEnum):
    """What weights are multiplied in."""

    float32 = "float32"
    float16 = "float16"
    bf16 = "bf16"
    int8 = "int8"


DtypeOption = Annotated[
    DtypeKind,
    typer.Option(
        "--dtype",
        help="What weights are kept and multiplied in: float16 on GPUs, bf16 on hardware that "
        "computes in it, int8 with CTranslate2.",
    ),
]


def _set_level(ctx: typer.Context, parameter: Any, value: Any) -> Any:
    """Configure logging by what is known of -q and -v so far."""
    flags = ctx.meta.setdefault(_LOG_FLAGS, {})
    flags[parameter.name] = value
    configure_logging(quiet=flags.get("quiet", False), verbosity=flags.get("verbose", 0))
    return value


_LOG_FLAGS = "nmt.log_flags"
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_set_level, help="Print results, warnings and errors only."
    ),
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=_set_level,
        help="Print details and the traceback of errors; twice: what libraries log, too.",
        show_default=False,
    ),
]


def given(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given: those that are not None.

    >>> given(beam_size=1, top_k=None)
    {'beam_size': 1}
    """
    return {name: value for name, value in flags.items() if value is not None}


def decoding_changes(model: Path, overrides: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Return the decoding options that the user changes; a flag beats ``--set``.

    Args:
        model: The folder whose configuration is changed.
        overrides: Of ``--set``.
        flags: Decoding options, None where not given.

    Raises:
        ConfigError: The configuration cannot be read, not be changed so, or another section is
            to be changed.
    """
    changes = given(**flags)
    if not overrides:
        return changes
    from nmt.config.loader import load_config, refuse_idle

    # Together: one may be wrong without the other.
    both = [*overrides, *(f"decoding.{name}={json.dumps(x)}" for name, x in changes.items())]
    config = load_config(model / "config.yaml", both)
    refuse_idle(overrides, ("decoding",))
    return config.decoding.model_dump()


def make_note(quiet: bool) -> Callable[[str], None]:  # noqa: ARG001
    """Return what logs a note. To go when no callee takes a ``note`` any more."""
    return logging.getLogger("nmt").info


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))
