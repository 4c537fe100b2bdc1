"""``nmt config``: look at configurations without running them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import typer

from nmt.cli.options import CONFIG, SET
from nmt.errors import ConfigError, DataError

logger = logging.getLogger(__name__)


def schema() -> None:
    """Print the JSON schema of a configuration, for editors."""
    from nmt.config.run import RunConfig

    typer.echo(json.dumps(RunConfig.model_json_schema(), indent=2, ensure_ascii=False))


def keys(
    section: str = typer.Argument("", help="Section, such as model, or one key; all if left out."),
) -> None:
    """Print keys with defaults, bounds and meaning, as Markdown."""
    from nmt.config.keys import describe_keys

    typer.echo(describe_keys(section), nl=False)


def show(
    config: Path = CONFIG,
    set_: list[str] = SET,
) -> None:
    """Print the resolved configuration, defaults and presets included."""
    from nmt.config.loader import dump_config
    from nmt.data.size import load_config

    typer.echo(dump_config(load_config(config, set_)), nl=False)


def check(
    # The usage line names it; in a list of arguments it would be called a `list[Path]`.
    configs: list[Path] = typer.Argument(
        metavar="CONFIG", help="YAML configuration files.", hidden=True
    ),
    set_: list[str] = SET,
) -> None:
    """Check YAML configuration files; report all problems of all files."""
    from nmt.config.run import check_languages
    from nmt.data.checks import swapped_sets
    from nmt.data.corpus import check_files
    from nmt.data.size import load_config
    from nmt.extras.planning.advice import Plan, advise

    failed = 0
    for path in configs:
        try:
            config = load_config(path, set_)
            languages = config.languages
            check_languages({f"{path}: {key}": code for key, code in languages.items()})
        except (ConfigError, DataError) as error:
            failed += 1
            typer.echo(f"error: {error}", err=True)
        else:
            typer.echo(f"{path}: good")
            try:
                check_files(config.data.corpora)
            except DataError as error:  # they may be on the machine that trains
                logger.warning("%s: %s", path, error.problem)
            swapped = swapped_sets(config.data.corpora, *languages.values())
            for text in (*advise(config, Plan.estimate(config)), *swapped):
                logger.warning("%s: %s", path, text)
    if failed:
        raise typer.Exit(ConfigError.exit_code)


EXAMPLES = {
    schema: "nmt config schema > nmt.schema.json",
    keys: "nmt config keys model",
    show: "nmt config show configs/demo.yaml --set model.preset=modern",
    check: "nmt config check configs/*.yaml",
}
