"""``nmt prepare``: corpora -> prepared folder and a report."""

from __future__ import annotations

from typing import Annotated

import typer

from nmt.cli.options import Config, Json, Quiet, Set, Verbose, print_json

EPILOG = """\b
Examples:
  nmt prepare configs/demo.yaml
  nmt prepare configs/demo.yaml --set tokenizer.vocab_size=2000 --report-only
"""


def prepare(
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Report on the text; write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Prepare again even if nothing has changed.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,  # noqa: ARG001 - its callback reads it
    verbose: Verbose = 0,  # noqa: ARG001 - the root reads it
) -> None:
    """Read, filter and cut the corpora into subwords, and report on them."""
    from nmt.config.loader import load_config
    from nmt.recipes.prepare import prepare as run

    report = run(load_config(config, set_), force=force, report_only=report_only)
    if json:
        print_json(report.as_dict())
    else:
        typer.echo(report.as_text())
