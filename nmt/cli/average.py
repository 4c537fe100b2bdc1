"""``nmt average``: checkpoints of a run -> one model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import Json, OutputFolder, print_json

EPILOG = """\b
Examples:
  nmt average runs/base -o models/base
  nmt average runs/base --best 5 -o models/base-best5
  nmt average runs/base --step 9000 --step 9500 --step 10000 -o models/base-end
  nmt translate "$(nmt average runs/base --last 5 -q -o models/base)" < in.de > out.en
"""


def average(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder that `nmt train` wrote.", show_default=False
        ),
    ],
    output: OutputFolder,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Average the N newest checkpoints, or all if there are fewer.",
            show_default="10",
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Average the N checkpoints with the best validation score instead.",
        ),
    ] = None,
    step: Annotated[
        list[int],
        typer.Option(min=1, metavar="S", help="Average the checkpoint of step S. Repeatable."),
    ] = [],  # noqa: B006 - read only, and typer wants the list here
    json: Json = False,
) -> None:
    """Average the weights of checkpoints of a run into one model.

    The mean of late checkpoints often translates better than each of them, at the same speed. Only
    checkpoints that the run has kept can be averaged: set training.keep_last (or keep_best) before
    training. FOLDER works wherever a run folder does: `nmt translate FOLDER`, `nmt evaluate
    FOLDER`. Its average.json lists the averaged checkpoints. Prints FOLDER.
    """
    from nmt.recipes.export import average as write

    summary = write(run, output, last=last, best=best, steps=step)
    if json:
        print_json({"output": str(summary.output), "steps": list(summary.steps)})
    else:
        typer.echo(str(summary.output))
