"""What is asked of a translator for one line, and how a line of JSON asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from nmt.errors import DataError, nearest_word
from nmt.files.json_file import parse_json
from nmt.inference.result import RESULT_FIELDS
from nmt.text import without_surrogates

ERROR = "error"  # Field of a line that has no translation.
_RESERVED = {"low_confidence", "prefix", "required", "forbidden", "tag", ERROR, *RESULT_FIELDS}
_MEANINGS = {name: name for name in ("source", "prefix", "required", "forbidden", "tag")}
_MEANINGS |= {"forced": "required", "constraints": "required"}
_MEANINGS |= {"forced_prefix": "prefix", "target_prefix": "prefix"}
"""The field that is meant, by a name that is written or is near to it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line to translate, and what its translation must be like."""

    text: str
    # Text that the translation begins with; with ``prefix_bias_beta``, is biased to.
    prefix: str = ""
    # Phrases that it contains. Phrases are compared as subwords: the same text in other subwords is
    # another phrase.
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()  # Phrases that it does not contain.
    # Language or domain that it asks for, if the model was trained with tags; ``de`` names
    # ``<2de>`` or ``<de>``.
    tag: str | None = None
    # Fields of JSON that pass through to the output. None has the name of a field of results.
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_constrained(self) -> bool:
        """Whether it has a prefix or phrases that are not blank."""
        return any(map(str.strip, (self.prefix, *self.required, *self.forbidden)))


class RequestError(DataError):
    """A line of JSON that asks for nothing that can be done."""

    def __init__(self, problem: str, others: Mapping[str, Any]) -> None:
        fix = 'Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.'
        super().__init__(problem, fix=fix)
        # Its fields that pass through; of a line that is no object, its number.
        self.others = others

    def __reduce__(self) -> tuple[Any, ...]:  # processes of a translation exchange it
        return type(self), (self.problem, self.others)


def parse_request(line: str, number: int) -> Request:
    """Read a JSON object: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text. Lone surrogates, which JSON may escape, become U+FFFD in text.

    Raises:
        RequestError: The line is something else; says its number.
    """
    others: dict[str, Any] = {"line": number}

    def refused(what: str) -> RequestError:
        return RequestError(f"Line {number:,} {what}.", others)

    if not line.strip():
        return Request("")
    try:
        values = parse_json(line, finite=True)
    except json.JSONDecodeError as error:
        raise refused(f"is not JSON ({error.msg}, at column {error.colno})") from error
    except ValueError as error:  # a number too long, brackets too deep
        raise refused(f"cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise refused("holds no JSON object")
    others = {x: values[x] for x in values if x not in _RESERVED or x == "source"}
    texts, phrases = {"source": None, "prefix": "", "tag": "", **values}, []
    for name in ("source", "prefix", "tag"):
        if not isinstance(texts[name], str):
            raise refused(f"has no text in {name}")
        texts[name] = without_surrogates(texts[name])
    for name in ("required", "forbidden"):
        given = values.get(name, [])
        if not (isinstance(given, list) and all(isinstance(each, str) for each in given)):
            raise refused(f"has no list of texts in {name}")
        phrases.append(tuple(without_surrogates(each) for each in given))
    # A line break would make two lines of one; other separators of Unicode are text.
    text = re.sub(r"[\r\n]+", " ", texts["source"].strip("\r\n"))
    others.pop("source", None)
    return Request(text, texts["prefix"], phrases[0], phrases[1], texts["tag"] or None, others)


@lru_cache(256)
def meant_field(name: str) -> str | None:
    """Return the field of a request that a field looks like."""
    near = nearest_word(name, list(_MEANINGS))
    return near and _MEANINGS[near]
