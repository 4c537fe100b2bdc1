"""The keys of the configuration: allowed values, error messages, reference page."""

from __future__ import annotations

import difflib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nmt.config.flag import meanings_of
from nmt.config.run import RunConfig
from nmt.errors import MAX_COMPARED, ConfigError, nearest_word
from nmt.installation import read_toml

KeyPath = tuple[str | int, ...]  # Keys and list positions from the root.
Parts = Sequence[str | int]  # The same, as a list or tuple.
Schema = Mapping[str, Any]  # A section or field of a JSON schema.

ANY: Final = "*"  # In a `Key` path: any list position, or any name that users choose.

LANGUAGE: Final = re.compile("(?!out)[a-z]{2,3}")
_MIN_LIKENESS = 0.66
_MAX_SHOWN = 60  # Characters of a wrong value in a message.

_WORDS = read_toml(__file__, "keys.toml")  # Types and limits of JSON schema in words.


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    path: tuple[str, ...]  # From the root, with `ANY` for positions and chosen names.
    allowed: str  # Allowed values, in words.
    default: str  # Default as YAML; empty if the key is required.
    description: str  # Meaning.
    is_section: bool  # Whether it contains other keys.


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key of `nmt.config.run.RunConfig`, in the order of the file."""
    schema = RunConfig.model_json_schema()
    return tuple(_walk(schema, schema.get("$defs", {}), ()))


def _walk(section: Schema, sections: Schema, path: tuple[str, ...]) -> Iterator[Key]:
    """Yield the keys of a section of the JSON schema, and of the sections in it."""
    meanings = meanings_of(section.get("description"))
    required = section.get("required", ())
    for name, schema in section.get("properties", {}).items():
        outer = (*path, name)
        inner = outer
        forms = schema.get("anyOf", [schema])
        value = next((form for form in forms if "$ref" in form), forms[-1])
        for part in ("items", "additionalProperties"):
            items = schema.get(part)
            if isinstance(items, dict) and "$ref" in items:
                value = items
                inner = (*outer, ANY)
        below = sections.get(value.get("$ref", "").rpartition("/")[2])
        is_section = below is not None and "allowed" not in schema
        summary = ""
        if below:
            summary = below.get("description", "").partition("\n\nArgs:")[0]
        allowed = describe_schema(schema)
        if is_section and inner == outer:
            allowed = "a section"
        default = schema.get("default")
        if is_section or name in required:
            default = ""
        elif type(default) is not str:
            default = json.dumps(default)
        about = meanings.get(name, " ".join(summary.split()))
        yield Key(outer, allowed, default, about, is_section)
        if below:
            if inner != outer:
                yield Key(inner, "a section", "", summary, is_section=True)
            yield from _walk(below, sections, inner)


def describe_schema(schema: Schema) -> str:
    """Describe the values that a field of a JSON schema allows.

    >>> describe_schema({"type": "integer", "minimum": 1})
    'a whole number, at least 1'
    """
    if "allowed" in schema:
        return str(schema["allowed"])
    options = schema.get("anyOf", schema.get("allOf"))
    if options:
        return ", or ".join(map(describe_schema, options))
    if "enum" in schema.get("items", ()):
        return f"a list of {describe_schema(schema['items'])}"
    if "prefixItems" in schema:
        parts = map(describe_schema, schema["prefixItems"])
        return f"a list of {' and '.join(part.partition(',')[0] for part in parts)}"
    names = schema.get("enum", [])
    if "const" in schema:
        names = [schema["const"]]
    if names:
        return ", ".join(map(str, names))
    kind = schema.get("format", schema.get("type"))
    if "$ref" in schema:
        kind = "section"
    words = [_WORDS["kinds"].get(kind, "a value")]
    for name, bound in _WORDS["bounds"].items():
        if name in schema:
            words.append(f"{bound} {schema[name]}")
    return ", ".join(words)


def described_sections(start: str = "") -> Iterator[tuple[str, str, list[Key]]]:
    """Yield the name, the meaning and the keys of each section, top level first.

    Args:
        start: A section, such as ``training``, or a key; all keys when empty.

    Raises:
        ConfigError: The key does not exist.
    """
    path = tuple(start.split(".")) if start else ()
    if start and find_key(path) is None:
        fix = "Use a section, such as model or training.schedule, or a key."
        raise ConfigError(unknown_key(path), fix=fix)
    if (above := find_key(path[:-1])) and not above.is_section:  # it describes its parts
        path = path[:-1]
    shown = [key for key in all_keys() if _num_shared(key.path, path) == len(path)]
    sections = [(key.path, key.description) for key in all_keys() if key.is_section]
    for section, about in [((), ""), *sections]:
        keys = [key for key in shown if key.path[:-1] == section and not key.is_section]
        if keys:
            title = ".".join(section) or "Top level"
            yield title, " ".join(about.split()), keys


def describe_keys(start: str = "") -> str:
    """Return the keys as Markdown, with a table for each section.

    Args:
        start: As in `described_sections`.
    """
    blocks = [] if start else ["# Configuration", "Made by `nmt config keys`; do not edit."]
    seen: dict[str, str] = {}
    for name, about, keys in described_sections(start):
        rows = [
            f"| `{key.path[-1]}` | {f'`{key.default}`' if key.default else 'required'} "
            f"| {key.allowed} | {key.description} |"
            for key in keys
        ]
        table = "\n".join(["| key | default | allowed | meaning |", "|---|---|---|---|", *rows])
        # Corpora are described once, although three keys hold them.
        first = seen.setdefault(table, name)
        below = table if first == name else f"The same keys as `{first}`."
        blocks += [f"## {name}", about, below]
    return "\n\n".join(filter(None, blocks)).replace("``", "`") + "\n"


def find_key(path: Parts) -> Key | None:
    """Return the key at a path, or None."""
    # Validation sets are described as a single section, but may be a list.
    names = tuple(part for part in path if not isinstance(part, int))
    for key in reversed(all_keys()):  # items come after their list
        if _is_at(key, path) or (ANY not in key.path and _is_at(key, names)):
            return key
    return None


def dotted(path: Parts) -> str:
    """Return the text of a path."""
    return ".".join(map(str, path))


def _is_at(key: Key, path: Parts) -> bool:
    return len(key.path) == len(path) == _num_shared(key.path, path)


def _num_shared(pattern: Sequence[str], path: Parts) -> int:
    """Return how many leading parts of ``path`` match the key path ``pattern``."""
    same = (known in (ANY, str(part)) for known, part in zip(pattern, path, strict=False))
    return len(list(takewhile(bool, same)))


def known_key(path: Parts, value: Any = None) -> str:
    """Return nmt's name for a key; empty if the key is unknown.

    For another toolkit's name, the answer may be two keys or ``KEY=VALUE``, or include a remark.

    Args:
        path: The key, in nmt or in another toolkit.
        value: Its value, as far as it is known.

    >>> known_key(("N",))
    'model.encoder_layers and model.decoder_layers'
    """
    if find_key(path):
        return dotted(path)
    # An empty word in front distinguishes keys at the top level.
    words = ["", *map(normal, path)]
    wanted = words[-1]
    is_listed = False
    for start in reversed(range(len(words))):  # the longest name is the last
        for ours in reversed(aliases().get("_".join(words[start:]), ())):
            if not is_of_command_line(ours):
                wanted = ours
                is_listed = True
    if wanted in ("source", "target") and LANGUAGE.fullmatch(str(value)):
        wanted += "_language"
    beside = (*path[:-1], wanted)
    if find_key(beside):
        return dotted(beside)
    if "." in wanted or (is_listed and find_key(wanted.split(" and ")[:1])):
        return wanted
    alike = [key for key in all_keys() if key.path[-1] == wanted]
    if len(path) > 1 and find_key(path[:1]):  # another section of ours is not meant
        alike = [key for key in alike if key.path[0] == path[0]]
    return _nearest(path, wanted, alike)


def nearest_key(path: Parts, value: Any = None) -> str:
    """Return the answer of `known_key`, or the key with the most similar name.

    >>> nearest_key(("training", "lr"))
    'training.schedule.peak_lr'
    """
    return known_key(path, value) or _nearest(path, normal(path[-1]), all_keys())


def _nearest(path: Parts, wanted: str, keys: Sequence[Key]) -> str:
    scores = {key: _likeness(key, path, wanted) for key in keys}
    best = max(scores, key=lambda key: scores[key], default=None)
    if best is None or scores[best] < _MIN_LIKENESS:
        return ""
    shared = _num_shared(best.path[:-1], path[:-1])
    names = [*map(str, path[:shared]), *best.path[shared:]]
    return ".".join(names)


def normal(name: str | int) -> str:
    """Return a name as in aliases.yaml: in lower case, with underscores."""
    return str(name).lower().replace("-", "_")


@cache
def aliases() -> Mapping[str, Sequence[str]]:
    """Names in papers and other toolkits, and former names of keys -> current keys and flags."""
    found = defaultdict[str, list[str]](list)
    for file in ("aliases.yaml", "renamed.yaml"):
        names = yaml.safe_load(Path(__file__).with_name(file).read_text("utf-8"))
        for ours, others in names.items():
            for name in others.split():
                found[name].append(ours)
    return found


def is_of_command_line(ours: str) -> bool:
    """Return whether an entry of `aliases` is a flag, an argument or a remark."""
    return ours.startswith(("--", ": ")) or ours.isupper()


def _likeness(key: Key, path: Parts, wanted: str) -> float:
    alike = difflib.SequenceMatcher(None, wanted[:MAX_COMPARED], key.path[-1]).ratio()
    shared = _num_shared(key.path[:-1], path[:-1])
    same_section = shared == len(path) - 1 == len(key.path) - 1
    difference = abs(len(key.path) - len(path))
    return alike + 0.03 * shared + 0.1 * same_section - 0.02 * difference


def unknown_key(path: Parts, value: Any = None) -> str:
    """Return a message about a key that does not exist.

    Args:
        path: The key.
        value: Its value; a dict indicates a section.

    >>> unknown_key(("training", "schedule", "warm_up_steps"))
    'unknown key training.schedule.warm_up_steps; did you mean training.schedule.warmup_steps?'
    """
    near = nearest_key(path, value)
    key = find_key(near.split("."))
    if isinstance(value, dict) and key and not key.is_section and "{" not in key.allowed:
        near = near.rpartition(".")[0]
    near += choice_in(near, value)
    advice = "run `nmt config keys` for a list"
    if near:
        advice = f"did you mean {near}?"
    return f"unknown key {dotted(path)}; {advice}"


def choice_in(section: str, value: Any) -> str:
    """Return ``.KEY=VALUE`` for the key of a section that allows ``value`` or means it."""
    if not section or not isinstance(value, str):
        return ""
    for ours in aliases().get(normal(value), ()):
        if ours.startswith(f"{section}.") and "=" in ours:
            return ours.removeprefix(section)
    for key in all_keys():
        is_inside = dotted(key.path[:-1]) == section
        if is_inside and value in key.allowed.split(", "):
            return f".{key.path[-1]}={value}"
    return ""


def leaves(values: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the keys and values in all sections of a configuration."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def find_problems(error: ValidationError, section: KeyPath = ()) -> list[tuple[KeyPath, str]]:
    """Return all problems in a failed validation: key and message, in the order of the file.

    The values are those of a section; by default, of the whole configuration.

    A misspelled key is reported as misspelled, and not also as missing. A list that is too short
    because its items are wrong is not reported again.
    """
    found: dict[object, ErrorDetails] = {}
    for number, detail in enumerate(error.errors(include_url=False, include_context=True)):
        if detail["type"] == "too_short" and detail["input"]:
            continue
        path = (*section, *detail["loc"])
        key = find_key(path)
        if key is None and detail["type"] != "extra_forbidden":
            # Remove the types that pydantic adds: max_tokens.int, vocab_size.dict[...].source
            for end in range(len(path)):
                parent = find_key(path[:end])
                has_type = any(isinstance(part, str) for part in path[end:])
                if parent is not None and not parent.is_section and has_type:
                    path = path[:end]
                    key = parent
                    break
        # A value with several allowed types has several errors; keep the first.
        place = number if key is None or key.is_section else path
        found.setdefault(place, {**detail, "loc": path})
    problems: list[tuple[KeyPath, str]] = []
    meant: set[str] = set()
    for detail in found.values():
        if detail["type"] != "extra_forbidden":
            continue
        for path, value in _unknown(detail):
            meant.update(nearest_key(path, value).split(" and "))
    for detail in found.values():
        path = detail["loc"]
        if detail["type"] == "extra_forbidden":
            problems += [(path, unknown_key(path, value)) for path, value in _unknown(detail)]
        elif detail["type"] != "missing" or dotted(path) not in meant:
            problems.append((path, _sentence(detail)))
    return problems


def _unknown(detail: ErrorDetails) -> Iterator[tuple[KeyPath, Any]]:
    """Yield an unknown key, or the keys in an unknown section."""
    value = detail["input"]
    near = find_key(nearest_key(detail["loc"], value).split("."))
    if isinstance(value, dict) and not (near and near.is_section):
        yield from leaves(value, detail["loc"])
    else:
        yield detail["loc"], value


def _sentence(detail: ErrorDetails) -> str:
    path = detail["loc"]
    kind = detail["type"]
    found = detail["input"]
    name = dotted(path)
    key = find_key(path)
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "value_error":
        return f"{name}: {context.get('error', detail['msg'])}".removeprefix(": ")
    allowed = detail["msg"].lower().removeprefix("input should be ")
    if key:
        allowed = key.allowed
    if kind == "missing":
        return f"{name} is missing; it must be {allowed}"
    shown = repr(found)
    if isinstance(found, list):
        shown = "a list"
    elif isinstance(found, dict) and "{" not in allowed:
        shown = "a section"
    elif found is None or isinstance(found, bool | dict):
        shown = json.dumps(found)
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[: _MAX_SHOWN - 3]}..."
    sentence = f"{name} is {shown}; it must be {allowed}"
    if key and key.is_section:
        choice = choice_in(name, found)
        if choice:
            return f"{sentence}; did you mean {name}{choice}?"
        if name.startswith("data."):
            example = "{source: FILE, target: FILE}"
            if key.path[-1] == "train":
                example = f"[{example}]"
            sentence += f", such as {example}"
    if kind in ("literal_error", "unknown_name") and isinstance(found, str):
        names = context.get("names", allowed.split(", "))
        near = nearest_word(found, names)
        hint = f" (did you mean {near}?)" if near else ""
        sentence += context.get("advice") or hint
    return sentence
