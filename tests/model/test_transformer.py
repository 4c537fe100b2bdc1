"""The model against torch's own modules, the published sizes, and its laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nmt.config.model import ModelConfig
from nmt.model.layers import DecoderLayer, EncoderLayer, SelfAttention
from nmt.model.transformer import build_model
from tests.model.small import SMALL, VARIANTS, packed, random_parameters, small_model


def copy_attention(ours: SelfAttention, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(ours.query_key_value.weight)
    theirs.in_proj_bias.copy_(ours.query_key_value.bias)
    theirs.out_proj.weight.copy_(ours.output.weight)
    theirs.out_proj.bias.copy_(ours.output.bias)


def copy_common(ours: EncoderLayer | DecoderLayer, theirs: Any) -> None:
    copy_attention(ours.self_attention, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
    theirs.norm1.load_state_dict(ours.self_residual.norm.state_dict())
    last = theirs.norm3 if isinstance(ours, DecoderLayer) else theirs.norm2
    last.load_state_dict(ours.feed_forward_residual.norm.state_dict())


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layers_equal_torch_s_own_with_the_same_weights(
    norm_position: str, activation: str
) -> None:
    config = ModelConfig.model_validate(
        {**SMALL, "norm_position": norm_position, "activation": activation, "dropout": 0.0}
    )
    shape: dict[str, Any] = {
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": norm_position == "pre",
    }
    encoder, decoder = EncoderLayer(config).eval(), DecoderLayer(config).eval()
    random_parameters(encoder)
    random_parameters(decoder)
    torch_encoder = nn.TransformerEncoderLayer(32, 4, 64, activation=activation, **shape)
    torch_decoder = nn.TransformerDecoderLayer(32, 4, 64, activation=activation, **shape)
    cross = decoder.cross_attention
    with torch.no_grad():
        copy_common(encoder, torch_encoder)
        copy_common(decoder, torch_decoder)
        theirs = torch_decoder.multihead_attn
        theirs.in_proj_weight.copy_(torch.cat((cross.query.weight, cross.key_value.weight)))
        theirs.in_proj_bias.copy_(torch.cat((cross.query.bias, cross.key_value.bias)))
        theirs.out_proj.load_state_dict(cross.output.state_dict())
        torch_decoder.norm2.load_state_dict(decoder.cross_residual.norm.state_dict())

    of_source, of_target = packed([5, 3, 4]), packed([2, 6, 4])
    source, target = torch.randn(3, 5, 32), torch.randn(3, 6, 32)
    memory = encoder(source[of_source.mask()], of_source)
    mixed = decoder(target[of_target.mask()], memory, of_target, of_source)

    # In training mode torch takes its plain path, which keeps gradients and padding rows defined.
    expected_memory = torch_encoder(source, src_key_padding_mask=~of_source.mask())
    expected = torch_decoder(
        target,
        expected_memory,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(6).isinf(),
        memory_key_padding_mask=~of_source.mask(),
    )
    torch.testing.assert_close(memory, expected_memory[of_source.mask()], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mixed, expected[of_target.mask()], rtol=1e-4, atol=1e-5)

    # Gradients too: the backward of attention is our own.
    weight = torch.randn(mixed.shape, generator=torch.Generator().manual_seed(1))
    (mixed * weight).sum().backward()
    (expected[of_target.mask()] * weight).sum().backward()
    ours = encoder.self_attention.query_key_value.weight.grad
    torch.testing.assert_close(
        ours, torch_encoder.self_attn.in_proj_weight.grad, rtol=1e-3, atol=1e-4
    )
    ours = torch.cat([cross.query.weight.grad, cross.key_value.weight.grad])  # type: ignore[list-item]
    torch.testing.assert_close(ours, theirs.in_proj_weight.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_decoding_step_by_step_equals_reading_the_whole_target(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    source, target = packed([7, 4, 6]), packed([5, 6, 3])
    ids = target.pad(target.ids)
    with torch.no_grad():
        whole = model.logits(model(source, target))
        state = model.start(source)
        steps = []
        for position in range(6):
            hidden, state = model.decode_step(state, ids[:, position : position + 1])
            steps.append(model.logits(hidden)[:, 0])

    one_by_one = torch.stack(steps, dim=1)[target.mask()]
    torch.testing.assert_close(one_by_one, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_selecting_beams_and_stepping_commute(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    with torch.no_grad():
        state = model.start(packed([7, 4, 6]))
        _, state = model.decode_step(state, torch.tensor([[2], [2], [2]]))
        state = state.select(torch.arange(3), torch.zeros(3, 2, dtype=torch.int64))
        tokens = torch.tensor([[4, 5], [6, 7], [8, 9]])
        _, state = model.decode_step(state, tokens)
        sentences, beams = torch.tensor([0, 2]), torch.tensor([[1, 0, 1], [0, 0, 1]])
        chosen = state.select(sentences, beams)
        after, _ = model.decode_step(chosen, torch.full((2, 3), 11))
        full, _ = model.decode_step(state, torch.full((3, 2), 11))

    expected = full[sentences].gather(1, beams.unsqueeze(-1).expand(-1, -1, full.shape[-1]))
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_token_changes_nothing_before_it(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    source, target, changed = packed([6]), packed([7]), packed([7])
    changed.ids[4] = 49 if target.ids[4] != 49 else 48
    with torch.no_grad():
        before, after = model(source, target), model(source, changed)

    torch.testing.assert_close(before[:4], after[:4], rtol=0, atol=0)
    assert not torch.allclose(before[4:], after[4:])


@settings(max_examples=20)
@given(
    variant=st.sampled_from(sorted(VARIANTS)),
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=5),
)
def test_neither_padding_nor_batch_mates_change_a_sentence(
    variant: str, lengths: list[tuple[int, int]]
) -> None:
    model = small_model(**VARIANTS[variant])
    source, target = packed([s for s, _ in lengths]), packed([t for _, t in lengths])
    with torch.no_grad():
        together = model(source, target)
        alone = model(source.part(0, 1), target.part(0, 1))

    torch.testing.assert_close(together[: len(alone)], alone, rtol=1e-4, atol=1e-5)


def test_tied_tables_are_one_parameter_and_stored_once() -> None:
    tied, apart = small_model(), small_model(embeddings="separate")

    assert tied.output_weight is tied.source_vectors
    names = set(apart.state_dict()) - set(tied.state_dict())
    assert names == {"target_vectors", "output_vectors"}


def test_tied_embeddings_need_one_vocabulary() -> None:
    with pytest.raises(ValueError, match="50 and 60"):
        build_model(ModelConfig.model_validate(SMALL), 50, 60)
