"""What the start of a run measured, before there is a checkpoint that holds it.

How many updates fit in some minutes and how many tokens in the memory is measured by a clock and a
meter, so that another start would find something else. It is written down at once: a start that is
killed before its first checkpoint is followed by one that makes the same updates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.errors import CheckpointError
from nmt.files.atomic import write_errors, write_json

MEASURED = "measured.json"
"""In a run folder."""


def read_measured(run_dir: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was measured under just these conditions, by name; nothing if there is none."""
    try:
        values = json.loads((run_dir / MEASURED).read_text(encoding="utf-8"))
        found: dict[str, Any] = values["found"] if values["conditions"] == conditions else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found


def write_measured(run_dir: Path, conditions: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Write that down, in place of what was there.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    with write_errors(
        run_dir,
        CheckpointError,
        fix="Set run_dir to a folder you can write to, or free disk space.",
    ):
        write_json(run_dir / MEASURED, {"conditions": conditions, "found": found})
