"""``nmt config``: look at configurations without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import Config, Set
from nmt.errors import ConfigError

app = typer.Typer(help="Show, check and describe configurations.", no_args_is_help=True)


@app.command()
def schema() -> None:
    r"""Print the JSON schema of a configuration, for editors.

    \b
    Example:
      nmt config schema > nmt.schema.json
    """
    from nmt.config.run import RunConfig

    typer.echo(json.dumps(RunConfig.model_json_schema(), indent=2, ensure_ascii=False))


@app.command()
def keys() -> None:
    r"""Print every key with its default, what it allows and what it does, as Markdown.

    \b
    Example:
      nmt config keys > configs/KEYS.md
    """
    from nmt.config.reference import describe_keys

    typer.echo(describe_keys(), nl=False)


@app.command()
def show(
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
) -> None:
    r"""Print the resolved configuration: every key, with defaults and presets filled in.

    \b
    Example:
      nmt config show configs/demo.yaml --set model.preset=modern
    """
    from nmt.config.loader import dump_config, load_config

    typer.echo(dump_config(load_config(config, set_)), nl=False)


@app.command()
def check(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG", help="YAML configuration files.")
    ],
    set_: Set = [],  # noqa: B006 - read only
) -> None:
    r"""Check configurations; report all problems of all files.

    \b
    Example:
      nmt config check configs/*.yaml
    """
    from nmt.config.loader import load_config

    failed = 0
    for path in configs:
        try:
            load_config(path, set_)
        except ConfigError as error:
            failed += 1
            typer.echo(f"error: {error}", err=True)
        else:
            typer.echo(f"{path}: good")
    if failed:
        raise typer.Exit(ConfigError.exit_code)
