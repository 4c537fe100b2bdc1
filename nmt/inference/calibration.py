"""Confidence, fitted when training ends: the model translates its validation set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from nmt.checkpoint.model_folder import CONFIDENCE, write_extra
from nmt.data.prepared import PreparedData
from nmt.files.progress import progress_bar
from nmt.inference.confidence import fit_confidence
from nmt.inference.translator import Translator
from nmt.metrics.metric import MetricOptions, Scorer

_MOST_TRANSLATED = 1000
_FEWEST_LINES = 100  # fewer say nothing about rare lines


def calibrate_confidence(run_dir: Path, data: PreparedData, load: Callable[[], Translator]) -> None:
    """Translate the validation set, 1,000 lines at most, and write ``confidence.json``.

    Does nothing if fewer than 100 lines of it have text.

    Args:
        run_dir: Of the run.
        data: Its prepared data.
        load: Returns the trained model.

    Raises:
        CheckpointError: The folder cannot be written.
    """
    pairs = [
        pair for pair in zip(data.valid_source, data.valid_target, strict=True) if pair[0].strip()
    ]
    if len(pairs) < _FEWEST_LINES:
        return
    rows = np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_TRANSLATED), dtype=np.int64)
    sources, targets = zip(*(pairs[row] for row in rows.tolist()), strict=True)
    with progress_bar("fitting confidence", unit="lines", total=len(sources), leave=False) as bar:
        results = load().with_options(progress=bar.update).translate(sources)
    scorer = Scorer("chrf", [targets], MetricOptions())
    scores = scorer.sentence_scores(scorer.statistics([result.text for result in results]))
    kept = [pair for pair in zip(results, scores, strict=True) if pair[0].num_tokens]
    fitted = fit_confidence(*zip(*kept, strict=True))
    write_extra(run_dir / CONFIDENCE, fitted.text().encode())
