"""YAML documents with overrides, and the line or the override of each of their values.

Refuses ambiguous YAML, and aliases that expand too far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nmt.config.keys import KeyPath, find_key, unknown_key
from nmt.errors import ConfigError, did_you_mean
from nmt.installation import SHIPPED, shipped_configs, shipped_file

MAX_BYTES = 1 << 20  # Maximum file size; configurations have a few thousand bytes.
# Limits after expansion: nested YAML aliases can create billions of values.
MAX_VALUES = 20_000
_MAX_DEPTH = 100
_MAX_INDEX_DIGITS = 9  # int() refuses thousands of digits.
_MAX_DIGITS = 99
# Paths with this prefix are relative to the folder of the configuration file.
BESIDE = "@config/"

_CORE_TAG = "tag:yaml.org,2002:"
_TAGS = {_CORE_TAG + kind for kind in ("map", "seq", "str", "bool", "null", "float", "int")}
_NUMBER = r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?|[-+]?\d[\d_]*\.?([eE][-+]?\d+)?"
# The core schema of YAML 1.2. PyYAML implements YAML 1.1, where `no` (Norwegian) is false, `5e-4`
# is text and `1:30` is ninety.
_FLOAT = rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_RESOLVERS: Mapping[str, tuple[str, list[str]]] = {  # name -> pattern, first characters
    "bool": ("true|True|TRUE|false|False|FALSE", list("tTfF")),
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "float": (_FLOAT, list("-+0123456789.")),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2, and ``@config/x`` without quotes."""

    def check_plain(self) -> bool:
        # YAML reserves @; here it starts a path.
        return self.peek() == "@" or bool(super().check_plain())


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper; quotes text that YAML 1.1 or 1.2 would read as a different type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the name is PyYAML's
        return True


def _represent_text(dumper: _Dumper, value: str | Path) -> yaml.Node:
    text = str(value)
    # Without double quotes, PyYAML folds these line ends into spaces.
    style = '"' if re.search("[\r\n\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar(_CORE_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(Path, _represent_text)
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _RESOLVERS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_CORE_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def dump_document(values: Any) -> str:
    """Return plain values as YAML; `parse_document` reads them back."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def read_document(path: Path | Mapping[str, Any]) -> YamlDocument:
    """Read one YAML file; ``@config/x`` means x in the folder of the file.

    A mapping is a document without a file and without lines.

    A file ``configs/NAME`` that does not exist is read from the files that come with nmt.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, is too large, or is invalid.
    """
    if isinstance(path, Mapping):
        document = parse_document(dump_document(dict(path)), name="configuration")
        document.lines = {(): 0}
        return document
    try:
        file_path = shipped_file(path)
        with file_path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # one byte more shows that the file is too large
    except OSError as error:
        problem, fix = _unreadable(path, str(error.strerror or error))
        raise ConfigError(problem, fix=fix) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path} is larger than {MAX_BYTES:,} bytes.",
            fix="Pass a YAML configuration, not a corpus.",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start:,} is not UTF-8.", fix="Save the file as UTF-8."
        ) from error
    return parse_document(text, name=str(path), folder=file_path.parent)


def _unreadable(path: Path, reason: str) -> tuple[str, str]:
    """Return problem and fix for a file that cannot be read, with names of other files."""
    configs = set[Path]()  # Configurations near the path, or those that come with nmt.
    if path.is_dir():
        configs.update(path.glob("*.y*ml"))
    else:
        for folder in (path.parent, Path("configs"), Path()):
            configs.update(folder.glob("*.y*ml"))
        configs.update(Path().glob("*/config.yaml"))
    if not configs or path.parent == SHIPPED:
        configs.update(shipped_configs())
    names = sorted(map(str, configs - {path}))
    # Of the files that come with nmt, all are shown; of the user's files, three are enough.
    shown = names if path.parent == SHIPPED else names[:3]
    wanted = "a configuration file"
    if shown:
        wanted += f", such as {', '.join(shown)}"
    fix = f"Pass {wanted}, or write one: nmt init SOURCE TARGET"
    return f"{path}: {reason}.{did_you_mean(str(path), names)}", fix


def parse_document(text: str, *, name: str, folder: Path | None = None) -> YamlDocument:
    """Parse YAML text.

    Args:
        text: One YAML document.
        name: Name in messages, usually the path.
        folder: Folder that replaces ``@config``. None keeps ``@config``.

    Raises:
        ConfigError: The text is not YAML, repeats a key, uses a tag, or expands too far.

    >>> parse_document("a: {b: no}", name="x").values
    {'a': {'b': 'no'}}
    """
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = name
        if mark:
            where += f":{mark.line + 1}"  # PyYAML counts lines from 0
        problem = f"invalid YAML: {' '.join(filter(None, (error.context, error.problem)))}"
        fix = "Check colons, indentation and quotes; configs/ has examples."
        if "\\t" in problem:  # PyYAML shows a tab as a backslash and a t
            problem = "found a tab"
            fix = "Indent with spaces; YAML does not allow tabs."
        elif "escape" in problem:  # the backslashes of a path of Windows
            fix = "Write the text in single quotes, or without quotes."
        raise ConfigError(f"{where}: {problem}.", fix=fix) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {error}", fix="Remove the control characters.") from error
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deeply.", fix="Reduce the nesting.") from error
    return YamlDocument(root, name, folder)


@dataclass(frozen=True)
class Place:
    """Where a value was set."""

    is_override: bool
    line: int  # Of the value or of the section around it, from 1; 0 for none.
    text: str  # The place in words, for messages: file and line, or the override.


class YamlDocument:
    """Parsed YAML with overrides; records the line or flag of each value.

    Only text, numbers, lists and dicts are constructed.

    Args:
        root: The parsed YAML; None for an empty document.
        name: Name in messages, usually the path.
        folder: Folder that replaces ``@config``. None keeps ``@config``.
    """

    def __init__(self, root: yaml.Node | None, name: str, folder: Path | None) -> None:
        self.name = name
        self._folder = folder
        self._flags = dict[KeyPath, str]()  # Text of each override, by the path that it set.
        self.lines = dict[KeyPath, int]()  # Line of each value, from 1.
        # Nested dicts with string keys, lists, strings, numbers, booleans and None.
        self.values: Any = {}
        if root is not None:
            self.values = self._read(root, ())

    def lift(self, *sections: str) -> None:
        """Move the line numbers of keys inside of these sections to the top level.

        If several sections contain a key, the line in the first of them is kept.
        """
        lifted: dict[KeyPath, int] = {(): 0}  # The top level itself has no line.
        # The first section comes last, so that its lines replace those of the others.
        for section in reversed(sections):
            for path, line in self.lines.items():
                if path[:1] == (section,):
                    lifted[path[1:]] = line
        self.lines = lifted

    def override(self, text: str) -> None:
        """Apply one override ``key=value``.

        Raises:
            ConfigError: The value is not YAML.
            ValueError: The key does not exist.
        """
        dotted, equals, value_text = text.partition("=")
        if not equals or not dotted.strip():
            raise ValueError("expected section.key=value")
        if not value_text.strip():  # probably the value of a variable that is not set
            raise ValueError(f"a value is missing; write {text}null for none")
        value = parse_document(value_text, name=f"`set` {text}", folder=self._folder).values
        keys = list[str | int]()  # Numbers may be indices of a list.
        for word in dotted.strip().split("."):
            is_index = word.isdecimal() and len(word) <= _MAX_INDEX_DIGITS
            keys.append(int(word) if is_index else word)
        if find_key(keys) is None:
            raise ValueError(unknown_key(keys, value))
        path = self._put(keys, value)
        # Forget where the old value, and all values inside of it, were set.
        self._flags = _without(self._flags, path)
        self.lines = _without(self.lines, path)
        self._flags[path] = text

    def _put(self, keys: list[str | int], value: Any) -> KeyPath:
        """Set a value; return its path, with integers for list positions.

        Adds sections that are missing on the way. The index after the last one of a list appends
        the value to the list.

        Raises:
            ValueError: A key belongs to neither a section nor a list, or an index is too large.
        """
        container: Any = self.values  # The section or list that ``key`` belongs to.
        path = list[str | int]()
        for depth, key in enumerate(keys):
            container_name = ".".join(map(str, keys[:depth]))
            is_last = depth == len(keys) - 1
            index: Any = key
            if isinstance(container, dict):
                index = str(key)  # The name of a test set may be a number.
            elif not isinstance(container, list):
                raise ValueError(f"{container_name} is not a section")
            elif key == len(container) and is_last:
                container.append(value)  # makes the index valid
            elif not isinstance(key, int) or key >= len(container):
                raise ValueError(f"{container_name} has {len(container)} items, counted from 0")
            path.append(index)
            if is_last:
                container[index] = value
            elif isinstance(container, dict) and container.get(index) is None:
                container[index] = {}
            elif isinstance(container[index], str) and find_key((*keys[: depth + 1], "action")):
                # The short form of a filter, an action alone: make it a section.
                container[index] = {"action": container[index]}
            container = container[index]
        return tuple(path)

    def place(self, path: KeyPath) -> Place:
        """Return where a value, or the section around it, was set."""
        # The path of the value, then of each section around it, up to () for the whole document.
        prefixes = [path[:end] for end in range(len(path), -1, -1)]
        nearest = next(prefix for prefix in prefixes if prefix in self.lines)
        line = self.lines[nearest]
        for prefix in prefixes:
            if prefix in self._flags:
                return Place(True, line, f"`set` {self._flags[prefix]}")
        text = self.name
        if nearest:  # not the whole document, which has no useful line
            text += f":{line}"
        # Overrides of its keys can break the rule of a section.
        overrides = [flag for key, flag in self._flags.items() if key[: len(path)] == path]
        if overrides:
            text += f" with `set` {', '.join(overrides)}"
        return Place(False, line, text)

    def _read(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node, and record the line of each value in it."""
        self.lines[path] = node.start_mark.line + 1
        if len(self.lines) > MAX_VALUES or len(path) > _MAX_DEPTH:
            fix = "Replace aliases by the values themselves."
            raise self._refusal(node, "values are nested, or aliases expand, too far", fix)
        if node.tag not in _TAGS:
            tag = node.tag.replace(_CORE_TAG, "!!")
            fix = "Use only text, numbers, true, false, null, lists and keys."
            raise self._refusal(node, f"the tag {tag} is not allowed", fix)
        if isinstance(node, yaml.ScalarNode):
            value = _scalar(node.value, node.tag.removeprefix(_CORE_TAG))
            if self._folder and isinstance(value, str) and value.startswith(BESIDE):
                return str(self._folder / value.removeprefix(BESIDE))
            return value
        if isinstance(node, yaml.SequenceNode):
            return [self._read(item, (*path, index)) for index, item in enumerate(node.value)]
        section = dict[str, Any]()
        merged = dict[str, Any]()  # The values of another section (``<<: *name``).
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._refusal(key_node, "a key must be plain text", "Use a word as the key.")
            key = key_node.value
            key_path = (*path, key)
            if key == "<<":
                sections = self._read(value_node, key_path)
                if isinstance(sections, dict):
                    sections = [sections]
                for each in reversed(sections):  # the first one has precedence
                    merged |= each
                continue
            if key in section:
                dotted = ".".join(map(str, key_path))
                problem = f"the key {dotted} repeats line {self.lines[key_path]}"
                raise self._refusal(key_node, problem, "Remove one of the two.")
            section[key] = self._read(value_node, key_path)
            # The line of the key, which may be above the first line of its value.
            self.lines[key_path] = key_node.start_mark.line + 1
        return merged | section

    def _refusal(self, node: yaml.Node, problem: str, fix: str) -> ConfigError:
        return ConfigError(f"{self.name}:{node.start_mark.line + 1}: {problem}.", fix=fix)


def _without(places: dict[KeyPath, Any], path: KeyPath) -> dict[KeyPath, Any]:
    """Return the lines or overrides of all values that are not inside of the value at ``path``."""
    return {key: place for key, place in places.items() if key[: len(path)] != path}


def _scalar(text: str, kind: str) -> Any:
    """Return the value of a YAML scalar; whole numbers such as 1e5 become int."""
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "str":
        return text
    plain = text.replace("_", "").lower()
    if re.fullmatch(r"[-+]?\d+", plain):
        # int() refuses thousands of digits; such a value stays text and is refused later.
        return int(plain) if len(plain) <= _MAX_DIGITS else text
    try:
        # YAML writes .inf and .nan; Python writes them without the dot.
        number = float(re.sub(r"\.(?=inf|nan)", "", plain))
    except ValueError:  # a YAML tag declared a number
        return text
    # 5.0 stays a float, as does a number so large that a float may not represent it exactly.
    is_whole = "e" in plain and number.is_integer() and number < 1e15
    return int(number) if is_whole else number
