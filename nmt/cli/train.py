"""``nmt train``: configuration -> run folder, resuming by itself."""

from __future__ import annotations

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
    """Train a translator; prepares the data if needed, and goes on where it was stopped."""
    from nmt.commands.train import train as run
    from nmt.config.loader import load_config

    overrides = [*set_, f"run_dir={run_dir}"] if run_dir is not None else set_
    summary = run(
        load_config(config, overrides), quiet=quiet, strict_resume=strict_resume, exact=exact
    )
    if json:
        print_json(summary.as_dict())
    elif not quiet:
        typer.echo(summary.as_text())
    raise typer.Exit(summary.exit_code)
