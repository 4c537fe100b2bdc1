"""Code that is compiled for this machine (`torch.compile`): whether, and how."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nmt.errors import DeviceError, NmtError

Forward = Callable[..., Tensor]

_MOST_GRAPHS = 64
_BACKEND: Any = "inductor"


@dataclass(frozen=True, slots=True)
class Compilation:
    """Whether layers are compiled."""

    is_on: bool
    remark: str = ""
    """What to say of it when training starts; empty where nobody asks."""


def compiled(forward: Forward) -> Forward:
    """Return ``forward``, to be compiled when it is called first, once for inputs of all sizes.

    What cannot be compiled as a whole is an error, and so is what has to be compiled again and
    again: neither is left to run slowly.
    """
    result: Forward = torch.compile(
        forward, fullgraph=True, dynamic=True, backend=_BACKEND, options=_options()
    )
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = _MOST_GRAPHS
    dynamo.specialize_float = True  # probabilities and the like; else each of them is tried first
    # Two sizes that are equal in the first batch are not in the next one.
    shapes: Any = torch.fx.experimental._config
    shapes.use_duck_shape = False
    return result


def _options() -> dict[str, Any] | None:
    """Choose no kernel by timing it: a run that is resumed shall find the same ones."""
    if _BACKEND != "inductor" or "deterministic" not in torch._inductor.list_options():
        return None
    return {"deterministic": True}


def compile_layers(
    wanted: Literal["auto"] | bool,
    device: torch.device,
    *,
    switch: Callable[[Callable[[Forward], Forward] | None], None],
    rehearse: Callable[[], None],
) -> Compilation:
    """Have layers compiled where it is wanted; ``auto`` wants it on GPUs, as far as it works there.

    Args:
        wanted: The setting.
        device: Where the layers are.
        switch: Given `compiled`, has the layers run by what it makes of them; given None, as they
            are.
        rehearse: Runs them all, forwards and backwards, in every way that they will be run.

    Raises:
        DeviceError: It is wanted, not only by ``auto``, and does not work.
    """
    if not (device.type == "cuda" if wanted == "auto" else wanted):
        return Compilation(is_on=False)
    begin = time.perf_counter()
    try:
        switch(compiled)
        with warnings.catch_warnings(action="ignore"):  # they are for those who write layers
            rehearse()
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
