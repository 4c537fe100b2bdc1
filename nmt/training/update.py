"""Micro-batches -> one optimizer update."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nmt.data.batch import Batch
from nmt.engine.device import (
    choose_device_queue,
    is_out_of_memory,
    random_state,
    restore_random_state,
)
from nmt.engine.distributed import OneProcess, Processes
from nmt.engine.precision import Precision, make_loss_scale
from nmt.errors import DeviceError
from nmt.model.transformer import Transformer
from nmt.training.loss import LossSum, choose_loss
from nmt.training.optimizer import Optimizer
from nmt.training.r_drop import r_drop_loss

_MOST_SPLITS = 3


class UpdateStats:
    """What one update did, in all processes. Sums, not means.

    What the device works out is read when it is first asked for, and that waits for the device;
    `read_together` waits once for many updates.

    Args:
        tokens: Source and target tokens without padding, and cells of the padded rectangles.
        on_device: Summed training objective; how often batches were halved; norm of the gradient.
            (3,), float32.
        stop: Whether any process wished to stop when the update began.
    """

    def __init__(self, tokens: Sequence[int], on_device: Tensor, *, stop: bool = False) -> None:
        self.source_tokens, self.target_tokens, self.padded_tokens = tokens
        self.stop = stop
        self._on_device = on_device
        self._values: Sequence[float] = ()

    def _read(self) -> Sequence[float]:
        if not self._values:
            read_together([self])
        return self._values

    @property
    def nats(self) -> float:
        """Summed training objective."""
        return self._read()[0]

    @property
    def splits(self) -> int:
        """How often batches were halved because memory did not hold them, in all processes."""
        return int(self._read()[1])

    @property
    def gradient_norm(self) -> float:
        """Norm of the mean gradient, before clipping."""
        return self._read()[2]

    @property
    def skipped(self) -> bool:
        """Whether the update was left out because loss or gradient was not finite."""
        return not all(map(math.isfinite, self._read()))


def read_together(updates: Sequence[UpdateStats]) -> None:
    """Read what the device worked out in all of ``updates``, which waits for it once."""
    if updates:
        rows = torch.stack([update._on_device for update in updates]).tolist()
        for update, values in zip(updates, rows, strict=True):
            update._values = values


class Updater:
    """Turns batches into updates of one model, and never waits for its device to make them.

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
        self._label_smoothing, self._clip_norm = label_smoothing, clip_norm
        self._r_drop = r_drop
        weight = model.output_weight
        self._device = weight.device
        self.pace = choose_device_queue(weight.device)
        """How to work beside the device."""
        self.loss_scale = make_loss_scale(precision, weight.device)
        """Keeps fp16 gradients in range."""
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

    def __call__(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        *,
        wish: Callable[[], bool] = lambda: False,
    ) -> UpdateStats:
        """Make one update: the gradient is of the mean over all tokens of all processes.

        If loss or gradient are not finite it is skipped: weights and optimizer stay as they are.

        Processes wait for each other twice: for what the host must know (counts of tokens, wishes
        to stop), before the forward passes; and for what stays on the device (gradient, loss).

        Args:
            batches: The part of this process.
            learning_rate: Size of the step.
            wish: Asked once, when the update begins: whether this process wishes to stop.

        Raises:
            DeviceError: Memory does not hold an eighth of a batch.
        """
        self.model.train()
        own_counts = (sum(column) for column in zip(*map(_counts, batches), strict=True))
        counts = torch.tensor([*own_counts, wish()])
        self.processes.sum(counts)
        *tokens, wishes = counts.tolist()
        factor, parameters = self.loss_scale.factor, self.optimizer.parameters
        self._gradients(batches, factor / tokens[1])
        self.processes.sum(parameters.shared)
        norm = self.optimizer.gradient_norm() / factor
        numbers = torch.cat((parameters.sums, norm.unsqueeze(0)))
        skipped = 1 - numbers.isfinite().all().float()
        self.optimizer.step(learning_rate, self._clipped(norm) / factor, skipped)
        self.loss_scale.adapt(skipped)
        return UpdateStats(tokens, numbers, stop=wishes > 0)

    def rehearse(self, batch: Batch) -> None:
        """Use the model once in training and once in validation, and leave no trace.

        What is only made when it is first used, such as compiled layers, is there afterwards.

        Raises:
            DeviceError: Memory does not hold an eighth of ``batch``.
        """
        generators = random_state(self._device)
        try:
            self.model.train()
            self._gradients([batch], 1.0)
            self.model.eval()
            with torch.inference_mode():
                self.loss(batch.to(self._device), 0.0)
        finally:
            self.model.train()
            self.optimizer.parameters.clear()
            restore_random_state(generators, self._device)

    def _gradients(self, batches: Sequence[Batch], scale: Tensor | float) -> None:
        """Sum loss and gradient; begin again with halved batches where memory is short."""
        splits = 0
        while True:
            try:
                self._sum(batches, scale)
                self.optimizer.parameters.sums[1].fill_(splits)
                return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                halves = _halved(batches)
                if splits == _MOST_SPLITS or len(halves) == len(batches):
                    raise _too_large(batches, splits) from error
            # Outside the except clause, which holds the failed pass' tensors.
            self.optimizer.parameters.clear()
            self.pace.release_memory()
            batches, splits = halves, splits + 1

    def _sum(self, batches: Sequence[Batch], scale: Tensor | float) -> None:
        parameters = self.optimizer.parameters
        for batch in batches:
            loss = self._objective(batch.to(self._device))
            (loss * scale).backward()
            parameters.accumulate()
            parameters.sums[0].add_(loss.detach())

    def _clipped(self, norm: Tensor) -> Tensor | float:
        return (self._clip_norm / (norm + 1e-6)).clamp(max=1.0) if self._clip_norm else 1.0


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
