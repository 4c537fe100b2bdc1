"""Base class and field types of configuration sections; loads pydantic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nmt.config.paths import expanded, is_pattern
from nmt.registry import built_in, names_of

T = TypeVar("T")
# In place of a value that can change. It cannot be a value itself, as JSON data contain no tuples.
_FREE: Any = ()


def _found(path: Path, info: ValidationInfo) -> Path:
    """Expand a path; look for a file that is not here in the folder that the caller names."""
    here = expanded(path)
    if info.context is None or here.exists():
        return here
    there: Path = info.context[FOLDER] / here
    return there if there.exists() or is_pattern(there) else here


FOLDER = "folder"  # Key in the context of a validation: where files are that are not here.
# YAML has no paths and tuples, so text and lists are accepted.
FilePath = Annotated[Path, Strict(strict=False), AfterValidator(_found)]
Many = Annotated[tuple[T, ...], Strict(strict=False)]
Pair = Annotated[tuple[T, T], Strict(strict=False)]

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]  # Of a loss or change, so 1 loses everything.


class Section(BaseModel):
    """One section of the configuration, validated on creation.

    The ``Args:`` of its docstring describe the fields in ``nmt config keys`` and configs/KEYS.md.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # `max_steps: true` is a mistake, not 1
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def _disagreements(self) -> Iterator[str]:
        """Yield a message for each contradiction between values that are valid separately."""
        return iter(())

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if problems := "; ".join(dict.fromkeys(self._disagreements())):
            raise ValueError(problems)
        return self


@dataclass(frozen=True)
class Registered:
    """Marks a string that must be a name in a `nmt.registry.Registry`: ``Annotated[str, ...]``.

    The names are those of registry.toml, and those that the user's program has registered. A colon
    separates a name from an argument. The error for an unknown name has the advice, or else a
    similar name.
    """

    kind: str
    first: tuple[str, ...] = ()  # Other valid names, described before those of the registry.
    last: tuple[str, ...] = ()  # Other valid names, described after those of the registry.
    hidden: tuple[str, ...] = ()  # Names of the registry that are valid, but not described.
    advice: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Check the type, then the name."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """List the built-in names as examples."""
        names = self._described(built_in(self.kind))
        return {**handler(schema), "examples": names, "allowed": ", ".join(names)}

    def _described(self, registered: Iterable[str]) -> list[str]:
        """Return the names to show, of which ``registered`` are those of the registry."""
        shown = [name for name in registered if name not in self.hidden]
        return [*self.first, *shown, *self.last]

    def _check(self, text: str) -> str:
        """Return the text unchanged if the name in it, before a colon, is valid."""
        name = text.partition(":")[0]
        names = self._described(names_of(self.kind))
        if name not in names and name not in self.hidden:
            message = f"one of {', '.join(names)}"
            context = {"names": names, "advice": self.advice}
            raise PydanticCustomError("unknown_name", message, context)
        return text


Bound = Literal["data", "run", "budget"]


class Binds:
    """Marks what a field binds, which a change of the field therefore makes useless.

    ``data``: a change prepares the data again. ``run``: a run cannot be resumed after a change.
    ``budget``: like ``run``, if the learning rate depends on the length of the training. Without
    these, a field is free. Every field of the configuration has a mark; that of a section applies
    to its fields without a mark.
    """

    def __init__(self, *by: Bound) -> None:
        self.by = by


BindsData = Annotated[T, Binds("data")]
BindsRun = Annotated[T, Binds("run")]
BindsBudget = Annotated[T, Binds("budget")]
Free = Annotated[T, Binds()]


def bound_values(section: Section, by: Bound) -> dict[str, Any]:
    """Return the values of fields with the mark ``by``, nested, as plain data."""
    values = _bound(section, section.model_dump(mode="json"), by, is_bound=False)
    return values or {}


def mark_of(field: FieldInfo) -> Binds | None:
    """Return the mark of a field of a section, or None."""
    return next((note for note in field.metadata if isinstance(note, Binds)), None)


def _bound(value: Any, plain: Any, by: Bound, *, is_bound: bool) -> Any:
    """Return the part of a value that has the mark ``by``.

    Args:
        value: A section, a tuple of sections, or the value of any other field.
        plain: The same as plain data, of which the result consists.
        by: The mark.
        is_bound: Whether fields of ``value`` without a mark count as marked, because the section or
            list around them is.

    Returns:
        Plain data: a dict of the marked fields, a list of such dicts, or the plain value of a
        field. `_FREE` if nothing is marked.
    """
    if isinstance(value, Section):
        bound_fields = {}
        for name, field in type(value).model_fields.items():
            if field.exclude:  # another spelling of other keys
                continue
            mark = mark_of(field)
            field_is_bound = is_bound if mark is None else by in mark.by
            bound_part = _bound(getattr(value, name), plain[name], by, is_bound=field_is_bound)
            if bound_part is not _FREE:
                bound_fields[name] = bound_part
        return bound_fields or _FREE
    if isinstance(value, tuple) and any(isinstance(item, Section) for item in value):
        items = []
        for item, plain_item in zip(value, plain, strict=True):
            items.append(_bound(item, plain_item, by, is_bound=is_bound))
        # Items stay in their places, even free ones, unless all are free.
        if items.count(_FREE) == len(items):
            return _FREE
        return items
    return plain if is_bound else _FREE
