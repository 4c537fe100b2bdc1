"""Reads a YAML file and overrides into a `RunConfig`, and writes it back.

Keeps the line number of each value for messages. Refuses ambiguous YAML, and aliases that expand
too far.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from nmt.config.data import CorpusConfig
from nmt.config.inference import InferenceConfig
from nmt.config.keys import KeyPath, find_key, find_problems, unknown_key
from nmt.config.migration import (
    FORMAT,
    INFERENCE,
    RECORD,
    Kind,
    migrate,
    model_document,
    split_format,
)
from nmt.config.migration import KEY as FORMAT_KEY
from nmt.config.model import OF_BEAMS, DecodingConfig
from nmt.config.resuming import with_recorded
from nmt.config.run import RunConfig, filled_in, with_scale
from nmt.config.training import ScheduleConfig
from nmt.errors import ConfigError, DataError, did_you_mean
from nmt.installation import SHIPPED, shipped_configs, shipped_file


def load_config(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    count_characters: Callable[[Sequence[CorpusConfig], tuple[str, str]], int] | None = None,
    check_files: Callable[[Mapping[str, CorpusConfig]], None] = lambda _: None,
    recorded_settings: Callable[[Path], Mapping[str, Any]] = lambda _: {},
) -> RunConfig:
    """Read a configuration: overrides, else values of the file, else presets, else defaults.

    If training would resume a run, the values that the run has recorded come before presets and
    defaults.

    Args:
        path: A YAML file.
        overrides: ``section.key=value`` each; later overrides win. The value is YAML, so numbers,
            ``null`` and ``[lists]`` work. List items have numbers: ``data.train.0.weight``.
        count_characters: Training corpora and both language codes -> characters. If it is set, the
            file may have no ``training`` section; nmt then chooses its values for this size.
        check_files: Raises a `DataError` about missing corpus files, by key. It is reported with
            other problems. Without other problems, it is raised only if text must be counted.
        recorded_settings: Run folder -> the whole configuration of the run that training would
            resume there; empty if there is none.

    Raises:
        ConfigError: The configuration is invalid. Lists all problems with line or flag.
        DataError: From ``check_files`` or ``count_characters``.
    """
    document = _read_keys(Path(path))
    is_bare = document.values.get("training") is None  # in the file, whatever the overrides are
    problems = []
    for text in overrides:
        try:
            document.override(text)
        except ConfigError as error:
            problems.append(error.problem)
        except ValueError as error:
            problems.append(f"`set` {text}: {error}")
    values = _with_run(document.values, recorded_settings)
    is_resumed = values is not document.values
    is_scaled = is_bare and not is_resumed
    values = _with_start(values)
    corpora = dict(_corpora("data", values.get("data")))
    missing = None  # error about missing files
    try:
        check_files(corpora)
    except DataError as error:
        missing = error
    if is_scaled and count_characters is not None:
        train = [corpus for key, corpus in corpora.items() if key.startswith("data.train.")]
        source, target = (values.get(f"{side}_language") for side in ("source", "target"))
        # If the size is unknown, another problem is reported; any values do.
        is_clear = bool(train and source and target and not missing)
        size = count_characters(train, (str(source), str(target))) if is_clear else 0
        values = with_scale(values, size)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found = [(document.place(key), text) for key, text in find_problems(error)]
        found.sort(key=lambda problem: problem[0][:2])  # by line, flags last
        problems += [f"{place}: {text}" for (_, _, place), text in found]
    else:
        if not problems:
            if missing and is_scaled:  # the size is unknown
                raise missing
            return config
    problems += missing.problem.split("\n  ") if missing else []
    is_one = len(problems) == 1
    start = [] if is_one else [f"{len(problems)} problems in the configuration:"]
    fix = "Correct the configuration. `nmt config keys` describes every key."
    if is_resumed:
        recorded = Path(str(values["run_dir"])) / CONFIG
        fix += f" Keys that {path} leaves open have the values of {recorded}."
    raise ConfigError("\n  ".join([*start, *problems]), fix=fix)


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
    values, number = split_format(_mapping(document, path), str(path))
    if INFERENCE in values:
        values = migrate(values, number, kind=Kind.MODEL)
        document.lift(INFERENCE, RECORD)
    else:
        values = model_document(migrate(values, number, kind=Kind.CONFIGURATION))
    section = values[INFERENCE]
    record = values.get(RECORD) or {}
    for name, part in ((INFERENCE, section), (RECORD, record)):
        if not isinstance(part, dict):
            problem = f"{path}: {name} must be a section."
            raise ConfigError(problem, fix="Restore the file.")
    document.values = {**section, "data": record.get("data")}
    for text in overrides:
        try:
            document.override(text)
        except ValueError as error:
            fix = "`nmt config keys decoding` describes every key."
            raise ConfigError(f"`set` {text}: {error}.", fix=fix) from error
    _refuse_idle(overrides, read)
    data = document.values.pop("data")
    if data is not None:
        record = {**record, "data": data}
    # Corpora that leave their languages open have those of the run.
    has_new_languages = any(section.get(key) != document.values.get(key) for key in _LANGUAGES)
    try:
        if has_new_languages:
            before = InferenceConfig.model_validate(section)
            codes = [document.values.get(key) for key in _LANGUAGES]
            renamed = dict(zip(before.languages, codes, strict=True))
            document.values["directions"] = [
                (renamed.get(source, source), renamed.get(target, target))
                for source, target in before.directions
            ]
        config = InferenceConfig.model_validate(document.values)
    except ValidationError as error:
        problems = [f"{document.place(key)[-1]}: {text}" for key, text in find_problems(error)]
        fix = "Correct the file. `nmt config keys` describes every key."
        raise ConfigError("\n  ".join(problems), fix=fix) from error
    return config, record


def read_settings(path: Path) -> dict[str, Any]:
    """Return the whole configuration in config.yaml of a run folder, not validated.

    Raises:
        ConfigError: The file cannot be read, or is not a configuration.
    """
    values, number = split_format(_mapping(read_document(path), path), str(path))
    return migrate(values, number, kind=Kind.CONFIGURATION)


def _with_run(
    values: dict[str, Any], recorded_settings: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Any]:
    """Add the values of the run that training would resume; return ``values`` if there is none."""
    run_dir = values.get("run_dir") or f"runs/{values.get('name')}"
    recorded = recorded_settings(Path(str(run_dir)))
    if not recorded:
        return values
    return with_recorded({**values, "run_dir": str(run_dir)}, recorded)


def _with_start(values: dict[str, Any]) -> dict[str, Any]:
    """Add the keys that a model keeps from the configuration of `training.init_from`."""
    training = values.get("training")
    training = training if isinstance(training, dict) else {}
    path = Path(str(training.get("init_from"))) / CONFIG
    if not path.is_file():  # reported when training starts
        return values
    config, _ = load_inference(path)
    start = config.model_dump(mode="json")
    model = values.get("model")
    names = {"model", "tokenizer", "decoding"}
    if isinstance(model, dict) and "preset" in model:  # the other keys are those of the preset
        names.remove("model")
    tags = config.language_tags
    if "vocabulary" in (training.get("init_differences") or ()):
        names.remove("tokenizer")
        tags = None
    kept = {name: start[name] for name in names}
    return filled_in(values, kept | ({"data": {"language_tags": tags}} if tags else {}))


def _read_keys(path: Path) -> Document:
    try:
        document = read_document(path)
        values, number = split_format(_mapping(document, path), str(path), default=FORMAT)
        if INFERENCE in values:  # of a model folder
            document.values = values.get(RECORD)
            values = _mapping(document, path)
        document.values = migrate(values, number, kind=Kind.CONFIGURATION)
    except ConfigError as error:
        if path.suffix in (".yaml", ".yml", "") or not path.is_file():
            raise
        # The file is probably a text file.
        problem = f"{path} is not a YAML configuration: {error.problem.removeprefix(f'{path}: ')}"
        fix = "To train on two text files, run `nmt init SOURCE TARGET`."
        raise ConfigError(problem, fix=fix) from error
    return document


def _mapping(document: Document, path: Path) -> dict[str, Any]:
    if not isinstance(document.values, dict) or not document.values:
        fix = "Run `nmt init SOURCE TARGET` to write a configuration."
        raise ConfigError(f"{path} contains no keys.", fix=fix)
    return document.values


def _corpora(key: str, value: Any) -> Iterator[tuple[str, CorpusConfig]]:
    """Find the well-formed corpus sections in a value, at any depth; yield key and section."""
    try:
        yield key, CorpusConfig.model_validate(value)
    except ValidationError:
        inside = enumerate(value) if isinstance(value, list) else ()
        for name, inner in value.items() if isinstance(value, dict) else inside:
            yield from _corpora(f"{key}.{name}", inner)


def change_options(options: DecodingConfig, changes: Mapping[str, Any]) -> DecodingConfig:
    """Return ``options`` with ``changes``. A change to sampling resets the options of beam search.

    Raises:
        ConfigError: An option is unknown or out of bounds. Lists all problems.
    """
    is_beam = not (changes.get("sampling") or changes.get("return_alternatives"))
    kept = options.model_dump(exclude=set() if is_beam else {*OF_BEAMS})
    try:
        return DecodingConfig.model_validate({**kept, **changes})
    except ValidationError as error:
        problems = [text for _, text in find_problems(error)]
        fix = "Correct the options. `nmt config keys decoding` describes every key."
        listed = "\n  ".join(problems)
        raise ConfigError(f"Decoding options: {listed}.", fix=fix) from error


def _refuse_idle(overrides: Sequence[str], read: Sequence[str]) -> None:
    """Refuse overrides of sections that have no effect on a trained model."""
    idle = [text for text in overrides if re.split(r"[.=]", text)[0].strip() not in read]
    if idle:
        fix = f"Remove the override. Here you can set keys of {', '.join(read)}."
        raise ConfigError(f"`set` {', '.join(idle)} has no effect on a trained model.", fix=fix)


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
    for section in filter(None, (values["data"], values["data"]["replay"])):
        if len(section["valid"]) == 1:  # so that overrides can use data.valid.source
            section["valid"] = section["valid"][0]
    schedule, usual = values["training"]["schedule"], ScheduleConfig().warmup_steps
    if schedule["warmup_ratio"] is not None and schedule["warmup_steps"] == usual:
        del schedule["warmup_steps"]  # training.schedule.warmup_ratio is used instead
    return values


_LANGUAGES = ("source_language", "target_language")
CONFIG: Final = "config.yaml"  # In run folders and model folders.
MAX_BYTES: Final = 1 << 20  # Maximum file size; configurations have a few thousand bytes.
# Limits after expansion: nested YAML aliases can create billions of values.
MAX_VALUES: Final = 20_000
_MAX_DEPTH: Final = 100
# Paths with this prefix are relative to the folder of the configuration file.
BESIDE: Final = "@config/"

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


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    # Without double quotes, PyYAML folds these line ends into spaces.
    style = '"' if re.search("[\r\n\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar(_CORE_TAG + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _first) in _RESOLVERS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_CORE_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def dump_document(values: Any) -> str:
    """Return plain values as YAML; `parse_document` reads them back."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def read_document(path: Path) -> Document:
    """Read one YAML file; ``@config/x`` means x in the folder of the file.

    A file ``configs/NAME`` that does not exist is read from the files that come with nmt.

    Raises:
        ConfigError: The file cannot be read, is not UTF-8, is too large, or is invalid.
    """
    try:
        file_path = shipped_file(path)
        with file_path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        places = [path] if path.is_dir() else [path.parent, Path("configs"), Path()]
        near = {file for place in places for file in place.glob("*.y*ml")}
        near |= set() if path.is_dir() else {*Path().glob("*/config.yaml")}
        near |= set() if near and path.parent != SHIPPED else {*shipped_configs()}
        others = sorted(map(str, near - {path}))
        shown = others if path.parent == SHIPPED else others[:3]
        such_as = f", such as {', '.join(shown)}" if shown else ""
        problem = f"{path}: {error.strerror or error}.{did_you_mean(str(path), others)}"
        fix = f"Pass a configuration file{such_as}, or write one: nmt init SOURCE TARGET"
        raise ConfigError(problem, fix=fix) from error
    if len(data) > MAX_BYTES:
        fix = "Pass a YAML configuration, not a corpus."
        raise ConfigError(f"{path} is larger than {MAX_BYTES:,} bytes.", fix=fix)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"{path}: byte {error.start:,} is not UTF-8."
        raise ConfigError(problem, fix="Save the file as UTF-8.") from error
    return parse_document(text, name=str(path), folder=file_path.parent)


def parse_document(text: str, *, name: str, folder: Path | None = None) -> Document:
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
        where = f"{name}:{mark.line + 1}" if mark else name
        problem = f"invalid YAML: {' '.join(filter(None, (error.context, error.problem)))}"
        fix = "Check colons, indentation and quotes; configs/ has examples."
        if "\\t" in problem:
            problem, fix = "found a tab", "Indent with spaces; YAML does not allow tabs."
        raise ConfigError(f"{where}: {problem}.", fix=fix) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: {error}", fix="Remove the control characters.") from error
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deeply.", fix="Reduce the nesting.") from error
    return Document(root, name, folder)


class Document:
    """Parsed YAML with overrides; records the line or flag of each value.

    Only text, numbers, lists and dicts are constructed.
    """

    def __init__(self, root: yaml.Node | None, name: str, folder: Path | None) -> None:
        self._name = name
        self._folder = folder
        self._flags: dict[KeyPath, str] = {}
        self.lines: dict[KeyPath, int] = {}  # Line of each value, from 1.
        # Nested dicts with string keys, lists, strings, numbers, booleans and None.
        self.values: Any = {} if root is None else self._read(root, ())

    def lift(self, *sections: str) -> None:
        """Move the line numbers of keys inside of these sections to the top level.

        If several sections contain a key, the line in the first of them is kept.
        """
        lifted: dict[KeyPath, int] = {(): 0}
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
        value = None
        if value_text:
            value = parse_document(value_text, name=f"`set` {text}", folder=self._folder).values
        parts = dotted.strip().split(".")
        # List positions are short; int() refuses thousands of digits.
        path = tuple(int(x) if x.isdecimal() and len(x) < 10 else x for x in parts)
        if find_key(path) is None:
            raise ValueError(unknown_key(path, value))
        found = self._put(path, value)
        for places in (self._flags, self.lines):  # forget replaced values
            for known in [known for known in places if known[: len(found)] == found]:
                del places[known]
        self._flags[found] = text

    def _put(self, path: KeyPath, value: Any) -> KeyPath:
        """Set a value; return its path, with integers for list positions."""
        place: Any = self.values
        found: list[str | int] = []
        for depth, part in enumerate(path):
            above = ".".join(map(str, path[:depth]))
            if isinstance(place, dict):
                found.append(str(part))
            elif not isinstance(place, list):
                raise ValueError(f"{above} is not a section")
            elif isinstance(part, int) and part < len(place):
                found.append(part)
            elif part == len(place) and depth == len(path) - 1:
                found.append(part)
                place.append(value)
            else:
                raise ValueError(f"{above} has {len(place)} items, counted from 0")
            index: Any = found[-1]
            if depth == len(path) - 1:
                place[index] = value
            elif isinstance(place, dict) and place.get(index) is None:
                place[index] = {}
            elif isinstance(place[index], str) and find_key((*path[: depth + 1], "action")):
                place[index] = {"action": place[index]}  # short form of a filter
            place = place[index]
        return tuple(found)

    def place(self, path: KeyPath) -> tuple[bool, int, str]:
        """Return where a value was set: whether by a flag, its line, and a text for messages."""
        starts = [path[:end] for end in range(len(path), -1, -1)]
        near = next(start for start in starts if start in self.lines)
        if flag := next((self._flags[start] for start in starts if start in self._flags), ""):
            return True, self.lines[near], f"`set` {flag}"
        where = f"{self._name}:{self.lines[near]}" if near else self._name
        # Overrides of its keys can break the rule of a section.
        inside = [text for known, text in self._flags.items() if known[: len(path)] == path]
        return False, self.lines[near], where + (f" with `set` {', '.join(inside)}" * bool(inside))

    def _read(self, node: yaml.Node, path: KeyPath) -> Any:
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
            return [self._read(item, (*path, i)) for i, item in enumerate(node.value)]
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._refusal(key_node, "a key must be plain text", "Use a word as the key.")
            inner = (*path, key_node.value)
            if key_node.value in result:
                dotted = ".".join(map(str, inner))
                problem = f"the key {dotted} repeats line {self.lines[inner]}"
                raise self._refusal(key_node, problem, "Remove one of the two.")
            result[key_node.value] = self._read(value_node, inner)
            self.lines[inner] = key_node.start_mark.line + 1
        return result

    def _refusal(self, node: yaml.Node, problem: str, fix: str) -> ConfigError:
        return ConfigError(f"{self._name}:{node.start_mark.line + 1}: {problem}.", fix=fix)


def _scalar(text: str, kind: str) -> Any:
    """Return the value of a YAML scalar; whole numbers such as 1e5 become int."""
    if kind in ("null", "bool", "str"):
        return {"null": None, "bool": text.lower() == "true", "str": text}[kind]
    plain = text.replace("_", "").lower()
    if re.fullmatch(r"[-+]?\d+", plain):
        # int() refuses thousands of digits; such a value stays text and is refused later.
        return int(plain) if len(plain) < 100 else text
    try:
        number = float(re.sub(r"\.(?=inf|nan)", "", plain))
    except ValueError:  # a YAML tag declared a number
        return text
    return int(number) if "e" in plain and number.is_integer() and number < 1e15 else number
