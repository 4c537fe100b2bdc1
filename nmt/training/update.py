"""Micro-batches -> one optimizer update: forward, backward, reduce, clip, step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import torch
from torch import Tensor, nn

from nmt.data.loader import Batch
from nmt.data.store import Rows
from nmt.device.device import (
    choose_device_queue,
    is_out_of_memory,
    random_state,
    restore_random_state,
)
from nmt.device.distributed import PendingSum, Processes
from nmt.device.precision import LossScale, Precision
from nmt.errors import DeviceError
from nmt.model.transformer import Transformer
from nmt.training.losses import CrossEntropy, LossSum, Objective
from nmt.training.optimizer import FlatParameters, ModelOptimizer

_MOST_SPLITS = 3
# 32 MiB: enough for the full rate of a network, and for several in an update.
_SLICE_SIZE = 1 << 23


@dataclass(eq=False)
class UpdateStats:
    """What one update did, in all processes. Sums, not means.

    What the device computes is read when it is first asked for, and that waits for the device;
    `read_together` waits once for many updates.
    """

    rows: list[Rows]  # Of the store, by batch of this process; for messages.
    learning_rate: float
    source_tokens: int
    target_tokens: int
    padded_tokens: int  # Cells of the padded rectangles.
    # Summed training loss; how often batches were halved; norm of the gradient. (3,), float32.
    on_device: Tensor
    stop: bool = False  # Whether any process was asked to stop when the update began.

    @cached_property
    def _values(self) -> list[float]:
        return list(map(float, self.on_device.tolist()))

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
        rows = torch.stack([update.on_device for update in updates]).tolist()
        for update, values in zip(updates, rows, strict=True):
            update._values = values


class GradientReduction:
    """Sums the gradient over processes: slice by slice, while backward still computes the others.

    As in Li et al. (2020), "PyTorch Distributed", section 3.2: a part of the flat buffer is sent
    when all its parameters have their gradient. Every process sends the parts in the same order.

    Args:
        model: Whose gradients these are.
        parameters: Its parameters; their gradients are summed in place, in float32.
        processes: All of them; each has a gradient of its own.
        in_slices: Whether to send slices during backward. Else `finish` sends all at once.
        size: Numbers of a slice, at least.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: FlatParameters,
        processes: Processes,
        *,
        in_slices: bool,
        size: int = _SLICE_SIZE,
    ) -> None:
        self._processes, self._slices = processes, list[Tensor]()
        self._counts: list[int] = []  # Parameters of each slice.
        self._missing: list[int] = []  # Those of them without their gradient.
        self._sent: list[PendingSum] = []
        self._kept: list[Tensor] = []
        self._is_on = False
        # The layers' matrices come first, and have their gradients in about the opposite order.
        stop = parameters.matrix_size if in_slices else 0
        rest, count = parameters.shared[stop:], 0
        for name, view in reversed(list(parameters.views(parameters.shared[:stop]))):
            arrived = partial(self._arrived, len(self._slices))
            model.get_parameter(name).register_post_accumulate_grad_hook(arrived)
            begin, count = int(view.storage_offset()), count + 1
            if stop - begin >= size or begin == 0:
                self._slices.append(parameters.shared[begin:stop])
                self._counts.append(count)
                stop, count = begin, 0
        self._slices.append(rest)  # embeddings, biases, norms and sums: complete at the very end

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Send slices in this backward pass, the last one of the update."""
        self._missing, self._is_on = list(self._counts), True
        try:
            yield
        finally:
            self._is_on = False

    def _arrived(self, index: int, _parameter: Tensor) -> None:
        if not self._is_on:
            return
        self._missing[index] -= 1
        while len(self._sent) < len(self._missing) and not self._missing[len(self._sent)]:
            self._send()

    def _send(self) -> None:
        self._sent.append(self._processes.begin_sum(self._slices[len(self._sent)]))

    def keep(self) -> None:
        """Keep the slices sent so far, as the gradient is about to be computed once more."""
        for pending in self._sent:
            pending.wait()
        new = self._slices[len(self._kept) : len(self._sent)]
        self._kept += [part.clone() for part in new]

    def finish(self) -> None:
        """Send what is left, and have the device wait for all of it."""
        while len(self._sent) < len(self._slices):
            self._send()
        for pending in self._sent:
            pending.wait()
        for part, values in zip(self._slices, self._kept, strict=False):
            part.copy_(values)
        self._sent, self._kept = [], []


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
        self.model, self.optimizer, self.precision = model, optimizer, precision
        self.processes = processes or Processes()
        self.device = model.output_weight.device
        self.pace = choose_device_queue(self.device)  # How far updates run ahead of the device.
        # Keeps gradients of float16 in range.
        self.loss_scale = LossScale(self.device) if precision.name == "float16" else None
        self._objective, self._clip_norm = objective, clip_norm
        self._cross_entropy, self._autocast = CrossEntropy(smoothing=0.0), precision.autocast()
        self._reduction: GradientReduction | None = None
        if self.processes.size > 1:
            # Only where gradients are made in their float32 buffer, on a GPU, can a slice of it be
            # sent while the rest is still being computed.
            in_slices = (precision.device_type, precision.weight_dtype) == ("cuda", torch.float32)
            flat = optimizer.parameters
            self._reduction = GradientReduction(model, flat, self.processes, in_slices=in_slices)

    def validation_loss(self, batch: Batch) -> LossSum:
        """Sum the cross-entropy, without smoothing, of a batch that is on the model's device."""
        with self._autocast:
            return self._cross_entropy(self.model, batch)

    def objective_loss(self, batch: Batch) -> LossSum:
        """Sum what training minimises for a batch that is on the model's device."""
        with self._autocast:
            return self._objective(self.model, batch)

    def __call__(
        self, batches: Sequence[Batch], learning_rate: float, *, stops: bool = False
    ) -> UpdateStats:
        """Make one update: the gradient is of the mean over all tokens of all processes.

        If loss or gradient are not finite it is skipped: weights and optimizer stay as they are.

        Processes wait for each other twice: before the forward passes, for what the host must know
        (counts of tokens, requests to stop); and for what stays on the device (gradient, loss).

        Args:
            batches: The part of this process.
            learning_rate: Size of the step.
            stops: Whether this process was asked to stop, for `UpdateStats.stop`.

        Raises:
            DeviceError: Memory does not hold an eighth of a batch.
        """
        self.model.train()
        own = [(b.num_source_tokens, b.num_target_tokens, b.num_padded_tokens) for b in batches]
        counts = torch.tensor([*map(sum, zip(*own, strict=True)), int(stops)])
        self.processes.sum(counts)
        source, target, padded, num_stopping = counts.tolist()
        parameters = self.optimizer.parameters
        factor = 1.0 if self.loss_scale is None else self.loss_scale.factor
        # Divided here, by the tokens of all processes, and nowhere else: so accumulation, halved
        # batches and processes all give the gradient of one large batch.
        splits = self._sum_gradients(batches, factor / target, self._reduction)
        parameters.sums[1].fill_(splits)
        if self._reduction is not None:
            self._reduction.finish()
        norm = torch.linalg.vector_norm(parameters.gradient) / factor
        numbers = torch.cat((parameters.sums, norm.unsqueeze(0)))
        # Whether the update counts is decided on the device: to read it here would wait for it.
        skipped = 1 - numbers.isfinite().all().float()
        clip = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0) if self._clip_norm else 1.0
        self.optimizer.step(learning_rate, clip / factor, skipped)
        if self.loss_scale is not None:
            self.loss_scale.adapt(skipped)
        rows = [batch.rows for batch in batches]
        return UpdateStats(rows, learning_rate, source, target, padded, numbers, num_stopping > 0)

    def counters(self) -> dict[str, float]:
        """Return what a resumed run must know besides the optimizer. Waits for the device."""
        return {} if self.loss_scale is None else self.loss_scale.counters()

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Take `counters` back."""
        if self.loss_scale is not None:
            self.loss_scale.load_counters(counters)

    def warm_up(self, batch: Batch) -> None:
        """Use the model once in training and once in validation, and leave no trace.

        What is made at first use, such as compiled layers, is there afterwards.

        Raises:
            DeviceError: Memory does not hold an eighth of ``batch``.
        """
        generators = random_state(self.device)
        try:
            self.model.train()
            self._sum_gradients([batch], 1.0)
            self.model.eval()
            with torch.inference_mode():
                self.validation_loss(batch.to(self.device))
        finally:
            self.model.train()
            self.optimizer.parameters.clear()
            restore_random_state(generators, self.device)

    def _sum_gradients(
        self,
        batches: Sequence[Batch],
        scale: Tensor | float,
        reduction: GradientReduction | None = None,
    ) -> int:
        """Sum loss and gradient; begin again with halved batches where memory is short.

        Halves draw other random numbers than the whole would have. With a ``reduction``, other
        processes get what is complete meanwhile.

        Returns:
            How often batches were halved.
        """
        splits = 0
        while True:
            try:
                for number, batch in enumerate(batches, start=1):
                    loss = self.objective_loss(batch.to(self.device)).loss_sum
                    is_last = number == len(batches)
                    with reduction.during_backward() if reduction and is_last else nullcontext():
                        (loss * scale).backward()
                    self.optimizer.parameters.accumulate()
                    self.optimizer.parameters.sums[0].add_(loss.detach())
                return splits
            except Exception as error:
                if not is_out_of_memory(error):
                    self.optimizer.parameters.clear()
                    raise
                whole = [batch.halves() if len(batch.rows) > 1 else (batch,) for batch in batches]
                halves = list(chain.from_iterable(whole))
                if splits == _MOST_SPLITS or len(halves) == len(batches):
                    raise _too_large(batches, splits) from error
            # Outside the except clause, which holds the failed pass' tensors.
            if reduction is not None:
                reduction.keep()
            self.optimizer.parameters.clear()
            self.pace.release_memory()
            batches, splits = halves, splits + 1


def _too_large(batches: Sequence[Batch], splits: int) -> DeviceError:
    largest = max(batches, key=lambda batch: batch.num_padded_tokens)
    tokens = f"{largest.source.max_length} source and {largest.target.max_length} target tokens"
    pairs = f"{len(largest.rows)} pairs with up to {tokens}"
    return DeviceError(
        f"Memory does not hold a batch of {pairs}, after it was halved {splits} times.",
        fix="Lower batch.max_tokens or max_sentences and raise batch.gradient_accumulation, lower "
        "filters.max_length, or set training.activation_checkpointing.",
    )
