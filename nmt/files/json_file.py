"""JSON from files that anybody may have written: size, depth and numbers are bounded.

Problems are `ValueError`s whose text names the place; the reader of each kind of file turns them
into its own error.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar, cast

from nmt.errors import NmtError

MAX_BYTES = 1 << 28
MAX_DEPTH = 100
MAX_DIGITS = 40
"""Of a whole number: as many as a random state of 128 bits has."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)

_Kind = TypeVar("_Kind")


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, finite: bool = False) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        max_bytes: Larger files are not read.
        finite: As in `parse_json`.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too large, no UTF-8, or refused by `parse_json`.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return parse_json(content.decode("utf-8"), finite=finite)


def read_record(path: Path, error: type[NmtError], *, fix: str) -> dict[str, Any]:
    """Read a JSON file that holds an object and was written by this program.

    Raises:
        FileNotFoundError: There is none.
        NmtError: ``error``: it is damaged, or not what was written.
    """
    try:
        return field(read_json(path), kind=dict)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as cause:
        raise error(f"{path} is damaged: {cause}.", fix=fix) from cause


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse JSON.

    Args:
        text: The document.
        finite: Refuse NaN, Infinity and numbers that are as large.

    Raises:
        ValueError: It is no JSON, nested deeper than `MAX_DEPTH`, or holds a whole number of more
            than `MAX_DIGITS` digits.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(text)
    if not finite:
        return json.loads(text, parse_int=_whole_number)
    return json.loads(
        text, parse_int=_whole_number, parse_float=_finite, parse_constant=_no_constant
    )


def field(document: Any, *path: str, kind: type[_Kind]) -> _Kind:
    """Return a field of parsed JSON, checked.

    Args:
        document: What `parse_json` returned.
        path: Keys from the outside to the field.
        kind: Its type; a whole number is taken for a float, too.

    Raises:
        ValueError: It is missing or of another type; names the field.

    >>> field({"files": {"a": {"size": 3}}}, "files", "a", "size", kind=int)
    3
    """
    value = document
    for depth, key in enumerate(path):
        if not isinstance(value, dict):
            shown = ".".join(path[:depth]) or "the document"
            raise ValueError(f"{shown} should be an object, not {_kind_name(value)}")
        if key not in value:
            raise ValueError(f"{'.'.join(path[: depth + 1])} is missing")
        value = value[key]
    if kind is float and type(value) is int:
        return cast(_Kind, float(value))
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        expected = _NAMES.get(kind, kind.__name__)
        shown = ".".join(path) or "the document"
        raise ValueError(f"{shown} should be {expected}, not {_kind_name(value)}")
    return value


_NAMES: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _kind_name(value: object) -> str:
    return _NAMES.get(type(value), type(value).__name__)


def _check_depth(text: str) -> None:
    depth = 0
    for match in _TOKENS.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
        elif token in "]}":
            depth -= 1


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits ({digits[:9]}...)")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not finite")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not finite")
