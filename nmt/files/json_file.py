"""JSON from files that anybody may have written: size, depth and numbers are bounded.

Problems are `ValueError`s whose text names the place; the reader of each kind of file turns them
into its own error.
"""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

MAX_BYTES = 1 << 28
MAX_DEPTH = 100
MAX_DIGITS = 40  # Of a whole number: as many as a random state of 128 bits has.
# A text, or what is neither text nor bracket.
_NO_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^\[{\]}"]+|"', re.DOTALL)

_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
_NAMES |= {float: "a number", bool: "true or false", type(None): "null"}

_Kind = TypeVar("_Kind")


def read_json(path: Path, *, max_bytes: int = MAX_BYTES, finite: bool = False) -> Any:
    """Read a JSON file of at most ``max_bytes``; ``finite`` as in `parse_json`.

    Raises:
        OSError: It cannot be read.
        ValueError: It is too large, no UTF-8, or refused by `parse_json`.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return parse_json(content.decode("utf-8"), finite=finite)


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse JSON; ``finite`` refuses NaN, Infinity and numbers that are as large.

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
    numbers: dict[str, Any] = {"parse_float": _finite, "parse_constant": _finite} if finite else {}
    return json.loads(text, parse_int=_whole_number, **numbers)


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
    value: Any = document
    kinds: list[type[Any]] = [*[dict] * len(path), kind]
    for depth, wanted in enumerate(kinds):
        if wanted is float and type(value) is int:
            value = float(value)
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            found = _NAMES[type(value)]
            shown = ".".join(path[:depth]) or "the document"
            raise ValueError(f"{shown} should be {_NAMES[wanted]}, not {found}")
        if depth < len(path):
            if path[depth] not in value:
                raise ValueError(f"{'.'.join(path[: depth + 1])} is missing")
            value = value[path[depth]]
    return value


def _check_depth(text: str) -> None:
    steps = (1 if bracket in "[{" else -1 for bracket in _NO_BRACKETS.sub("", text))
    if max(accumulate(steps), default=0) > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits ({digits[:9]}...)")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is not finite")
    return value
