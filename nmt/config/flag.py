"""Describes how a field of an options class becomes a flag.

Each command has one subclass of `Options`. The ``Args:`` of its docstring are the help texts of the
flags. A `Flag` adds other properties::

    exact: bool = False
    beam_size: Annotated[int | None, Flag(short="b", min=1)] = None

In help texts, a field in backticks becomes its flag. The flag has the name of the field (``set_``
becomes ``set``, because ``set`` is a Python built-in). A bool with the default False becomes a
switch; other bools become a pair such as ``shortlist`` and ``no-shortlist``. ``tuple[str, ...]``
becomes a flag that can be repeated. Keep imports light here and in modules of options: usage errors
load them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, dataclass_transform, get_args, get_origin, get_type_hints

from nmt.config.paths import expanded
from nmt.errors import ConfigError

# Shown as the default of a flag that is a key of the model's configuration.
OF_THE_MODEL = "from the model"


@dataclass(frozen=True)
class Flag:
    """Properties of a flag or argument."""

    help: str = ""  # Default: the text in the docstring of the class.
    short: str = ""  # One letter.
    metavar: str = ""  # Default: N, X, FILE or TEXT, by the type.
    min: float | None = None
    max: float | None = None
    argument: bool = False  # Positional argument.
    # Parses the value; a ValueError must contain a complete message. Paths have a parser.
    parser: Callable[[str], Any] | None = None
    # Separates the values of a tuple in one word, such as 2,1,1. Default: repeat the flag.
    separator: str = ""
    shown: str = ""  # Default value in words, if the default is None.
    hidden: bool = False  # Python API only.


def without_none(kind: Any) -> Any:
    """Return the type of a field without None; a union of several other types is unchanged."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    members = [member for member in get_args(kind) if member is not NoneType]
    return members[0] if len(members) == 1 else kind


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of options: converts text to paths, lists to tuples, and a dict to overrides.

    Subclasses become frozen dataclasses with keyword-only fields. This class itself has the options
    of a command without flags. The underscore at the end of a field, as in ``set_``, is optional.

    Raises:
        ConfigError: There is no option of this name.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        assign = cls.__init__

        @wraps(assign)
        def init(self: Options, **values: Any) -> None:
            kinds = get_type_hints(cls)
            arguments = {}
            for name, value in values.items():
                field = name if name in kinds else f"{name}_"
                if field not in kinds:
                    names = map(option_name, kinds)
                    raise ConfigError.unknown(f"option of {cls.__name__}", name, names)
                arguments[field] = _converted(value, without_none(kinds[field]))
            assign(self, **arguments)

        cls.__init__ = init  # type: ignore[method-assign,assignment]


def answering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a command, which answers a wrong call with the right one."""
    options_class = without_none(get_type_hints(function).get("options"))
    if not isinstance(options_class, type):  # does not take options
        return function

    @wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        # Beside options, a text may be right.
        passed = values or named.values()
        if not any(isinstance(value, str | Path | Mapping) for value in passed):
            return function(*values, **named)
        required = [field.name for field in fields(options_class) if field.default is MISSING]
        given = dict.fromkeys(required, "...") | dict(zip(required, values, strict=False)) | named
        options_class(**given)  # refuses a wrong name
        words = ", ".join(f"{name}={value!r}" for name, value in given.items())
        name = function.__name__
        options = f"nmt.{options_class.__name__}"
        raise ConfigError(
            f"nmt.{name} takes {options}.", fix=f"Call nmt.{name}({options}({words}))."
        )

    return call


def _converted(value: Any, kind: Any) -> Any:
    """Return the value of an option in the type of its field, except for a wrong value."""
    is_path = Path in (kind, *get_args(kind))  # A path, or a tuple of paths.
    if get_origin(kind) is not tuple or value is None:
        return Path(value) if is_path and isinstance(value, str) else value
    if isinstance(value, Mapping):
        return tuple(as_overrides(value))
    if isinstance(value, str) or not isinstance(value, Sequence):
        value = [value]
    return tuple(map(Path, value) if is_path else value)


def as_overrides(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the override of each key, whose value becomes JSON.

    >>> as_overrides({"threads": 2, "freeze": ["encoder"]}, "training.")
    ['training.threads=2', 'training.freeze=["encoder"]']
    """
    texts = {
        key: json.dumps(value, ensure_ascii=False, default=str) for key, value in values.items()
    }
    return [f"{prefix}{key}={text}" for key, text in texts.items()]


def meanings_of(docstring: str | None) -> dict[str, str]:
    """Return the texts under ``Args:`` in the docstring of a class, by field."""
    text = cleandoc(docstring or "").partition("Args:\n")[2]
    # A field at 4 spaces, and its text, which continues on lines that are indented further.
    entries = re.finditer(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {entry[1]: " ".join(entry[2].split()) for entry in entries}


def file_name(text: str) -> Path:
    """Convert a file name, in which `~` and variables are expanded, to a path.

    Raises:
        ValueError: The name is empty, which would mean the working directory; or a variable is not
            defined.
    """
    if not text:
        raise ValueError("the name is empty, as if a shell variable were not set")
    return expanded(Path(text))


def option_name(field: str) -> str:
    """Return the name of a field for messages.

    >>> option_name("set_")
    'set'
    """
    return field.removesuffix("_")


def changed(options: Any, *names: str) -> list[str]:
    """Return the names of the fields that differ from their defaults.

    Args:
        options: Options of a command.
        names: Fields to compare. Default: all fields with a default.
    """
    changed_names = []
    for field in fields(options):
        is_compared = field.default is not MISSING and (not names or field.name in names)
        if is_compared and getattr(options, field.name) != field.default:
            changed_names.append(option_name(field.name))
    return changed_names
