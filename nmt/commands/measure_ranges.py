"""The validation set -> what numbers the layers of the best weights read, for ``--dtype int8``."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.files import replace_text
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.model.quantized import input_ranges
from nmt.translation.ranges import NAME
from nmt.translation.torch_engine import TorchEngine

_MOST_LINES = 200


def forget_ranges(run_dir: Path) -> None:
    """Remove ``ranges.json``, before other weights are copied together with it."""
    (run_dir / NAME).unlink(missing_ok=True)


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
    ranges = input_ranges(bundle.model, lambda: engine.token_log_probs(*ids))
    try:
        replace_text(run_dir / NAME, json.dumps(ranges, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise CheckpointError(
            f"{run_dir / NAME} was not written: {error.strerror or error}.",
            fix="Free disk space, or let the folder be written; then start the same command again.",
        ) from error
