"""The gradient's sum over processes: slice by slice, while backward still computes the others.

As in Li et al. (2020), "PyTorch Distributed", section 3.2: a part of the flat buffer is sent when
all its parameters have their gradient. Every process sends the parts in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from nmt.device.distributed import PendingSum, Processes
from nmt.training.optimizer import FlatParameters

# 32 MiB: enough for the full rate of a network, and for several in an update.
_SLICE_SIZE = 1 << 23


class GradientReduction:
    """Sums ``parameters.shared`` over all processes.

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
