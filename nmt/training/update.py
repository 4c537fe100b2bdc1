"""Micro-batches -> one optimizer update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.batch import Batch
from nmt.engine.precision import Precision
from nmt.errors import DivergedError
from nmt.model.transformer import Transformer
from nmt.training.loss import LossSum, choose_loss
from nmt.training.optimizer import FlatAdamW

_MOST_SKIPPED_IN_A_ROW = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one update did. Sums, not means."""

    nats: float
    """Summed training objective."""
    source_tokens: int
    """Source tokens without padding."""
    target_tokens: int
    """Target tokens without padding."""
    padded_tokens: int
    """Cells of the padded rectangles of both sides."""
    gradient_norm: float
    """Norm of the mean gradient, before clipping."""
    skipped: bool
    """Whether the update was left out because loss or gradient was not finite."""


class Updater:
    """Turns batches into updates of one model.

    Args:
        model: The model, on its device.
        optimizer: The optimizer that owns the model's parameters.
        precision: Arithmetic of forward and backward.
        label_smoothing: See `nmt.training.loss`.
        clip_norm: Largest norm of the gradient; 0 leaves it as it is.
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: FlatAdamW,
        precision: Precision,
        *,
        label_smoothing: float,
        clip_norm: float,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.loss_scale = precision.initial_loss_scale
        """Factor that keeps fp16 gradients away from zero; 1 in other precisions."""
        self.skipped_in_a_row = 0
        self._good_in_a_row = 0
        self._label_smoothing = label_smoothing
        self._clip_norm = clip_norm
        weight = model.output_weight
        self._device = weight.device
        self._loss = choose_loss(precision.dtype, weight.device, len(weight))

    def loss(self, batch: Batch, smoothing: float) -> LossSum:
        """Sum the loss of ``batch``, which is on the model's device."""
        with self.precision.autocast():
            hidden = self.model(
                batch.source, batch.source_index, batch.target_input, batch.target_index
            )
            gold = batch.target_output.flatten().index_select(0, batch.target_index)
            model = self.model
            return self._loss(hidden, model.output_weight, model.output_bias, gold, smoothing)

    def __call__(self, batches: Sequence[Batch], learning_rate: float) -> UpdateStats:
        """Make one update: the gradient is of the mean over all tokens of ``batches``.

        Raises:
            DivergedError: Loss or gradient was not finite many updates in a row.
        """
        self.model.train()
        target_tokens = sum(batch.num_target_tokens for batch in batches)
        nats = torch.zeros((), device=self._device)
        for batch in batches:
            loss = self.loss(batch.to(self._device), self._label_smoothing)
            (loss.nats * (self.loss_scale / target_tokens)).backward()
            self.optimizer.accumulate()
            nats += loss.nats.detach()
        norm = self.optimizer.gradient_norm() / self.loss_scale
        norm_value = float(norm)
        skipped = not (norm_value < float("inf") and bool(torch.isfinite(nats)))
        if skipped:
            self.optimizer.clear()
        else:
            self.optimizer.step(learning_rate, self._clipped(norm))
        self._adapt_loss_scale(skipped)
        return UpdateStats(
            nats=float(nats),
            source_tokens=sum(batch.num_source_tokens for batch in batches),
            target_tokens=target_tokens,
            padded_tokens=sum(batch.num_padded_tokens for batch in batches),
            gradient_norm=norm_value,
            skipped=skipped,
        )

    def _clipped(self, norm: Tensor) -> Tensor | float:
        if not self._clip_norm:
            return 1 / self.loss_scale
        return (self._clip_norm / (norm + 1e-6)).clamp(max=1.0) / self.loss_scale

    def _adapt_loss_scale(self, skipped: bool) -> None:
        """Halve at overflow, double after 2000 good updates (Micikevicius et al. 2018)."""
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        self._good_in_a_row = 0 if skipped else self._good_in_a_row + 1
        if self.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"Loss or gradient was not finite in {self.skipped_in_a_row} updates in a row.",
                fix="Lower training.schedule.peak_lr, raise its warmup_steps, or train in float32.",
            )
        if not self.precision.scales_loss:
            return
        if skipped:
            self.loss_scale = max(self.loss_scale / 2, 1.0)
        elif self._good_in_a_row % 2000 == 0:
            self.loss_scale *= 2

    def counters(self) -> dict[str, float]:
        """Return what a resumed run must know besides weights and optimizer."""
        return {
            "loss_scale": self.loss_scale,
            "skipped_in_a_row": self.skipped_in_a_row,
            "good_in_a_row": self._good_in_a_row,
        }

    def load_counters(self, counters: dict[str, float]) -> None:
        """Take over `counters` of an earlier process."""
        self.loss_scale = counters["loss_scale"]
        self.skipped_in_a_row = int(counters["skipped_in_a_row"])
        self._good_in_a_row = int(counters["good_in_a_row"])
