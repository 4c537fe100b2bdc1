"""Writes a small COMET checkpoint with random weights, in the layout of published ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import yaml

KINDS = ("regression_metric", "referenceless_regression_metric", "unified_metric")


def write_checkpoint(folder: Path, lines: Sequence[str], kind: str = KINDS[0]) -> Path:
    """Write ``hparams.yaml``, ``checkpoints/model.ckpt`` and the encoder; return the folder."""
    reason = "unbabel-comet is not installed: pip install -e '.[comet]'"
    comet: Any = pytest.importorskip("comet.models", reason=reason, exc_type=ImportError)
    lightning, transformers = map(pytest.importorskip, ("pytorch_lightning", "transformers"))
    encoder = folder / "encoder"
    encoder.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(encoder / "pieces"), vocab_size=200,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    pieces = str(encoder / "pieces.model")
    tokenizer = transformers.XLMRobertaTokenizerFast(vocab_file=pieces, model_max_length=62)
    tokenizer.save_pretrained(encoder)
    transformers.XLMRobertaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, type_vocab_size=1,
    ).save_pretrained(encoder)  # fmt: skip
    options: dict[str, Any] = {"pretrained_model": str(encoder), "hidden_sizes": [32, 16]}
    if kind == "unified_metric":
        options |= {"input_segments": ["mt", "src", "ref"], "layer_transformation": "softmax"}
    torch.manual_seed(7)
    model = comet.str2model[kind](load_pretrained_weights=False, **options)
    with torch.no_grad():  # the scores of random weights would hardly differ
        for parameter in model.estimator.parameters():
            parameter.mul_(3)
    trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "checkpoints" / "model.ckpt", weights_only=True)
    settings = {**model.hparams, "class_identifier": kind}
    (folder / "hparams.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder
