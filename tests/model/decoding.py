"""Small models of several kinds, and decoding steps with made-up tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from nmt.config.model import ModelConfig
from nmt.model.transformer import DecodeToken, Transformer, build_model
from nmt.packed import Packed

VOCAB_SIZE = 50
SHAPE = {"model_dim": 32, "ff_dim": 48, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
VARIANTS: dict[str, dict[str, object]] = {
    "post-norm": {"norm_position": "post"},
    "modern": {"preset": "modern", "num_kv_heads": 2},
    "learned positions, three tables": {"positions": "learned", "embeddings": "separate"},
    "output bias, no bias": {"output_bias": True, "bias": False},
    "gelu, narrow decoder": {
        "activation": "gelu", "decoder_model_dim": 16, "decoder_ff_dim": 24,
        "embeddings": "separate",
    },
}  # fmt: skip


def small_model(**changes: object) -> Transformer:
    torch.manual_seed(3)
    config = ModelConfig.model_validate({**SHAPE, **changes})
    return build_model(config, VOCAB_SIZE, VOCAB_SIZE).eval()


def decode(
    model: Transformer, run: DecodeToken | None, lengths: list[int], num_beams: int, num_steps: int
) -> list[Tensor]:
    """All logits of some steps with made-up tokens, beams that are reordered, and fewer sentences.

    The second half of the sentences leaves after the first step.
    """
    draw = torch.Generator().manual_seed(len(lengths))
    source = torch.randint(4, VOCAB_SIZE, (len(lengths), max(lengths)), generator=draw).tolist()
    rows = [ids[:length] for ids, length in zip(source, lengths, strict=True)]
    found = []
    with torch.inference_mode():
        state = model.start(Packed.from_rows(rows))
        for step in range(num_steps):
            count = len(state.source_mask)
            tokens = torch.randint(4, VOCAB_SIZE, (count, state.num_beams), generator=draw)
            hidden, state = model.decode_step(state, tokens, run)
            found.append(model.logits(hidden))
            stay = torch.arange(count if step else (count + 1) // 2)
            beams = torch.randint(0, tokens.shape[1], (len(stay), num_beams), generator=draw)
            state = state.select(stay, beams)
    return found
