"""The end of training: the mean of the last checkpoints, if that was asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

from nmt.checkpoint.average import average_weights, write_average
from nmt.checkpoint.files import AVERAGE, list_checkpoints, write_best
from nmt.checkpoint.manifest import Manifest
from nmt.checkpoint.retention import newest
from nmt.config.run import RunConfig
from nmt.engine.distributed import Processes
from nmt.errors import CheckpointError
from nmt.training.optimizer import Optimizer
from nmt.training.trainer import TrainingSummary
from nmt.training.validation import Validator


def average_at_end(
    config: RunConfig,
    summary: TrainingSummary,
    *,
    optimizer: Optimizer,
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
    if count is None or summary.reason == "signal" or _is_made(config, summary.step):
        return summary
    present = dict(list_checkpoints(run_dir))
    due_every = (config.training.save_every, config.training.validate_every)
    steps = newest(present, count, due_every=due_every)
    if len(steps) < 2:
        return summary
    paths = [present[step] for step in steps]
    optimizer.load_weights(average_weights(paths))
    scores = validator()
    score = scores.value(config.training.validation.metric)
    is_best = summary.best_score is None or score > summary.best_score
    if processes.rank == 0:
        # Should it end between the two lines, the newest checkpoint counts as best meanwhile.
        if is_best:
            write_best(run_dir, None)
        shutil.rmtree(run_dir / AVERAGE, ignore_errors=True)
        write_average(run_dir / AVERAGE, run_dir, paths)
    text = f"mean of the last {len(steps)} checkpoints: perplexity {scores.perplexity:.2f}"
    if scores.bleu is not None and scores.chrf is not None:
        text += f", BLEU {scores.bleu:.2f}, chrF {scores.chrf:.2f}"
    note(f"{text}; {'now the best' if is_best else 'the best checkpoint is better'}")
    return replace(summary, best=AVERAGE, best_score=score) if is_best else summary


def _is_made(config: RunConfig, step: int) -> bool:
    try:
        return Manifest.read(config.run_dir / AVERAGE).step == step
    except CheckpointError:
        return False
