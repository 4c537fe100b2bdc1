"""Attention weights as they are told, against loops by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.config.model import ModelConfig
from nmt.model.alignment import _weights, source_attention
from nmt.model.blocks import DecoderLayer
from nmt.model.factory import build_model
from nmt.model.transformer import Transformer

SOURCE = torch.tensor([[7, 8, 9, 10, 3], [11, 12, 3, 0, 0]])
SOURCE_LENGTHS = torch.tensor([5, 3])
TARGET = torch.tensor([[2, 20, 21, 0], [2, 22, 23, 24]])
LENGTHS = torch.tensor([3, 4])


def model_of(**options: object) -> Transformer:
    torch.manual_seed(4)
    shape = {"model_dim": 16, "ff_dim": 24, "num_heads": 4, "encoder_layers": 1}
    config = ModelConfig.model_validate({**shape, "decoder_layers": 3, **options})
    return build_model(config, 30, 30).eval()


def attention(model: Transformer, rows: slice = slice(None)) -> Tensor:
    lengths, target_lengths = SOURCE_LENGTHS[rows], LENGTHS[rows]
    source = SOURCE[rows, : int(lengths.max())]
    target = TARGET[rows, : int(target_lengths.max())]
    return source_attention(model, source, lengths, target, target_lengths)


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True, "num_kv_heads": 2}, {"positions": "rotary"}]
)
def test_weights_are_shares_of_the_real_source(options: dict[str, Any]) -> None:
    weights = attention(model_of(**options))

    assert weights.shape == (2, 4, 5)
    assert torch.all(weights >= 0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4))
    assert torch.all(weights[1, :, 3:] == 0)


@pytest.mark.parametrize("row", [0, 1])
def test_a_sentence_does_not_depend_on_its_batch(row: int) -> None:
    model = model_of()
    alone = attention(model, slice(row, row + 1))[0]

    torch.testing.assert_close(attention(model)[row, : len(alone), : alone.shape[1]], alone)


def test_a_token_does_not_see_those_after_it() -> None:
    model = model_of()
    changed = TARGET.clone()
    changed[1, 3] = 25
    found = source_attention(model, SOURCE, SOURCE_LENGTHS, changed, LENGTHS)

    torch.testing.assert_close(found[1, :3], attention(model)[1, :3])
    assert not torch.allclose(found[1, 3], attention(model)[1, 3])


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


def test_the_upper_layers_count_alike() -> None:
    """Of three, the last two."""
    model = model_of()
    seen: list[Tensor] = []
    for layer in model.decoder:
        assert isinstance(layer, DecoderLayer)
        layer.cross_attention.register_forward_pre_hook(
            lambda module, given: seen.append(_weights(module, *given))
        )
    found = attention(model)

    torch.testing.assert_close(found, (seen[1] + seen[2]) / 2)


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True, "num_kv_heads": 2}, {"norm_position": "pre"}]
)
@torch.no_grad()
def test_what_is_read_step_by_step_adds_up_to_the_same(options: dict[str, Any]) -> None:
    """With beams that go on twice, change places, or leave; and it changes no logit."""
    model = model_of(**options)
    state = model.start(SOURCE, SOURCE_LENGTHS, with_coverage=True)
    plain = model.start(SOURCE, SOURCE_LENGTHS)
    both, twice = torch.tensor([0, 1]), torch.tensor([[0, 0], [0, 0]])
    tokens, swap = torch.tensor([[2], [2]]), torch.tensor([[1, 0]])
    for after in (torch.tensor([[20, 22], [22, 24]]), torch.tensor([[21, 23], [23, 25]])):
        logits, state = model.step(state, tokens)
        expected, plain = model.step(plain, tokens)
        assert torch.equal(logits, expected)
        state, plain = (s.select(both, twice[:, : after.shape[1]]) for s in (state, plain))
        tokens, twice = after, torch.tensor([[0, 1], [0, 1]])
    _, state = model.step(state, tokens)
    state = state.select(both[1:], swap)

    assert plain.coverage is None
    assert state.coverage is not None
    for row, target in enumerate(([2, 24, 25], [2, 22, 23])):
        read = source_attention(
            model, SOURCE[1:], SOURCE_LENGTHS[1:], torch.tensor([target]), torch.tensor([3])
        )
        torch.testing.assert_close(state.coverage[row], read[0].sum(0))


def test_nothing_is_left_behind_on_the_model() -> None:
    model = model_of()
    before = {name: len(part._forward_pre_hooks) for name, part in model.named_modules()}
    attention(model)

    assert {name: len(part._forward_pre_hooks) for name, part in model.named_modules()} == before
