"""The only module that imports ctranslate2, an optional extra."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from nmt.errors import ConfigError


def import_ctranslate2(name: str = "ctranslate2") -> Any:
    """Return the package, or the part of it called ``name``.

    The package alone does not load torch; its part ``ctranslate2.specs`` does.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "CTranslate2 is not installed.", fix="Install it: pip install 'nmt[ctranslate2]'."
        ) from error
