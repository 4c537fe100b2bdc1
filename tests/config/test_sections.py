from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from nmt.config.data import CorpusConfig, DataConfig
from nmt.config.decoding import DecodingConfig
from nmt.config.model import MODEL_PRESETS, ModelConfig
from nmt.config.run import RunConfig
from nmt.config.training import OptimizerConfig, TrainingConfig

DATA = {"train": [{"demo": "train"}], "valid": {"demo": "valid"}}
RUN: dict[str, Any] = {
    "name": "x",
    "source_language": "de",
    "target_language": "en",
    "data": DATA,
    "training": {"max_steps": 1},
}


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (CorpusConfig, {}, "name exactly one of"),
        (CorpusConfig, {"demo": "train", "tsv": "a.tsv"}, r"found: tsv, demo"),
        (CorpusConfig, {"source": "a"}, "source and target must be given together"),
        (CorpusConfig, {"demo": "train", "subset": "de-en"}, "belong to huggingface"),
        (CorpusConfig, {"tsv": "a", "columns": [-1, 0]}, "greater than or equal to 0"),
        (DataConfig, {**DATA, "test": {"a b": {"demo": "test"}}}, "cannot name a test set"),
        (DecodingConfig, {"n_best": 6}, r"n_best \(6\) is more than beam_size \(5\)"),
        (ModelConfig, {"num_heads": 3}, r"num_heads \(3\) must divide the width 512"),
        (ModelConfig, {"num_kv_heads": 3}, r"must divide num_heads \(8\)"),
        (ModelConfig, {"decoder_model_dim": 256}, "tied embeddings need"),
        (ModelConfig, {"positions": "rotary", "model_dim": 24}, "even width per head"),
        (TrainingConfig, {}, "give one of max_steps"),
        (TrainingConfig, {"patience": 3, "schedule": {"shape": "cosine"}}, "over a budget"),
        (OptimizerConfig, {"betas": [0.9, 1.0]}, "less than 1"),
        (RunConfig, {**RUN, "name": "../x"}, "letters, digits"),
        (RunConfig, {**RUN, "source_language": "German!"}, "pattern"),
        (RunConfig, {**RUN, "target_language": "de"}, "are both de"),
        (RunConfig, {**RUN, "run_dir": "x", "prepared_dir": "x"}, "its own folder"),
        (RunConfig, {**RUN, "tokenizer": {"joint": False}}, "use decoder-tied or separate"),
        (RunConfig, {**RUN, "batch": {"max_tokens": 400}}, "raise it to 514"),
        (RunConfig, {**RUN, "filters": {"min_length": 300}}, "min_length is above"),
        (RunConfig, {**RUN, "tokenizer": {"vocab_size": 200}}, "byte_fallback takes 256"),
        (
            RunConfig,
            {**RUN, "model": {"positions": "learned", "max_positions": 256}},
            "model.max_positions is 256",
        ),
    ],
)
def test_a_rule_between_keys_is_explained(
    section: type[BaseModel], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        section.model_validate(values)


def test_rules_between_sections_are_all_reported() -> None:
    values = {**RUN, "target_language": "de", "batch": {"max_tokens": 400}}

    with pytest.raises(ValidationError, match=r"are both de; batch.max_tokens is 400"):
        RunConfig.model_validate(values)


def test_a_section_cannot_be_changed() -> None:
    config = RunConfig.model_validate(RUN)

    with pytest.raises(ValidationError, match="frozen"):
        config.name = "y"


@pytest.mark.parametrize("preset", MODEL_PRESETS)
def test_every_preset_is_a_valid_model(preset: str) -> None:
    model = ModelConfig.model_validate({"preset": preset})

    for name, value in MODEL_PRESETS[preset].items():
        assert getattr(model, name) == value


def test_the_big_preset_is_the_published_one() -> None:
    # Vaswani et al. (2017), table 3, last row.
    big = ModelConfig(preset="transformer-big")

    assert (big.encoder_layers, big.model_dim, big.ff_dim, big.num_heads, big.dropout) == (
        6, 1024, 4096, 16, 0.3,
    )  # fmt: skip
