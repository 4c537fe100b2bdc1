"""Small files, and names in folders, that survive a power cut. Loads no torch."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""Of names that nothing finished has."""


def force_to_disk(path: Path) -> None:
    """Return when a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Write a small UTF-8 file so that any reader finds the old text or the new one, whole."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a small file so that any reader finds the old content or the new one, whole."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    temporary.write_bytes(content)
    force_to_disk(temporary)
    temporary.replace(path)
    force_to_disk(path.parent)
