"""The file of what numbers a model's layers read. See `nmt.model.quantized.input_ranges`."""

from __future__ import annotations

import json
import math
from pathlib import Path

from nmt.checkpoint.extras import RANGES, damaged_extra
from nmt.model.quantized import InputRanges


def load_ranges(folder: Path) -> InputRanges | None:
    """Read the file of a run or model folder; None if there is none.

    Raises:
        CheckpointError: It is damaged.
    """
    path = folder / RANGES
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        ranges = {name: (float(low), float(high)) for name, (low, high) in found.items()}
        if not all(math.isfinite(limit) for limits in ranges.values() for limit in limits):
            raise ValueError("a range is not finite")
        return ranges
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise damaged_extra(path, error) from error
