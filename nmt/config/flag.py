"""How a field of a command's options appears on the command line.

A command has one frozen, keyword-only dataclass of options. The docstring of the class says under
``Args:`` what each field means, which is the help of its flag; a `Flag` says what else is special::

    exact: bool = False
    beam_size: Annotated[int | None, Flag(short="b", min=1)] = None

Help names other fields in backticks; the command line spells them. The flag is named after the
field (``set_`` avoids a word of Python and is ``set``). A false default makes a switch, another
truth value a pair such as ``shortlist`` and ``no-shortlist``, and ``tuple[str, ...]`` a flag that
can be repeated. This module loads nothing heavy, and modules of options should not either: they are
read for every mistake in a command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

# Shown as the default of a flag that is a key of the model's configuration.
OF_THE_MODEL = "from the model"


@dataclass(frozen=True, slots=True)
class Flag:
    """How a field is typed, and what it accepts."""

    help: str = ""  # What the docstring of the class says of the field, when empty.
    short: str = ""  # One letter.
    metavar: str = ""  # Stands for the value; N, X, FILE or TEXT by the type when empty.
    min: float | None = None
    max: float | None = None
    argument: bool = False  # Given by position.
    # Reads the value; a ValueError is a complete sentence. Paths have one already.
    parser: Callable[[str], Any] | None = None
    # Joins the values of a tuple into one word, such as 2,1,1; a flag is repeated without it.
    separator: str = ""
    shown: str = ""  # Describes None; nothing is shown when empty.
    hidden: bool = False  # Only Python can set the field.


def without_none(kind: Any) -> Any:
    """Return a type of a field without its None."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [each for each in get_args(kind) if each is not NoneType]
    return kinds[0] if len(kinds) == 1 else kind


class Options:
    """Base of a command's options: takes text in place of paths, and lists in place of tuples."""

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            kind, value = without_none(kinds[field.name]), getattr(self, field.name)
            is_path = Path in (kind, *get_args(kind))
            if get_origin(kind) is tuple and isinstance(value, str | Path | Sequence):
                values = [value] if isinstance(value, str | Path) else value
                object.__setattr__(
                    self, field.name, tuple(map(Path, values) if is_path else values)
                )
            elif is_path and isinstance(value, str):
                object.__setattr__(self, field.name, Path(value))


def meanings_of(docstring: str | None) -> dict[str, str]:
    """Return what the docstring of a class says of each field, under ``Args:``."""
    text = cleandoc(docstring or "").partition("Args:\n")[2]
    entries = re.finditer(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE)
    return {entry[1]: " ".join(entry[2].split()) for entry in entries}


def file_name(text: str) -> Path:
    """Read the name of a file; whoever needs the file opens and checks it.

    Raises:
        ValueError: The name is empty, which would mean the working directory.
    """
    if not text:
        raise ValueError("the name is empty. Is a variable of the shell not set?")
    return Path(text)


def option_name(field: str) -> str:
    """Return the name of a field as messages write it, in backticks.

    >>> option_name("set_")
    'set'
    """
    return field.removesuffix("_")


def changed(options: Any, *names: str) -> list[str]:
    """Return the names of the fields that differ from their defaults.

    Args:
        options: Of a command.
        names: The fields to compare; all that have a default when empty.
    """
    return [
        option_name(field.name)
        for field in fields(options)
        if (not names or field.name in names)
        and field.default is not MISSING
        and getattr(options, field.name) != field.default
    ]
