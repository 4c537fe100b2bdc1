"""One optimizer update from micro-batches: forward, backward, reduce, clip, step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from nmt.data.loader import Batch
from nmt.data.store import Rows
from nmt.device import device as devices
from nmt.device.distributed import PendingSum, Processes
from nmt.device.precision import LossScale, Precision
from nmt.errors import DeviceError
from nmt.model.transformer import Transformer
from nmt.training.losses import CrossEntropy, LossSum, Objective
from nmt.training.optimizer import FlatParameters, ModelOptimizer

_MOST_SPLITS = 3  # how often batches are halved: down to an eighth
# 32 MiB: large enough for the full speed of a network, small enough for several slices per update.
_SLICE_SIZE = 1 << 23


@dataclass(frozen=True, eq=False)
class UpdateStats:
    """Statistics of one update, summed over all processes.

    Reading `loss_sum`, `splits`, `gradient_norm` or `skipped` waits for the device, unless
    `read_together` has copied the numbers to the host, with one wait for many updates.
    """

    rows: list[Rows]  # Rows of the store in each batch of this process, for messages.
    learning_rate: float
    source_tokens: int
    target_tokens: int
    padded_tokens: int  # Tokens including padding.
    # Summed training loss, number of batch splits, gradient norm. (3,), float32, on any device.
    numbers: Tensor
    # Whether any process had received a signal when the update began:
    stop: bool = False  # one that stops training
    save: bool = False  # one that requests a checkpoint

    @cached_property
    def _values(self) -> list[float]:
        return [float(value) for value in self.numbers.tolist()]

    @property
    def loss_sum(self) -> float:
        """Summed training loss, in nats."""
        return self._values[0]

    @property
    def splits(self) -> int:
        """How often batches were halved after running out of memory, in all processes."""
        return int(self._values[1])

    @property
    def gradient_norm(self) -> float:
        """L2 norm of the mean gradient, before clipping."""
        return self._values[2]

    @property
    def skipped(self) -> bool:
        """Whether the update was skipped because the loss or gradient was not finite."""
        return not all(map(math.isfinite, self._values))


def read_together(updates: Sequence[UpdateStats]) -> list[UpdateStats]:
    """Return ``updates`` with their numbers on the host. Waits for the device once."""
    if not updates:
        return []
    numbers = torch.stack([update.numbers for update in updates]).cpu()
    pairs = zip(updates, numbers.unbind(), strict=True)
    return [replace(update, numbers=values) for update, values in pairs]


class GradientReduction:
    """Sums the gradient over processes in slices, while backward still computes other slices.

    As in Li et al. (2020), "PyTorch Distributed", section 3.2: a slice of the flat buffer is sent
    when all its parameters have their gradient. Every process sends the slices in the same order.

    Args:
        model: The model.
        parameters: Parameters of the model; their float32 gradients are summed in place.
        processes: The processes that share each update.
        in_slices: Whether to send slices during backward. Otherwise `finish` sends all at once.
        size: Minimum number of elements in a slice.
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
        self._processes = processes
        # Slices of the flat buffer, in the order in which they are sent. The last one is sent after
        # backward. The counts have one entry for each of the others.
        self._slices = list[Tensor]()
        self._counts = list[int]()  # Number of parameters in each slice.
        self._missing = list[int]()  # Number of them that have no gradient yet.
        self._sent = list[PendingSum]()  # Of the first slices: those sent so far.
        self._saved = list[Tensor]()  # Sums of the first slices: see `keep`.
        self._is_on = False  # Whether this is the last backward pass of the update.
        # The matrices of the layers come first. Backward reaches them roughly in reverse order, so
        # the slices are built from the end to the start.
        num_early = 0
        if in_slices:
            parameters.write_directly()
            num_early = parameters.matrix_size
        early_views = parameters.views(parameters.shared[:num_early])
        stop = begin = num_early  # of the slice, in the flat buffer
        num_parameters = 0
        for name, view in reversed(early_views.items()):
            assert view.storage_offset() + view.numel() == begin, "parameters must be adjacent"
            begin = int(view.storage_offset())
            num_parameters += 1
            arrived = partial(self._arrived, len(self._slices))
            model.get_parameter(name).register_post_accumulate_grad_hook(arrived)
            # A slice is large enough, or contains the parameter at the start of the buffer.
            if stop - begin >= size or begin == 0:
                self._slices.append(parameters.shared[begin:stop])
                self._counts.append(num_parameters)
                stop = begin
                num_parameters = 0
        # Embeddings, biases, norms and sums are complete only at the end.
        self._slices.append(parameters.shared[num_early:])

    @contextmanager
    def during_backward(self) -> Iterator[None]:
        """Send slices during this backward pass, which must be the last one of the update."""
        self._missing = list(self._counts)
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def _arrived(self, index: int, _parameter: Tensor) -> None:
        """Count a gradient of slice ``index``, and send the slices that are now complete.

        A complete slice waits until all earlier slices are sent.
        """
        if not self._is_on:
            return
        self._missing[index] -= 1
        while len(self._sent) < len(self._missing) and not self._missing[len(self._sent)]:
            self._send()

    def _send(self) -> None:
        """Begin to sum the next slice over the processes."""
        next_slice = self._slices[len(self._sent)]
        self._sent.append(self._processes.begin_sum(next_slice))

    def keep(self) -> None:
        """Copy the slices summed so far: backward runs again and overwrites them.

        They are not sent again.
        """
        for pending in self._sent:
            pending.wait()
        summed = self._slices[len(self._saved) : len(self._sent)]  # without those already copied
        self._saved += [values.clone() for values in summed]

    def finish(self) -> None:
        """Send the remaining slices, and make the device wait for all sums."""
        while len(self._sent) < len(self._slices):
            self._send()
        for pending in self._sent:
            pending.wait()
        # Only the first slices have saved sums.
        for values, saved_sum in zip(self._slices, self._saved, strict=False):
            values.copy_(saved_sum)
        self._sent = []
        self._saved = []


class Updater:
    """Makes optimizer updates from batches, without waiting for the device to finish them.

    Args:
        model: The model, on its device.
        optimizer: The optimizer of the model's parameters.
        precision: Data types of forward and backward.
        objective: The training loss.
        clip_norm: Maximum norm of the gradient; 0 disables clipping.
        processes: The processes that share each update. Each process has different batches.
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
        self.device = model.output_weight.device
        # How many updates the device may queue.
        self.pace = devices.choose_device_queue(self.device)
        # Keeps float16 gradients in range.
        self.loss_scale = None
        if precision.name == "float16":
            self.loss_scale = LossScale(self.device)
        self.objective = objective
        self._clip_norm = clip_norm
        self._cross_entropy = CrossEntropy(smoothing=0.0)
        self._autocast = precision.autocast()
        self._reduction = None
        if self.processes.size > 1:
            # A slice can be sent early only if backward writes into the float32 buffer, on a GPU.
            writes_buffer = precision.weight_dtype == torch.float32
            self._reduction = GradientReduction(
                model,
                optimizer.parameters,
                self.processes,
                in_slices=precision.device_type == "cuda" and writes_buffer,
            )

    def validation_loss(self, batch: Batch) -> LossSum:
        """Return the summed cross-entropy without smoothing; ``batch`` is on the model's device."""
        with self._autocast:
            return self._cross_entropy(self.model, batch)

    def objective_loss(self, batch: Batch) -> LossSum:
        """Return the summed training loss; ``batch`` is on the model's device."""
        with self._autocast:
            return self.objective(self.model, batch)

    def __call__(
        self,
        batches: Sequence[Batch],
        learning_rate: float,
        *,
        stops: bool = False,
        saves: bool = False,
    ) -> UpdateStats:
        """Make one update with the gradient of the mean loss over all tokens of all processes.

        An update with a loss or gradient that is not finite is skipped: weights and optimizer do
        not change.

        Processes exchange data twice: token counts and signals, which the host needs, before the
        forward passes; gradient and loss, which stay on the device, after them.

        Args:
            batches: Batches of this process.
            learning_rate: Learning rate of this update.
            stops: Whether this process has received a signal, for `UpdateStats.stop`.
            saves: The same for `UpdateStats.save`.

        Raises:
            DeviceError: Memory is too small even for an eighth of a batch.
        """
        self.model.train()
        counts = torch.tensor(
            [
                sum(batch.num_source_tokens for batch in batches),
                sum(batch.num_target_tokens for batch in batches),
                sum(batch.num_padded_tokens for batch in batches),
                int(stops),
                int(saves),
            ]
        )
        self.processes.begin_sum(counts).wait()
        source_tokens, target_tokens, padded_tokens, num_stopping, num_saving = counts.tolist()
        parameters = self.optimizer.parameters
        # The loss, and so the gradient, is multiplied by this before backward. The norm and the
        # optimizer divide by it.
        scale_factor: Tensor | float = 1.0
        if self.loss_scale is not None:
            scale_factor = self.loss_scale.factor
        # The only division by the number of tokens. Therefore accumulation, halved batches and
        # several processes all give the gradient of one large batch.
        splits = self._sum_gradients(batches, scale_factor / target_tokens, self._reduction)
        # How often batches were halved: the processes sum it together with the loss.
        parameters.sums[1].fill_(splits)
        if self._reduction is not None:
            self._reduction.finish()
        norm = torch.linalg.vector_norm(parameters.gradient) / scale_factor
        numbers = torch.cat((parameters.sums, norm.unsqueeze(0)))
        # The device itself decides whether to skip: reading the numbers here would wait for it.
        skipped = 1 - numbers.isfinite().all().float()
        clip_factor: Tensor | float = 1.0
        if self._clip_norm:  # a small constant is added, because the norm may be 0
            clip_factor = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0)
        self.optimizer.step(learning_rate, clip_factor / scale_factor, skipped)
        if self.loss_scale is not None:
            self.loss_scale.adapt(skipped)
        return UpdateStats(
            rows=[batch.rows for batch in batches],
            learning_rate=learning_rate,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            padded_tokens=padded_tokens,
            numbers=numbers,
            stop=num_stopping > 0,
            save=num_saving > 0,
        )

    def counters(self) -> dict[str, float]:
        """Return the state of the loss scale for a checkpoint. Waits for the device."""
        if self.loss_scale is None:
            return {}
        return self.loss_scale.counters()

    def load_counters(self, counters: Mapping[str, float]) -> None:
        """Restore the output of `counters`."""
        if self.loss_scale is not None:
            self.loss_scale.load_counters(counters)

    def warm_up(self, batch: Batch) -> None:
        """Run the model once for training and once for validation, without changing it.

        Compiled layers, for example, are compiled at their first use.

        Raises:
            DeviceError: Memory is too small even for an eighth of ``batch``.
        """
        generators = devices.random_state(self.device)
        try:
            self.model.train()
            self._sum_gradients([batch], 1.0)
            self.model.eval()
            with torch.inference_mode():
                self.validation_loss(batch.to(self.device))
        finally:
            self.model.train()
            self.optimizer.parameters.clear()
            devices.restore_random_state(generators, self.device)

    def _sum_gradients(
        self,
        batches: Sequence[Batch],
        scale: Tensor | float,
        reduction: GradientReduction | None = None,
    ) -> int:
        """Add up loss and gradient; if memory runs out, start again with halved batches.

        Halved batches draw other dropout masks than the original batches.

        Args:
            batches: Batches of this process.
            scale: Factor on the loss before backward.
            reduction: Sends finished slices to the other processes during the last backward pass.

        Returns:
            How often batches were halved.

        Raises:
            DeviceError: Memory is too small even after halving `_MOST_SPLITS` times.
        """
        parameters = self.optimizer.parameters
        splits = 0
        while True:
            try:
                for number, batch in enumerate(batches, start=1):
                    loss = self.objective_loss(batch.to(self.device)).loss_sum
                    sending: AbstractContextManager[None] = nullcontext()
                    if reduction is not None and number == len(batches):
                        sending = reduction.during_backward()
                    with sending:
                        (loss * scale).backward()
                    parameters.accumulate()
                    parameters.sums[0].add_(loss.detach())
                return splits
            except Exception as error:
                if not devices.is_out_of_memory(error):
                    parameters.clear()
                    raise
                halves = list[Batch]()
                for batch in batches:
                    halves += batch.halves() if len(batch.rows) > 1 else [batch]
                cannot_split = len(halves) == len(batches)  # each batch has one pair
                if splits == _MOST_SPLITS or cannot_split:
                    raise _too_large(batches, splits) from error
            # Outside of the except clause, which keeps the tensors of the failed pass alive.
            if reduction is not None:
                reduction.keep()
            parameters.clear()
            self.pace.release_memory()
            batches = halves
            splits += 1


def _too_large(batches: Sequence[Batch], splits: int) -> DeviceError:
    """Return the error for ``batches`` that do not fit in memory after ``splits`` halvings."""
    largest = max(batches, key=lambda batch: batch.num_padded_tokens)
    tokens = f"{largest.source.max_length} source and {largest.target.max_length} target tokens"
    pairs = f"{len(largest.rows)} pairs with up to {tokens}"
    problem = f"Out of memory with a batch of {pairs}, after it was halved {splits} times."
    fix = "Lower batch.max_tokens or max_sentences and raise batch.gradient_accumulation, lower "
    fix += "filters.max_length, or set training.activation_checkpointing to true."
    return DeviceError(problem, fix=fix)
