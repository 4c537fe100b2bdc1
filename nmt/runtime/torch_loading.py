"""A folder -> an engine, and what belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from nmt.checkpoint.bundle import ModelBundle, load_model
from nmt.config.run import RunConfig
from nmt.engine.device import choose_device, prepare_process
from nmt.errors import CheckpointError, ConfigError
from nmt.model.transformer import Transformer
from nmt.runtime.engine import Dtype, Ensemble, LoadedEngine, is_ctranslate2
from nmt.runtime.shortlist import Shortlist
from nmt.runtime.shortlist_file import ShortlistFile
from nmt.runtime.stepper import Mixture
from nmt.runtime.torch_engine import TorchEngine
from nmt.text.tokenizer import Tokenizers, tokenizer_hash


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """Models that work together, on one device."""

    models: tuple[Transformer, ...]
    """Those that count: a weight of 0 leaves a model out."""
    folders: tuple[Path, ...]
    """Where each came from."""
    mixture: Mixture
    """How their probabilities become one."""
    config: RunConfig
    """Of the first folder, with the least ``filters.max_length`` of all."""
    tokenizers: Tokenizers
    """Of all."""


def load_torch_engine(
    folder: Path,
    *,
    device: Literal["auto", "cpu", "cuda"],
    checkpoint: str,
    threads: int | None,
    ensemble: Ensemble | None = None,
    dtype: Dtype = "float32",
) -> LoadedEngine:
    """Load a run or model folder. See `nmt.translation.translator.Translator.load`."""
    loaded = load_models(
        folder, device=device, checkpoint=checkpoint, threads=threads, ensemble=ensemble
    )
    for model in loaded.models:
        _change_dtype(model, dtype)
    sizes = loaded.tokenizers.vocab_sizes
    file = ShortlistFile(folder, sizes)
    engine = TorchEngine(
        *loaded.models,
        mixture=loaded.mixture,
        is_final=True,
        load_shortlist=lambda: Shortlist.load(file, sizes[1]),
    )
    return LoadedEngine(engine, loaded.config, loaded.tokenizers, file)


def _change_dtype(model: Transformer, dtype: Dtype) -> None:
    """Keep a model's weights in another dtype and compute in it."""
    if dtype == "int8":
        raise ConfigError("The torch engine has no int8.", fix="Leave --dtype int8 out.")
    if dtype == "float16" and model.output_weight.device.type == "cpu":
        raise ConfigError(
            "float16 is for GPUs.", fix="Leave --dtype out, or use --dtype bfloat16 on this CPU."
        )
    model.to(getattr(torch, dtype))


def load_models(
    folder: Path,
    *,
    device: Literal["auto", "cpu", "cuda"],
    checkpoint: str,
    threads: int | None,
    ensemble: Ensemble | None = None,
) -> LoadedModels:
    """Load one model, or several that share languages and vocabulary.

    Args:
        folder: Of the first model.
        device: Where to compute.
        checkpoint: Of every run folder.
        threads: CPU threads; torch's choice when None.
        ensemble: What joins the first model.

    Raises:
        CheckpointError: A part is missing or damaged, or the models do not go together.
        ConfigError: The weights or the checkpoint are none.
    """
    ensemble = ensemble or Ensemble()
    shares = ensemble.shares()
    prepare_process(threads)
    folders = (folder, *ensemble.others)
    _check_ours(folders)
    bundles = [load_model(each, checkpoint) for each in folders]
    _check_alike(folders, bundles)
    place = choose_device(device)
    counted = [i for i, share in enumerate(shares) if share]
    longest = min(bundles[i].config.filters.max_length for i in counted)
    config = bundles[0].config
    filters = config.filters.model_copy(update={"max_length": longest})
    return LoadedModels(
        models=tuple(bundles[i].model.to(place) for i in counted),
        folders=tuple(folders[i] for i in counted),
        mixture=Mixture(tuple(shares[i] for i in counted), ensemble.mean),
        config=config.model_copy(update={"filters": filters}),
        tokenizers=bundles[0].tokenizers,
    )


def _check_ours(folders: Sequence[Path]) -> None:
    exported = [str(each) for each in folders if is_ctranslate2(each)]
    if exported:
        raise ConfigError(
            f"{', '.join(exported)}: models for CTranslate2 cannot score or work with others.",
            fix="Use the run it was exported from.",
        )


def _check_alike(folders: Sequence[Path], bundles: Sequence[ModelBundle]) -> None:
    """Compare what an id means: words of one language, and the same ones."""
    kinds = [
        (
            bundle.config.source_language,
            bundle.config.target_language,
            tokenizer_hash(each / "tokenizer"),
        )
        for each, bundle in zip(folders, bundles, strict=True)
    ]
    others = [str(each) for each, kind in zip(folders, kinds, strict=True) if kind != kinds[0]]
    if others:
        verb = "have" if len(others) > 1 else "has"
        raise CheckpointError(
            f"{', '.join(others)} {verb} other languages or another vocabulary than {folders[0]}.",
            fix="Only models of the same languages and the same tokenizer folder can be averaged.",
        )
