"""What sections of the configuration are made of; loads pydantic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nmt.registry import names_of

T = TypeVar("T")
_FREE: Any = object()  # Stands for a value that does not bind.

# YAML has no paths and no tuples: text and lists are taken, too.
FilePath = Annotated[Path, Strict(strict=False)]
Many = Annotated[tuple[T, ...], Strict(strict=False)]
Pair = Annotated[tuple[T, T], Strict(strict=False)]


class Section(BaseModel):
    """One part of the configuration. A section with bad values cannot exist.

    Its docstring says under ``Args:`` what each field means, which is the field's meaning in
    ``nmt config keys`` and configs/KEYS.md.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # `max_steps: true` is a slip, not a 1
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def _disagreements(self) -> Iterator[str]:
        """Yield what is wrong with values that are right one by one."""
        return iter(())

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if problems := "; ".join(dict.fromkeys(self._disagreements())):
            raise ValueError(problems)
        return self


@dataclass(frozen=True, slots=True)
class Registered:
    """Marks a text that names an entry of a `nmt.registry.Registry`: ``Annotated[str, ...]``.

    The built-in names are listed here, so that checking a configuration imports no registry and no
    torch. A program that has registered another name has imported its registry: then that name is
    valid, too.
    """

    kind: str
    builtin: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check a name after its type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """List the built-in names, without forbidding others."""
        listed = {"examples": list(self.builtin), "allowed": ", ".join(self.builtin)}
        return handler(schema) | listed

    def _check(self, name: str) -> str:
        names = list(dict.fromkeys((*self.builtin, *names_of(self.kind))))
        if name not in names:
            raise PydanticCustomError("unknown_name", "unknown name", {"names": names})
        return name


Bound = Literal["data", "run", "budget"]


class Binds:
    """Marks a field whose value cannot change freely: ``Annotated[int, Binds("run")]``.

    ``data``: another value gives other prepared data. ``run``: a run that was trained with another
    value cannot be resumed. ``budget``: the same where the learning rate depends on the length of
    the training. The mark of a section counts for all of its fields that have none of their own;
    ``Binds()`` takes it back.
    """

    def __init__(self, *by: Bound) -> None:
        self.by = frozenset(by)


def bound_values(section: Section, *by: Bound) -> dict[str, Any]:
    """Return the values that bind, nested as in a configuration, as plain data.

    Args:
        section: The whole configuration or one of its sections.
        by: What is bound; a field with any of these counts.
    """
    found = _bound(section, section.model_dump(mode="json"), frozenset(by), is_bound=False)
    return {} if found is _FREE else found


def _bound(value: Any, plain: Any, by: frozenset[Bound], *, is_bound: bool) -> Any:
    if isinstance(value, Section):
        values = {}
        for name, field in type(value).model_fields.items():
            mark = next((note for note in field.metadata if isinstance(note, Binds)), None)
            inner_is_bound = is_bound if mark is None else bool(mark.by & by)
            inner = _bound(getattr(value, name), plain[name], by, is_bound=inner_is_bound)
            if inner is not _FREE:
                values[name] = inner
        return values or _FREE
    if isinstance(value, tuple) and any(isinstance(each, Section) for each in value):
        items = [_bound(*pair, by, is_bound=is_bound) for pair in zip(value, plain, strict=True)]
        return _FREE if all(item is _FREE for item in items) else items
    return plain if is_bound else _FREE
