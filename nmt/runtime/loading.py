"""A folder -> the engine for its model. Loads torch only where that engine computes with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from nmt.checkpoint.model_folder import readable
from nmt.errors import ConfigError
from nmt.runtime.engine import Dtype, LoadedEngine, choose_engine
from nmt.runtime.ensemble import Ensemble

DeviceName = Literal["auto", "cpu", "cuda"]


def load_engine(
    folder: Path,
    *,
    engine: Literal["auto", "torch", "ctranslate2"],
    device: DeviceName,
    checkpoint: str,
    threads: int | None,
    note: Callable[[str], None],
    ensemble: Ensemble | None = None,
    dtype: Dtype = "float32",
) -> LoadedEngine:
    """Load what a folder is for. See `nmt.translation.translator.Translator.load`."""
    for name, value, allowed in (
        ("device", device, get_args(DeviceName)),
        ("dtype", dtype, get_args(Dtype)),
    ):
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}.", fix=f"It is one of {', '.join(allowed)}.")
    if threads is not None and threads < 1:
        raise ConfigError(f"threads is {threads}.", fix="Leave it out, or give 1 or more.")
    with readable():
        if choose_engine(folder, engine) == "ctranslate2":
            _check_dtype(folder, dtype)
            if checkpoint != "best":
                note(f"{folder} holds one model: --checkpoint {checkpoint} changes nothing there.")
            from nmt.runtime.ctranslate2_engine import load_ctranslate2_engine  # noqa: PLC0415

            return load_ctranslate2_engine(
                folder, device=device, threads=threads, ensemble=ensemble
            )
        from nmt.runtime.torch_loading import load_torch_engine  # noqa: PLC0415 - loads torch

        return load_torch_engine(
            folder,
            device=device,
            checkpoint=checkpoint,
            threads=threads,
            note=note,
            ensemble=ensemble,
            dtype=dtype,
        )


def _check_dtype(folder: Path, dtype: Dtype) -> None:
    """Refuse a dtype for a model of CTranslate2."""
    if dtype != "float32":
        raise ConfigError(
            f"{folder} is for CTranslate2, which chose its dtype at the export.",
            fix=f"Leave --dtype out, or export again with --quantization {dtype}.",
        )
