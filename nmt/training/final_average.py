"""The end of training: the mean of the last checkpoints, if that was asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nmt.checkpoint.average import AverageRecord, average_weights, write_average
from nmt.checkpoint.files import AVERAGE, list_checkpoints, read_best, write_best
from nmt.checkpoint.retention import newest, rank
from nmt.config.run import RunConfig
from nmt.engine.distributed import Processes
from nmt.errors import CheckpointError
from nmt.files.manifest import Manifest
from nmt.metrics.metric import METRICS
from nmt.training.optimizer import ModelOptimizer
from nmt.training.progress import TrainingSummary
from nmt.training.report import shown_perplexity
from nmt.training.validation import Validator


def average_at_end(
    config: RunConfig,
    summary: TrainingSummary,
    *,
    optimizer: ModelOptimizer,
    validator: Validator,
    processes: Processes,
    note: Callable[[str], None],
) -> TrainingSummary:
    """Write the mean of the last checkpoints, and name it best if it validates better.

    Does nothing if that is not configured, if training was cut short, or if it is done already.
    The weights of ``optimizer`` are the mean afterwards.

    Raises:
        CheckpointError: A checkpoint is damaged, or the folder cannot be written.
    """
    count, run_dir = config.training.average_last, config.run_dir
    if count is None or summary.reason == "signal":
        return summary
    present = dict(list_checkpoints(run_dir))
    due_every = (config.training.save_every, config.training.validate_every)
    steps = newest(present, count, due_every=due_every)
    made = _made(run_dir, summary.step)
    if made is not None and made.score is not None:
        is_choosable = present.keys() >= {*made.steps}
        if made.steps == tuple(steps) or not is_choosable:
            return _best_of(summary, made.score)
    if len(steps) < 2:
        return summary
    paths = [present[step] for step in steps]
    try:
        mean = average_weights(paths)
    except CheckpointError as error:
        raise CheckpointError(
            f"There is no mean of the last {len(steps)} checkpoints: {error.problem}",
            fix="All updates are made. Remove this checkpoint and start the same command again for "
            "a mean of the others, or unset training.average_last.",
        ) from error
    optimizer.load_weights(mean)
    scores = validator()
    score = scores.value(config.training.validation.metric)
    result = _best_of(summary, score)
    if processes.rank == 0:
        # Should it end before the mean is written, the newest checkpoint counts as best meanwhile.
        if result.best == AVERAGE or read_best(run_dir) == run_dir / AVERAGE:
            write_best(run_dir, result.best)
        shutil.rmtree(run_dir / AVERAGE, ignore_errors=True)
        write_average(run_dir / AVERAGE, run_dir, paths, score=score)
    text = f"mean of the last {len(steps)} checkpoints: perplexity "
    text += shown_perplexity(scores.perplexity)
    for metric, value in scores.text.items():
        text += f", {METRICS[metric].label} {value:.2f}"
    is_best = result.best == AVERAGE
    note(f"{text}; {'now the best' if is_best else 'the best checkpoint is better'}")
    return result


def _best_of(summary: TrainingSummary, score: float) -> TrainingSummary:
    """Take the score of the mean into account."""
    if summary.best_score is not None and rank(score) <= rank(summary.best_score):
        return summary
    return replace(summary, best=AVERAGE, best_score=score)


def _made(run_dir: Path, step: int) -> AverageRecord | None:
    """Return what is known of the mean that an earlier start made after ``step``, or None."""
    folder = run_dir / AVERAGE
    try:
        manifest = Manifest.read(folder)
        manifest.verify(folder)
        return AverageRecord.read(folder) if manifest.step == step else None
    except CheckpointError:
        return None
