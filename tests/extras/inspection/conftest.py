"""Models of three shapes that were never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.config.model import ModelConfig
from nmt.model.transformer import build_model
from nmt.text.tokenizer import load_tokenizers
from tests.inference.models import run_config, save_run, train_tokenizer
from tests.model.small import random_parameters

SHAPES: dict[str, dict[str, Any]] = {
    "post": {},
    "pre-halves": {"norm_position": "pre", "positions": "sinusoidal-halves", "source_bos": True},
    "rotary-grouped": {"positions": "rotary", "num_kv_heads": 2, "embeddings": "separate"},
}


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run folder of each shape.

    The biases of the first are 0. The others have biases, and heads that look at few tokens.
    """
    place = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(place / "tokenizer")
    sizes = load_tokenizers(tokenizer).vocab_sizes
    runs = {}
    for name, shape in SHAPES.items():
        torch.manual_seed(3)
        options = {"model_dim": 32, "ff_dim": 48, "num_heads": 4, "encoder_layers": 2,
                   "decoder_layers": 3, **shape}  # fmt: skip
        model = build_model(ModelConfig.model_validate(options), *sizes)
        if name != "post":
            random_parameters(model)
        with torch.no_grad():
            model.output_weight.mul_(3)
            for layer in (*model.encoder, *model.decoder) if name != "post" else ():
                layer.get_parameter("self_attention.query_key_value.weight")[:32].mul_(4)
        runs[name] = save_run(place / name, model, tokenizer, run_config())
    return runs
