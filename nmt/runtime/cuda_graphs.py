"""A decoding step on a GPU as recorded CUDA graphs.

A step of one sentence or a few is some hundred kernels, and launching them from Python takes
several times as long as they run. A CUDA graph launches all of them at once. It works on tensors
that stay in their places and never change their sizes, so there is one for each of a few sizes,
powers of two; a step is copied into the next larger one, with room to spare that nobody reads.

Shapes: `nmt.model.decoder_state`.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.model.transformer import Readers, Transformer

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Records what a function does: returns what repeats it in place, and the tensor it returned."""

_MOST_ROWS = 256  # of more the GPU is busy for longer than the launches take
_MOST_GRAPHS = 64
_MOST_BYTES = 1 << 30  # of copies of what steps read, all together
_LEAST_POSITIONS = 16
_USES_BEFORE = (
    32  # steps of a size that are run as they are: recording it takes as long as some tens
)


def graph_readers(model: Transformer) -> Readers:
    """Return what stands for ``model.readers`` of a model that trains no more and is on a GPU."""
    return model.readers._replace(token=GraphedToken(model, CudaGraphs()))


class CudaGraphs:
    """A `Recorder` whose graphs share their scratch memory: they must run one after another."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._side: Any = None

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Run ``step`` until libraries have all they allocate at first use, then record it."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream()  # one: cuBLAS keeps memory for each stream it has seen
        side, main = self._side, torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        how = {"pool": self._pool, "stream": side, "capture_error_mode": "thread_local"}
        with torch.cuda.stream(main), torch.cuda.graph(graph, **how):  # a failure stays on `side`
            result = step()
        return graph.replay, result


class _Sizes(NamedTuple):
    sentences: int
    beams: int
    source: int
    past: int


class _Step:
    """One recorded step, and the tensors that it works on.

    Args:
        model: Whose step it is.
        record: How to record it.
        sizes: Sentences, beams of each, positions of the source and of the target.
        table: Vectors of positions.
        memory: Any of the dtype and the layers that will come.
        past: The same.
    """

    def __init__(
        self,
        model: Transformer,
        record: Recorder,
        sizes: _Sizes,
        table: Tensor,
        memory: Tensor,
        past: Tensor,
    ) -> None:
        layers, _, _, heads, _, width = past.shape
        rows = sizes.sentences * sizes.beams
        self.table = table
        self.ids = torch.zeros(rows, dtype=torch.int64, device=past.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=past.device)
        self.bias = memory.new_zeros(sizes.sentences, 1, 1, sizes.source)
        self.memory = memory.new_zeros(layers, 2, sizes.sentences, heads, sizes.source, width)
        self.past = past.new_zeros(layers, 2, rows, heads, sizes.past, width)
        self.order = torch.arange(sizes.past, device=past.device)

        # A graph holds no tensor that it reads: each must be an attribute, or its memory is given
        # to another one.
        def step() -> Tensor:
            filled = self.past.new_zeros(1, 1, 1, sizes.past)
            filled.masked_fill_(self.order > self.position, -torch.inf)
            inputs = (self.ids, self.position, self.table, self.bias, self.memory, self.past)
            return model.read_token(*inputs, filled=filled)

        self._repeat, self._hidden = record(step)
        self._read: Callable[[], Tensor | None] = lambda: None

    def __call__(
        self, ids: Tensor, position: Tensor, bias: Tensor, memory: Tensor, past: Tensor
    ) -> Tensor:
        """Do what `Transformer.read_token` does."""
        rows, last = len(ids), past.shape[4] - 1
        if self._read() is not memory:
            # What was left here is of another text: nothing of it may be read, not even times 0.
            for tensor in (self.memory, self.past, self.bias):
                tensor.zero_()
            sentences, width = bias.shape[0], bias.shape[3]
            self.memory[:, :, :sentences, :, :width].copy_(memory)
            self.bias[..., width:] = -torch.inf
            self.bias[:sentences, ..., :width].copy_(bias)
            self._read = weakref.ref(memory)
        self.ids[:rows].copy_(ids)
        self.position.copy_(position)
        self.past[:, :, :rows, :, :last].copy_(past[..., :last, :])
        self._repeat()
        past[..., last, :].copy_(self.past[:, :, :rows, :, last])
        return self._hidden[:rows].clone()


class GraphedToken:
    """Stands for `Transformer.read_token`, with recorded steps where rows are few.

    Threads may share it: their steps follow each other.

    Args:
        model: On its device; trains no more.
        record: How to record a step.
    """

    def __init__(self, model: Transformer, record: Recorder) -> None:
        self._model, self._record = model, record
        self._steps: dict[_Sizes, _Step] = {}
        self._uses: Counter[_Sizes] = Counter()
        self._lock = Lock()
        self._works = True

    def __call__(
        self,
        ids: Tensor,
        position: Tensor,
        table: Tensor,
        bias: Tensor,
        memory: Tensor,
        past: Tensor,
    ) -> Tensor:
        """Do what `Transformer.read_token` does."""
        sentences, width, length = bias.shape[0], bias.shape[3], past.shape[4]
        beams = len(ids) // sentences
        sizes = _Sizes(
            _power_of_two(sentences),
            beams,
            _power_of_two(width, _LEAST_POSITIONS),
            _power_of_two(length, _LEAST_POSITIONS),
        )
        fits = sizes.sentences * beams <= _MOST_ROWS and _num_bytes(sizes, past) <= _MOST_BYTES
        if self._works and fits:
            with self._lock:
                step = self._step(sizes, table, memory, past)
                if step is not None:
                    return step(ids, position, bias, memory, past)
        return self._model.read_token(ids, position, table, bias, memory, past)

    def _step(self, sizes: _Sizes, table: Tensor, memory: Tensor, past: Tensor) -> _Step | None:
        """Find or record a step; None if that does not pay yet, or the device cannot.

        Those used longest ago are dropped.
        """
        self._uses[sizes] += 1
        if self._uses[sizes] <= _USES_BEFORE:
            return None
        step = self._steps.pop(sizes, None)
        if step is None or step.table is not table:
            try:
                step = _Step(self._model, self._record, sizes, table, memory, past)
            except RuntimeError as error:
                self._steps.clear()
                self._uses.clear()
                lack = ("out of memory", "ALLOC_FAILED")
                if not any(text in str(error) for text in lack):  # of room, which may come back
                    self._works = False
                    warnings.warn(f"decoding steps are not recorded: {error}", stacklevel=2)
                return None
        self._steps[sizes] = step
        while (
            len(self._steps) > _MOST_GRAPHS
            or sum(_num_bytes(each, past) for each in self._steps) > _MOST_BYTES
        ):
            oldest = next(iter(self._steps))
            del self._steps[oldest], self._uses[oldest]
        return step


def _num_bytes(sizes: _Sizes, past: Tensor) -> int:
    """Return how much room a step of these sizes takes for what it reads."""
    layers, _, _, heads, _, width = past.shape
    cells = sizes.sentences * (sizes.source + sizes.beams * sizes.past)
    return 2 * layers * cells * heads * width * past.element_size()


def _power_of_two(count: int, least: int = 1) -> int:
    """Return the least power of two that is not below ``count`` or ``least``, which is one."""
    return max(least, 1 << (count - 1).bit_length())
