"""FLOPs by hand, and against torch's own count of what forward and backward do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from nmt.config.model import MODEL_PRESETS, ModelConfig
from nmt.extras.planning.plan import LengthSums, MatmulParameters, matmul_parameters, training_flops
from nmt.model.transformer import build_model
from nmt.packed import Packed

BASE = ModelConfig.model_validate({"preset": "transformer-base"})
SMALL = {"model_dim": 16, "ff_dim": 40, "num_heads": 4, "encoder_layers": 3, "decoder_layers": 2}
SHAPES: list[dict[str, Any]] = [
    {},
    {"norm_position": "pre", "output_bias": True, "positions": "learned"},
    {"activation": "swiglu", "bias": False, "norm": "rms"},
    {"positions": "rotary", "qk_norm": True, "num_kv_heads": 2},
    {"embeddings": "separate", "decoder_model_dim": 24, "decoder_ff_dim": 56, "num_kv_heads": 1},
]


def test_the_base_model_has_the_matrices_of_the_paper() -> None:
    sizes = matmul_parameters(BASE, 37_000)
    # A square is 512 x 512 = 262,144; the feed-forward's matrices are 2 x 512 x 2,048 = 2,097,152.
    # Encoder layer: queries, keys, values, output (4 squares) and feed-forward: 3,145,728.
    # Decoder layer: 8 squares and feed-forward: 4,194,304, of which 2 squares read the encoder.
    assert sizes == MatmulParameters(
        encoder=6 * 3_145_728,
        memory=6 * 2 * 262_144,
        decoder=6 * (4_194_304 - 2 * 262_144),
        output=37_000 * 512,
    )


def test_the_flops_of_the_base_model_by_hand() -> None:
    pairs = LengthSums.of_pairs(np.array([20, 30]), np.array([25, 35]))
    flops = training_flops(BASE, 37_000, pairs)
    assert pairs == LengthSums(
        source_tokens=50,
        target_tokens=60,
        source_squares=400 + 900,
        target_squares=625 + 1_225,
        products=500 + 1_050,
    )
    # Matrices of encoder and memory are 22,020,096 numbers; of the rest, 40,964,096.
    assert flops.matmul == 6 * (22_020_096 * 50 + 40_964_096 * 60)
    # 6 layers of width 512 with the scores of encoder, decoder and cross-attention.
    assert flops.attention == 12 * 6 * 512 * (1_300 + 1_850 + 1_550)
    assert flops.matmul + flops.attention == flops.total == 21_526_364_160
    lengths = np.full(100_000, 60_000, dtype=np.int32)  # which do not overflow
    assert LengthSums.of_pairs(lengths, lengths).products == 100_000 * 60_000**2


@pytest.mark.parametrize("preset", MODEL_PRESETS)
def test_the_matrices_of_every_preset_are_those_of_its_layers(preset: str) -> None:
    config = ModelConfig.model_validate({"preset": preset})
    with torch.device("meta"):
        model = build_model(config, 1000, 1000)
    sizes = matmul_parameters(config, 1000)
    matrices = {name: p.numel() for name, p in model.named_parameters() if p.ndim == 2}
    memory = {name for name in matrices if name.endswith("cross_attention.key_value.weight")}
    assert sizes.memory == sum(matrices[name] for name in memory)
    assert sizes.encoder == sum(n for name, n in matrices.items() if name.startswith("encoder."))
    decoder = sum(n for name, n in matrices.items() if name.startswith("decoder."))
    assert sizes.decoder == decoder - sizes.memory


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_counts_the_same_flops_exactly(shape: dict[str, Any]) -> None:
    """Without padding, on the CPU, where attention is made of plain products: no tolerance."""
    config = ModelConfig.model_validate({**SMALL, **shape})
    model = build_model(config, 50, 50)
    pairs, source_length, target_length = 3, 7, 5
    source, target = (
        Packed.from_rows(torch.randint(4, 50, (pairs, n)).tolist())
        for n in (source_length, target_length)
    )
    with FlopCounterMode(display=False) as counted:
        hidden = model(source, target)
        F.cross_entropy(model.logits(hidden), target.ids).backward()
    sums = LengthSums.of_pairs(np.full(pairs, source_length), np.full(pairs, target_length))
    assert training_flops(config, 50, sums).total == counted.get_total_flops()
