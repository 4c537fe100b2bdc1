"""The description of the paths that programs read (OpenAPI 3.1)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from nmt.version import __version__

_SCHEMAS = "#/components/schemas/"
_FAULTS = (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 503, 504)


@dataclass(frozen=True, slots=True)
class Operation:
    """A path, how it is asked, and what answers it."""

    path: str
    method: Literal["get", "post"]
    answer: Callable[..., object]
    kind: type[BaseModel] | None = None
    """What its body holds."""

    @property
    def summary(self) -> str:
        """First line of what is said of the function."""
        return (inspect.getdoc(self.answer) or self.path).partition("\n")[0]


def describe(operations: Iterable[Operation], *, has_keys: bool) -> dict[str, Any]:
    """Return the description of all paths."""
    known = list(operations)
    kinds = [each.kind for each in known if each.kind is not None]
    _, found = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template=_SCHEMAS + "{model}"
    )
    fault = {"type": "object", "required": ["error", "fix"],
             "properties": {name: {"type": "string"} for name in ("error", "fix")}}  # fmt: skip
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "nmt serve", "version": __version__},
        "paths": {each.path: {each.method: _operation(each)} for each in known},
        "components": {"schemas": {**found["$defs"], "Fault": fault}},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _operation(each: Operation) -> dict[str, Any]:
    of_fault = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}Fault"}}}
    responses: dict[str, Any] = {"200": {"description": "The answer, in JSON."}}
    for status in _FAULTS if each.kind else ():
        responses[str(status)] = {"description": "error and fix", "content": of_fault}
    values: dict[str, Any] = {"summary": each.summary, "responses": responses}
    if each.kind is not None:
        schema = {"schema": {"$ref": f"{_SCHEMAS}{each.kind.__name__}"}}
        values["requestBody"] = {"required": True, "content": {"application/json": schema}}
    return values
