"""Every knob, typed and checked, without torch.

In: a YAML file and ``--set`` overrides. Out: a frozen `RunConfig`, or one `ConfigError` that names
every problem. Called by the command line and by users of the Python API.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Strict

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
