"""Loads configurations with defaults by corpus size; the functions of ``nmt config``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import list_checkpoints
from nmt.checkpoint.run import changed_settings, recorded_settings
from nmt.commands.options import CheckOptions, KeysOptions, ShowOptions, TextResult
from nmt.config import loader
from nmt.config.filling import ENOUGH_CHARACTERS, Choice
from nmt.config.flag import Options
from nmt.config.keys import describe_keys, described_sections
from nmt.config.loader import CONFIG, dump_config, settings_of
from nmt.config.run import RunConfig, check_languages
from nmt.data.checks import swapped_sets
from nmt.data.corpus import check_files, measure_text
from nmt.errors import ConfigError, DataError, NmtError
from nmt.metrics.metric import default_metrics
from nmt.registry import Registry, load_attribute

logger = logging.getLogger(__name__)


_CHECK_FROZEN = "nmt.training.optimizer:check_frozen"  # imports torch
_measure_text = partial(measure_text, enough=ENOUGH_CHARACTERS)


def load_config(
    path: Path | str | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    explain: Callable[[Choice], None] | None = None,
) -> RunConfig:
    """Read a configuration file. Open keys follow the size of the training text.

    If training would resume a run, keys that the file leaves open have the values of that run.

    Args:
        path: A YAML file, or the keys and values of one.
        overrides: ``section.key=value`` each, with a YAML value; later overrides win.
        explain: Called with the values that follow the size of the text. None: they are logged.

    Raises:
        ConfigError: The configuration is invalid; or training has no limit, and the size of the
            corpora is unknown.
        DataError: Training has no limit, and a file of the corpora is missing.
    """
    name = "configuration" if isinstance(path, Mapping) else path

    def log(choice: Choice) -> None:
        if choice.depends_on_text:
            logger.info("%s: %s", name, choice)

    config = loader.load_config(
        path,
        overrides,
        measure_text=_measure_text,
        check_files=check_files,
        recorded_settings=recorded_settings,
        explain=explain or log,
    )
    config = with_metric(config)
    values = _values_of_run(config, path, overrides)
    if values:
        text = "%s leaves keys open that %s has set; the run keeps its values:\n  %s"
        logger.info(text, name, config.run_dir / CONFIG, "\n  ".join(values))
    return config


def with_metric(config: RunConfig) -> RunConfig:
    """Return the configuration with the metric that selects checkpoints, if it is not set."""
    validation = config.training.validation
    if validation.metric is not None:
        return config
    languages = [config.direction(corpus).target for corpus in config.data.valid]
    metric = default_metrics(languages)[0]
    validation = validation.model_copy(update={"metric": metric})
    training = config.training.model_copy(update={"validation": validation})
    return config.model_copy(update={"training": training})


def _values_of_run(
    config: RunConfig, path: Path | str | Mapping[str, Any], overrides: Sequence[str]
) -> list[str]:
    """Return the values of a resumed run that its configuration file would not give, as text.

    Args:
        config: The configuration, with the values of the run.
        path: The configuration file.
        overrides: ``section.key=value`` each.
    """
    if not list_checkpoints(config.run_dir):
        return []
    try:
        config_without_run = loader.load_config(path, overrides, measure_text=_measure_text)
    except (ConfigError, DataError):  # the time follows the size of the text, which is unknown
        return []
    config_without_run = with_metric(config_without_run)
    return changed_settings(settings_of(config_without_run), settings_of(config))


ADVICE = Registry[Callable[[RunConfig], Iterable[str]]]("kind of advice")


def advice(config: RunConfig) -> list[str]:
    """Return warnings about unsuitable values in a configuration, with better values."""
    advise = ADVICE.find("plan")  # None if the extra is missing
    if advise is None:
        return []
    return list(advise(config))


def schema(_: Options) -> TextResult:
    """Return the JSON schema of configuration files, for editors."""
    document = RunConfig.model_json_schema()
    return TextResult(json.dumps(document, indent=2, ensure_ascii=False), is_document=True)


def keys(options: KeysOptions) -> TextResult:
    """Return keys with default, allowed values and meaning."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    if options.format == "text" or (options.format is None and is_terminal):
        return TextResult(_explain_keys(options.section), is_document=True)
    return TextResult(describe_keys(options.section), is_document=True)


def _explain_keys(section: str) -> str:
    """Return keys as text for a terminal: default, then meaning and allowed values, wrapped.

    ``section`` is a section or a key; empty for all keys.
    """
    from rich import console, padding, text  # noqa: PLC0415 - slow to load

    terminal = console.Console(highlight=False)
    with terminal.capture() as capture:
        for name, about, described_keys in described_sections(section):
            terminal.print(text.Text(name, "bold"))
            terminal.print(text.Text(f"{about}\n".replace("``", "`")))
            for key in described_keys:
                default = f"default: {key.default}" if key.default else "required"
                heading = text.Text.assemble("  ", (key.path[-1], "bold cyan"), f"  [{default}]")
                meaning = f"{key.description} Allowed: {key.allowed}."
                indented = padding.Padding(meaning.replace("``", "`"), (0, 0, 0, 6), expand=False)
                terminal.print(heading, indented)
            terminal.print()
    return capture.get()


def show(options: ShowOptions) -> TextResult:
    """Return a configuration with all defaults and presets filled in."""
    text = dump_config(load_config(options.config, options.set_))
    return TextResult(text, is_document=True)


def check(options: CheckOptions) -> TextResult:
    """Check configuration files; report all problems.

    The result has a line for each file without errors, and one `ConfigError` with all errors.
    """
    lines = list[str]()
    errors = list[NmtError]()
    for path in options.configs:
        choices = list[Choice]()
        try:
            config = load_config(path, options.set_, explain=choices.append)
            codes = config.language_codes.items()
            check_languages({f"{path}: {key}": code for key, code in codes})
            if config.training.freeze:
                load_attribute(_CHECK_FROZEN)(config.model, config.training.freeze)
        except (ConfigError, DataError) as error:
            errors.append(error)
            continue
        lines.append(f"{path}: good")
        for choice in choices:
            lines.append(f"  {choice.reason}")
            lines += [f"    {key}: {value}" for key, value in choice.values.items()]
        try:
            check_files(config.data.corpora)
        except DataError as error:  # the files may be on another machine
            logger.warning("%s: %s", path, error.problem)
        for model in config.tokenizer.models or ():
            if not model.is_file():
                logger.warning("%s: tokenizer.from: %s does not exist.", path, model)
        init_from = config.training.init_from
        if init_from and not init_from.exists():
            logger.warning("%s: training.init_from: %s does not exist.", path, init_from)
        for text in (*advice(config), *swapped_sets(config)):
            logger.warning("%s: %s", path, text)
    failure = ConfigError.joined(errors) if errors else None
    return TextResult("\n".join(lines), failure=failure)
