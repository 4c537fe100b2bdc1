"""Layers compiled for this machine by `torch.compile`: whether, and how."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from nmt.errors import DeviceError, NmtError

logger = logging.getLogger(__name__)

Forward = Callable[..., Any]

_MAX_GRAPHS = 64
_BACKEND: Any = "inductor"
# Its options: no kernel is chosen by timing it, so that a run that is resumed finds the same.
INDUCTOR: dict[str, Any] = {"deterministic": True}
_LIMIT_REACHED = "FailOnRecompileLimitHit"
_CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_SECONDS_TO_COMPILE = 40.0
_LEAST_SAVED = 0.006
_SAVED_OF_BASE = 0.02
_BASE = 60e6 * 50_000  # Parameters of the base model times tokens of its updates.


class Compilation(NamedTuple):
    """Whether layers are compiled."""

    is_on: bool
    remark: str = ""  # Outcome for the first message of a training; empty where nothing was tried.


def compiled(forward: Forward) -> Forward:
    """Return ``forward``, compiled at its first call, once for inputs of all sizes.

    A graph break is an error: it is not left to run slowly. After `_MAX_GRAPHS` graphs, inputs that
    fit none run uncompiled, with a note.
    """
    # Private, as no public setting says so: two sizes that are equal in the first batch are not
    # bound to be so in the next one. Without it, more graphs are made than one for each layer.
    shapes: Any = torch.fx.experimental._config
    if hasattr(shapes, "use_duck_shape"):
        shapes.use_duck_shape = False
    options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "backend": _BACKEND}
    limits: Any = torch.compiler.config
    limits.recompile_limit = _MAX_GRAPHS  # not an argument before torch 2.12; torch's own is 8
    if _BACKEND == "inductor":
        with suppress(RuntimeError):  # an older one has no such option
            return _limited(torch.compile(forward, **options, options=INDUCTOR))
    return _limited(torch.compile(forward, **options))


def _limited(run: Forward) -> Forward:
    """Return what does not fail where one graph more is needed than there may be."""

    @wraps(run)
    def limited(*inputs: Any, **options: Any) -> Any:
        try:
            return run(*inputs, **options)
        except Exception as error:
            if type(error).__name__ != _LIMIT_REACHED:
                raise
        logger.warning(
            "more than %d graphs were compiled: inputs that fit none run uncompiled", _MAX_GRAPHS
        )
        torch.compiler.set_stance("eager_on_recompile")
        return run(*inputs, **options)

    return limited


def keep_compiled_code() -> None:
    """Have compiled code kept in the user's cache folder: torch's own choice is a temporary one."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # no home folder
        users = given if given.is_absolute() else Path.home() / ".cache"
        os.environ.setdefault(_CACHE_FOLDER, str(users / "nmt" / "compiled"))


def pays(num_updates: int | None, num_parameters: int, num_tokens: int) -> bool:
    """Whether so many updates (None: any number) save the time that compiling takes.

    Measured on an H100: 40 s to compile, 6 ms saved in an update of a small model; of a large one
    more, by estimate.

    >>> pays(1000, 8_000_000, 2048), pays(7451, 8_000_000, 2048), pays(2000, 60_000_000, 50_000)
    (False, True, True)
    """
    saved = _LEAST_SAVED + _SAVED_OF_BASE * num_parameters * num_tokens / _BASE
    return num_updates is None or num_updates * saved >= _SECONDS_TO_COMPILE


def compile_layers(
    wanted: Literal["auto"] | bool,
    device: torch.device,
    *,
    switch: Callable[[Callable[[Forward], Forward] | None], None],
    warm_up: Callable[[], None],
    is_worth_it: bool = True,
) -> Compilation:
    """Compile the layers where it is wanted; ``auto`` is on GPUs, as far as it works and pays.

    Args:
        wanted: The setting.
        device: Where the layers are.
        switch: Takes `compiled` and has each layer run what that returns; None undoes it.
        warm_up: Runs all layers forwards and backwards, in every mode that training uses.
        is_worth_it: Whether training is long enough: see `pays`.

    Raises:
        DeviceError: It is wanted, not only by ``auto``, and does not work.
    """
    if wanted == "auto" and device.type == "cuda" and not is_worth_it:
        return Compilation(False, "layers not compiled (training is too short for it to pay)")
    if not (device.type == "cuda" if wanted == "auto" else wanted):
        return Compilation(is_on=False)
    keep_compiled_code()
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
            fix = "Set training.compile to false, or install g++ (and triton for a GPU) if missing."
            problem = f"The layers cannot be compiled on {device}: {reason}"
            raise DeviceError(problem, fix=fix) from error
        switch(None)
        return Compilation(False, f"layers not compiled ({reason})")
    return Compilation(True, f"layers compiled in {time.perf_counter() - begin:.0f} s")
