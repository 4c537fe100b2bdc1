"""The file of what numbers a model's layers read. See `nmt.model.quantized.input_ranges`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

from nmt.checkpoint.extras import RANGES, damaged_extra
from nmt.model.quantized import InputRanges

_WEIGHTS = "weights"  # no layer is called so


def ranges_text(ranges: InputRanges, sha256: str) -> str:
    """Return the content of a file.

    Args:
        ranges: Of the inputs of each layer.
        sha256: Of the weights that they were measured with.
    """
    return json.dumps({**ranges, _WEIGHTS: sha256}, indent=1, sort_keys=True) + "\n"


def load_ranges(
    folder: Path, sha256: str, note: Callable[[str], None] = lambda _: None
) -> InputRanges | None:
    """Read the file of a run or model folder; None if there is none for these weights.

    Args:
        folder: Where it is looked for.
        sha256: Of the weights that are used.
        note: Told if the file is of other weights.

    Raises:
        CheckpointError: It is damaged.
    """
    path = folder / RANGES
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        measured_with = found.pop(_WEIGHTS, None)
        if measured_with is None:
            raise ValueError("it does not name its weights")
        ranges = {name: (float(low), float(high)) for name, (low, high) in found.items()}
        if not all(math.isfinite(limit) for limits in ranges.values() for limit in limits):
            raise ValueError("a range is not finite")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise damaged_extra(path, error) from error
    if measured_with == sha256:
        return ranges
    note(f"{path} is of other weights and not used: int8 is slower without")
    return None
