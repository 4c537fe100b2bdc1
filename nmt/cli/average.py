"""``nmt average``: checkpoints of a run -> one model."""

from __future__ import annotations

from pathlib import Path

import typer

from nmt.cli.options import JSON, OUTPUT_FOLDER, flag, print_result

EPILOG = """\b
Examples:
  nmt average runs/base -o models/base
  nmt average runs/base --best 5 -o models/base-best5
  nmt average runs/base --step 9000 --step 9500 --step 10000 -o models/base-end
  nmt translate "$(nmt average runs/base --last 5 -q -o models/base)" < in.de > out.en
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
    from nmt.recipes.export import average as write

    summary = write(run, output, last=last, best=best, steps=step)
    values = {"output": str(summary.output), "steps": list(summary.steps)}
    print_result(str(summary.output), values, json=json)
