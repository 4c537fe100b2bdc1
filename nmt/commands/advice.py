"""What looks wrong about a training before it begins, if the extra that knows it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from nmt.config.run import RunConfig
from nmt.errors import ConfigError
from nmt.registry import Registry

ADVICE: Registry[Callable[[RunConfig], Iterable[str]]] = Registry(
    "kind of advice", {"plan": "nmt.extras.planning.advice:advise_on"}
)


def advice(config: RunConfig) -> list[str]:
    """Return what will disappoint about a configuration, and what to set instead."""
    with suppress(ConfigError):  # the extra is missing
        return list(ADVICE["plan"](config))
    return []
