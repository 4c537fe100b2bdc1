"""YAML file and ``--set`` overrides -> `RunConfig`, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from nmt.config.document import KeyPath, dump_document, parse_document, read_document
from nmt.config.keys import find_key, nearest_key, nearest_word
from nmt.config.run import RunConfig
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_DIGITS: Final = 10
"""Of a list position."""
BESIDE: Final = "@config/"
"""A path that starts so is taken relative to the folder of the configuration file."""


@dataclass(slots=True)
class _Layers:
    """The file's values with the overrides on top, and where each value came from."""

    name: str
    values: dict[str, Any]
    lines: dict[KeyPath, int]
    flags: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """The flag, or the file and line, nearest to a path."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.flags:
                return f"--set {self.flags[path[:end]]}"
            if end and path[:end] in self.lines:
                return f"{self.name}:{self.lines[path[:end]]}{self._changed(path)}"
        return f"{self.name}{self._changed(path)}"

    def _changed(self, path: KeyPath) -> str:
        """Overrides of parts of a section: a rule of the section may be broken by them."""
        flags = [text for known, text in self.flags.items() if known[: len(path)] == path]
        return f" with --set {', '.join(flags)}" if flags else ""

    def order(self, path: KeyPath) -> tuple[bool, int]:
        """A key that sorts problems: those of the file by line, then those of the flags."""
        starts = [path[:end] for end in range(len(path), -1, -1)]
        line = next(self.lines[start] for start in starts if start in self.lines)
        return any(start in self.flags for start in starts), line


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration: defaults, then the model's preset, then the file, then overrides.

    Args:
        path: A YAML file.
        overrides: ``section.key=value`` each; the value is read as YAML, so numbers, ``null`` and
            ``[lists]`` work. Later ones win. List entries are named by position:
            ``data.train.0.weight``.

    Raises:
        ConfigError: Anything is wrong. Lists every problem with its line or flag, what was found
            and what is allowed.
    """
    path = Path(path)
    document = read_document(path)
    if not isinstance(document.values, dict) or not document.values:
        raise ConfigError(
            f"{path} holds no keys.", fix="Write `key: value` lines as in configs/demo.yaml."
        )
    layers = _Layers(str(path), document.values, document.lines)
    problems = [problem for text in overrides for problem in _override(layers, text)]
    values = _beside(layers.values, path.parent)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found = sorted(find_problems(error), key=lambda problem: layers.order(problem.path))
        problems += [f"{layers.place(problem.path)}: {problem.text}" for problem in found]
    else:
        if not problems:
            return config
    raise _config_error(problems)


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
            f"--set {', '.join(idle)} would change nothing: the model is trained already.",
            fix=f"Leave it out; only keys of {', '.join(read)} count here.",
        )


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML; `load_config` reads it back to an equal value."""
    return dump_document(config.model_dump(mode="json"))


def _override(layers: _Layers, text: str) -> Iterator[str]:
    """Put one ``key=value`` into the values; yields problems instead of stopping at the first."""
    dotted, equals, value_text = text.partition("=")
    if not equals or not dotted.strip():
        yield f"--set {text}: write it as section.key=value"
        return
    try:
        value = parse_document(value_text, name=f"--set {text}").values if value_text else None
    except ConfigError as error:
        yield error.problem
        return
    parts = dotted.strip().split(".")
    path = tuple(int(x) if x.isdecimal() and len(x) < _MAX_DIGITS else x for x in parts)
    found = _put(layers.values, path, value) if find_key(path) else Problem(path, unknown_key(path))
    if isinstance(found, Problem):
        yield f"--set {text}: {found.text}"
        return
    for places in (layers.flags, layers.lines):  # of what this has replaced
        for known in [known for known in places if known[: len(found)] == found]:
            del places[known]
    layers.flags[found] = text


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> KeyPath | Problem:
    """Set a value; return its path as the checks will spell it: integers for positions only."""
    place: Any = values
    found: list[str | int] = []
    for depth, part in enumerate(path):
        if isinstance(place, dict):
            found.append(str(part))
        elif not isinstance(place, list):
            return Problem(path, f"{_dotted(path[:depth])} is not a section")
        elif isinstance(part, int) and part < len(place):
            found.append(part)
        else:
            return Problem(path, f"{_dotted(path[:depth])} has {len(place)} entries, from 0")
        index: Any = found[-1]
        if depth == len(path) - 1:
            place[index] = value
        elif isinstance(place, dict) and place.get(index) is None:
            place[index] = {}
        place = place[index]
    return tuple(found)


def _beside(value: Any, folder: Path) -> Any:
    """The values with ``@config/x`` replaced by the path of x beside the configuration file."""
    if isinstance(value, str) and value.startswith(BESIDE):
        return str(folder / value.removeprefix(BESIDE))
    if isinstance(value, Mapping):
        return {key: _beside(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_beside(item, folder) for item in value]
    return value


def _config_error(problems: Sequence[str]) -> ConfigError:
    is_one = len(problems) == 1
    start = [] if is_one else [f"{len(problems)} problems in the configuration:"]
    fix = f"Correct {'it' if is_one else 'them'}; `nmt config schema` describes every key."
    return ConfigError("\n  ".join([*start, *problems]), fix=fix)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration."""

    path: KeyPath
    """The key at fault."""
    text: str
    """What is wrong, without the place."""


def find_problems(error: ValidationError) -> list[Problem]:
    """Every problem in a failed check of the sections, in the order of the file.

    A key that is missing because it was misspelt is reported once, as misspelt; a list that is
    too short because its entries are wrong is not reported besides them.
    """
    found: dict[object, ErrorDetails] = {}
    for number, detail in enumerate(error.errors(include_url=False, include_context=True)):
        if not (detail["type"] == "too_short" and detail["input"]):
            path = _without_alternative(detail)
            key = find_key(path)
            # Of the findings about one value of several allowed types the first is kept.
            place = number if key is None or key.is_section else path
            found.setdefault(place, {**detail, "loc": path})
    details = list(found.values())
    meant = {
        nearest_key(detail["loc"]) for detail in details if detail["type"] == "extra_forbidden"
    }
    return [
        Problem(detail["loc"], _sentence(detail))
        for detail in details
        if not (detail["type"] == "missing" and _dotted(detail["loc"]) in meant)
    ]


def _without_alternative(detail: ErrorDetails) -> KeyPath:
    """Return the place without which of the allowed types was tried, as in ``max_tokens.int``."""
    path = detail["loc"]
    if detail["type"] != "extra_forbidden" and path and find_key(path) is None:
        parent = find_key(path[:-1])
        if parent is not None and not parent.is_section and isinstance(path[-1], str):
            return path[:-1]
    return path


def unknown_key(path: Sequence[str | int]) -> str:
    """A sentence about a key that does not exist.

    >>> unknown_key(("training", "schedule", "warm_up_steps"))
    'unknown key training.schedule.warm_up_steps; did you mean training.schedule.warmup_steps?'
    """
    near = nearest_key(path)
    advice = f"did you mean {near}?" if near else "`nmt config schema` lists the keys"
    return f"unknown key {_dotted(path)}; {advice}"


def _sentence(detail: ErrorDetails) -> str:
    path, kind = detail["loc"], detail["type"]
    if kind == "extra_forbidden":
        return unknown_key(path)
    if kind == "missing":
        return f"{_dotted(path)} is missing; it must be {_allowed(path, detail)}"
    if kind == "value_error":
        context: Mapping[str, Any] = detail.get("ctx", {})
        return f"{_dotted(path)}: {context.get('error', detail['msg'])}".removeprefix(": ")
    found = detail["input"]
    sentence = f"{_dotted(path)} is {_show(found)}; it must be {_allowed(path, detail)}"
    if kind in ("literal_error", "unknown_name") and isinstance(found, str):
        key = find_key(path)
        names = detail.get("ctx", {}).get("names") or (key.allowed.split(", ") if key else [])
        near = nearest_word(found, names)
        sentence += f" (did you mean {near}?)" if near else ""
    return sentence


def _allowed(path: Sequence[str | int], detail: ErrorDetails) -> str:
    key = find_key(path)
    return key.allowed if key else detail["msg"].lower().removeprefix("input should be ")


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path))
