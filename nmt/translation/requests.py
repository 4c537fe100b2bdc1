"""Lines of JSON that ask for translations: text, wishes, and fields that only pass through."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Never

from nmt.errors import DataError

_KNOWN = ("source", "prefix", "required", "forbidden")


@dataclass(frozen=True, slots=True)
class Request:
    """What one line asks for."""

    source: str
    """The text to translate."""
    prefix: str = ""
    """What the translation begins with."""
    required: tuple[str, ...] = ()
    """Phrases that it contains."""
    forbidden: tuple[str, ...] = ()
    """Phrases that it does not contain."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields that go to the output as they are."""


def parse_requests(lines: Iterable[str], first_number: int) -> Iterator[Request]:
    """Read JSON objects, one a line: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text.

    Raises:
        DataError: A line is something else; names it.
    """
    for number, line in enumerate(lines, start=first_number):
        yield _parse(line, number) if line.strip() else Request("")


def _parse(line: str, number: int) -> Request:
    try:
        values = json.loads(line, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        where = f"{error.msg}, at column {error.colno}"
        raise _not_understood(number, f"is not JSON ({where})") from error
    except (ValueError, RecursionError) as error:  # a number too long, brackets too deep
        raise _not_understood(number, f"is no JSON for this program ({error})") from error
    if not isinstance(values, dict):
        raise _not_understood(number, "holds no JSON object")
    for name in ("source", "prefix"):
        if not isinstance(values.get(name, ""), str) or (name == "source" and name not in values):
            raise _not_understood(number, f"has no text in {name}")
    for name in ("required", "forbidden"):
        phrases = values.get(name, [])
        if not (isinstance(phrases, list) and all(isinstance(each, str) for each in phrases)):
            raise _not_understood(number, f"has no list of texts in {name}")
    return Request(
        # A line break would make two lines of one; other separators of Unicode are text.
        re.sub(r"[\r\n]+", " ", values["source"].strip("\r\n")),
        values.get("prefix", ""),
        tuple(values.get("required", ())),
        tuple(values.get("forbidden", ())),
        {name: value for name, value in values.items() if name not in _KNOWN},
    )


def _no_number(name: str) -> Never:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large")
    return number


def _not_understood(number: int, what: str) -> DataError:
    return DataError(
        f"Line {number:,} {what}.",
        fix='Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.',
    )
