"""What decoding spends its time in as recorded graphs, which torch runs without Python.

A step is some hundred short operations: called from Python one by one they take longer than their
arithmetic, and threads that decode different batches wait for each other. `torch.jit` records what
is called once and runs it in one go. It is no longer developed; where it is missing, nothing is
recorded and all works as before, slower.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch import nn

from nmt.model.transformer import Readers, Transformer
from nmt.text.special import BOS_ID

_MAKE_FUNCTION = "_create_function_from_graph"


def trace_readers(model: Transformer) -> Readers | None:
    """Record the readers of a model that trains no more and is on the CPU.

    The graphs compute with the very weights of ``model`` and give the same bits; other sizes of
    batch, beam and sentence go through them, too.

    Returns:
        What stands for ``model.readers``, or None where nothing can be recorded.
    """
    if not _can_record() or model.output_weight.device.type != "cpu":
        return None
    found = _Examples(model.readers)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its end, one day
        longest = min(5, model.config.max_positions)
        source = torch.full((2, longest), BOS_ID)
        state = model.start(source, torch.tensor([longest, longest - 1]), found.readers)
        state = state.select(torch.arange(2), torch.zeros(2, 3, dtype=torch.int64))
        for _ in range(2):
            _, state = model.step(state, torch.full((2, 3), BOS_ID), found.readers)
        return Readers(
            _traced(model, "read_source", found.source),
            _traced(model, "read_token", found.token),
            _traced(model, "logits", found.hidden),
        )


def _can_record() -> bool:
    is_on = os.environ.get("PYTORCH_JIT", "1") == "1"  # where torch looks, too
    return is_on and hasattr(torch.jit, "trace") and hasattr(torch._C, _MAKE_FUNCTION)


class _Examples:
    """Remembers the latest inputs of readers."""

    def __init__(self, readers: Readers) -> None:
        self.source: tuple[Any, ...] = ()
        self.token: tuple[Any, ...] = ()
        self.hidden: tuple[Any, ...] = ()
        self._readers = readers
        self.readers = Readers(self._read_source, self._read_token, self._logits)

    def _read_source(self, *inputs: Any) -> Any:
        self.source = inputs
        return self._readers.source(*inputs)

    def _read_token(self, *inputs: Any) -> Any:
        self.token = inputs
        return self._readers.token(*inputs)

    def _logits(self, *inputs: Any) -> Any:
        self.hidden = inputs
        return self._readers.logits(*inputs)


def _traced(model: Transformer, method: str, inputs: tuple[Any, ...]) -> Any:
    """Record a method.

    Tracing wants the forward of a module, and makes a module of it, which takes time at each call
    to find out what it is: when its weights are frozen nothing of it is needed any more.
    """
    module = nn.Module()
    module.model = model
    module.forward = lambda *values: getattr(module.model, method)(*values)
    graph = torch.jit.freeze(torch.jit.trace(module.eval(), inputs, check_trace=False)).graph
    graph.eraseInput(0)
    return getattr(torch._C, _MAKE_FUNCTION)(method, graph)
