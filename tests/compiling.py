"""Compiling without a compiler: what tests of compiled layers need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.registry import lookup_backend
from torch.fx import GraphModule

from nmt.device import compilation


class Backend:
    """Runs graphs by torch's own operations, and counts them.

    Args:
        name: ``eager`` leaves differentiation as it is; ``aot_eager`` differentiates the graph.
    """

    def __init__(self, name: str) -> None:
        self._make = lookup_backend(name)
        self.num_graphs = 0

    def __call__(self, graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        made: Callable[..., Any] = self._make(graph, inputs)
        self.num_graphs += 1
        return made


def use_backend(name: str) -> Iterator[Backend]:
    """Compile with a `Backend`, and leave no trace. Yields once: a fixture's body."""
    shapes: Any = torch.fx.experimental._config
    with (
        pytest.MonkeyPatch.context() as patch,
        shapes.patch(use_duck_shape=True),  # put back afterwards
    ):
        backend = Backend(name)
        patch.setattr(compilation, "_BACKEND", backend)
        torch._dynamo.reset()
        yield backend
        torch._dynamo.reset()
