"""The validation set -> what numbers the layers of the best weights read, for ``--dtype int8``."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.extras import RANGES
from nmt.checkpoint.model_folder import write_extra
from nmt.data.prepared import PreparedData
from nmt.model.quantized import input_ranges
from nmt.translation.torch_engine import TorchEngine

_MOST_LINES, _LINES_AT_ONCE = 200, 20


def measure_ranges(run_dir: Path, data: PreparedData) -> None:
    """Write ``ranges.json``: the same bytes for the same weights and data.

    Does nothing if the validation set has no text.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = zip(data.valid_source, data.valid_target, strict=True)
    chosen = list(islice(((x, y) for x, y in pairs if x and y), _MOST_LINES))
    if not chosen:
        return
    bundle = load_model(run_dir)
    sources, targets = (list(side) for side in zip(*chosen, strict=True))
    ids = (
        bundle.tokenizers.source.encode_batch(sources),
        bundle.tokenizers.target.encode_batch(targets),
    )
    engine = TorchEngine(bundle.model)

    def read() -> None:
        for first in range(0, len(chosen), _LINES_AT_ONCE):
            engine.token_log_probs(*(side[first : first + _LINES_AT_ONCE] for side in ids))

    ranges = input_ranges(bundle.model, read)
    text = json.dumps(ranges, indent=1, sort_keys=True) + "\n"
    write_extra(run_dir / RANGES, text.encode())
