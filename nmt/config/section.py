"""Base class and field types of configuration sections; loads pydantic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nmt.registry import names_of

T = TypeVar("T")
_FREE: Any = object()  # Marks a value that can change.

# YAML has no paths and tuples, so text and lists are accepted.
FilePath = Annotated[Path, Strict(strict=False)]
Many = Annotated[tuple[T, ...], Strict(strict=False)]
Pair = Annotated[tuple[T, T], Strict(strict=False)]


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


@dataclass(frozen=True, slots=True)
class Registered:
    """Marks a string that must be a name in a `nmt.registry.Registry`: ``Annotated[str, ...]``.

    The built-in names are repeated here, so that validation does not import registries and torch.
    Names that the user's program has registered are valid, too. A colon separates a name from an
    argument. The error for an unknown name has the advice, or else a similar name.
    """

    kind: str
    builtin: tuple[str, ...]
    advice: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Check the type, then the name."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        """List the built-in names as examples."""
        names = list(self.builtin)
        return {**handler(schema), "examples": names, "allowed": ", ".join(names)}

    def _check(self, name: str) -> str:
        names = list(dict.fromkeys((*self.builtin, *names_of(self.kind))))
        if name.partition(":")[0] not in names:
            text = f"one of {', '.join(names)}"
            raise PydanticCustomError("unknown_name", text, {"names": names, "advice": self.advice})
        return name


Bound = Literal["data", "run", "budget"]


class Binds:
    """Marks a field whose change requires new data or a new run: ``Annotated[int, Binds("run")]``.

    ``data``: a change prepares the data again. ``run``: a run cannot be resumed after a change.
    ``budget``: like ``run``, if the learning rate depends on the length of the training. The mark
    of a section applies to its fields without a mark; ``Binds()`` removes it.
    """

    def __init__(self, *by: Bound) -> None:
        self.by = frozenset(by)


def bound_values(section: Section, *by: Bound) -> dict[str, Any]:
    """Return the values of fields with one of the marks ``by``, nested, as plain data."""
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
