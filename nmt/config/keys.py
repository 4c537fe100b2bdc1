"""The keys of the configuration: allowed values, error messages, reference page."""

from __future__ import annotations

import difflib
import json
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
from nmt.errors import ConfigError, nearest_word

KeyPath = tuple[str | int, ...]  # Keys and list positions from the root.
Schema = Mapping[str, Any]  # A section or field of a JSON schema.

ANY: Final = "*"  # In a `Key` path: any list position, or any name that users choose.

# Types and formats of JSON schema in words, and its limits.
_KINDS: Mapping[str, str] = {
    "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "string": "text", "array": "a list", "object": "a section per name",
    "null": "null", "path": "a path", "section": "a section",
}  # fmt: skip
_BOUNDS: Mapping[str, str] = {
    "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
    "exclusiveMaximum": "below", "pattern": "matching", "minItems": "items at least",
}  # fmt: skip


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
    for name, field in section.get("properties", {}).items():
        outer = inner = (*path, name)
        forms = field.get("anyOf", [field])
        value = next((form for form in forms if "$ref" in form), forms[-1])
        for part in ("items", "additionalProperties"):
            if isinstance(field.get(part), dict) and "$ref" in field[part]:
                value, inner = field[part], (*outer, ANY)
        below = sections.get(value.get("$ref", "").rpartition("/")[2])
        is_section = below is not None and "allowed" not in field
        default, is_given = field.get("default"), is_section or name in section.get("required", ())
        summary = (below or {}).get("description", "").partition("\n\nArgs:")[0]
        allowed = "a section" if is_section and inner == outer else describe_schema(field)
        shown = "" if is_given else default if type(default) is str else json.dumps(default)
        about = meanings.get(name, " ".join(summary.split()))
        yield Key(outer, allowed, shown, about, is_section)
        if below:
            if inner != outer:
                yield Key(inner, "a section", "", summary, True)
            yield from _walk(below, sections, inner)


def describe_schema(field: Schema) -> str:
    """Describe the values that a field of a JSON schema allows.

    >>> describe_schema({"type": "integer", "minimum": 1})
    'a whole number, at least 1'
    """
    if "allowed" in field:
        return str(field["allowed"])
    if options := field.get("anyOf", field.get("allOf")):
        return ", or ".join(map(describe_schema, options))
    if "enum" in field.get("items", ()):
        return f"a list of {describe_schema(field['items'])}"
    if "prefixItems" in field:
        parts = (describe_schema(each).partition(",")[0] for each in field["prefixItems"])
        return f"a list of {' and '.join(parts)}"
    if names := field.get("enum", [field["const"]] if "const" in field else []):
        return ", ".join(map(str, names))
    kind = "section" if "$ref" in field else field.get("format", field.get("type"))
    bounds = (f"{words} {field[name]}" for name, words in _BOUNDS.items() if name in field)
    return ", ".join([_KINDS.get(kind, "a value"), *bounds])


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
        raise ConfigError(f"{unknown_key(path)}.", fix=fix)
    if (above := find_key(path[:-1])) and not above.is_section:  # it describes its parts
        path = path[:-1]
    shown = [key for key in all_keys() if _num_shared(key.path, path) == len(path)]
    sections = [(key.path, key.description) for key in all_keys() if key.is_section]
    for section, about in [((), ""), *sections]:
        keys = [key for key in shown if key.path[:-1] == section and not key.is_section]
        if keys:
            yield ".".join(section) or "Top level", " ".join(about.split()), keys


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


def find_key(path: Sequence[str | int]) -> Key | None:
    """Return the key at a path, or None."""
    # Validation sets are described as a single section, but may be a list.
    names = tuple(part for part in path if not isinstance(part, int))
    alike = (key for each in (path, names) for key in all_keys() if _is_at(key, each))
    return next(alike, None)


def _is_at(key: Key, path: Sequence[str | int]) -> bool:
    return len(key.path) == len(path) == _num_shared(key.path, path)


def _num_shared(pattern: Sequence[str], path: Sequence[str | int]) -> int:
    """Return how many leading parts of ``path`` match the key path ``pattern``."""
    same = (known in (ANY, str(part)) for known, part in zip(pattern, path, strict=False))
    return len(list(takewhile(bool, same)))


def nearest_key(path: Sequence[str | int]) -> str | None:
    """Return the key most similar to an unknown key, dotted, or None.

    For another toolkit's name, returns nmt's name, which may be two keys or include a remark. Keys
    of the same section are preferred.

    >>> nearest_key(("training", "lr"))
    'training.schedule.peak_lr'
    >>> nearest_key(("N",))
    'model.encoder_layers and model.decoder_layers'
    """
    if find_key(path):
        return ".".join(map(str, path))
    words = ["", *(str(part).lower().replace("-", "_") for part in path)]
    known = (aliases().get("_".join(words[start:]), ()) for start in range(len(words)))
    keys = (ours for found in known for ours in found if not is_of_command_line(ours))
    wanted = next(keys, words[-1])
    if "." in wanted:
        return wanted
    best = max(all_keys(), key=lambda key: _likeness(key, path, wanted))
    if _likeness(best, path, wanted) < 0.66:
        return None
    shared = _num_shared(best.path[:-1], path[:-1])
    return ".".join([*map(str, path[:shared]), *best.path[shared:]])


@cache
def aliases() -> Mapping[str, Sequence[str]]:
    """Names in papers and other toolkits, and former names of keys -> current keys and flags."""
    found: dict[str, list[str]] = {}
    for file in ("aliases.yaml", "renamed.yaml"):
        names = yaml.safe_load(Path(__file__).with_name(file).read_text("utf-8"))
        for ours, others in names.items():
            for name in others.split():
                found.setdefault(name, []).append(ours)
    return found


def is_of_command_line(ours: str) -> bool:
    """Return whether an entry of `aliases` is a flag, an argument or a remark."""
    return ours.startswith(("--", ": ")) or ours.isupper()


def _likeness(key: Key, path: Sequence[str | int], wanted: str) -> float:
    name = key.path[-1]
    alike = difflib.SequenceMatcher(None, wanted, name).ratio()
    shared = _num_shared(key.path[:-1], path[:-1])
    same_section = shared == len(path) - 1 == len(key.path) - 1
    is_start = wanted.startswith(name) or name.startswith(wanted)
    if same_section and is_start and min(len(name), len(wanted)) >= 4:
        alike = max(alike, 0.9)  # more than an identical name in another section
    elif wanted in name.split("_") or name in wanted.split("_"):
        alike = max(alike, 0.75)
    return alike + 0.03 * shared + 0.1 * same_section - 0.02 * abs(len(key.path) - len(path))


def unknown_key(path: Sequence[str | int], value: Any = None) -> str:
    """Return a message about a key that does not exist.

    Args:
        path: The key.
        value: Its value; a dict indicates a section.

    >>> unknown_key(("training", "schedule", "warm_up_steps"))
    'unknown key training.schedule.warm_up_steps; did you mean training.schedule.warmup_steps?'
    """
    near = nearest_key(path) or ""
    key = find_key(near.split("."))
    if isinstance(value, dict) and key and not key.is_section and "{" not in key.allowed:
        near = near.rpartition(".")[0]
    near += _choice_in(near, value)
    advice = f"did you mean {near}?" if near else "run `nmt config keys` for a list"
    return f"unknown key {'.'.join(map(str, path))}; {advice}"


def _choice_in(section: str, value: Any) -> str:
    """Return ``.KEY=VALUE`` for the key of a section that allows ``value`` or a similar value."""
    for key in all_keys():
        is_inside = ".".join(key.path[:-1]) == section and isinstance(value, str)
        names = key.allowed.split(", ") if is_inside else []
        if near := value if value in names else nearest_word(str(value), names):
            return f".{key.path[-1]}={near}"
    return ""


def find_problems(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return all problems in a failed validation: key and message, in the order of the file.

    A misspelled key is reported as misspelled, and not also as missing. A list that is too short
    because its items are wrong is not reported again.
    """
    found: dict[object, ErrorDetails] = {}
    for number, detail in enumerate(error.errors(include_url=False, include_context=True)):
        if detail["type"] == "too_short" and detail["input"]:
            continue
        path, key = detail["loc"], find_key(detail["loc"])
        if key is None and detail["type"] != "extra_forbidden":
            # Remove the types that pydantic adds: max_tokens.int, vocab_size.dict[...].source
            for end in range(len(path)):
                parent = find_key(path[:end])
                has_type = any(isinstance(part, str) for part in path[end:])
                if parent is not None and not parent.is_section and has_type:
                    path, key = path[:end], parent
                    break
        # A value with several allowed types has several errors; keep the first.
        place = number if key is None or key.is_section else path
        found.setdefault(place, {**detail, "loc": path})
    unknown = [each["loc"] for each in found.values() if each["type"] == "extra_forbidden"]
    meant = {*map(nearest_key, unknown)}
    return [
        (each["loc"], _sentence(each))
        for each in found.values()
        if each["type"] != "missing" or ".".join(map(str, each["loc"])) not in meant
    ]


def _key_with(name: str, path: KeyPath) -> str:
    """Return a hint if a key with a similar name in a different section allows the value."""
    keys = (key for key in all_keys() if key.path[-1] == path[-1] and ANY not in key.path)
    found = next((key for key in keys if name in key.allowed.split(", ")), None)
    if found is None:
        return ""
    dotted = ".".join(found.path)
    return f" ({name} is for {dotted}: `set` {dotted}={name})"


def _sentence(detail: ErrorDetails) -> str:
    path, kind, found = detail["loc"], detail["type"], detail["input"]
    dotted, key = ".".join(map(str, path)), find_key(path)
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return unknown_key(path, found)
    if kind == "value_error":
        return f"{dotted}: {context.get('error', detail['msg'])}".removeprefix(": ")
    allowed = key.allowed if key else detail["msg"].lower().removeprefix("input should be ")
    if kind == "missing":
        return f"{dotted} is missing; it must be {allowed}"
    shown = json.dumps(found) if found is None or isinstance(found, bool | dict) else repr(found)
    if isinstance(found, list) or (isinstance(found, dict) and "{" not in allowed):
        shown = "a list" if isinstance(found, list) else "a section"
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    sentence = f"{dotted} is {shown}; it must be {allowed}"
    if key and key.is_section and (choice := _choice_in(dotted, found)):
        return f"{sentence}; did you mean {dotted}{choice}?"
    if kind in ("literal_error", "unknown_name") and isinstance(found, str):
        names = context.get("names") or (key.allowed.split(", ") if key else [])
        near = nearest_word(found, names)
        hint = f" (did you mean {near}?)" if near else _key_with(found, path)
        sentence += context.get("advice") or hint
    return sentence
