"""How nmt is installed: from a clone or from a wheel, and where its configurations are.

A wheel contains the repository's folder ``configs`` as ``nmt/configs``; a clone has it next to
``nmt``.
"""

from __future__ import annotations

import logging
import os
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

DISTRIBUTION = "nmt-toolkit"  # On the package index, ``nmt`` is another project.
SHIPPED = Path("configs")  # What users type for the folder of shipped configurations.
_PACKAGE = Path(__file__).resolve().parent
_IS_WHEEL = (_PACKAGE / SHIPPED).is_dir()
_IS_CLONE = not _IS_WHEEL and (_PACKAGE.parent / "pyproject.toml").is_file()
CLONE = _PACKAGE.parent if _IS_CLONE else None
CONFIGS = (CLONE or _PACKAGE) / SHIPPED

logger = logging.getLogger(__name__)


def read_toml(module: str, name: str) -> dict[str, Any]:
    """Return the content of a TOML file beside a module, whose ``__file__`` is ``module``."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))


def user_cache() -> Path | None:
    """Return the folder for nmt in the user's cache folder; None for a user without a home."""
    # The variable must be an absolute path; otherwise the standard says to ignore it.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # raised by Path.home()
        if not cache.is_absolute():
            cache = Path.home() / ".cache"
        return cache / "nmt"
    return None


def shipped_file(path: Path) -> Path:
    """Return the file to read: for a missing ``configs/NAME``, the file that comes with nmt."""
    shipped = CONFIGS / path.name
    if path.parent != SHIPPED or path.exists() or not shipped.is_file():
        return path
    logger.info("reading %s, which comes with nmt: %s", path, shipped)
    return shipped


def shipped_configs() -> list[Path]:
    """Return the paths of all shipped configurations, as users type them."""
    return [SHIPPED / file.name for file in sorted(CONFIGS.glob("*.yaml"))]
