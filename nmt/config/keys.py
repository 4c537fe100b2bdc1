"""The keys of the configuration: what they allow, the nearest one to a slip, a page to read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final, TypeVar

from nmt.errors import ConfigError

T = TypeVar("T")

ANY: Final = "*"
"""Stands for a list position or a name of the user's choice in a `Key` path."""

_SHORTEST_START: Final = 4

_OTHER_WORDS: Mapping[str, str] = MappingProxyType({
    "adam_betas": "betas", "adam_eps": "epsilon", "batch_size": "max_tokens", "beam": "beam_size",
    "bpe": "vocab_size", "clip": "clip_norm", "d_model": "model_dim", "dim": "model_dim",
    "early_stopping": "patience", "eps": "epsilon", "eval_every": "validate_every",
    "gradient_clipping": "clip_norm", "heads": "num_heads", "hidden_size": "model_dim",
    "learning_rate": "peak_lr", "log_every": "report_every", "max_updates": "max_steps",
    "output_dir": "run_dir", "scheduler": "schedule", "src": "source",
    "src_lang": "source_language", "steps": "max_steps", "tgt": "target",
    "tgt_lang": "target_language", "trg": "target", "update_freq": "accumulate",
    "vocabulary": "vocab_size",
})  # fmt: skip
"""What other toolkits and papers call our keys, where the spelling does not give it away."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the configuration."""

    path: tuple[str, ...]
    """From the root; `ANY` stands for positions and chosen names."""
    allowed: str
    """Values it takes, in words."""
    default: str
    """Its default as YAML; empty when it must be given."""
    description: str
    """What it does."""
    is_section: bool
    """True if it holds other keys."""


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key of `nmt.config.run.RunConfig`, in the order of the file."""
    from nmt.config.run import RunConfig  # noqa: PLC0415 - sections do not know their tree

    schema = RunConfig.model_json_schema()
    return tuple(_walk(schema, schema.get("$defs", {}), ()))


def find_key(path: Sequence[str | int]) -> Key | None:
    """The key at a path, or None."""
    return next((key for key in all_keys() if _matches(key.path, path)), None)


def nearest_key(path: Sequence[str | int]) -> str | None:
    """The existing key most like an unknown one, dotted, or None if nothing is near.

    Keys of the same section win over equally near keys elsewhere.

    >>> nearest_key(("training", "lr"))
    'training.schedule.peak_lr'
    """
    wanted = str(path[-1]).lower().replace("-", "_")
    wanted = _OTHER_WORDS.get(wanted, wanted)
    best = max(all_keys(), key=lambda key: _likeness(key, path, wanted))
    if _likeness(best, path, wanted) < 0.66:
        return None
    shared = _num_shared(best, path)
    return ".".join([*map(str, path[:shared]), *best.path[shared:]])


def nearest_word(word: str, words: Sequence[str]) -> str | None:
    """The most similar of some words, or None if none is similar."""
    return next(iter(difflib.get_close_matches(word, words, n=1)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a sentence, after a space, that names the most similar word; nothing if none is."""
    near = nearest_word(word, tuple(words))
    return f" Did you mean {near}?" if near else ""


def chosen(registry: Mapping[str, T], name: str, key: str) -> T:
    """Return the entry that a configuration key names.

    Raises:
        ConfigError: There is none; names the nearest.
    """
    if name in registry:
        return registry[name]
    near = nearest_word(name, list(registry))
    suggestion = f" (did you mean {near}?)" if near else ""
    raise ConfigError(
        f"{key}: there is no {name!r}{suggestion}.", fix=f"Use one of {', '.join(registry)}."
    )


def _likeness(key: Key, path: Sequence[str | int], wanted: str) -> float:
    name = key.path[-1]
    if name == ANY:
        return 0.0
    alike = difflib.SequenceMatcher(None, wanted, name).ratio()
    if wanted in name.split("_") or name in wanted.split("_"):
        alike = max(alike, 0.75)
    shared = _num_shared(key, path)
    same_section = shared == len(path) - 1 == len(key.path) - 1
    is_start = wanted.startswith(name) or name.startswith(wanted)
    if same_section and is_start and min(len(name), len(wanted)) >= _SHORTEST_START:
        alike = max(alike, 0.9)  # above a key of the very name elsewhere
    return alike + 0.03 * shared + 0.1 * same_section - 0.02 * abs(len(key.path) - len(path))


def _num_shared(key: Key, path: Sequence[str | int]) -> int:
    """Count the sections that a key and a path have in common."""
    pairs = zip(key.path[:-1], path[:-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] in (ANY, str(pair[1])), pairs)))


def _matches(pattern: Sequence[str], path: Sequence[str | int]) -> bool:
    return len(pattern) == len(path) and all(
        want in (ANY, str(found)) for want, found in zip(pattern, path, strict=True)
    )


def _walk(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[Key]:
    for name, field in schema.get("properties", {}).items():
        yield from _field(field, definitions, (*path, name), name in schema.get("required", ()))


def _field(
    field: Mapping[str, Any], definitions: Mapping[str, Any], path: tuple[str, ...], required: bool
) -> Iterator[Key]:
    inner, inner_path = _inner(field), path
    if "items" in field and "$ref" in field["items"]:
        inner, inner_path = field["items"], (*path, ANY)
    elif isinstance(field.get("additionalProperties"), dict):
        inner, inner_path = field["additionalProperties"], (*path, ANY)
    section = definitions.get(inner.get("$ref", "").rpartition("/")[2])
    yield Key(
        path,
        "a section" if section and inner_path == path else describe_schema(field),
        "" if required or section else _yaml(field.get("default")),
        " ".join((field.get("description") or (section or {}).get("description", "")).split()),
        section is not None,
    )
    if section:
        if inner_path != path:
            yield Key(inner_path, "a section", "", section.get("description", ""), True)
        yield from _walk(section, definitions, inner_path)


def _inner(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a field that may be null, or that is wrapped to carry a description."""
    for group in ("anyOf", "allOf"):
        options = [option for option in field.get(group, ()) if option.get("type") != "null"]
        if len(options) == 1:
            return dict(options[0])
    return field


def describe_schema(field: Mapping[str, Any]) -> str:
    """The values that a field of a JSON schema allows, in words.

    >>> describe_schema({"type": "integer", "minimum": 1})
    'a whole number, at least 1'
    """
    nullable = any(option.get("type") == "null" for option in field.get("anyOf", ()))
    inner = _inner(field)
    if "allowed" in field:
        return str(field["allowed"])
    options = [option for option in inner.get("anyOf", ()) if option.get("type") != "null"]
    if options:
        words = ", or ".join(map(describe_schema, options))
    elif "enum" in inner or "const" in inner:
        words = ", ".join(map(str, inner.get("enum", [inner.get("const")])))
    else:
        words = ", ".join([_kind(inner), *_bounds(inner)])
    return f"{words}, or null" if nullable else words


def _kind(inner: Mapping[str, Any]) -> str:
    if inner.get("type") == "array":
        if "prefixItems" in inner:
            return "a list of " + " and ".join(_kind(item) for item in inner["prefixItems"])
        return "a list"
    if inner.get("format") == "path":
        return "a path"
    kinds = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "text",
        "object": "names with a section each",
    }
    return kinds.get(inner.get("type", ""), "a section" if "$ref" in inner else "a value")


def _bounds(inner: Mapping[str, Any]) -> Iterator[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
        "pattern": "matching",
        "minItems": "entries at least",
    }
    for name, word in words.items():
        if name in inner and not (name == "minItems" and "prefixItems" in inner):
            yield f"{word} {inner[name]}"


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return "{}" if value == {} else str(value)


def describe_keys() -> str:
    """Every key as Markdown: one table for each section, top level first."""
    lines = ["# Configuration", "", "Made by `nmt config keys`; do not edit."]
    seen: dict[tuple[Key, ...], str] = {}
    sections = [key for key in all_keys() if key.is_section]
    for path, about in [((), ""), *((section.path, section.description) for section in sections)]:
        keys = [key for key in all_keys() if key.path[:-1] == path and not key.is_section]
        if not keys:
            continue
        name = ".".join(path) or "Top level"
        lines += ["", f"## {name}", "", *([_markdown(about), ""] if about else [])]
        # Corpora are described once, although three keys hold them.
        table = tuple(replace(key, path=key.path[-1:]) for key in keys)
        if table in seen:
            lines.append(f"The keys are those of `{seen[table]}`.")
        else:
            seen[table] = name
            lines += ["| key | default | allowed | meaning |", "|---|---|---|---|"]
            lines += map(_row, keys)
    return "\n".join(lines) + "\n"


def _row(key: Key) -> str:
    default = f"`{key.default}`" if key.default else "must be given"
    return f"| `{key.path[-1]}` | {default} | {key.allowed} | {_markdown(key.description)} |"


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")
