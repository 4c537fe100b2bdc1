"""Micro-batches -> one optimizer update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from nmt.data.batch import Batch
from nmt.device.device import (
    choose_device_queue,
    is_out_of_memory,
    random_state,
    restore_random_state,
)
from nmt.device.distributed import Processes
from nmt.device.precision import LossScale, Precision
from nmt.errors import DeviceError
from nmt.model.transformer import Transformer
from nmt.training.losses import choose_form
from nmt.training.objectives import CrossEntropy, LossSum, Objective
from nmt.training.optimizer import ModelOptimizer
from nmt.training.reduction import GradientReduction

_MOST_SPLITS = 3


class UpdateStats:
    """What one update did, in all processes. Sums, not means.

    What the device computes is read when it is first asked for, and that waits for the device;
    `read_together` waits once for many updates.

    Args:
        batches: Those of this process.
        learning_rate: Of the update.
        tokens: Source and target tokens without padding, and cells of the padded rectangles.
        on_device: Summed training loss; how often batches were halved; norm of the gradient.
            (3,), float32.
        stop: Whether any process was asked to stop when the update began.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        tokens: Sequence[int],
        on_device: Tensor,
        *,
        stop: bool = False,
    ) -> None:
        self.rows = [batch.rows for batch in batches]
        """Of the store, by batch; for messages."""
        self.learning_rate, self.stop, self._on_device = learning_rate, stop, on_device
        self.source_tokens, self.target_tokens, self.padded_tokens = tokens

    @cached_property
    def _values(self) -> Sequence[float]:
        values: list[float] = self._on_device.tolist()
        return values

    @property
    def loss_sum(self) -> float:
        """Summed training loss, in nats."""
        return self._values[0]

    @property
    def splits(self) -> int:
        """How often batches were halved because memory did not hold them, in all processes."""
        return int(self._values[1])

    @property
    def gradient_norm(self) -> float:
        """Norm of the mean gradient, before clipping."""
        return self._values[2]

    @property
    def skipped(self) -> bool:
        """Whether the update was left out because loss or gradient was not finite."""
        return not all(map(math.isfinite, self._values))


def read_together(updates: Sequence[UpdateStats]) -> None:
    """Read what the device computed in all of ``updates``: waits for it once."""
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
        objective: What training minimises.
        clip_norm: Largest norm of the gradient; 0 leaves it as it is.
        processes: Those that share each update; each has batches of its own.
    """

    def __init__(
        self,
        model: Transformer,
        optimizer: ModelOptimizer,
        precision: Precision,
        objective: Objective,
        *,
        clip_norm: float,
        processes: Processes | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.precision = precision
        self.processes = processes or Processes()
        self._objective, self._clip_norm = objective, clip_norm
        weight = model.output_weight
        self._device = weight.device
        self.pace = choose_device_queue(weight.device)
        """How far the host may run ahead of the device."""
        self.loss_scale = LossScale(precision, weight.device)
        """Keeps fp16 gradients in range."""
        self.is_whole = True
        """Whether all is as before or after an update: not so after an error in its last part."""
        self._reduction = GradientReduction(
            model,
            optimizer.parameters,
            self.processes,
            in_slices=self.processes.size > 1
            and (precision.device_type, precision.weight_dtype) == ("cuda", torch.float32),
        )
        form = choose_form(precision.dtype, weight.device, len(weight))
        self._cross_entropy = CrossEntropy(0.0, form)

    def validation_loss(self, batch: Batch) -> LossSum:
        """Sum the cross-entropy, without smoothing, of a batch that is on the model's device."""
        with self.precision.autocast():
            return self._cross_entropy(self.model, batch)

    def objective_loss(self, batch: Batch) -> LossSum:
        """Sum what training minimises for a batch that is on the model's device."""
        with self.precision.autocast():
            return self._objective(self.model, batch)

    def _training_loss(self, batch: Batch) -> Tensor:
        with self.precision.autocast():
            return self._objective(self.model, batch.to(self._device)).loss_sum

    def __call__(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        *,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> UpdateStats:
        """Make one update: the gradient is of the mean over all tokens of all processes.

        If loss or gradient are not finite it is skipped: weights and optimizer stay as they are.

        Processes wait for each other twice: before the forward passes, for what the host must know
        (counts of tokens, requests to stop); and for what stays on the device (gradient, loss).

        Args:
            batches: The part of this process.
            learning_rate: Size of the step.
            stop_requested: Asked once, when the update begins, for `UpdateStats.stop`.

        Raises:
            DeviceError: Memory does not hold an eighth of a batch.
        """
        self.model.train()
        own = [(b.num_source_tokens, b.num_target_tokens, b.num_padded_tokens) for b in batches]
        counts = torch.tensor([*map(sum, zip(*own, strict=True)), stop_requested()])
        self.processes.sum(counts)
        *tokens, num_stopping = counts.tolist()
        factor, parameters = self.loss_scale.factor, self.optimizer.parameters
        self._gradients(batches, factor / tokens[1], reduction=self._reduction)
        self._reduction.finish()
        norm = self.optimizer.gradient_norm() / factor
        numbers = torch.cat((parameters.sums, norm.unsqueeze(0)))
        skipped = 1 - numbers.isfinite().all().float()
        clip = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0) if self._clip_norm else 1.0
        self.is_whole = False
        self.optimizer.step(learning_rate, clip / factor, skipped)
        self.loss_scale.adapt(skipped)
        self.is_whole = True
        return UpdateStats(batches, learning_rate, tokens, numbers, stop=num_stopping > 0)

    def warm_up(self, batch: Batch) -> None:
        """Use the model once in training and once in validation, and leave no trace.

        What is made at first use, such as compiled layers, is there afterwards.

        Raises:
            DeviceError: Memory does not hold an eighth of ``batch``.
        """
        generators = random_state(self._device)
        try:
            self.model.train()
            self._gradients([batch], 1.0)
            self.model.eval()
            with torch.inference_mode():
                self.validation_loss(batch.to(self._device))
        finally:
            self.model.train()
            self.optimizer.parameters.clear()
            restore_random_state(generators, self._device)

    def _gradients(
        self,
        batches: Sequence[Batch],
        scale: Tensor | float,
        *,
        reduction: GradientReduction | None = None,
    ) -> None:
        """Sum loss and gradient; begin again with halved batches where memory is short.

        Later updates draw the random numbers that they would draw without that. With a
        ``reduction``, other processes get what is complete meanwhile.
        """
        splits, parts = 0, batches
        generators = random_state(self._device)
        while True:
            try:
                self._sum(parts, scale, reduction)
                break
            except Exception as error:
                if not is_out_of_memory(error):
                    self._forget(generators)
                    raise
                whole = [batch.halves() if len(batch.rows) > 1 else (batch,) for batch in parts]
                halves = list(chain.from_iterable(whole))
                if splits == _MOST_SPLITS or len(halves) == len(parts):
                    largest = max(parts, key=lambda batch: batch.num_padded_tokens)
                    raise DeviceError(
                        f"Memory does not hold a batch of {len(largest.rows)} pairs with up to "
                        f"{largest.source.max_length} source and {largest.target.max_length} "
                        f"target tokens, after it was halved {splits} times.",
                        fix="Lower batch.max_tokens or max_sentences and raise batch.accumulate, "
                        "lower filters.max_length, or set training.activation_checkpointing.",
                    ) from error
            # Outside the except clause, which holds the failed pass' tensors.
            if reduction is not None:
                reduction.keep()
            self._forget(generators)
            self.pace.release_memory()
            parts, splits = halves, splits + 1
        self.optimizer.parameters.sums[1].fill_(splits)
        if splits:
            restore_random_state(generators, self._device)
            self._draw_as_unsplit(batches)

    def _forget(self, generators: Mapping[str, Tensor]) -> None:
        """Leave all as it was before the gradients were begun."""
        self.optimizer.parameters.clear()
        restore_random_state(generators, self._device)

    def _sum(
        self,
        batches: Sequence[Batch],
        scale: Tensor | float,
        reduction: GradientReduction | None = None,
    ) -> None:
        parameters = self.optimizer.parameters
        for number, batch in enumerate(batches, start=1):
            is_last = number == len(batches)
            with self.precision.fast_products():
                loss = self._training_loss(batch)
                with reduction.during_backward() if reduction and is_last else nullcontext():
                    (loss * scale).backward()
            parameters.accumulate()
            parameters.sums[0].add_(loss.detach())

    def _draw_as_unsplit(self, batches: Sequence[Batch]) -> None:
        """Advance the random generators as whole batches do: by forward passes that keep nothing.

        Halves draw other numbers than the whole. Where memory does not hold even a forward pass,
        the generators stay where that ended.
        """
        # Not `torch.no_grad`, under which other kernels might draw other numbers.
        nothing = torch.empty(0)
        try:
            with torch.autograd.graph.saved_tensors_hooks(lambda _: nothing, lambda _: nothing):
                for batch in batches:
                    self._training_loss(batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
