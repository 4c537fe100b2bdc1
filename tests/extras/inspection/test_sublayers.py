"""What hooks see against the model itself, and attention against numbers worked out on paper."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.extras.inspection.sublayers import (
    Kind,
    Recording,
    record,
    without_causal_mask,
    without_head,
)
from nmt.model.layers import CrossAttention, EncoderLayer, SelfAttention
from nmt.model.transformer import Transformer
from nmt.packed import Packed
from tests.model.small import VARIANTS, random_parameters, small_model

SOURCE = Packed.from_rows([[7, 8, 9, 10, 11, 3]])
TARGET = Packed.from_rows([[2, 20, 21, 22]])
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")


def model_of(variant: str = "paper", **options: Any) -> Transformer:
    model = small_model(**{**VARIANTS[variant], **options})
    random_parameters(model)
    return model


def recorded(model: Transformer) -> Recording:
    return record(model, SOURCE, TARGET)


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@torch.no_grad()
def test_recomputed_heads_match_the_model(variant: str) -> None:
    model = model_of(variant)
    found = recorded(model)
    for kind in KINDS:
        layers = model.encoder if kind == "encoder" else model.decoder
        assert [each.layer for each in found.attention(kind)] == list(range(1, len(layers) + 1))
        for each in found.attention(kind):
            assert isinstance(each.module, SelfAttention | CrossAttention)
            heads = each.heads()
            torch.testing.assert_close(each.module.output(heads.concatenated), each.output)
            torch.testing.assert_close(heads.weights.sum(-1), torch.ones(heads.weights.shape[:2]))
    assert torch.equal(found.hidden, model(SOURCE, TARGET))
    weights = found.weights("cross")
    mean = weights[len(weights) // 2 :].mean((0, 1))
    torch.testing.assert_close(mean, model.align(SOURCE, TARGET)[0])


@pytest.mark.parametrize("variant", ["paper", "tiny-like"])
@torch.no_grad()
def test_the_stream_goes_from_each_sublayer_to_the_next(variant: str) -> None:
    found = recorded(model_of(variant))
    for side, count in (("encoder", 2), ("decoder", 3)):
        own = [each for each in found.sublayers if each.side == side]
        assert len(own) == 2 * count
        for below, above in itertools.pairwise(own):
            assert torch.equal(below.stream_above, above.stream_below)
        for each in own:
            total = each.stream_below + each.output
            is_pre = variant == "tiny-like"
            torch.testing.assert_close(
                each.stream_above, total if is_pre else each.residual.norm(total)
            )
            reads = each.residual.norm(each.stream_below) if is_pre else each.stream_below
            torch.testing.assert_close(each.inputs, reads)


def two_token_model() -> Transformer:
    """One head of width 2 without positions; token 4 is (1, 0), and EOS is (0, 1).

    Q = X W^Q makes (sqrt(2) ln 3, 0) of the first, and (0, sqrt(2) ln 4) of the second; K = X; V
    makes (1, 2) of the first and (3, -2) of the second; W^O changes nothing.
    """
    model = small_model(
        model_dim=2, ff_dim=2, num_heads=1, encoder_layers=1, decoder_layers=1, positions="none",
        scale_embeddings=False, norm_epsilon=1e-12,
    )  # fmt: skip
    layer = model.encoder[0]
    assert isinstance(layer, EncoderLayer)
    root = math.sqrt(2)
    rows = [[root * math.log(3), 0], [0, root * math.log(4)], [1, 0], [0, 1], [1, 3], [2, -2]]
    with torch.no_grad():
        model.source_vectors[4] = torch.tensor([1.0, 0.0])
        model.source_vectors[3] = torch.tensor([0.0, 1.0])
        layer.self_attention.query_key_value.weight.copy_(torch.tensor(rows))
        layer.self_attention.output.weight.copy_(torch.eye(2))
    return model


@torch.no_grad()
def test_two_tokens_calculated_by_hand() -> None:
    """Scores: (ln 3, 0) and (0, ln 4); so weights: 3 and 1 of 4, 1 and 4 of 5."""
    found = record(two_token_model(), Packed.from_rows([[4, 3]]), Packed.from_rows([[2]]))
    (attention,) = found.attention("encoder")
    heads = attention.heads()

    def close(tensor: Tensor, expected: list[list[float]]) -> None:
        torch.testing.assert_close(tensor, torch.tensor(expected, dtype=torch.float32))

    close(attention.stream_below, [[1, 0], [0, 1]])
    close(heads.scores[0], [[math.log(3), 0], [0, math.log(4)]])
    close(heads.weights[0], [[0.75, 0.25], [0.2, 0.8]])
    # 0.75 (1, 2) + 0.25 (3, -2), and 0.2 (1, 2) + 0.8 (3, -2)
    close(attention.output, [[1.5, 1.0], [2.6, -1.2]])
    # (1, 0) + (1.5, 1) = (2.5, 1), and (0, 1) + (2.6, -1.2) = (2.6, -0.2): their norm is (1, -1)
    close(attention.stream_above, [[1, -1], [1, -1]])


@torch.no_grad()
def test_a_recording_leaves_nothing_in_the_model() -> None:
    model = model_of()
    before = model(SOURCE, TARGET)
    recorded(model)
    with without_causal_mask(model):
        assert not torch.allclose(model(SOURCE, TARGET), before)
    assert torch.equal(model(SOURCE, TARGET), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("variant", ["paper", "relative", "modern"])
@torch.no_grad()
def test_without_the_mask_the_decoder_reads_ahead(variant: str) -> None:
    """With one layer, the output of the last token is the same: it reads all tokens anyway."""
    model = model_of(variant, decoder_layers=1)
    before = recorded(model).hidden
    with without_causal_mask(model):
        after = model(SOURCE, TARGET)
    torch.testing.assert_close(after[-1], before[-1])
    assert not torch.isclose(after[:-1], before[:-1]).all(-1).any()


@pytest.mark.parametrize("head", [1, 4])
@torch.no_grad()
def test_a_head_without_output_equals_zero_rows_in_the_output_matrix(head: int) -> None:
    model, other = model_of("grouped"), model_of("grouped")
    attention, silenced = (x.decoder[1].get_submodule("cross_attention") for x in (model, other))
    silenced.get_parameter("output.weight")[:, (head - 1) * 8 : head * 8] = 0
    assert isinstance(attention, CrossAttention)
    with without_head(attention, head):
        torch.testing.assert_close(model(SOURCE, TARGET), other(SOURCE, TARGET))
    assert not torch.allclose(model(SOURCE, TARGET), other(SOURCE, TARGET))
