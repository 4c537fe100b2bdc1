"""``nmt config``: look at configurations without running them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nmt.cli.options import Config, Set, command
from nmt.errors import ConfigError

app = typer.Typer(help="Show, check and document configurations.", no_args_is_help=True)


@command(app, "\b\nExample:\n  nmt config schema > nmt.schema.json")
def schema() -> None:
    """Print the JSON schema of a configuration, for editors."""
    from nmt.config.run import RunConfig

    typer.echo(json.dumps(RunConfig.model_json_schema(), indent=2, ensure_ascii=False))


@command(app, "\b\nExample:\n  nmt config keys > configs/KEYS.md")
def keys() -> None:
    """Print every key with its default, what it allows and what it does, as Markdown."""
    from nmt.config.keys import describe_keys

    typer.echo(describe_keys(), nl=False)


@command(app, "\b\nExample:\n  nmt config show configs/demo.yaml --set model.preset=modern")
def show(
    config: Config,
    set_: Set = [],  # noqa: B006 - read only, and typer wants the list here
) -> None:
    """Print the resolved configuration: every key, with defaults and presets filled in."""
    from nmt.config.loader import dump_config, load_config

    typer.echo(dump_config(load_config(config, set_)), nl=False)


@command(app, "\b\nExample:\n  nmt config check configs/*.yaml")
def check(
    configs: Annotated[
        list[Path],
        # The usage line names it; in a list of arguments it would be called a `list[Path]`.
        typer.Argument(metavar="CONFIG", help="YAML configuration files.", hidden=True),
    ],
    set_: Set = [],  # noqa: B006 - read only
) -> None:
    """Check YAML configuration files; report all problems of all files."""
    from nmt.config.loader import load_config
    from nmt.config.run import check_languages

    failed = 0
    for path in configs:
        try:
            languages = load_config(path, set_).languages
            check_languages({f"{path}: {key}": code for key, code in languages.items()})
        except ConfigError as error:
            failed += 1
            typer.echo(f"error: {error}", err=True)
        else:
            typer.echo(f"{path}: good")
    if failed:
        raise typer.Exit(ConfigError.exit_code)
