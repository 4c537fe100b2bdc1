"""Micro-batches -> one optimizer update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.data.batch import Batch
from nmt.engine.device import is_out_of_memory
from nmt.engine.distributed import OneProcess, Processes
from nmt.engine.precision import Precision
from nmt.errors import DeviceError, DivergedError
from nmt.model.transformer import Transformer
from nmt.training.loss import LossSum, choose_loss
from nmt.training.optimizer import Optimizer
from nmt.training.r_drop import r_drop_loss

_MOST_SKIPPED_IN_A_ROW = 20
_MOST_SPLITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStats:
    """What one update did, in all processes. Sums, not means."""

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
    splits: int = 0
    """How often batches were halved because memory did not hold them, in all processes."""


class Updater:
    """Turns batches into updates of one model.

    Args:
        model: The model, on its device.
        optimizer: The optimizer that owns the model's parameters.
        precision: Arithmetic of forward and backward.
        label_smoothing: See `nmt.training.loss`.
        clip_norm: Largest norm of the gradient; 0 leaves it as it is.
        r_drop: Weight of the divergence between two passes; 0 makes one pass.
        processes: Those that share each update; each has batches of its own.
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: Optimizer,
        precision: Precision,
        *,
        label_smoothing: float,
        clip_norm: float,
        r_drop: float = 0.0,
        processes: Processes | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.processes = processes or OneProcess()
        self.loss_scale = precision.initial_loss_scale
        """Factor that keeps fp16 gradients away from zero; 1 in other precisions."""
        self.skipped_in_a_row = 0
        """Updates left out since the last good one."""
        self._good_in_a_row = 0
        self._label_smoothing, self._clip_norm = label_smoothing, clip_norm
        self._r_drop = r_drop
        weight = model.output_weight
        self._device = weight.device
        self._loss = choose_loss(precision.dtype, weight.device, len(weight))

    def loss(self, batch: Batch, smoothing: float) -> LossSum:
        """Sum the loss of ``batch``, which is on the model's device."""
        with self.precision.autocast():
            hidden, gold = self._hidden(batch), _gold(batch)
            model = self.model
            return self._loss(hidden, model.output_weight, model.output_bias, gold, smoothing)

    def _hidden(self, batch: Batch) -> Tensor:
        return self.model(batch.source, batch.source_index, batch.target_input, batch.target_index)

    def _objective(self, batch: Batch) -> Tensor:
        """Sum what training makes small."""
        if not self._r_drop:
            return self.loss(batch, self._label_smoothing).nats
        model = self.model
        with self.precision.autocast():
            return r_drop_loss(
                (self._hidden(batch), self._hidden(batch)),
                model.output_weight,
                model.output_bias,
                _gold(batch),
                smoothing=self._label_smoothing,
                strength=self._r_drop,
            )

    def __call__(self, batches: Sequence[Batch], learning_rate: float) -> UpdateStats:
        """Make one update: the gradient is of the mean over all tokens of all processes.

        Raises:
            DivergedError: Loss or gradient was not finite many updates in a row.
            DeviceError: Memory does not hold an eighth of a batch.
        """
        self.model.train()
        counts = torch.tensor([_counts(batch) for batch in batches]).sum(dim=0)
        self.processes.sum(counts)
        source_tokens, target_tokens, padded_tokens = counts.tolist()
        own_nats, own_splits = self._gradients(batches, self.loss_scale / target_tokens)
        sums = torch.stack((own_nats, torch.full_like(own_nats, own_splits)))
        self.processes.sum(self.optimizer.parameters.gradient)
        self.processes.sum(sums)
        nats, splits = sums.tolist()
        norm = self.optimizer.gradient_norm() / self.loss_scale
        norm_value = float(norm)
        skipped = not (math.isfinite(norm_value) and math.isfinite(nats))
        if skipped:
            self.optimizer.parameters.clear()
        else:
            self.optimizer.step(learning_rate, self._clipped(norm))
        self._adapt_loss_scale(skipped)
        return UpdateStats(
            nats=nats,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            padded_tokens=padded_tokens,
            gradient_norm=norm_value,
            skipped=skipped,
            splits=int(splits),
        )

    def _gradients(self, batches: Sequence[Batch], scale: float) -> tuple[Tensor, int]:
        """Sum loss and gradient; begin again with halved batches where memory is short."""
        splits = 0
        while True:
            try:
                return self._sum(batches, scale), splits
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                halves = _halved(batches)
                if splits == _MOST_SPLITS or len(halves) == len(batches):
                    raise _too_large(batches, splits) from error
            # Outside the except clause, which holds the failed pass' tensors.
            self.optimizer.parameters.clear()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            batches, splits = halves, splits + 1

    def _sum(self, batches: Sequence[Batch], scale: float) -> Tensor:
        nats = torch.zeros((), device=self._device)
        for batch in batches:
            loss = self._objective(batch.to(self._device))
            (loss * scale).backward()
            self.optimizer.parameters.accumulate()
            nats += loss.detach()
        return nats

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


def _gold(batch: Batch) -> Tensor:
    return batch.target_output.flatten().index_select(0, batch.target_index)


def _counts(batch: Batch) -> tuple[int, int, int]:
    return batch.num_source_tokens, batch.num_target_tokens, batch.num_padded_tokens


def _halved(batches: Sequence[Batch]) -> list[Batch]:
    parts = [batch.halves() if len(batch.rows) > 1 else (batch,) for batch in batches]
    return [half for part in parts for half in part]


def _too_large(batches: Sequence[Batch], splits: int) -> DeviceError:
    largest = max(batches, key=lambda batch: batch.num_padded_tokens)
    pairs, width = largest.source.shape
    return DeviceError(
        f"Memory does not hold a batch of {pairs} pairs with up to {width} source and "
        f"{largest.target_input.shape[1]} target tokens, after it was halved {splits} times.",
        fix="Lower batch.max_tokens and raise batch.accumulate, lower filters.max_length, or set "
        "training.activation_checkpointing.",
    )
