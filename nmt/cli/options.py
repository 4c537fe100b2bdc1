"""Flags that several commands share, and what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML configuration file.", show_default=False)
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one key of the configuration, for example batch.max_tokens=2048. Repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
NoGuard = Annotated[
    bool,
    typer.Option(
        "--no-guard",
        help="Keep every translation: search none again that loops or has an odd length.",
    ),
]


class DtypeKind(StrEnum):
    """What weights are multiplied in."""

    float32 = "float32"
    bf16 = "bf16"
    int8 = "int8"


DtypeOption = Annotated[
    DtypeKind,
    typer.Option(
        "--dtype",
        help="What weights are multiplied in: int8 is faster on a CPU, bf16 on hardware for it.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors only.")]

VERBOSE = "nmt.verbose"
"""Where the root finds out that a command was called with ``--verbose``."""


def _remember(ctx: typer.Context, wanted: bool) -> bool:
    ctx.meta[VERBOSE] = wanted
    return wanted


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=_remember, help="Show the traceback of every error too."
    ),
]


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))
