"""``nmt export``: a run -> a model folder to hand on, or one for CTranslate2."""

from __future__ import annotations

from typing import Annotated

import typer

from nmt.cli.options import Checkpoint, Json, Model, OutputFolder, print_json

EPILOG = """\b
Examples:
  nmt export runs/base --to safetensors -o models/base
  nmt export runs/base --to ctranslate2 --quantization int8 -o models/base-int8
  nmt translate models/base-int8 < in.de > out.en
"""


def export(
    model: Model,
    to: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="safetensors: the model alone, for nmt. ctranslate2: for CTranslate2, which "
            "translates faster on CPUs.",
            show_default=False,
        ),
    ],
    output: OutputFolder,
    quantization: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Type of the weights. ctranslate2 has float32, float16, bfloat16, int16, int8, "
            "int8_float32, int8_float16 and int8_bfloat16; int8 is smallest and fastest on CPUs.",
            show_default="float32",
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    json: Json = False,
) -> None:
    """Write a model as a folder that is complete in itself.

    FOLDER holds weights, configuration, tokenizer, a manifest with the hash of every file, and a
    model card (README.md). It works wherever a run folder does: `nmt translate
    FOLDER`, `nmt evaluate FOLDER`. Prints FOLDER.
    """
    from nmt.recipes.export import export as write

    summary = write(model, output, to, quantization=quantization, checkpoint=checkpoint)
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
