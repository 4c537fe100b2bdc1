"""Attention weights as they are reported, against loops by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.model.layers import DecoderLayer
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from tests.model.small import small_model

SOURCE = [[7, 8, 9, 10, 3], [11, 12, 3]]
TARGET = [[2, 20, 21], [2, 22, 23, 24]]


def model_of(**options: object) -> Transformer:
    return small_model(**{"model_dim": 16, "encoder_layers": 1, "decoder_layers": 3, **options})


def attention(model: Transformer, rows: slice = slice(None)) -> Tensor:
    return model.align(Packed.from_rows(SOURCE[rows]), Packed.from_rows(TARGET[rows]))


def test_one_layer_by_hand() -> None:
    model = model_of(decoder_layers=1)
    layer = model.decoder[0]
    assert isinstance(layer, DecoderLayer)
    only = layer.cross_attention
    seen: list[tuple[Tensor, Tensor]] = []
    handle = only.register_forward_pre_hook(lambda _, given: seen.append(given[:2]))
    found = attention(model, slice(0, 1))[0]
    handle.remove()
    (values, memory), dim = (x.clone() for x in seen[0]), 16
    queries = values @ only.query.weight.T + only.query.bias
    keys = memory @ only.key_value.weight[:dim].T + only.key_value.bias[:dim]
    queries, keys = queries.detach(), keys.detach()
    expected = torch.zeros(3, 5)
    for head in range(4):
        part = slice(4 * head, 4 * head + 4)
        for t in range(3):
            scores = torch.stack([queries[t, part] @ keys[s, part] / 2 for s in range(5)])
            expected[t] += scores.softmax(0) / 4
    torch.testing.assert_close(found[:3], expected)


def test_upper_layers_have_equal_weight() -> None:
    """Of three, the last two."""
    model = model_of()
    source, seen = Packed.from_rows(SOURCE), list[Tensor]()
    with torch.inference_mode():
        memory = model.encode(source)
        model.decode(
            Packed.from_rows(TARGET),
            memory,
            source,
            run=lambda layer, *inputs: layer(*inputs, weights=seen),
        )
    torch.testing.assert_close(attention(model), (seen[1] + seen[2]) / 2)


@pytest.mark.parametrize(
    "options",
    [{"positions": "rotary"}, {"qk_norm": True, "num_kv_heads": 2}, {"norm_position": "pre"}],
)
@torch.no_grad()
def test_coverage_of_steps_equals_attention_of_the_whole_target(options: dict[str, Any]) -> None:
    """Shares of the real source; with beams that go on twice, change places, or leave.

    And it changes no state.
    """
    model = model_of(**options)
    weights = attention(model)
    assert weights.shape == (2, 4, 5)
    assert torch.all(weights >= 0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4))
    assert torch.all(weights[1, :, 3:] == 0)
    state = model.start(Packed.from_rows(SOURCE), with_coverage=True)
    plain = model.start(Packed.from_rows(SOURCE))
    both, twice = torch.tensor([0, 1]), torch.tensor([[0, 0], [0, 0]])
    tokens, swap = torch.tensor([[2], [2]]), torch.tensor([[1, 0]])
    for after in (torch.tensor([[20, 22], [22, 24]]), torch.tensor([[21, 23], [23, 25]])):
        hidden, state = model.decode_step(state, tokens)
        expected, plain = model.decode_step(plain, tokens)
        assert torch.equal(hidden, expected)
        state, plain = (s.select(both, twice[:, : after.shape[1]]) for s in (state, plain))
        tokens, twice = after, torch.tensor([[0, 1], [0, 1]])
    _, state = model.decode_step(state, tokens)
    state = state.select(both[1:], swap)
    assert plain.coverage is None
    assert state.coverage is not None
    for row, target in enumerate(([2, 24, 25], [2, 22, 23])):
        read = model.align(Packed.from_rows(SOURCE[1:]), Packed.from_rows([target]))
        torch.testing.assert_close(state.coverage[row, :3], read[0].sum(0))
