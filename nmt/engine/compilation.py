"""Layers compiled for this machine by `torch.compile`: whether, and how."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nmt.errors import DeviceError, NmtError

Forward = Callable[..., Tensor]

_MAX_GRAPHS = 64
_BACKEND: Any = "inductor"


@dataclass(frozen=True, slots=True)
class Compilation:
    """Whether layers are compiled."""

    is_on: bool
    remark: str = ""
    """Outcome for the first message of a training; empty where nothing was tried."""


def compiled(forward: Forward) -> Forward:
    """Return ``forward``, compiled at its first call, once for inputs of all sizes.

    A graph break is an error, and so are too many recompilations: neither is left to run slowly.
    """
    # Private, as no public setting says so: two sizes that are equal in the first batch are not
    # bound to be so in the next one. Without it, more graphs are made than one for each layer.
    shapes: Any = torch.fx.experimental._config
    if hasattr(shapes, "use_duck_shape"):
        shapes.use_duck_shape = False
    options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "backend": _BACKEND}
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        options["recompile_limit"] = _MAX_GRAPHS
    if _BACKEND == "inductor":
        with suppress(RuntimeError):  # an older one has no such option
            # No kernel is chosen by timing it: a run that is resumed finds the same ones.
            return torch.compile(forward, **options, options={"deterministic": True})
    return torch.compile(forward, **options)


def compile_layers(
    wanted: Literal["auto"] | bool,
    device: torch.device,
    *,
    switch: Callable[[Callable[[Forward], Forward] | None], None],
    warm_up: Callable[[], None],
) -> Compilation:
    """Compile the layers where it is wanted; ``auto`` is on GPUs, as far as it works there.

    Args:
        wanted: The setting.
        device: Where the layers are.
        switch: Takes `compiled` and has each layer run what that returns; None undoes it.
        warm_up: Runs all layers forwards and backwards, in every mode that training uses.

    Raises:
        DeviceError: It is wanted, not only by ``auto``, and does not work.
    """
    if not (device.type == "cuda" if wanted == "auto" else wanted):
        return Compilation(is_on=False)
    begin = time.perf_counter()
    try:
        switch(compiled)
        with warnings.catch_warnings(action="ignore"):  # they are for those who write layers
            warm_up()
    except NmtError:  # of memory, say
        raise
    except Exception as error:
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        if wanted != "auto":
            raise DeviceError(
                f"The layers cannot be compiled on {device}: {reason}",
                fix="Set training.compile to false, or install what is missing: a C++ compiler "
                "such as g++, and triton for a GPU.",
            ) from error
        switch(None)
        return Compilation(False, f"layers not compiled ({reason})")
    return Compilation(True, f"layers compiled in {time.perf_counter() - begin:.0f} s")
