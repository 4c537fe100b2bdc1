"""Decoding steps on a GPU, recorded as CUDA graphs.

A decoding step of a few sentences consists of a few hundred kernels. Launching kernels from Python
takes several times longer than running them. A CUDA graph launches all of them at once.

A graph works on tensors of fixed address and size, so there is one graph for each of a few sizes. A
step uses the next larger size and masks the unused positions. Keys and values stay in the tensors
of the graph from step to step until sentences leave the batch. Large caches also stay there when
beams are reordered.

Shapes: see `nmt.model.decoder_state`.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.device.device import free_bytes
from nmt.model.decoder_state import DecoderState, StepInputs
from nmt.model.transformer import Transformer

# Runs and records a function. Returns a function that repeats it in place, and its result tensor.
Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]

_MOST_ROWS = 4096  # with more rows the kernels take longer than their launches
_MOST_GRAPHS = 64
_MOST_BYTES = 1 << 30  # input tensors of all graphs together; or, if larger, this share of memory:
_SHARE = 0.25  # of the free GPU memory
_LEAST_POSITIONS = 16
_MANY_SENTENCES = 64  # above, sizes are closer to each other, because unused rows cost time
_USES_BEFORE = 8  # steps of a size before it is recorded: recording takes as long as some steps


class CudaGraphs:
    """A `Recorder` of CUDA graphs that share scratch memory, so they must not run concurrently."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._side: Any = None

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Run ``step`` twice, so that libraries allocate their workspaces, then record it."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream()  # one stream: cuBLAS allocates memory for each stream
        side, main = self._side, torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        how = {"pool": self._pool, "stream": side, "capture_error_mode": "thread_local"}
        with torch.cuda.stream(main), torch.cuda.graph(graph, **how):  # failures only affect `side`
            result = step()
        return graph.replay, result


class _Sizes(NamedTuple):
    sentences: int
    beams: int
    source: int
    target: int

    @classmethod
    def of(cls, source_mask: Tensor, self_kv: Tensor, length: int) -> _Sizes:
        """Return the graph size that fits this mask and cache with ``length`` target positions."""
        sentences, sides = source_mask.shape[0], (source_mask.shape[3], length)
        source, target = (_power_of_two(width, _LEAST_POSITIONS) for width in sides)
        return cls(_num_sentences(sentences), self_kv.shape[2] // sentences, source, target)


class _Step:
    """A recorded step with input tensors like those passed, but of the sizes ``sizes``."""

    def __init__(
        self,
        model: Transformer,
        record: Recorder,
        sizes: _Sizes,
        table: Tensor | None,
        cross_kv: Tensor,
        self_kv: Tensor,
    ) -> None:
        layers, _, _, groups, _, width = self_kv.shape
        rows, sentences = sizes.sentences * sizes.beams, sizes.sentences
        self.table = table
        self.ids = torch.zeros(rows, dtype=torch.int64, device=self_kv.device)
        self.position = torch.zeros(1, dtype=torch.int64, device=self_kv.device)
        self.mask = cross_kv.new_zeros(sentences, groups, 1, sizes.source)
        self.cross_kv = cross_kv.new_zeros(layers, 2, sentences, groups, sizes.source, width)
        self.self_kv = self_kv.new_zeros(layers, 2, rows, groups, sizes.target, width)
        self.order = torch.arange(sizes.target, device=self_kv.device)

        # A graph does not keep its input tensors alive. Each must be an attribute, or torch reuses
        # its memory.
        def step() -> Tensor:
            filled = self.self_kv.new_zeros(1, 1, 1, sizes.target)
            filled.masked_fill_(self.order > self.position, -torch.inf)
            caches = self.mask, self.cross_kv, self.self_kv
            inputs = StepInputs(self.ids, self.position, self.table, *caches)
            return model.decode_token(inputs, filled=filled)

        self._repeat, self._hidden = record(step)
        self._source: Callable[[], Tensor | None] = lambda: None
        self._lent: Callable[[], Tensor | None] = lambda: None

    def lend(self, state: DecoderState) -> DecoderState | None:
        """Return ``state`` with the caches moved into this graph; None if the graph is in use."""
        lent = self._lent()
        is_same = self._source() is state.cross_kv
        if lent is not None and (lent is not state.self_kv or not is_same):
            return None
        if lent is None:
            if not is_same:
                self._take_source(state)
            lent = self.self_kv[:, :, : state.self_kv.shape[2]]
            filled = slice(state.length)
            lent[..., filled, :].copy_(state.self_kv[..., filled, :])
            self._lent = weakref.ref(lent)
        return replace(state, self_kv=lent)

    def holds(self, self_kv: Tensor) -> bool:
        """Whether ``self_kv`` is a view of the cache of this graph."""
        return self_kv.data_ptr() == self.self_kv.data_ptr()

    def _take_source(self, state: DecoderState) -> None:
        # Clear the values of the previous batch: even multiplied by 0, NaN would remain.
        for tensor in (self.cross_kv, self.self_kv, self.mask):
            tensor.zero_()
        sentences, width = state.source_mask.shape[0], state.source_mask.shape[3]
        self.cross_kv[:, :, :sentences, :, :width].copy_(state.cross_kv)
        self.mask[..., width:] = -torch.inf
        self.mask[:sentences, ..., :width].copy_(state.source_mask)
        self._source = weakref.ref(state.cross_kv)

    def __call__(self, ids: Tensor, position: Tensor) -> Tensor:
        """Run `Transformer.decode_token` on the caches in this graph."""
        self.ids[: len(ids)].copy_(ids)
        self.position.copy_(position)
        self._repeat()
        return self._hidden[: len(ids)].clone()


class GraphedDecodeToken:
    """A replacement of `Transformer.decode_token` that uses recorded steps for small batches.

    Threads may share an object: their steps run one after another. If two batches of the same size
    are active, the second batch runs without a graph.

    Args:
        model: The model on its device. Its weights must not change any more.
        record: Records a step; `CudaGraphs` if None.
    """

    def __init__(self, model: Transformer, record: Recorder | None = None) -> None:
        self._model, self._record = model, record or CudaGraphs()
        self._steps: dict[_Sizes, _Step] = {}
        self._uses: Counter[_Sizes] = Counter()
        self._lock = Lock()
        self._works = True
        device = model.output_weight.device
        self._share = int(_SHARE * free_bytes(device)) if device.type == "cuda" else 0

    def with_room(self, state: DecoderState) -> DecoderState:
        """Return a state with space for one more position, in a graph if that is faster."""
        sizes = _Sizes.of(state.source_mask, state.self_kv, state.length + 1)
        has_room = _num_bytes(sizes, state.self_kv) <= max(_MOST_BYTES, self._share)
        if self._works and has_room and sizes.sentences * sizes.beams <= _MOST_ROWS:
            table = self._model.target_embedding.position_table(state.length + 1)
            with self._lock:
                step = self._step(sizes, table, state.cross_kv, state.self_kv)
                if step is not None and (lent := step.lend(state)) is not None:
                    return lent
        return state.with_room()

    def __call__(self, inputs: StepInputs) -> Tensor:
        """Run `Transformer.decode_token`, by a graph if the caches are in one."""
        caches = inputs.self_kv
        sizes = _Sizes.of(inputs.source_mask, caches, caches.shape[4])
        with self._lock:
            step = self._steps.get(sizes)
            if step is not None and step.holds(caches) and step.table is inputs.table:
                return step(inputs.ids, inputs.position)
        return self._model.decode_token(inputs)

    def _step(
        self, sizes: _Sizes, table: Tensor | None, cross_kv: Tensor, self_kv: Tensor
    ) -> _Step | None:
        """Find or record a step; None if the size was seldom needed so far, or recording fails.

        The least recently used steps are dropped.
        """
        self._uses[sizes] += 1
        if self._uses[sizes] <= _USES_BEFORE:
            return None
        step = self._steps.pop(sizes, None)
        if step is None or step.table is not table:
            try:
                step = _Step(self._model, self._record, sizes, table, cross_kv, self_kv)
            except RuntimeError as error:
                self._steps.clear()
                self._uses.clear()
                lack = ("out of memory", "ALLOC_FAILED")
                if not any(text in str(error) for text in lack):  # memory may become free later
                    self._works = False
                    warnings.warn(f"CUDA graphs are switched off: {error}", stacklevel=2)
                return None
        self._steps[sizes] = step
        while len(self._steps) > _MOST_GRAPHS or sum(
            _num_bytes(each, self_kv) for each in self._steps
        ) > max(_MOST_BYTES, self._share):
            oldest = next(iter(self._steps))
            del self._steps[oldest], self._uses[oldest]
        return step


def _num_bytes(sizes: _Sizes, self_kv: Tensor) -> int:
    """Bytes of the input tensors of a step of these sizes."""
    layers, _, _, groups, _, width = self_kv.shape
    cells = sizes.sentences * (sizes.source + sizes.beams * sizes.target)
    return 2 * layers * cells * groups * width * self_kv.element_size()


def _num_sentences(count: int) -> int:
    """Round a number of sentences up to a size of graphs.

    >>> [_num_sentences(n) for n in (5, 64, 65, 78, 100, 390, 512)]
    [8, 64, 80, 80, 112, 448, 512]
    """
    power = _power_of_two(count)
    step = 1 if power <= _MANY_SENTENCES else power // 8
    return power if step == 1 else -(-count // step) * step


def _power_of_two(count: int, least: int = 1) -> int:
    """Round ``count`` up to a power of two, at least ``least`` (a power of two)."""
    return max(least, 1 << (count - 1).bit_length())
