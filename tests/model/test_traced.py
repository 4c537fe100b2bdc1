"""A recorded step says what the model says, to the bit, for any sizes."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.model import ModelConfig
from nmt.model.factory import build_model
from nmt.model.quantized import input_ranges, quantize
from nmt.model.transformer import Readers, Transformer
from nmt.runtime.traced import trace_readers

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
    model: Transformer, readers: Readers | None, lengths: list[int], num_beams: int, num_steps: int
) -> list[Tensor]:
    """All logits of some steps with made-up tokens, beams that change places, and fewer sentences.

    The second half of the sentences leaves after the first step.
    """
    draw = torch.Generator().manual_seed(len(lengths))
    source = torch.randint(4, VOCAB_SIZE, (len(lengths), max(lengths)), generator=draw)
    found = []
    with torch.inference_mode():
        state = model.start(source, torch.tensor(lengths), readers)
        for step in range(num_steps):
            count = len(state.bias)
            tokens = torch.randint(4, VOCAB_SIZE, (count, state.num_beams), generator=draw)
            logits, state = model.step(state, tokens, readers)
            found.append(logits)
            stay = torch.arange(count if step else (count + 1) // 2)
            beams = torch.randint(0, tokens.shape[1], (len(stay), num_beams), generator=draw)
            state = state.select(stay, beams)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int8, ranges", "bf16"])
def test_recorded_steps_give_the_same_bits(
    variant: str, dtype: Literal["float32", "float16", "int8", "int8, ranges", "bf16"]
) -> None:
    model = small_model(**VARIANTS[variant])
    if dtype == "bf16":
        model.to(torch.bfloat16)
    elif dtype == "int8, ranges":
        quantize(model, "int8", input_ranges(model, lambda: decode(model, None, [7, 4], 2, 5)))
    elif dtype != "float32":
        quantize(model, dtype)
    readers = trace_readers(model)

    assert readers is not None
    for lengths, num_beams in (([5], 1), ([7, 7, 7], 2), ([9, 4, 6, 1], 5)):
        found, expected = (decode(model, own, lengths, num_beams, 4) for own in (readers, None))
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)


@pytest.fixture(scope="module")
def recorded() -> tuple[Transformer, Readers | None]:
    model = small_model(preset="modern")
    return model, trace_readers(model)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    num_beams=st.integers(1, 6),
    num_steps=st.integers(1, 8),
)
def test_any_sizes_go_through_one_recording(
    recorded: tuple[Transformer, Readers | None],
    lengths: list[int],
    num_beams: int,
    num_steps: int,
) -> None:
    model, readers = recorded
    found, expected = (decode(model, own, lengths, num_beams, num_steps) for own in (readers, None))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_without_the_recorder_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "trace")
    assert trace_readers(small_model()) is None


def test_where_recording_is_off_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_JIT", "0")
    assert trace_readers(small_model()) is None
