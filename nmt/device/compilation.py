"""Compilation of the model's layers by `torch.compile`."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, Literal, NamedTuple

import torch

from nmt.errors import DeviceError, NmtError
from nmt.installation import user_cache

logger = logging.getLogger(__name__)

Forward = Callable[..., Any]

_MAX_GRAPHS = 64
_BACKEND: Any = "inductor"
# Options of the backend: kernels are not chosen by timing, so that a resumed run uses the same.
INDUCTOR: dict[str, Any] = {"deterministic": True}
_LIMIT_REACHED = "FailOnRecompileLimitHit"  # Name of torch's error after `_MAX_GRAPHS` graphs.
_CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_SECONDS_TO_COMPILE = 40.0
# Seconds that compilation saves per update: the least value, which small models save, and what the
# base model saves in addition.
_LEAST_SAVED = 0.006
_SAVED_OF_BASE = 0.02
_BASE = 60e6 * 50_000  # Parameters of the base model times tokens of its updates.


class Compilation(NamedTuple):
    """Outcome of `compile_layers`."""

    is_on: bool  # Whether layers are compiled.
    remark: str = ""  # Outcome in words, for the log; empty if compilation was not tried.


def compiled(forward: Forward) -> Forward:
    """Return ``forward`` compiled for inputs of all sizes. Compilation happens at the first call.

    A graph break raises an error, because it would be slow. After `_MAX_GRAPHS` graphs, inputs that
    need another graph run uncompiled, with a warning.
    """
    # Two sizes that are equal in the first batch may differ in the next one. Without this private
    # setting, torch assumes that they stay equal, and compiles more than one graph per layer.
    shapes: Any = torch.fx.experimental._config
    if hasattr(shapes, "use_duck_shape"):
        shapes.use_duck_shape = False
    options: dict[str, Any] = {"fullgraph": True, "dynamic": True, "backend": _BACKEND}
    limits: Any = torch.compiler.config
    limits.recompile_limit = _MAX_GRAPHS  # default 8; not an argument before torch 2.12
    if _BACKEND == "inductor":
        with suppress(RuntimeError):  # older releases do not have this option
            return _limited(torch.compile(forward, **options, options=INDUCTOR))
    return _limited(torch.compile(forward, **options))


def _limited(run: Forward) -> Forward:
    """Run uncompiled, instead of failing, when the limit of graphs is reached."""

    @wraps(run)
    def limited(*inputs: Any, **options: Any) -> Any:
        try:
            return run(*inputs, **options)
        except Exception as error:
            if type(error).__name__ != _LIMIT_REACHED:
                raise
        # From now on, torch does not compile: it runs inputs without a graph uncompiled.
        logger.warning("compiled the maximum of %d graphs; others run uncompiled", _MAX_GRAPHS)
        torch.compiler.set_stance("eager_on_recompile")
        return run(*inputs, **options)

    return limited


def keep_compiled_code() -> None:
    """Keep compiled code in the user's cache folder, instead of torch's temporary folder."""
    if cache := user_cache():
        os.environ.setdefault(_CACHE_FOLDER, str(cache / "compiled"))


def pays(num_updates: int | None, num_parameters: int, num_tokens: int) -> bool:
    """Whether compilation saves more time than it takes.

    Measured on an H100: compilation takes 40 s and saves 6 ms per update of a small model. The
    saving for larger models is an estimate.

    Args:
        num_updates: Planned updates; None if unlimited.
        num_parameters: Parameters of the model.
        num_tokens: Tokens per update.

    >>> pays(1000, 8_000_000, 2048), pays(7451, 8_000_000, 2048), pays(2000, 60_000_000, 50_000)
    (False, True, True)
    """
    # What grows with the model is in proportion to its parameters times the tokens.
    saved_seconds = _LEAST_SAVED + _SAVED_OF_BASE * num_parameters * num_tokens / _BASE
    return num_updates is None or num_updates * saved_seconds >= _SECONDS_TO_COMPILE


def compile_layers(
    wanted: Literal["auto"] | bool,
    device: torch.device,
    *,
    switch: Callable[[Callable[[Forward], Forward] | None], None],
    warm_up: Callable[[], None],
    is_worth_it: bool = True,
) -> Compilation:
    """Compile the layers if configured. ``auto`` compiles on GPUs, if it works and saves time.

    Args:
        wanted: The setting `training.compile`.
        device: Device of the model.
        switch: Called with `compiled`, it compiles each layer; called with None, it undoes that.
        warm_up: Runs all layers forwards and backwards, in every mode that training uses.
        is_worth_it: Whether compilation saves time: see `pays`.

    Raises:
        DeviceError: Compilation failed, and the setting is not ``auto``.
    """
    is_auto = wanted == "auto"
    if not wanted or (is_auto and device.type != "cuda"):
        return Compilation(is_on=False)
    if is_auto and not is_worth_it:
        return Compilation(False, "layers not compiled (training is too short)")
    keep_compiled_code()
    begin = time.perf_counter()
    try:
        switch(compiled)
        with warnings.catch_warnings(action="ignore"):  # only useful to authors of layers
            warm_up()
    except NmtError:  # for example, out of memory
        raise
    except Exception as error:
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        if not is_auto:
            raise DeviceError(
                f"The layers cannot be compiled on {device}: {reason}",
                fix="Set training.compile to false, or install g++ (and triton for a GPU).",
            ) from error
        switch(None)  # the layers may be partly compiled
        return Compilation(False, f"layers not compiled ({reason})")
    return Compilation(True, f"layers compiled in {time.perf_counter() - begin:.0f} s")
