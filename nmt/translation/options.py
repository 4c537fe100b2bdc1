"""Decoding options with some of them changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from nmt.config.decoding import DecodingConfig
from nmt.config.loader import find_problems
from nmt.errors import ConfigError


def change_options(options: DecodingConfig, changes: Mapping[str, Any]) -> DecodingConfig:
    """Return ``options`` with ``changes``.

    Raises:
        ConfigError: An option is unknown or out of bounds. Lists every problem.
    """
    try:
        return DecodingConfig.model_validate({**options.model_dump(), **changes})
    except ValidationError as error:
        problems = "\n  ".join(problem.text for problem in find_problems(error))
        raise ConfigError(
            f"Decoding options: {problems}.",
            fix="Correct them; section decoding of `nmt config schema` describes each.",
        ) from error
