"""A folder -> an engine, and what belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.checkpoint.bundle import load_model
from nmt.config.run import RunConfig
from nmt.engine.device import choose_device, prepare_process
from nmt.text.tokenizer import Tokenizers
from nmt.translation.engine import Engine
from nmt.translation.torch_engine import TorchEngine


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """What a translator needs of a folder."""

    engine: Engine
    config: RunConfig
    tokenizers: Tokenizers


def load_torch_engine(
    folder: Path,
    *,
    device: Literal["auto", "cpu", "cuda"],
    checkpoint: str,
    threads: int | None,
    note: Callable[[str], None],
) -> LoadedEngine:
    """Load a run or model folder. See `nmt.translation.translator.Translator.load`."""
    prepare_process(threads)
    bundle = load_model(folder, checkpoint, warn=note)
    model = bundle.model.to(choose_device(device))
    return LoadedEngine(TorchEngine(model), bundle.config, bundle.tokenizers)
