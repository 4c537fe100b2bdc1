"""The validation set -> the limits by which the guard knows what is no translation."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from nmt.checkpoint.files import replace_text
from nmt.data.prepared import PreparedData
from nmt.errors import CheckpointError
from nmt.text.tokenizer import load_tokenizers
from nmt.translation.coverage import SourceCoverage
from nmt.translation.guard import NAME, GuardedLine, calibrate

_MOST_LINES = 5000  # half a second


def calibrate_guard(run_dir: Path, data: PreparedData) -> None:
    """Write ``guard.json``: the same bytes for the same data, however the training went.

    With the short lists of the run, how much of a source is covered is measured, too. Does nothing
    if the validation set has no text.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = zip(data.valid_source, data.valid_target, strict=True)
    chosen = list(islice(pairs, _MOST_LINES))
    if not chosen:
        return
    tokenizers = load_tokenizers(data.tokenizer_dir)
    sources, targets = (list(side) for side in zip(*chosen, strict=True))
    ids = tokenizers.source.encode_batch(sources), tokenizers.target.encode_batch(targets)
    coverage = SourceCoverage.load(run_dir)
    covered = [
        1.0 if coverage is None else coverage.share(*pair) for pair in zip(*ids, strict=True)
    ]
    limits = calibrate(map(GuardedLine, sources, targets, *ids, covered))
    try:
        replace_text(run_dir / NAME, limits.text())
    except OSError as error:
        raise CheckpointError(
            f"{run_dir / NAME} was not written: {error.strerror or error}.",
            fix="Free disk space, or let the folder be written; then start the same command again.",
        ) from error
