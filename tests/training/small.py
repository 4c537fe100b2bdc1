"""Small models, batches and updaters."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from nmt.config.model import ModelConfig
from nmt.config.training import OptimizerConfig, TrainingConfig
from nmt.data.loader import Batch, Position
from nmt.device.precision import Precision
from nmt.model.transformer import Transformer, build_model
from nmt.packed import Packed
from nmt.training.checkpoints import Progress
from nmt.training.events import TrainingEvent
from nmt.training.losses import LOSSES, LossSum, loss_name
from nmt.training.optimizer import FlatParameters, ModelOptimizer
from nmt.training.update import Updater
from nmt.training.validation import Scores

FLOAT32 = Precision("float32", "cpu")
BF16 = Precision("bfloat16", "cpu")
VOCAB_SIZE = 30


def small_model(**options: object) -> Transformer:
    torch.manual_seed(1)
    shape = {"model_dim": 16, "ff_dim": 32, "num_heads": 2, "encoder_layers": 1}
    config = ModelConfig.model_validate({**shape, "decoder_layers": 1, "dropout": 0.0, **options})
    return build_model(config, VOCAB_SIZE, VOCAB_SIZE)


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)

    def packed() -> Packed:
        ids = torch.randint(4, VOCAB_SIZE, (len(lengths), width), generator=generator).tolist()
        return Packed.from_rows([row[:length] for row, length in zip(ids, lengths, strict=True)])

    return Batch(packed(), packed(), packed().ids, np.arange(len(lengths)))


def updater_of(
    model: Transformer,
    optimizer: ModelOptimizer | OptimizerConfig | None = None,
    precision: Precision = FLOAT32,
    *,
    clip_norm: float = 1.0,
    r_drop: float = 0.0,
) -> Updater:
    """Of a label smoothing of 0.1."""
    if not isinstance(optimizer, ModelOptimizer):
        config = optimizer or OptimizerConfig()
        optimizer = ModelOptimizer(model, config, precision.weight_dtype)
    training = TrainingConfig(max_steps=1, r_drop_weight=r_drop)
    objective = LOSSES[loss_name(training)](training)
    return Updater(model, optimizer, precision, objective, clip_norm=clip_norm)


def hold_pairs(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Have memory for the backward pass of so many pairs at once."""
    accumulate, loss, pairs = FlatParameters.accumulate, Updater.objective_loss, 0

    def counted(updater: Updater, batch: Batch) -> LossSum:
        nonlocal pairs
        pairs = len(batch.rows)
        return loss(updater, batch)

    def short(parameters: FlatParameters) -> None:
        accumulate(parameters)
        if pairs > most:
            raise torch.OutOfMemoryError("CUDA out of memory (injected)")

    monkeypatch.setattr(Updater, "objective_loss", counted)
    monkeypatch.setattr(FlatParameters, "accumulate", short)


def update_event(step: int, loss: float = 3.25) -> TrainingEvent:
    """Of a loss of 3.25, 4000 target tokens a second and an eighth of padding."""
    progress = Progress(step=step, position=Position(1), loss_sum=6000 * loss, scored_tokens=6000)
    progress.source_tokens, progress.target_tokens, progress.padded_tokens = 4500, 6000, 12000
    return progress.report(learning_rate=5e-4, gradient_norm=0.75, seconds=1.5)


def validation_event(step: int, scores: Scores | None = None) -> TrainingEvent:
    """Of a BLEU of 21.5 and a chrF of 48."""
    samples = (("ein *Hund*", "a <b>dög</b>\u2028", "a dog"),)
    text = {"bleu": 21.5, "chrf": 48.0}
    scores = scores or Scores(2.0, text, samples=samples, sample_chrf=(48.0,))
    return scores.event(step, epoch=1, seconds=3.0)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
