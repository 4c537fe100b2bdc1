"""``nmt export``: a run -> a model folder to hand on, or one for CTranslate2."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Annotated

import typer

from nmt.cli.options import Checkpoint, Json, Model, OutputFolder, print_json

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
    model: Model,
    to: Annotated[
        Target,
        typer.Option(
            help="safetensors: the model alone, for nmt. ctranslate2: for CTranslate2, which "
            "translates faster on CPUs.",
            show_default=False,
        ),
    ],
    output: OutputFolder,
    quantization: Annotated[
        Quantization,
        typer.Option(
            help="Type of the weights of --to ctranslate2; int8 is smallest and fastest on CPUs."
        ),
    ] = Quantization.float32,
    checkpoint: Checkpoint = "best",
    json: Json = False,
) -> None:
    """Write a model as a folder that is complete in itself.

    FOLDER holds weights, configuration, tokenizer, a manifest with the hash of every file, and a
    model card (README.md). It works wherever a run folder does: `nmt translate
    FOLDER`, `nmt evaluate FOLDER`. Prints FOLDER.
    """
    from nmt.recipes.export import export as write

    summary = write(
        model,
        output,
        to.value,
        quantization=quantization.value,
        checkpoint=checkpoint,
        note=logging.getLogger(__name__).info,
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
