"""The validation set -> what numbers the layers of a model read, for ``--dtype int8``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from nmt.checkpoint.bundle import ModelBundle, load_model
from nmt.checkpoint.extras import RANGES
from nmt.checkpoint.model_folder import write_extra
from nmt.data.prepared import PreparedData
from nmt.model.quantized import input_ranges
from nmt.runtime.ranges import ranges_text
from nmt.runtime.torch_engine import TorchEngine

_MOST_LINES, _LINES_AT_ONCE = 200, 20


def measure_ranges(run_dir: Path, data: PreparedData) -> None:
    """Write ``ranges.json`` for the best weights: the same bytes for the same weights and data.

    Does nothing if the validation set has no text.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    content = ranges_content(load_model(run_dir), data)
    if content is not None:
        write_extra(run_dir / RANGES, content)


def ranges_content(bundle: ModelBundle, data: PreparedData) -> bytes | None:
    """Return the content of ``ranges.json`` for a model; None if no validation pair has text."""
    pairs = zip(data.valid_source, data.valid_target, strict=True)
    chosen = list(islice(((x, y) for x, y in pairs if x and y), _MOST_LINES))
    if not chosen:
        return None
    sources, targets = (list(side) for side in zip(*chosen, strict=True))
    ids = (
        bundle.tokenizers.source.encode_batch(sources),
        bundle.tokenizers.target.encode_batch(targets),
    )
    engine = TorchEngine(bundle.model)

    def read() -> None:
        for first in range(0, len(chosen), _LINES_AT_ONCE):
            engine.token_log_probs(*(side[first : first + _LINES_AT_ONCE] for side in ids))

    return ranges_text(input_ranges(bundle.model, read), bundle.sha256).encode()
