"""``nmt average`` and ``nmt export``: a run -> a model folder to hand on, or for CTranslate2."""

from __future__ import annotations

from pathlib import Path

import typer

from nmt.cli.options import (
    CHECKPOINT,
    JSON,
    MODEL,
    OUTPUT_FOLDER,
    flag,
    log_next_commands,
    print_result,
)

AVERAGE_EPILOG = """\b
Examples:
  nmt average runs/base -o models/base
  nmt average runs/base --best 5 -o models/base-best5
  nmt average runs/base --step 9000 --step 9500 --step 10000 -o models/base-end
  nmt translate "$(nmt average runs/base --last 5 -q -o models/base)" < in.de > out.en
"""
EXPORT_EPILOG = """\b
Examples:
  nmt export runs/base --to safetensors -o models/base
  nmt export runs/base --to ctranslate2 --quantization int8 -o models/base-int8
  nmt translate models/base-int8 < in.de > out.en
"""


def average(
    run: Path = typer.Argument(
        metavar="RUN", help="Run folder that `nmt train` wrote.", show_default=False
    ),
    output: Path = OUTPUT_FOLDER,
    last: int | None = flag(
        min=1,
        metavar="N",
        help="Average the N newest checkpoints, or all if there are fewer.",
        show_default="10",
    ),
    best: int | None = flag(
        min=1,
        metavar="N",
        help="Average the N checkpoints with the best validation score instead.",
        show_default=False,
    ),
    step: list[int] = flag(
        default=[], min=1, metavar="S", help="Average the checkpoint of step S. Repeatable."
    ),
    json: bool = JSON,
) -> None:
    """Average the weights of checkpoints of a run into one model.

    The mean of late checkpoints often translates better than each of them, at the same speed. Only
    checkpoints that the run has kept can be averaged: set training.keep_last (or keep_best) before
    training. FOLDER works wherever a run folder does: `nmt translate FOLDER`, `nmt evaluate
    FOLDER`. Its average.json lists the averaged checkpoints. Prints FOLDER.
    """
    from nmt.checkpoint.model_folder import load_folder_config
    from nmt.extras.exchange.export import average as write

    summary = write(run, output, last=last, best=best, steps=step)
    values = {"output": str(summary.output), "steps": list(summary.steps)}
    print_result(str(summary.output), values, json=json)
    log_next_commands(summary.output, load_folder_config(summary.output))


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
    from nmt.checkpoint.model_folder import load_folder_config
    from nmt.extras.exchange.export import export as write

    summary = write(model, output, to, quantization=quantization, checkpoint=checkpoint)
    values = {
        "output": str(summary.output),
        "to": summary.target,
        "quantization": summary.quantization,
        "step": summary.step,
        "size_bytes": summary.size_bytes,
    }
    print_result(str(summary.output), values, json=json)
    log_next_commands(summary.output, load_folder_config(summary.output))
