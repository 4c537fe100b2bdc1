"""``nmt train``: configuration -> run folder, resuming by itself."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import Config, Json, Quiet, Set, Verbose, print_json

EPILOG = """\b
Examples:
  nmt train configs/demo.yaml
  nmt train configs/demo.yaml --set training.max_minutes=10 --run-dir runs/longer
"""


def train(
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder of the run, instead of the configuration's.")
    ] = None,
    strict_resume: Annotated[
        bool,
        typer.Option("--strict-resume", help="Fail if the newest checkpoint is damaged."),
    ] = False,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Refuse to resume where the result could differ by a bit."),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,  # noqa: ARG001 - the root reads it
) -> None:
    """Train a translator; prepares the data if needed, and goes on where it was stopped.

    SIGINT and SIGTERM let the update finish, save, and exit with 130 or 143.
    """
    from nmt.commands.train import train as run
    from nmt.config.loader import load_config

    # Quoted, so that YAML takes any path as text.
    overrides = set_ if run_dir is None else [*set_, f"run_dir={dumps(str(run_dir))}"]
    resolved = load_config(config, overrides)
    summary = run(resolved, quiet=quiet, strict_resume=strict_resume, exact=exact)
    folder = resolved.run_dir
    if json:
        print_json({"run_dir": str(folder), **asdict(summary)})
    elif not quiet:
        best = "none" if summary.best_step is None else f"step {summary.best_step:,}"
        score = "" if summary.best_score is None else f" ({summary.best_score:.2f})"
        typer.echo(f"{folder}: {summary.step:,} steps; best checkpoint: {best}{score}")
