"""YAML text -> plain values that remember their lines. Hostile and ambiguous text is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from nmt.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Where a value stands: keys and list positions, from the root."""

MAX_BYTES: Final = 1 << 20
"""Largest configuration file; a real one has a few thousand bytes."""
MAX_VALUES: Final = 20_000
"""Most values after aliases are expanded; nested aliases can ask for billions."""

_CORE_TAG = "tag:yaml.org,2002:"
_KINDS: Mapping[type[yaml.Node], tuple[str, ...]] = {
    yaml.MappingNode: ("map",),
    yaml.SequenceNode: ("seq",),
    yaml.ScalarNode: ("str", "bool", "null", "float", "int"),
}
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?|[-+]?\d[\d_]*\.?([eE][-+]?\d+)?")
# The core schema of YAML 1.2. PyYAML's own rules are those of 1.1, where `no` (Norwegian) is
# false, `5e-4` is text and `1:30` is ninety.
_FLOAT = rf"{_NUMBER.pattern}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_RESOLVERS: Mapping[str, tuple[str, list[str]]] = {  # name -> pattern, first characters
    "bool": ("true|True|TRUE|false|False|FALSE", list("tTfF")),
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "float": (_FLOAT, list("-+0123456789.")),
}


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed YAML."""

    values: Any
    """Nested dicts with string keys, lists, strings, numbers, booleans and None."""
    lines: dict[KeyPath, int]
    """The line of every value, from 1."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2, and ``@config/x`` without quotes."""

    def check_plain(self) -> bool:
        # YAML reserves @ and gives it no meaning; here it starts a path.
        return self.peek() == "@" or bool(super().check_plain())


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; quotes what either version of YAML would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the name is PyYAML's
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # PyYAML folds these line ends into spaces unless the text stands in double quotes.
    style = '"' if re.search("[\r\n\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar(_CORE_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _RESOLVERS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_CORE_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, is too large, or is refused by
            `parse_document`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}",
            fix="Give the path of a configuration file; configs/ holds examples.",
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path} is larger than {MAX_BYTES:,} bytes.",
            fix="A configuration names files, it does not hold their text; is this the right file?",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start:,} is not UTF-8.", fix="Save the file as UTF-8."
        ) from error
    return parse_document(text, name=str(path))


def parse_document(text: str, *, name: str) -> Document:
    """Parse YAML text.

    Args:
        text: One YAML document.
        name: What to call it in messages; usually its path.

    Raises:
        ConfigError: It is no YAML, repeats a key, uses a tag, or expands too far. Carries the line.

    >>> parse_document("a: {b: no}", name="x").values
    {'a': {'b': 'no'}}
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, name) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {error}", fix="Remove the control characters.") from error
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deeply.", fix="Flatten it.") from error
    reader = _NodeReader(name)
    values = {} if root is None else reader.read(root, ())
    return Document(values, reader.lines)


def dump_document(values: Any) -> str:
    """Write plain values as YAML that `parse_document` reads back to the same values."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def _syntax_error(error: yaml.MarkedYAMLError, name: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}" if mark else name
    problem = " ".join(part for part in (error.context, error.problem) if part)
    if "\\t" in (error.problem or ""):
        return ConfigError(f"{where}: found a tab.", fix="YAML indents with spaces only.")
    return ConfigError(
        f"{where}: this is not YAML: {problem}.",
        fix="Compare with a file in configs/; mind colons, indentation and quotes.",
    )


class _NodeReader:
    """Turns PyYAML's nodes into values. Nothing is constructed but text, numbers and containers."""

    def __init__(self, name: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._name = name
        self._open: list[int] = []

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines[path] = node.start_mark.line + 1
        if len(self.lines) > MAX_VALUES or id(node) in self._open:
            raise self._refuse(
                node, "aliases expand too far", "Write the repeated values out instead."
            )
        if node.tag not in {_CORE_TAG + kind for kind in _KINDS[type(node)]}:
            tag = node.tag.replace(_CORE_TAG, "!!")
            fix = "Use plain text, numbers, true, false, null, lists and keys only."
            raise self._refuse(node, f"the tag {tag} is refused", fix)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node.value, node.tag.removeprefix(_CORE_TAG))
        self._open.append(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            items: Sequence[yaml.Node] = node.value
            return [self.read(item, (*path, i)) for i, item in enumerate(items)]
        finally:
            self._open.pop()

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._refuse(key_node, "a key must be plain text", "Use a word as the key.")
            key = key_node.value
            if key in result:
                first = self.lines[*path, key]
                raise self._refuse(
                    key_node,
                    f"the key {'.'.join(map(str, (*path, key)))} was given on line {first} already",
                    "Keep one of the two.",
                )
            result[key] = self.read(value_node, (*path, key))
            self.lines[*path, key] = key_node.start_mark.line + 1
        return result

    def _refuse(self, node: yaml.Node, problem: str, fix: str) -> ConfigError:
        return ConfigError(f"{self._name}:{node.start_mark.line + 1}: {problem}.", fix=fix)


def _scalar(text: str, kind: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return text if kind == "str" else _number(text)


def _number(text: str) -> int | float | str:
    """The number that the text spells; a whole one is an int, also when written as 1e5."""
    plain = text.replace("_", "").lower()
    if plain.lstrip("+-") in (".inf", ".nan"):
        return float(plain.replace(".", ""))
    if re.fullmatch(r"[-+]?\d+", plain):
        # int() refuses thousands of digits; such text is left as text, and refused as that.
        return int(plain) if len(plain) < 100 else text
    if re.fullmatch(_NUMBER, text) is None:
        return text
    number = float(plain)
    return int(number) if "e" in plain and number.is_integer() and number < 1e15 else number
