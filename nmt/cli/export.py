"""``nmt export``: a run -> a model folder to hand on, or one for CTranslate2."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import Json, Quiet, Verbose, print_json

EPILOG = """\b
Examples:
  nmt export runs/base --to safetensors -o models/base
  nmt export runs/base --to ctranslate2 --quantization int8 -o models/base-int8
  nmt translate models/base-int8 < in.de > out.en
"""


class Target(StrEnum):
    """What the folder is for."""

    safetensors = "safetensors"
    ctranslate2 = "ctranslate2"


class Quantization(StrEnum):
    """Type of the weights, by CTranslate2's name."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int16 = "int16"
    int8 = "int8"
    int8_float32 = "int8_float32"
    int8_float16 = "int8_float16"
    int8_bfloat16 = "int8_bfloat16"


def export(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Run or model folder.", show_default=False),
    ],
    to: Annotated[
        Target,
        typer.Option(
            help="safetensors: the model alone, for this program. ctranslate2: for CTranslate2, "
            "which translates faster on CPUs.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Model folder to write; it must be missing or empty.",
            show_default=False,
        ),
    ],
    quantization: Annotated[
        Quantization,
        typer.Option(
            help="Type of the weights of --to ctranslate2; int8 is smallest and fastest on CPUs."
        ),
    ] = Quantization.float32,
    checkpoint: Annotated[
        str, typer.Option(help="best, last, step-N or average of a run folder.")
    ] = "best",
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,  # noqa: ARG001 - the root reads it
) -> None:
    """Write a model as a folder that is complete in itself.

    FOLDER holds weights, configuration, tokenizer, a manifest with the hash of every file, and a
    README that tells what the model is. It works wherever a run folder does: `nmt translate
    FOLDER`, `nmt evaluate FOLDER`. Prints FOLDER.
    """
    from nmt.commands.export import export as write

    def note(text: str) -> None:
        if not quiet:
            typer.echo(f"note: {text}", err=True)

    summary = write(
        model,
        output,
        to.value,
        quantization=quantization.value,
        checkpoint=checkpoint,
        note=note,
    )
    if json:
        print_json(
            {
                "output": str(summary.output),
                "to": summary.target,
                "quantization": summary.quantization,
                "step": summary.step,
                "size_bytes": summary.size_bytes,
            }
        )
    else:
        typer.echo(str(summary.output))
