"""Small models of several kinds, sentences for them, and decoding steps with made-up tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.model.transformer import DecodeToken, Transformer, build_model
from nmt.packed import Packed

SMALL = {"model_dim": 32, "ff_dim": 64, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "tiny-like": {"norm_position": "pre"},
    "halves": {"positions": "sinusoidal-halves", "output_bias": True},
    "silu": {"activation": "silu"},
    "learned": {"positions": "learned", "embeddings": "decoder-tied", "activation": "gelu"},
    "none": {"positions": "none", "scale_embeddings": False},
    "modern": {
        "norm_position": "pre",
        "norm": "rms",
        "activation": "swiglu",
        "positions": "rotary",
        "qk_norm": True,
        "bias": False,
        "decoder_layers": 1,
    },
    "grouped": {"num_kv_heads": 2, "embeddings": "separate"},
    "rotary-post": {"positions": "rotary", "num_kv_heads": 1},
    "relative": {"positions": "relative", "max_relative_distance": 3, "num_kv_heads": 2},
    "from-scratch": {
        "norm": "layer-std",
        "first_position": 1,
        "decoder_start": "zero",
        "embeddings": "inputs-shared",
        "bias": ["feed-forward", "norm"],
    },
    "two-widths": {
        "decoder_model_dim": 48,
        "decoder_ff_dim": 40,
        "embeddings": "decoder-tied",
        "qk_norm": True,
    },
}


def small_model(**options: Any) -> Transformer:
    torch.manual_seed(3)
    return build_model(ModelConfig.model_validate({**SMALL, **options}), 50, 50).eval()


def packed(lengths: list[int]) -> Packed:
    """Random sentences of these lengths."""
    generator = torch.Generator().manual_seed(sum(lengths) + len(lengths))
    ids = torch.randint(4, 50, (sum(lengths),), generator=generator)
    return Packed.from_rows([row.tolist() for row in ids.split(lengths)])


def random_parameters(model: nn.Module) -> None:
    """Norms and biases away from their initial ones and zeros, so that a mix-up shows."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def results(model: Transformer, source: list[int], target: list[int]) -> dict[str, Tensor]:
    model.zero_grad()
    ids = packed(target)
    loss = F.cross_entropy(model.logits(model(packed(source), ids)).float(), ids.ids.roll(-1))
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients}


def decode(
    model: Transformer, run: DecodeToken | None, lengths: list[int], num_beams: int, num_steps: int
) -> list[Tensor]:
    """All logits of some steps with made-up tokens, beams that are reordered, and fewer sentences.

    The second half of the sentences leaves after the first step.
    """
    draw = torch.Generator().manual_seed(len(lengths))
    source = torch.randint(4, 50, (len(lengths), max(lengths)), generator=draw).tolist()
    rows = [ids[:length] for ids, length in zip(source, lengths, strict=True)]
    found = []
    with torch.inference_mode():
        state = model.start(Packed.from_rows(rows))
        for step in range(num_steps):
            count = len(state.source_mask)
            tokens = torch.randint(4, 50, (count, state.num_beams), generator=draw)
            hidden, state = model.decode_step(state, tokens, run)
            found.append(model.logits(hidden))
            stay = torch.arange(count if step else (count + 1) // 2)
            beams = torch.randint(0, tokens.shape[1], (len(stay), num_beams), generator=draw)
            state = state.select(stay, beams)
    return found
