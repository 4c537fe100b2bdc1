"""Lines that are read and written: plain text or JSON, before and after translation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nmt.errors import ConfigError, DataError
from nmt.files.json_file import parse_json
from nmt.translation.result import RESULT_FIELDS, TranslationResult, as_pharaoh

_KNOWN = ("source", "prefix", "required", "forbidden")
_ERROR = "error"
_SURROGATES = re.compile("[\ud800-\udfff]")


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
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields that pass through to the output. None has the name of a field of results."""


def parse_requests(lines: Iterable[str], first_number: int) -> Iterator[Request]:
    """Read JSON objects, one a line: ``{"source": ..., "prefix": ..., "required": [...], ...}``.

    A blank line is a blank text. Lone surrogates, which JSON may escape, become U+FFFD in text.

    Raises:
        DataError: A line is something else; names it.
    """
    for number, line in enumerate(lines, start=first_number):
        yield _parse(line, number) if line.strip() else Request("")


def _parse(line: str, number: int) -> Request:
    try:
        values = parse_json(line, finite=True)
    except json.JSONDecodeError as error:
        where = f"{error.msg}, at column {error.colno}"
        raise _not_understood(number, f"is not JSON ({where})") from error
    except ValueError as error:  # a number too long, brackets too deep
        raise _not_understood(number, f"cannot be read as JSON ({error})") from error
    if not isinstance(values, dict):
        raise _not_understood(number, "holds no JSON object")
    for name in ("source", "prefix"):
        if not isinstance(values.get(name, ""), str) or (name == "source" and name not in values):
            raise _not_understood(number, f"has no text in {name}")
    for name in ("required", "forbidden"):
        phrases = values.get(name, [])
        if not (isinstance(phrases, list) and all(isinstance(each, str) for each in phrases)):
            raise _not_understood(number, f"has no list of texts in {name}")
    reserved = {*_KNOWN, *RESULT_FIELDS, _ERROR}
    return Request(
        # A line break would make two lines of one; other separators of Unicode are text.
        re.sub(r"[\r\n]+", " ", _clean(values["source"]).strip("\r\n")),
        _clean(values.get("prefix", "")),
        tuple(map(_clean, values.get("required", ()))),
        tuple(map(_clean, values.get("forbidden", ()))),
        {name: value for name, value in values.items() if name not in reserved},
    )


def _clean(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text)


def _not_understood(number: int, what: str) -> DataError:
    return DataError(
        f"Line {number:,} {what}.",
        fix='Write one object a line, such as {"source": "Ein Hund.", "prefix": "A"}.',
    )


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

    def __post_init__(self) -> None:
        asked = {"--attention": self.attention, "--token-scores": self.token_scores}
        if self.kind == "text" and any(asked.values()):
            flags = " and ".join(flag for flag, is_on in asked.items() if is_on)
            raise ConfigError(
                f"Text output has no place for {flags}.",
                fix="Add --format json, or leave that out.",
            )
        if self.kind == "text" and self.alignments and self.n_best > 1:
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
            return list(parse_requests(lines, first_number))
        return [Request(text) for text in lines]

    def write(self, number: int, request: Request, result: TranslationResult) -> Iterator[str]:
        """Yield the output lines for the input line ``number``, from 0."""
        if self.kind == "json":
            yield _as_json({**request.others, **result.as_dict()})
        elif self.alignments:
            yield f"{result.text} ||| {as_pharaoh(result.alignment or ())}"
        elif self.n_best == 1:
            yield result.text
        else:
            alternatives = [(x.text, x.score) for x in result.alternatives]
            for text, score in alternatives or [(result.text, result.score)]:
                yield f"{number} ||| {text} ||| {score:.4f}"

    def write_error(self, request: Request, problem: str) -> str:
        """Return the JSON output line for a line that has no translation."""
        return _as_json({**request.others, _ERROR: problem})


def _as_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)
