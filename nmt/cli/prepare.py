"""``nmt prepare``: corpora -> prepared folder and a report."""

from __future__ import annotations

from typing import Annotated

import typer

from nmt.cli.options import Config, Json, Set, print_json

EPILOG = """\b
Examples:
  nmt prepare configs/demo.yaml
  nmt prepare configs/demo.yaml --set tokenizer.vocab_size=2000 --report-only
"""


def prepare(
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Print the report; write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Prepare again even if nothing has changed.")
    ] = False,
    json: Json = False,
) -> None:
    """Read, filter and tokenize the corpora, write the prepared folder, and print a report."""
    from nmt.config.loader import load_config
    from nmt.recipes.prepare import prepare as run

    report = run(load_config(config, set_), force=force, report_only=report_only)
    if json:
        print_json(report.as_dict())
    else:
        typer.echo(report.as_text())
