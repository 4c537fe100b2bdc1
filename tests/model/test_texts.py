"""configs/README.md: the configuration of each text has its number of parameters and its logits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from nmt.config.loader import load_config
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.model.transformer import build_model
from nmt.packed import Packed
from tests.model.formula import Formula
from tests.model.small import random_parameters

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
SENTENCES = [[5, 9, 2], [7, 2], [4, 8, 6, 11, 2]]
TARGETS = [[1, 6], [1, 5, 9, 10, 4], [1, 8, 3]]


def configuration(text: str) -> RunConfig:
    """The file and the keys of the model section in the row of a text."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [{text}"))
    file = re.search(r"`(\S+\.yaml)`", row)
    assert file is not None
    keys = [f"model.{key}={value}" for key, value in re.findall(r"`(\w+): ([^`]+)`", row)]
    return load_config(ROOT / "configs" / file[1], keys)


def feed_forward(d_model: int, d_ff: int) -> int:
    return d_model * d_ff + d_ff + d_ff * d_model + d_model


TEXTS = {
    # W_Embedding; W^Q, W^K, W^V, W^O and the feed-forward networks of 3 + 3 layers; W^S and b^S.
    "Transformer Explained in One Single Page": 8000 * 256
    + 3 * (12 * 256**2 + 2 * feed_forward(256, 1024)) + 256 * 8000 + 8000,
    "Yet another explanation": 26_201_096,  # printed by the notebook
    # Attention without biases; norms "scale and shift".
    "The Annotated The Annotated Transformer": 37_000 * 512
    + 6 * (12 * 512**2 + 2 * feed_forward(512, 2048)) + 30 * 2 * 512,
    "The Illustrated Transformer": 63_082_496,  # the sum at the end of its arithmetic
    "Transformer Notes": 37_000 * 512 + 6 * (12 * 512**2 + 2 * feed_forward(512, 2048)),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_each_text_has_as_many_parameters_as_on_paper(text: str) -> None:
    config = configuration(text)
    with torch.device("meta"):
        model = build_model(config.model, *config.tokenizer.vocab_sizes)
    assert sum(parameter.numel() for parameter in model.parameters()) == TEXTS[text]


@pytest.mark.parametrize("text", TEXTS)
@torch.no_grad()
def test_logits_of_random_weights_are_those_of_the_formulas(text: str) -> None:
    config = configuration(text).model
    small = {"encoder_layers": 2, "decoder_layers": 2, "model_dim": 8, "ff_dim": 12, "num_heads": 2}
    torch.manual_seed(1)
    model = build_model(ModelConfig(**{**config.model_dump(), **small}), 12, 12).double().eval()
    random_parameters(model)
    formula = Formula(model.config, dict(model.named_parameters()))
    sources = [[1] * config.source_bos + ids for ids in SENTENCES]
    found = model.logits(model(Packed.from_rows(sources), Packed.from_rows(TARGETS)))
    pairs = zip(sources, TARGETS, strict=True)
    expected = torch.cat([formula.logits(*pair) for pair in pairs])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
