"""The validation set -> the limits by which the guard knows what is no translation."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from nmt.checkpoint.model_folder import GUARD, write_extra
from nmt.data.prepared import PreparedData
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.text.tokenizer import load_tokenizers
from nmt.translation.coverage import SourceCoverage
from nmt.translation.guard import GuardedLine, calibrate

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
    coverage = SourceCoverage.load(ShortlistFile(run_dir, tokenizers.vocab_sizes))
    covered = [coverage.share(*pair) if coverage else 0.0 for pair in zip(*ids, strict=True)]
    limits = calibrate(map(GuardedLine, sources, targets, *ids, covered))
    write_extra(run_dir / GUARD, limits.text().encode())
