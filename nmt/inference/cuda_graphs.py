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

_MAX_ROWS = 4096  # with more rows the kernels take longer than their launches
_MAX_GRAPHS = 64
# The input tensors of all graphs together may have this many bytes, or this share of the free GPU
# memory, whichever is more.
_USUAL_MAX_BYTES = 1 << 30
_MEMORY_SHARE = 0.25
_MIN_POSITIONS = 16
# Up to this number of sentences, sizes are powers of two. Above it, sizes are closer to each other,
# because unused rows cost time.
_MANY_SENTENCES = 64
# A size is recorded after this many steps without a graph: recording takes as long as some steps.
_USES_BEFORE = 8


class CudaGraphs:
    """A `Recorder` of CUDA graphs that share scratch memory, so they must not run concurrently."""

    def __init__(self) -> None:
        self._pool: Any = None  # Handle of the shared memory; None before the first recording.
        self._side: Any = None  # Stream that records; None before the first recording.

    def __call__(self, step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Run ``step`` twice, so that libraries allocate their workspaces, then record it."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._side = torch.cuda.Stream()  # one stream: cuBLAS allocates memory for each stream
        side = self._side
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        options = {"pool": self._pool, "stream": side, "capture_error_mode": "thread_local"}
        capture = torch.cuda.graph(graph, **options)
        with torch.cuda.stream(main), capture:  # a failed recording only affects `side`
            result = step()
        return graph.replay, result


class _Sizes(NamedTuple):
    """Sizes of the tensors of a graph."""

    sentences: int
    beams: int  # Beams of each sentence.
    source: int  # Source positions.
    target: int  # Target positions.

    @classmethod
    def of(cls, caches: DecoderState | StepInputs, length: int) -> _Sizes:
        """Return the graph size that fits these caches with ``length`` target positions."""
        num_sentences, _, _, source_length = caches.source_mask.shape
        num_rows = caches.self_kv.shape[2]
        return cls(
            _round_sentences_up(num_sentences),
            num_rows // num_sentences,
            _power_of_two(source_length, _MIN_POSITIONS),
            _power_of_two(length, _MIN_POSITIONS),
        )

    @property
    def rows(self) -> int:
        """One row for each beam of each sentence."""
        return self.sentences * self.beams


class _Step:
    """A recorded step, whose input tensors have a fixed size and stay at their address.

    Args:
        model: The model.
        record: Records the step.
        sizes: Sizes of the input tensors.
        table: See `StepInputs`.
        state: A state with the layers, dtype and device of the input tensors.
    """

    def __init__(
        self,
        model: Transformer,
        record: Recorder,
        sizes: _Sizes,
        table: Tensor | None,
        state: DecoderState,
    ) -> None:
        self_kv = state.self_kv  # (L, 2, R, G, C, E)
        layers, _, _, groups, _, width = self_kv.shape
        new_zeros = self_kv.new_zeros
        # A graph does not keep its input tensors alive. Each must be an attribute, or torch reuses
        # its memory.
        self.inputs = StepInputs(
            ids=new_zeros(sizes.rows, dtype=torch.int64),
            position=new_zeros(1, dtype=torch.int64),
            table=table,
            source_mask=new_zeros(sizes.sentences, groups, 1, sizes.source),
            cross_kv=new_zeros(layers, 2, sizes.sentences, groups, sizes.source, width),
            self_kv=new_zeros(layers, 2, sizes.rows, groups, sizes.target, width),
        )
        self._positions = torch.arange(sizes.target, device=self_kv.device)

        def step() -> Tensor:
            # 0 at positions up to the current one, minus infinity after it.
            mask = new_zeros(1, 1, 1, sizes.target)
            mask.masked_fill_(self._positions > self.inputs.position, -torch.inf)
            return model.decode_token(self.inputs, filled=mask)

        # `_repeat` runs the recorded step, which writes its result into `_hidden`.
        self._repeat, self._hidden = record(step)
        # Weak references, so that this object does not keep the tensors of a batch alive. A call
        # returns the tensor; None if there was none, or if it does not exist any more.
        # The `DecoderState.cross_kv` that was copied into the inputs:
        self._copied_cross_kv: Callable[[], Tensor | None] = lambda: None
        # The view of the input `self_kv` that a batch uses as its cache:
        self._lent_self_kv: Callable[[], Tensor | None] = lambda: None

    def lend(self, state: DecoderState) -> DecoderState | None:
        """Return ``state`` with the caches in this graph; None if another batch uses the graph.

        The graph is free again when nobody holds the returned cache any more.
        """
        lent_cache = self._lent_self_kv()
        has_cross_kv = self._copied_cross_kv() is state.cross_kv
        if lent_cache is not None:
            has_both = lent_cache is state.self_kv and has_cross_kv
            return state if has_both else None
        if not has_cross_kv:
            self._copy_source(state)
        num_rows = state.self_kv.shape[2]
        cache = self.inputs.self_kv[:, :, :num_rows]
        filled_positions = slice(state.length)
        cache[..., filled_positions, :].copy_(state.self_kv[..., filled_positions, :])
        self._lent_self_kv = weakref.ref(cache)
        return replace(state, self_kv=cache)

    def holds(self, inputs: StepInputs) -> bool:
        """Whether ``inputs`` has the table, and a view of the cache, of this graph."""
        is_view = inputs.self_kv.data_ptr() == self.inputs.self_kv.data_ptr()
        return is_view and inputs.table is self.inputs.table

    def _copy_source(self, state: DecoderState) -> None:
        """Copy keys, values and mask of the source into the inputs; clear the target's cache."""
        _, _, _, mask, cross_kv, self_kv = self.inputs
        # Clear the values of the previous batch: even multiplied by 0, NaN would remain.
        for tensor in (cross_kv, self_kv, mask):
            tensor.zero_()
        num_sentences, _, _, source_length = state.source_mask.shape
        cross_kv[:, :, :num_sentences, :, :source_length].copy_(state.cross_kv)
        # Rows without a sentence stay 0 at the first positions: attention over none would be NaN.
        mask[..., source_length:] = -torch.inf
        mask[:num_sentences, ..., :source_length].copy_(state.source_mask)
        self._copied_cross_kv = weakref.ref(state.cross_kv)

    def __call__(self, ids: Tensor, position: Tensor) -> Tensor:
        """Run `Transformer.decode_token` on the caches in this graph.

        The batch may have fewer rows than the graph: the other rows are computed in vain.
        """
        num_rows = len(ids)
        self.inputs.ids[:num_rows].copy_(ids)
        self.inputs.position.copy_(position)
        self._repeat()
        return self._hidden[:num_rows].clone()  # the next step overwrites `_hidden`


class GraphedDecodeToken:
    """A replacement of `Transformer.decode_token` that uses recorded steps for small batches.

    Threads may share an object: their steps run one after another. If two batches of the same size
    are active, the second batch runs without a graph.

    Args:
        model: The model on its device. Its weights must not change any more.
        record: Records a step; `CudaGraphs` if None.
    """

    def __init__(self, model: Transformer, record: Recorder | None = None) -> None:
        self._model = model
        self._record = record or CudaGraphs()
        self._steps = dict[_Sizes, _Step]()  # The least recently used step is the first.
        self._uses = Counter[_Sizes]()  # How often a step of each size was needed.
        self._lock = Lock()
        self._can_record = True  # False after a failure with any cause but a lack of memory.
        self._memory_share = 0  # In bytes.
        device = model.output_weight.device
        if device.type == "cuda":
            self._memory_share = int(_MEMORY_SHARE * free_bytes(device))

    @property
    def _max_bytes(self) -> int:
        return max(_USUAL_MAX_BYTES, self._memory_share)

    def with_room(self, state: DecoderState) -> DecoderState:
        """Return a state with space for one more position, in a graph if that is faster."""
        length = state.length + 1
        sizes = _Sizes.of(state, length)
        num_bytes = _num_bytes(sizes, state.self_kv)
        is_small = sizes.rows <= _MAX_ROWS and num_bytes <= self._max_bytes
        if self._can_record and is_small:
            table = self._model.target_embedding.position_table(length)
            with self._lock:
                step = self._step(sizes, table, state)
                if step is not None and (lent := step.lend(state)) is not None:
                    return lent
        return state.with_room()

    def __call__(self, inputs: StepInputs) -> Tensor:
        """Run `Transformer.decode_token`, by a graph if the caches are in one."""
        num_positions = inputs.self_kv.shape[4]
        sizes = _Sizes.of(inputs, num_positions)
        with self._lock:
            step = self._steps.get(sizes)
            if step is not None and step.holds(inputs):
                return step(inputs.ids, inputs.position)
        return self._model.decode_token(inputs)

    def _step(self, sizes: _Sizes, table: Tensor | None, state: DecoderState) -> _Step | None:
        """Return the step of a size, recorded before or now.

        None if the size was seldom needed so far, or recording fails. If there are too many steps,
        the least recently used ones are dropped.
        """
        self._uses[sizes] += 1
        if self._uses[sizes] <= _USES_BEFORE:
            return None
        # Taken out here and put back below, the step becomes the last one of the dict.
        step = self._steps.pop(sizes, None)
        if step is None or step.inputs.table is not table:
            try:
                step = _Step(self._model, self._record, sizes, table, state)
            except RuntimeError as error:
                self._steps.clear()
                self._uses.clear()
                text = str(error)
                # Memory may become free later.
                if "out of memory" not in text and "ALLOC_FAILED" not in text:
                    self._can_record = False
                    warnings.warn(f"CUDA graphs are switched off: {error}", stacklevel=2)
                return None
        self._steps[sizes] = step
        num_bytes = sum(_num_bytes(recorded, state.self_kv) for recorded in self._steps)
        while len(self._steps) > _MAX_GRAPHS or num_bytes > self._max_bytes:
            oldest = next(iter(self._steps))
            num_bytes -= _num_bytes(oldest, state.self_kv)
            del self._steps[oldest], self._uses[oldest]
        return step


def _num_bytes(sizes: _Sizes, self_kv: Tensor) -> int:
    """Return the bytes of the caches of a step of these sizes; other inputs are small."""
    layers, _, _, groups, _, width = self_kv.shape
    num_positions = sizes.sentences * (sizes.source + sizes.beams * sizes.target)
    # 2: each layer has keys and values.
    return 2 * layers * num_positions * groups * width * self_kv.element_size()


def _round_sentences_up(count: int) -> int:
    """Round a number of sentences up to a size of graphs.

    >>> [_round_sentences_up(n) for n in (5, 64, 65, 78, 100, 390, 512)]
    [8, 64, 80, 80, 112, 448, 512]
    """
    power = _power_of_two(count)
    if power <= _MANY_SENTENCES:
        return power
    # Four sizes between two powers of two.
    step = power // 8
    return -(-count // step) * step  # the next multiple of the step


def _power_of_two(count: int, minimum: int = 1) -> int:
    """Round ``count`` up to a power of two, at least ``minimum`` (a power of two)."""
    return max(minimum, 1 << (count - 1).bit_length())
