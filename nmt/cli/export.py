"""``nmt export``: a run -> a model folder to hand on, or one for CTranslate2."""

from __future__ import annotations

from pathlib import Path

import typer

from nmt.cli.options import CHECKPOINT, JSON, MODEL, OUTPUT_FOLDER, flag, print_result

EPILOG = """\b
Examples:
  nmt export runs/base --to safetensors -o models/base
  nmt export runs/base --to ctranslate2 --quantization int8 -o models/base-int8
  nmt translate models/base-int8 < in.de > out.en
"""


def export(
    model: Path = MODEL,
    to: str = typer.Option(
        ...,
        metavar="TARGET",
        help="safetensors: the model alone, for nmt. ctranslate2: for CTranslate2, which "
        "translates faster on CPUs.",
        show_default=False,
    ),
    output: Path = OUTPUT_FOLDER,
    quantization: str | None = flag(
        metavar="TYPE",
        help="Type of the weights. ctranslate2 has float32, float16, bfloat16, int16, int8, "
        "int8_float32, int8_float16 and int8_bfloat16; int8 is smallest and fastest on CPUs.",
        show_default="float32",
    ),
    checkpoint: str = CHECKPOINT,
    json: bool = JSON,
) -> None:
    """Write a model as a folder that is complete in itself.

    FOLDER holds weights, configuration, tokenizer, a manifest with the hash of every file, and a
    model card (README.md). It works wherever a run folder does: `nmt translate
    FOLDER`, `nmt evaluate FOLDER`. Prints FOLDER.
    """
    from nmt.recipes.export import export as write

    summary = write(model, output, to, quantization=quantization, checkpoint=checkpoint)
    values = {
        "output": str(summary.output),
        "to": summary.target,
        "quantization": summary.quantization,
        "step": summary.step,
        "size_bytes": summary.size_bytes,
    }
    print_result(str(summary.output), values, json=json)
