"""A small model that was never trained, and a tokenizer learned from a few words."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from nmt.config.data import TokenizerConfig
from nmt.config.model import DecodingConfig, ModelConfig
from nmt.inference.engine import Engine
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import TranslationOptions, Translator
from nmt.model.transformer import Transformer, build_model
from nmt.text.tokenizer import Tokenizers, load_tokenizers
from tests.learning import train_sentencepiece

WORDS = (
    *("der", "die", "das", "Hund", "Katze", "Haus", "läuft", "schläft", "sieht", "groß"),
    *("klein", "und", "heute,", "morgen.", "nicht"),
)
OPTIONS = DecodingConfig(beam_size=3, max_length_factor=1.0, max_length_offset=2)


def sentences(count: int, seed: int = 0, longest: int = 12) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]


def translator_of(engine: Engine, tokenizers: Tokenizers, **changes: Any) -> Translator:
    """A translator without the guard, of short segments."""
    options = TranslationOptions(decoding=OPTIONS, max_length=32, guard=False)
    return Translator(engine, tokenizers, options).with_options(**changes)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Tokenizers:
    path = tmp_path_factory.mktemp("tokenizer") / "joint.model"
    config = TokenizerConfig(vocab_size=320, byte_fallback=True)
    train_sentencepiece(iter(sentences(300)), path, config, threads=1)
    return load_tokenizers(path.parent)


@pytest.fixture(scope="session")
def model(tokenizers: Tokenizers) -> Transformer:
    torch.manual_seed(3)
    size = tokenizers.source.vocab_size
    config = ModelConfig(
        preset="tiny", encoder_layers=1, decoder_layers=2, model_dim=32, ff_dim=64, num_heads=2,
        embeddings="separate",
    )  # fmt: skip
    return build_model(config, size, size).eval()


@pytest.fixture
def translator(model: Transformer, tokenizers: Tokenizers) -> Translator:
    return translator_of(TorchEngine(model), tokenizers)
