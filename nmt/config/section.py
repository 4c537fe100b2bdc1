"""What sections of the configuration are made of; loads pydantic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nmt.registry import Registry

T = TypeVar("T")

FilePath = Annotated[Path, Strict(strict=False)]
"""A path; text is taken too, as YAML has no paths."""
Many = Annotated[tuple[T, ...], Strict(strict=False)]
"""Any number of values; a list is taken too, as YAML has no tuples."""
Pair = Annotated[tuple[T, T], Strict(strict=False)]
"""Two values; a list is taken too."""


class Section(BaseModel):
    """One part of the configuration. A section with bad values cannot exist."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,  # `max_steps: true` is a slip, not a 1
        use_attribute_docstrings=True,
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
    """Marks a text that names an entry of a registry: ``Annotated[str, Registered(...)]``.

    The built-in names are listed here, so that checking a configuration loads nothing else. Any
    other name is looked up in the registry, whose module is imported only then: who adds an entry
    touches no file of this package.
    """

    registry: str
    """``module:NAME`` of a mapping from names to constructors."""
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
        names = {"examples": list(self.builtin), "allowed": ", ".join(self.builtin)}
        return {**handler(schema), **names}

    def _check(self, name: str) -> str:
        if name in self.builtin:
            return name
        module, _, registry = self.registry.partition(":")
        found = getattr(import_module(module), registry)
        others = found.names() if isinstance(found, Registry) else found
        names = list(dict.fromkeys((*self.builtin, *others)))
        if name not in names:
            raise PydanticCustomError("unknown_name", "unknown name", {"names": names})
        return name
