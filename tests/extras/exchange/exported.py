"""Runs of small models that were never trained, to be exported."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.model_folder import SHORTLIST
from nmt.commands.config import with_metric
from nmt.config.run import RunConfig
from nmt.model.transformer import Transformer, build_model
from nmt.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from nmt.text.tokenizer import load_tokenizers
from tests.inference.models import save_run, shortlist_bytes

needs_ctranslate2 = pytest.mark.skipif(
    find_spec("ctranslate2") is None, reason="CTranslate2, an optional extra, is not installed"
)
STEP = 30


def run_config(model: dict[str, Any], **sections: Any) -> RunConfig:
    pair = {"source": "a.de", "target": "a.en"}
    return RunConfig.model_validate({
        "name": "small", "source_language": "de", "target_language": "en",
        "data": {"train": [{"name": "few", **pair}], "valid": pair},
        "model": {
            "preset": "tiny", "encoder_layers": 2, "decoder_layers": 2, "model_dim": 32,
            "ff_dim": 48, "num_heads": 4, "output_bias": True, **model,
        },
        "training": {"max_steps": 1}, "filters": {"max_length": 40},
        "decoding": {"beam_size": 3, "max_length_factor": 1.0, "max_length_offset": 5},
        **sections,
    })  # fmt: skip


def random_model(config: RunConfig, sizes: tuple[int, int]) -> Transformer:
    """A model with strong opinions; every parameter differs from what it starts training with.

    Padding, unknown and BOS are improbable, as in a trained one; about half of its outputs end
    before they have to.
    """
    torch.manual_seed(1)
    model = build_model(config.model, *sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.mul_(1.5)
        if model.output_bias is not None:
            model.output_bias[[PAD_ID, UNK_ID, BOS_ID]] = -20.0
            model.output_bias[EOS_ID] += 1.0
    return model


def write_run(run_dir: Path, tokenizer: Path, config: RunConfig) -> Transformer:
    """Write a run folder with one validated checkpoint; return its model."""
    model = random_model(config, load_tokenizers(tokenizer).vocab_sizes)
    save_run(run_dir, model, tokenizer, with_metric(config), STEP)
    event = {"kind": "validation", "step": STEP, "epoch": 1, "seconds": 2.0}
    event |= {"loss": 1.5, "perplexity": 4.48, "bleu": 12.345}
    (run_dir / "metrics.jsonl").write_text(json.dumps(event) + "\n", encoding="utf-8")
    return model


def write_shortlist(folder: Path) -> None:
    """Give a run shortlists: every token may become itself and the next two."""
    sizes = load_tokenizers(folder / "tokenizer").vocab_sizes
    rows = torch.arange(sizes[0]).unsqueeze(1) + torch.arange(3)
    content = shortlist_bytes(torch.tensor([4, 5, 6, 7]), rows.clamp(max=sizes[1] - 1).int())
    (folder / SHORTLIST).write_bytes(content)
