"""A widened model has the same outputs as the original model."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.model_folder import load_model
from nmt.config.model import ModelConfig
from nmt.errors import ConfigError
from nmt.extras.exchange.export import export
from nmt.extras.exchange.options import ExportOptions
from nmt.inference.translator import Translator
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from tests.extras.exchange.exported import needs_ctranslate2, run_config, write_run
from tests.inference.conftest import sentences
from tests.inference.models import train_tokenizer
from tests.model.small import random_parameters, small_model

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "widen_model.py"))


def model_of(**changes: Any) -> Transformer:
    model = small_model(**{"preset": "tiny", **changes})
    random_parameters(model)
    return model


@torch.inference_mode()
def logits(model: Transformer) -> torch.Tensor:
    """What ``model`` says of two sentences, one of them padded, in four steps."""
    state = model.start(Packed.from_rows([[5, 9, 14, 7, 3], [8, 30, 3]]))
    said = []
    for tokens in ([[2], [2]], [[11], [4]], [[12], [39]], [[13], [6]]):
        hidden, state = model.decode_step(state, torch.tensor(tokens))
        said.append(model.logits(hidden))
    return torch.stack(said)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "sinusoidal-halves", "embeddings": "separate", "output_bias": True},
        {"positions": "learned", "max_positions": 9, "scale_embeddings": False},
        {"positions": "rotary", "norm": "rms", "qk_norm": True, "activation": "swiglu",
         "bias": False, "num_heads": 4, "num_kv_heads": 2},
        {"decoder_model_dim": 24, "decoder_ff_dim": 20, "embeddings": "decoder-tied"},
    ],
    ids=str,
)  # fmt: skip
def test_the_widened_model_has_the_same_logits(changes: dict[str, Any]) -> None:
    small = model_of(**changes)
    torch.testing.assert_close(logits(SCRIPT["widen"](small)), logits(small), rtol=0, atol=1e-4)


def test_tiny_becomes_base_and_a_post_norm_model_is_refused() -> None:
    found = SCRIPT["doubled_config"](ModelConfig(preset="tiny"), 1024)
    assert found == ModelConfig(norm_position="pre", positions="learned", max_positions=1024)
    with pytest.raises(ConfigError, match="post-norm"):
        SCRIPT["widen"](model_of(norm_position="post"))


@needs_ctranslate2
def test_the_folder_translates_and_is_exported(tmp_path: Path) -> None:
    config = run_config({})
    write_run(tmp_path / "run", train_tokenizer(tmp_path / "tokenizer"), config)
    SCRIPT["write_widened"](tmp_path / "run", tmp_path / "wide")
    export(ExportOptions(model=tmp_path / "wide", output=tmp_path / "exported", to="ctranslate2"))
    assert load_model(tmp_path / "wide").config.model.model_dim == 2 * config.model.model_dim
    lines = sentences(12, seed=5)
    small, *others = (
        Translator.load(tmp_path / folder, device="cpu", threads=1, guard=False).translate(lines)
        for folder in ("run", "wide", "exported")
    )
    for found in others:
        assert [result.text for result in found] == [result.text for result in small]
        scores = [result.score for result in small]
        assert [result.score for result in found] == pytest.approx(scores, abs=1e-4)
