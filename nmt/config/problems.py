"""Findings of the checks -> lines a user can act on: where, what was found, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nmt.config.keys import find_key, nearest_key, nearest_word

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from nmt.config.document import KeyPath


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration."""

    path: KeyPath
    """The key at fault."""
    text: str
    """What is wrong, without the place."""

    def at(self, place: str) -> str:
        """The whole line, with the file and line or the flag it comes from."""
        return f"{place}: {self.text}"


def find_problems(error: ValidationError) -> list[Problem]:
    """Every problem in a failed check of the sections, in the order of the file.

    A key that is missing because it was misspelt is reported once, as misspelt; a list that is
    too short because its entries are wrong is not reported besides them.
    """
    details = _one_by_key(
        _without_alternative(detail)
        for detail in error.errors(include_url=False, include_context=True)
        if not (detail["type"] == "too_short" and detail["input"])
    )
    problems = [Problem(tuple(detail["loc"]), _sentence(detail)) for detail in details]
    meant = {
        nearest_key(detail["loc"]) for detail in details if detail["type"] == "extra_forbidden"
    }
    return [
        problem
        for problem, detail in zip(problems, details, strict=True)
        if not (detail["type"] == "missing" and _dotted(problem.path) in meant)
    ]


def _without_alternative(detail: ErrorDetails) -> ErrorDetails:
    """Drop from the place which of the allowed types was tried, as in ``max_tokens.int``."""
    path = detail["loc"]
    if detail["type"] != "extra_forbidden" and path and find_key(path) is None:
        parent = find_key(path[:-1])
        if parent is not None and not parent.is_section and isinstance(path[-1], str):
            return {**detail, "loc": path[:-1]}
    return detail


def _one_by_key(details: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """Keep the first of the findings about one value of several allowed types."""
    found: dict[object, ErrorDetails] = {}
    for number, detail in enumerate(details):
        key = find_key(detail["loc"])
        found.setdefault(number if key is None or key.is_section else detail["loc"], detail)
    return list(found.values())


def unknown_key(path: Sequence[str | int]) -> str:
    """A sentence about a key that does not exist.

    >>> unknown_key(("training", "schedule", "warm_up_steps"))
    'unknown key training.schedule.warm_up_steps; did you mean training.schedule.warmup_steps?'
    """
    near = nearest_key(path)
    advice = f"did you mean {near}?" if near else "`nmt config schema` lists the keys"
    return f"unknown key {_dotted(path)}; {advice}"


def _sentence(detail: ErrorDetails) -> str:
    path, kind = detail["loc"], detail["type"]
    if kind == "extra_forbidden":
        return unknown_key(path)
    if kind == "missing":
        return f"{_dotted(path)} is missing; it must be {_allowed(path, detail)}"
    if kind == "value_error":
        context: Mapping[str, Any] = detail.get("ctx", {})
        return f"{_dotted(path)}: {context.get('error', detail['msg'])}".removeprefix(": ")
    found = detail["input"]
    sentence = f"{_dotted(path)} is {_show(found)}; it must be {_allowed(path, detail)}"
    if kind == "literal_error" and isinstance(found, str):
        key = find_key(path)
        near = nearest_word(found, key.allowed.split(", ")) if key else None
        sentence += f" (did you mean {near}?)" if near else ""
    return sentence


def _allowed(path: Sequence[str | int], detail: ErrorDetails) -> str:
    key = find_key(path)
    return key.allowed if key else detail["msg"].lower().removeprefix("input should be ")


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _dotted(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path)) if path else ""
