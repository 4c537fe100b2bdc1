"""Small models of several shapes over one vocabulary, as they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from nmt.checkpoint.files import save_checkpoint
from nmt.checkpoint.run import identity, write_run_files
from nmt.config.data import TokenizerConfig
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.inference.direction import Languages
from nmt.inference.engine import LoadedModel
from nmt.inference.stepper import Mixture
from nmt.inference.torch_engine import TorchEngine
from nmt.model.transformer import Transformer, build_model
from nmt.text import EOS_ID
from nmt.text.tokenizer import Tokenizers, tokenizer_hash
from tests.inference.conftest import OPTIONS, sentences
from tests.learning import train_sentencepiece

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "modern": {"norm_position": "pre", "positions": "rotary", "norm": "rms",
               "activation": "swiglu"},
    "learned": {"positions": "learned", "max_positions": 40, "embeddings": "separate",
                "output_bias": True},
    "wide": {"model_dim": 48, "ff_dim": 80, "num_heads": 4, "decoder_layers": 2},
}  # fmt: skip


def small_model(tokenizers: Tokenizers, shape: str = "plain", seed: int = 3) -> Transformer:
    """A model that was never trained, with opinions as strong as a trained one's."""
    torch.manual_seed(seed)
    changes: dict[str, Any] = {
        "preset": "tiny", "encoder_layers": 1, "decoder_layers": 1, "model_dim": 32, "ff_dim": 48,
        "num_heads": 2, **SHAPES[shape],
    }  # fmt: skip
    size = tokenizers.source.vocab_size
    model = build_model(ModelConfig.model_validate(changes), size, size).eval()
    with torch.no_grad():
        model.output_weight.mul_(3)
    return model


def speak_whole_words(model: Transformer, tokenizers: Tokenizers) -> None:
    """Make pieces of words improbable: text of whole words has no other subwords."""
    assert model.output_bias is not None
    with torch.no_grad():
        for index, (piece, _, _) in enumerate(tokenizers.target.pieces()):
            is_word = tokenizers.target.encode(piece.replace("\u2581", "")) == [index]
            model.output_bias[index] = 0.0 if is_word or index == EOS_ID else -20.0


def run_config(max_length: int = 32, **decoding: Any) -> RunConfig:
    pair = {"source": "a.de", "target": "a.en"}
    return RunConfig.model_validate({
        "name": "small", "source_language": "de", "target_language": "en",
        "data": {"train": [pair], "valid": pair}, "model": {"preset": "tiny"},
        "training": {"max_steps": 1}, "filters": {"max_length": max_length},
        "decoding": {**OPTIONS.model_dump(), **decoding},
    })  # fmt: skip


def train_tokenizer(folder: Path, seed: int = 0, *, joint: bool = True) -> Path:
    """Learn a vocabulary, or two, from random sentences of a few words."""
    folder.mkdir(parents=True)
    for name, size in (("joint", 320),) if joint else (("source", 320), ("target", 310)):
        path, config = folder / f"{name}.model", TokenizerConfig(vocab_size=size)
        train_sentencepiece(iter(sentences(300, seed)), path, config, threads=1)
    return folder


def save_run(
    folder: Path, model: Transformer, tokenizer: Path, config: RunConfig, step: int = 1
) -> Path:
    config = config.model_copy(update={"model": model.config})
    write_run_files(folder, config, tokenizer)
    state = {"identity": identity(config, data_hash="d", vocab_hash=tokenizer_hash(tokenizer))}
    moments = {"m": torch.zeros(1)}
    save_checkpoint(folder, step, model=model.state_dict(), optimizer=moments, state=state)
    return folder


def loaded(
    *models: Transformer,
    tokenizers: Tokenizers,
    mixture: Mixture | None = None,
    config: RunConfig | None = None,
) -> LoadedModel:
    config, engine = config or run_config(), TorchEngine(*models, mixture=mixture)
    languages, most = Languages.of(config.inference), config.filters.max_length
    return LoadedModel(engine, tokenizers, config.decoding, most, languages)


def shortlist_bytes(common: Any, candidates: Any) -> bytes:
    """The content of a file of shortlists, of arrays or tensors."""
    parts = {"common": common, "candidates": candidates}
    return save({name: np.asarray(part, order="C") for name, part in parts.items()})
