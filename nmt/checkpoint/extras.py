"""Files that the end of a training adds to a run; not every run has them. Loads no torch."""

from __future__ import annotations

from pathlib import Path

from nmt.errors import CheckpointError

GUARD, SHORTLIST = "guard.json", "shortlist.safetensors"
EXTRAS = (GUARD, SHORTLIST)
"""They depend on the data alone: any weights of the run may use them."""


def forget_extras(run_dir: Path, *names: str) -> None:
    """Remove what belongs to other weights or data than the run will have."""
    for name in names:
        (run_dir / name).unlink(missing_ok=True)


def damaged_extra(path: Path, error: Exception) -> CheckpointError:
    """Return what the reader of such a file raises."""
    return CheckpointError(
        f"{path} is damaged: {error}.",
        fix="Remove it; a finished run gets it again when its training is started once more.",
    )
