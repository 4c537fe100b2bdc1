"""Lines of text or JSON -> requests, and results -> lines of text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from nmt.config.keys import nearest_word
from nmt.errors import ConfigError, DataError
from nmt.files.json_file import parse_json
from nmt.inference.result import RESULT_FIELDS, TranslationResult, as_pharaoh
from nmt.text import without_surrogates

LOW_CONFIDENCE = " ||| low confidence"
"""Behind lines that are marked in text."""

ERROR = "error"
"""Field of a line that has no translation."""
_RESERVED = {"low_confidence", "prefix", "required", "forbidden", "tag", ERROR, *RESULT_FIELDS}
_REQUESTS = {"source": "source", "prefix": "prefix", "required": "required", "tag": "tag"}
_REQUESTS |= {"forbidden": "forbidden", "forced": "required", "constraints": "required"}
_REQUESTS |= {"forced_prefix": "prefix", "target_prefix": "prefix"}
"""The field that is meant, by a name that is written or is near to it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one line asks for."""

    source: str
    """The text to translate."""
    prefix: str = ""
    """Text that the translation begins with."""
    required: tuple[str, ...] = ()
    """Phrases that it contains."""
    forbidden: tuple[str, ...] = ()
    """Phrases that it does not contain."""
    tag: str | None = None
    """Language or domain that it asks for."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields that pass through to the output. None has the name of a field of results."""


class RequestError(DataError):
    """A line in JSON that asks for nothing that can be done."""

    def __init__(self, problem: str, others: Mapping[str, Any]) -> None:
        fix = 'Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.'
        super().__init__(problem, fix=fix)
        self.others = others
        """Its fields that pass through; of a line that is no object, its number."""

    def __reduce__(self) -> tuple[Any, ...]:  # processes of a translation exchange it
        return type(self), (self.problem, self.others)


def parse_request(line: str, number: int) -> Request:
    """Read a JSON object: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text. Lone surrogates, which JSON may escape, become U+FFFD in text.

    Raises:
        RequestError: The line is something else; has its number.
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
    source = re.sub(r"[\r\n]+", " ", texts["source"].strip("\r\n"))
    others.pop("source", None)
    return Request(source, texts["prefix"], phrases[0], phrases[1], texts["tag"] or None, others)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """How lines are read and results written."""

    kind: Literal["text", "json"] = "text"
    """``text``: the translation; several as ``number ||| text ||| score``. ``json``: one object a
    line."""
    n_best: int = 1
    """Translations of each line."""
    alignments: bool = False
    """Write word alignments: in text after `` ||| ``."""
    reads_json: bool = False
    """Read each line as a `Request` in JSON."""
    attention: bool = False
    """Write the attention of each word; in JSON only."""
    token_scores: bool = False
    """Write every token with its log probability; in JSON only."""
    tag: str | None = None
    """Language or domain that lines ask for which name none."""
    min_confidence: float | None = None
    """Mark lines whose confidence is below: in text by `LOW_CONFIDENCE` behind them, in JSON by the
    field ``low_confidence``."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """What is asked for besides texts and scores."""
        names = ("alignments", "attention", "token_scores")
        return tuple(name for name in names if getattr(self, name))

    def __post_init__(self) -> None:
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 100:
            raise ConfigError(
                f"--min-confidence is {self.min_confidence:g}.",
                fix="Give an expected chrF, from 0 to 100.",
            )
        if self.kind == "json":
            return
        if self.min_confidence is not None and (self.alignments or self.n_best > 1):
            raise ConfigError(
                "Text output has no place for --min-confidence beside alignments or several "
                "translations.",
                fix="Add --format json, or leave one of them out.",
            )
        if flags := [f"--{x.replace('_', '-')}" for x in self.outputs if x != "alignments"]:
            raise ConfigError(
                f"Text output has no place for {' and '.join(flags)}.",
                fix="Add --format json, or leave that out.",
            )
        if self.alignments and self.n_best > 1:
            raise ConfigError(
                f"Text output has no place for the alignments of {self.n_best} translations.",
                fix="Add --format json, which has those of the best, or leave out --alignments.",
            )

    def read(self, lines: Iterable[str], first_number: int) -> list[Request]:
        """Return what each line asks for.

        Raises:
            DataError: A line is not a request; names it.
        """
        if self.reads_json:
            return [parse_request(line, number) for number, line in enumerate(lines, first_number)]
        return [Request(text) for text in lines]

    def write(self, number: int, request: Request, result: TranslationResult) -> Iterator[str]:
        """Yield the output lines for the input line ``number``, from 0."""
        if self.kind == "json":
            yield json_line({**request.others, **result.as_dict(), **self._mark(result)})
        elif self.alignments:
            yield f"{result.text} ||| {as_pharaoh(result.alignment or ())}"
        elif self.n_best == 1:
            yield result.text + LOW_CONFIDENCE * self._mark(result).get("low_confidence", False)
        else:
            for each in result.alternatives or [result]:
                yield f"{number} ||| {each.text} ||| {each.score:.4f}"

    def _mark(self, result: TranslationResult) -> dict[str, bool]:
        """Return whether the line is marked, if marks are asked for; a blank one never is."""
        if self.min_confidence is None:
            return {}
        known = result.confidence
        return {"low_confidence": known is not None and known < self.min_confidence}


def json_line(values: Mapping[str, Any]) -> str:
    """Return an object as a line of JSON."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


@lru_cache(256)
def meant_field(name: str) -> str | None:
    """Return the field of a request that a field looks like."""
    near = nearest_word(name, list(_REQUESTS))
    return near and _REQUESTS[near]
