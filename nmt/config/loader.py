"""Reads a YAML file and overrides into a `RunConfig`, and writes it back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nmt.config.data import CorpusConfig
from nmt.config.document import YamlDocument, dump_document, read_document
from nmt.config.filling import (
    Choice,
    TextSize,
    UnknownSizeError,
    added_values,
    filled_in,
    follows_text,
    has_limit,
    own_model,
    with_recorded,
    with_scale,
)
from nmt.config.inference import LANGUAGE_KEYS, InferenceConfig
from nmt.config.keys import find_problems
from nmt.config.migration import (
    FORMAT,
    FORMAT_KEY,
    INFERENCE,
    RECORD,
    Kind,
    migrate,
    model_document,
)
from nmt.config.model import OF_BEAMS, DecodingConfig
from nmt.config.paths import expanded
from nmt.config.run import RunConfig
from nmt.config.training import ScheduleConfig
from nmt.config.translation import refuse_foreign
from nmt.errors import ConfigError, DataError

CONFIG = "config.yaml"  # In run folders and model folders.


def load_config(
    path: Path | str | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    measure_text: Callable[[Sequence[CorpusConfig], tuple[str, str]], TextSize] | None = None,
    check_files: Callable[[Mapping[str, CorpusConfig]], None] = lambda _: None,
    recorded_settings: Callable[[Path], Mapping[str, Any]] = lambda _: {},
    explain: Callable[[Choice], None] = lambda _: None,
) -> RunConfig:
    """Read a configuration: overrides, else values of the file, else presets, else defaults.

    If training would resume a run, the values that the run has recorded come before presets and
    defaults. Otherwise, keys that the file and the overrides leave open follow the size of the
    training text (`with_scale`). If this size is unknown, they have the general defaults.

    Args:
        path: A YAML file, or the keys and values of one.
        overrides: ``section.key=value`` each; later overrides win. The value is YAML, so numbers,
            ``null`` and ``[lists]`` work. List items have numbers: ``data.train.0.weight``.
        measure_text: Training corpora and both language codes -> size. Called if a key is open
            whose value follows the size. Raises `UnknownSizeError` about corpora that must be read
            to know their size. None: all open keys have the general defaults.
        check_files: Raises a `DataError` about missing corpus files, by key. It is reported with
            other problems. Without other problems, it is raised only if training text is
            missing and no limit of training is set, because the usual time follows its size.
        recorded_settings: Run folder -> the whole configuration of the run that training would
            resume there; empty if there is none.
        explain: Called with the values that follow the size of the text, unless a run is resumed.

    Raises:
        ConfigError: The configuration is invalid. Lists all problems with line or flag.
        DataError: From ``check_files`` or ``measure_text``.
    """
    # A user need not write the format number: without it, the file has the present format.
    document = _read_keys(Path(path) if isinstance(path, str) else path, default=FORMAT)
    problems = list[str]()
    for text in overrides:
        try:
            document.override(text)
        except ConfigError as error:
            problems.append(error.problem)
        except ValueError as error:
            problems.append(f"`set` {text}: {error}")
    values = document.values
    run_dir = str(values.get("run_dir") or f"runs/{values.get('name')}")
    recorded = recorded_settings(_existing(run_dir))
    if recorded:
        values = with_recorded({**values, "run_dir": run_dir}, recorded)
    values = _with_start(values)
    corpora = dict(corpora_in("data", values.get("data")))
    file_error: DataError | None = None
    choice: Choice | None = None
    try:
        check_files(corpora)
    except DataError as error:
        file_error = error
    if measure_text is not None and not recorded:
        train = {key: corpus for key, corpus in corpora.items() if key.startswith("data.train.")}
        missing_text: DataError | None = None
        try:
            check_files(train)
        except DataError:
            missing_text = file_error  # with the other files
        values, choice = _chosen(values, partial(measure_text, [*train.values()]), missing_text)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        placed = [(document.place(key), message) for key, message in find_problems(error)]
        # First the problems of the file, in the order of its lines, then those of overrides.
        placed.sort(key=lambda problem: (problem[0].is_override, problem[0].line))
        problems += [f"{place.text}: {message}" for place, message in placed]
    else:
        if not problems:
            if choice and choice.error:
                raise choice.error
            if choice:
                explain(choice)
            return config
    refuse_foreign(str(path), document.values)
    if file_error:
        problems += file_error.problem.split("\n  ")
    if len(problems) > 1:
        problems.insert(0, f"{len(problems)} problems in the configuration:")
    fix = "Correct the configuration. `nmt config keys` describes every key."
    if recorded:
        fix += (
            f" Keys that the configuration leaves open have the values of {Path(run_dir) / CONFIG}."
        )
    raise ConfigError("\n  ".join(problems), fix=fix)


def _chosen(
    values: dict[str, Any],
    measure: Callable[[tuple[str, str]], TextSize],
    missing_text: DataError | None,
) -> tuple[dict[str, Any], Choice]:
    """Return the values with those that follow the size of the text, and the reason for them.

    Args:
        values: The configuration of the user.
        measure: Both language codes -> size of the training text.
        missing_text: The text cannot be measured, because files are missing.
    """
    if not follows_text(values):
        reason = "no open key follows the size of the training text"
        own_keys = own_model(values)
        if own_keys:
            reason += f", because {own_keys} is set: open keys have the general defaults"
        return values, Choice(reason, {}, depends_on_text=False)
    size = TextSize(0, 0)
    unknown: ConfigError | DataError | None = missing_text
    source, target = (values.get(key) for key in LANGUAGE_KEYS)
    if source and target and not missing_text:  # a missing code is reported later
        try:
            size = measure((str(source), str(target)))
        except UnknownSizeError as error:
            unknown = error
        except DataError as error:  # a damaged file: reported after other problems
            return values, Choice(error.problem, {}, error=error)
    if unknown and has_limit(values):
        first_problem = unknown.problem.splitlines()[0]
        reason = f"{first_problem} Open keys have the general defaults, for millions of pairs."
        return values, Choice(reason, {})
    filled = with_scale(values, size.num_characters)
    added = sorted(added_values(filled, values))
    return filled, Choice(f"chosen for {size}", dict(added), error=unknown)


def load_inference(
    path: Path, overrides: Sequence[str] = (), *, read: Sequence[str] = ("decoding",)
) -> tuple[InferenceConfig, Mapping[str, Any]]:
    """Read what translating needs from config.yaml of a model folder or a run folder.

    Args:
        path: The file.
        overrides: ``section.key=value`` each.
        read: Keys of the top level that can be overridden: keys of `InferenceConfig`, or ``data``
            of the record.

    Returns:
        The configuration for translating, and the whole configuration of the training, which is
        not validated; empty if the model was not trained by nmt.

    Raises:
        ConfigError: The file or an override is invalid. Lists all problems.
    """
    document = read_document(path)
    values = _mapping(document)
    if INFERENCE in values:
        values = migrate(values, document.name, kind=Kind.MODEL)
        document.lift(INFERENCE, RECORD)
    else:
        values = model_document(migrate(values, document.name, kind=Kind.CONFIGURATION))
    inference = values[INFERENCE]
    record = values.get(RECORD) or {}
    for name, section in ((INFERENCE, inference), (RECORD, record)):
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: {name} must be a section.", fix="Restore the file.")
    # Overrides may change the section `inference`, and ``data`` of the record.
    settings = {**inference, "data": record.get("data")}
    document.values = settings
    for text in overrides:
        try:
            document.override(text)
        except ValueError as error:
            raise ConfigError(
                f"`set` {text}: {error}.", fix="`nmt config keys decoding` describes every key."
            ) from error
    # The first word of an override, before a dot or the equals sign, is a key of the top level.
    unused = [text for text in overrides if re.split(r"[.=]", text)[0].strip() not in read]
    if unused:
        raise ConfigError(
            f"`set` {', '.join(unused)} has no effect on a trained model.",
            fix=f"Remove the override. Here you can set keys of {', '.join(read)}.",
        )
    data = settings.pop("data")
    if data is not None:
        record = {**record, "data": data}
    try:
        languages = [settings.get(key) for key in LANGUAGE_KEYS]
        if languages != [inference.get(key) for key in LANGUAGE_KEYS]:
            # An override has changed a language of the run. The directions of corpora that leave
            # their languages open contain the languages of the run, so they change, too.
            original_config = InferenceConfig.model_validate(inference)
            new_codes = dict(zip(original_config.languages, languages, strict=True))  # old -> new
            settings["directions"] = [
                (new_codes.get(source, source), new_codes.get(target, target))
                for source, target in original_config.directions
            ]
        config = InferenceConfig.model_validate(settings)
    except ValidationError as error:
        problems = [
            f"{document.place(key).text}: {message}" for key, message in find_problems(error)
        ]
        raise ConfigError(
            "\n  ".join(problems), fix="Correct the file. `nmt config keys` describes every key."
        ) from error
    return config, record


def read_settings(path: Path) -> dict[str, Any]:
    """Return the whole configuration in config.yaml of a run folder, not validated.

    Raises:
        ConfigError: The file cannot be read, or is not a configuration.
    """
    # Only nmt 0.1 wrote this file without a format number.
    settings: dict[str, Any] = _read_keys(path, default=1).values
    return settings


def _existing(path: str) -> Path:
    """Return a path that is not validated yet; with an undefined variable, it does not exist."""
    with suppress(ValueError):  # reported by the validation
        return expanded(Path(path))
    return Path(path)


def _with_start(values: dict[str, Any]) -> dict[str, Any]:
    """Add the keys that a model keeps from the configuration of `training.init_from`."""
    training = values.get("training")
    if not isinstance(training, dict) or training.get("init_from") is None:
        return values
    path = _existing(str(training["init_from"])) / CONFIG
    if not path.is_file():  # reported when training starts
        return values
    config, _ = load_inference(path)
    inherited = config.model_dump(mode="json", include={"model", "tokenizer", "decoding"})
    model = values.get("model")
    if isinstance(model, dict) and "preset" in model:
        # Keys that the section leaves open have the values of the preset.
        del inherited["model"]
    if "vocabulary" in (training.get("init_differences") or ()):
        del inherited["tokenizer"]
    elif config.language_tags:
        inherited["data"] = {"language_tags": config.language_tags}
    return filled_in(values, inherited)


def _read_keys(path: Path | Mapping[str, Any], *, default: int) -> YamlDocument:
    """Read a whole configuration, which has the format ``default`` if it does not say another."""
    try:
        document = read_document(path)
        values = _mapping(document)
        if INFERENCE in values:
            # In a model folder, the whole configuration is the section `record`, and the format
            # number of the document applies to it.
            format_number = values.get(FORMAT_KEY, default)
            document.values = values.get(RECORD)
            values = {**_mapping(document), FORMAT_KEY: format_number}
        document.values = migrate(values, document.name, kind=Kind.CONFIGURATION, default=default)
    except ConfigError as error:
        if isinstance(path, Mapping) or path.suffix in (".yaml", ".yml", "") or not path.is_file():
            raise
        # The file is probably a text file.
        raise ConfigError(
            f"{path} is not a YAML configuration: {error.problem.removeprefix(f'{path}: ')}",
            fix="To train on two text files, run `nmt init SOURCE TARGET`.",
        ) from error
    return document


def _mapping(document: YamlDocument) -> dict[str, Any]:
    """Return the keys and values of a document, which must have at least one."""
    if not isinstance(document.values, dict) or not document.values:
        raise ConfigError(
            f"{document.name} contains no keys.",
            fix="Run `nmt init SOURCE TARGET` to write a configuration.",
        )
    return document.values


def corpora_in(key: str, value: Any) -> Iterator[tuple[str, CorpusConfig]]:
    """Find the well-formed corpus sections in a value, at any depth; yield key and section."""
    try:
        yield key, CorpusConfig.model_validate(value)
    except ValidationError:
        # Not a corpus: search the items of a list, whose keys are their indices, or of a section.
        if isinstance(value, list):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            for name, item in value.items():
                yield from corpora_in(f"{key}.{name}", item)


def change_options(options: DecodingConfig, changes: Mapping[str, Any]) -> DecodingConfig:
    """Return ``options`` with ``changes``. A change to sampling resets the options of beam search.

    Raises:
        ConfigError: An option is unknown or out of bounds. Lists all problems.
    """
    values = options.model_dump()
    if changes.get("sampling") or changes.get("return_alternatives"):
        for key in OF_BEAMS:
            del values[key]
    try:
        return DecodingConfig.model_validate({**values, **changes})
    except ValidationError as error:
        problems = "\n  ".join(text for _, text in find_problems(error, ("decoding",)))
        # Unknown names are those of options in Python, not of keys.
        problems = problems.replace("unknown key decoding.", "unknown option ")
        problems = problems.replace("did you mean decoding.", "did you mean ")
        raise ConfigError(
            f"{problems}.".replace("?.", "?"),
            fix="Correct the options. `nmt config keys decoding` describes every key.",
        ) from error


def dump_inference(config: InferenceConfig, record: Mapping[str, Any]) -> str:
    """Return config.yaml of a model folder; `load_inference` reads it back.

    Args:
        config: What translating needs.
        record: The whole configuration of the training; empty if nmt did not train the model.
    """
    section = config.model_dump(mode="json")
    return dump_document({FORMAT_KEY: FORMAT, INFERENCE: section, RECORD: dict(record)})


def dump_config(config: RunConfig) -> str:
    """Return the configuration as YAML, with all defaults; `load_config` reads it back."""
    return dump_document({FORMAT_KEY: FORMAT, **settings_of(config)})


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return the configuration as plain values, in the form of a file."""
    values = config.model_dump(mode="json")
    for section in (values["data"], values["data"]["replay"]):
        if section is not None and len(section["valid"]) == 1:
            section["valid"] = section["valid"][0]  # so that overrides can use data.valid.source
    schedule = values["training"]["schedule"]
    default = ScheduleConfig().warmup_steps
    if schedule["warmup_ratio"] is not None and schedule["warmup_steps"] == default:
        del schedule["warmup_steps"]  # training.schedule.warmup_ratio is used instead
    return values
