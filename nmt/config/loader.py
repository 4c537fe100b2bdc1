"""YAML file and overrides -> `RunConfig`, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nmt.config.data import CorpusConfig
from nmt.config.decoding import DecodingConfig
from nmt.config.document import Document, dump_document, read_document
from nmt.config.keys import find_problems
from nmt.config.run import RunConfig
from nmt.config.scaling import with_scale
from nmt.config.training import ScheduleConfig
from nmt.errors import ConfigError, DataError


def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    count_characters: Callable[[Sequence[CorpusConfig], tuple[str, str]], int] | None = None,
    check_files: Callable[[Mapping[str, CorpusConfig]], None] = lambda _: None,
) -> RunConfig:
    """Read a configuration: defaults, then the model's preset, then the file, then overrides.

    Args:
        path: A YAML file.
        overrides: ``section.key=value`` each; the value is read as YAML, so numbers, ``null`` and
            ``[lists]`` work. Later ones win. List entries are named by position:
            ``data.train.0.weight``.
        count_characters: Training corpora and the codes of both languages -> characters. With it,
            a file may leave ``training`` out: it gets values for the size; see `nmt.load_config`.
        check_files: Raises a `DataError` that names missing files of corpora, given by their keys.
            It is listed beside problems; alone, it counts only where text must be counted.

    Raises:
        ConfigError: Anything is wrong. Lists every problem with its line or flag, what was found
            and what is allowed.
        DataError: Of ``check_files`` and ``count_characters``.
    """
    document = _read_keys(Path(path))
    is_scaled = document.values.get("training") is None
    problems = []
    for text in overrides:
        try:
            document.override(text)
        except ConfigError as error:
            problems.append(error.problem)
        except ValueError as error:
            problems.append(f"`set` {text}: {error}")
    missing = None  # what names missing files, if there are any
    try:
        check_files(dict(_corpora("data", document.values.get("data"))))
    except DataError as error:
        missing = error
    try:
        values = document.values
        if is_scaled and count_characters is not None:
            values = _scaled(values, (lambda *_: 0) if missing else count_characters)
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found = [(document.place(key), text) for key, text in find_problems(error)]
        found.sort(key=lambda problem: problem[0][:2])  # the file's by line, then the flags'
        problems += [f"{place}: {text}" for (_, _, place), text in found]
    else:
        if not problems:
            if missing and is_scaled:  # the values would be those of another size
                raise missing
            return config
    problems += missing.problem.split("\n  ") if missing else []
    is_one = len(problems) == 1
    start = [] if is_one else [f"{len(problems)} problems in the configuration:"]
    fix = f"Correct {'it' if is_one else 'them'}; `nmt config keys` describes every key."
    raise ConfigError("\n  ".join([*start, *problems]), fix=fix)


def _read_keys(path: Path) -> Document:
    try:
        document = read_document(path)
        if not isinstance(document.values, dict) or not document.values:
            raise ConfigError(
                f"{path} holds no keys.", fix="`nmt init SOURCE TARGET` writes a configuration."
            )
    except ConfigError as error:
        if path.suffix in (".yaml", ".yml", "") or not path.is_file():
            raise
        raise ConfigError(  # it is a text, most probably
            f"{path} is no YAML configuration: {error.problem.removeprefix(f'{path}: ')}",
            fix="Make a configuration of two files of text: `nmt init SOURCE TARGET`.",
        ) from error
    return document


def _corpora(key: str, value: Any) -> Iterator[tuple[str, CorpusConfig]]:
    """Yield the corpora in a value, by their keys, whatever is wrong beside them."""
    try:
        yield key, CorpusConfig.model_validate(value)
    except ValidationError:
        inside = enumerate(value) if isinstance(value, list) else ()
        for name, inner in value.items() if isinstance(value, dict) else inside:
            yield from _corpora(f"{key}.{name}", inner)


def _scaled(
    values: dict[str, Any],
    count_characters: Callable[[Sequence[CorpusConfig], tuple[str, str]], int],
) -> dict[str, Any]:
    """Put values that go with the size of the corpora below those given.

    Where the size is unclear, which is reported, they are those of no text.
    """
    try:
        corpora = [CorpusConfig.model_validate(corpus) for corpus in values["data"]["train"]]
        languages = str(values["source_language"]), str(values["target_language"])
    except (ValidationError, LookupError, TypeError):
        return with_scale(values, 0)
    return with_scale(values, count_characters(corpora, languages))


def change_options(options: DecodingConfig, changes: Mapping[str, Any]) -> DecodingConfig:
    """Return ``options`` with ``changes``.

    Raises:
        ConfigError: An option is unknown or out of bounds. Lists every problem.
    """
    try:
        return DecodingConfig.model_validate({**options.model_dump(), **changes})
    except ValidationError as error:
        problems = [text for _, text in find_problems(error)]
        listed, them = "\n  ".join(problems), "it" if len(problems) == 1 else "them"
        raise ConfigError(
            f"Decoding options: {listed}.",
            fix=f"Correct {them}; `nmt config keys decoding` describes each key.",
        ) from error


def refuse_idle(overrides: Sequence[str], read: Sequence[str]) -> None:
    """Refuse overrides that would change nothing where a trained model is used.

    Args:
        overrides: As of `load_config`.
        read: The first parts of the keys that count there.

    Raises:
        ConfigError: Names the others.
    """
    idle = [text for text in overrides if re.split(r"[.=]", text)[0].strip() not in read]
    if idle:
        raise ConfigError(
            f"`set` {', '.join(idle)} would change nothing: the model is trained already.",
            fix=f"Leave it out; only keys of {', '.join(read)} count here.",
        )


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML; `load_config` reads it back to an equal value."""
    values = config.model_dump(mode="json")
    schedule, usual = values["training"]["schedule"], ScheduleConfig().warmup_steps
    if schedule["warmup"] is not None and schedule["warmup_steps"] == usual:
        del schedule["warmup_steps"]  # training.schedule.warmup is used instead
    return dump_document(values)
