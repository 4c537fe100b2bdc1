"""``nmt serve``: model folders -> an HTTP service."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from nmt.errors import ConfigError
from nmt.extras.serving.options import ServeOptions
from nmt.registry import load_attribute

if TYPE_CHECKING:
    from nmt.extras.serving.server import CheckedModels

_NEEDED = ("fastapi", "prometheus_client", "sentencex", "srt", "uvicorn")


def serve(options: ServeOptions) -> CheckedModels | None:
    """Serve models until a signal ends it.

    Returns:
        With ``check`` what each model is, and nothing is served.

    Raises:
        ConfigError: Packages are missing, the address cannot be used, or an option is wrong.
        CheckpointError: A model is missing or damaged.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"`nmt serve` needs {', '.join(missing)}.", fix="pip install -e '.[serve]'"
        )
    return load_attribute("nmt.extras.serving.server:start_server")(options)
