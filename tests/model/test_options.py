"""Each option of the model section against its formula, in float64, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.model.attention import Segments, attention
from nmt.model.layers import CrossAttention, FeedForward, Residual, SelfAttention, make_norm
from nmt.model.positions import Embedding
from nmt.model.transformer import Transformer, build_model, count_parameters
from nmt.packed import Packed
from tests.model.formula import Formula
from tests.model.small import SMALL, random_parameters, small_model

SOURCES = [[7, 8, 9, 4, 12, 3], [11, 12, 3]]
TARGETS = [[2, 20, 21, 9], [2, 22, 23, 24, 25, 30, 31]]
OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "inputs-shared": {"embeddings": "inputs-shared", "output_bias": True},
    "separate tables": {"embeddings": "separate", "scale_embeddings": False},
    "biases of feed-forward and norms": {"bias": ["feed-forward", "norm"]},
    "biases of attention": {"bias": ["attention"], "norm_position": "pre"},
    "zero start": {"decoder_start": "zero"},
    "zero start, no positions": {"decoder_start": "zero", "positions": "none"},
    "standard deviation": {"norm": "layer-std"},
    "standard deviation, no biases": {"norm": "layer-std", "bias": False, "norm_epsilon": 1e-3},
    "no gain": {"norm_gain": False},
    "no gain and no biases": {"norm": "layer-std", "norm_gain": False, "bias": False},
    "no gain of RMSNorm": {"norm": "rms", "norm_gain": False},
    "epsilon of LayerNorm": {"norm_epsilon": 1e-2},
    "epsilon of RMSNorm": {"norm": "rms", "norm_epsilon": 1e-2},
    "SiLU": {"activation": "silu"},
    "concatenated": {"positions": "sinusoidal-concatenated"},
    "positions from 1": {"first_position": 1},
    "positions from 1, halves": {"first_position": 1, "positions": "sinusoidal-halves"},
    "learned positions from 1": {
        "first_position": 1, "positions": "learned", "max_positions": 8,
    },
    "relative": {"positions": "relative", "max_relative_distance": 2},
    "relative, grouped heads": {
        "positions": "relative", "max_relative_distance": 3, "num_kv_heads": 2,
    },
    "relative, far": {"positions": "relative", "max_relative_distance": 20, "num_heads": 1},
    "width 2": {
        "model_dim": 2, "ff_dim": 2, "num_heads": 1, "decoder_model_dim": 4,
        "embeddings": "separate",
    },
    "width 2, one feature a head": {"model_dim": 2, "ff_dim": 3, "num_heads": 2},
}  # fmt: skip


def float64_model(options: dict[str, Any]) -> Transformer:
    model = small_model(**{"encoder_layers": 1, "decoder_layers": 1, **options}).double()
    random_parameters(model)
    return model


@pytest.mark.parametrize(("name", "size"), [*((name, 2) for name in OPTIONS), ("relative", 1)])
def test_logits_and_gradients_equal_the_formula(name: str, size: int) -> None:
    """The padded batch of a single sentence has an unused second row."""
    sources, targets = SOURCES[:size], TARGETS[:size]
    model = float64_model(OPTIONS[name])
    leaves = {key: p.detach().clone().requires_grad_() for key, p in model.named_parameters()}
    formula = Formula(model.config, leaves)
    expected = torch.cat([formula.logits(*pair) for pair in zip(sources, targets, strict=True)])
    found = model.logits(model(Packed.from_rows(sources), Packed.from_rows(targets)))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    draw = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).double()
    (found * draw).sum().backward()
    (expected * draw).sum().backward()
    for key, parameter in model.named_parameters():
        none = torch.zeros_like(parameter)
        ours, theirs = (none if p.grad is None else p.grad for p in (parameter, leaves[key]))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize(("of_encoder", "of_decoder"), [(0.5, 0.0), (0.0, 0.5), (0.5, None)])
@torch.no_grad()
def test_encoder_and_decoder_have_separate_attention_dropout(
    of_encoder: float, of_decoder: float | None
) -> None:
    own = {"attention_dropout": of_encoder, "decoder_attention_dropout": of_decoder}
    model = small_model(dropout=0.0, **own)
    source, target = Packed.from_rows(SOURCES), Packed.from_rows(TARGETS)
    memory = model.encode(source)
    expected = model.decode(target, memory, source)
    share = of_encoder if of_decoder is None else of_decoder
    model.train()
    assert torch.equal(model.encode(source), memory) == (of_encoder == 0)
    assert torch.equal(model.decode(target, memory, source), expected) == (share == 0)
    parts = [x for x in model.decoder.modules() if isinstance(x, SelfAttention | CrossAttention)]
    assert {part._active_dropout for part in parts} == {share}


def outputs_for_ones(option: str, *, training: bool) -> dict[str, Tensor]:
    """What parts with an option of 0.25 give where each gives ones without dropout."""
    values = {"dropout": 0.0, "positions": "none", "scale_embeddings": False, option: 0.25}
    config = ModelConfig.model_validate(values)
    ones = torch.ones(500, 64)
    ids = torch.arange(500)
    inner = FeedForward(64, 64, config)
    nn.init.zeros_(inner.inner.weight)
    nn.init.ones_(inner.inner.bias)
    nn.init.eye_(inner.outer.weight)
    outputs = {
        "embedding": Embedding(config, 64).train(training)(ids, ids, ones, None),
        "feed-forward": inner.train(training)(ones),
    }
    for position in ("pre", "post"):
        residual = Residual(64, config.model_copy(update={"norm_position": position}))
        residual.norm = nn.Identity()
        outputs[position] = residual.train(training)(torch.zeros(500, 64), lambda _: ones)
    return outputs


@pytest.mark.parametrize(
    ("option", "places"),
    [
        ("dropout", {"embedding", "pre", "post"}),
        ("activation_dropout", {"feed-forward"}),
        ("word_dropout", {"embedding"}),
    ],
)
@torch.no_grad()
def test_each_dropout_drops_its_share_in_its_places_while_training(
    option: str, places: set[str]
) -> None:
    torch.manual_seed(6)
    outputs = outputs_for_ones(option, training=True)
    assert {name for name, output in outputs.items() if (output != 1).any()} == places
    for name in places:
        is_dropped = outputs[name] == 0
        # At least 500 draws: 0.02 is one deviation.
        assert is_dropped.float().mean().item() == pytest.approx(0.25, abs=0.08)
        kept = 1 / 0.75
        if option == "word_dropout":  # whole words; and the rest of a sentence is not scaled up
            assert torch.equal(is_dropped.any(dim=1), is_dropped.all(dim=1))
            kept = 1
        assert outputs[name][~is_dropped].unique().tolist() == pytest.approx([kept])
    for output in outputs_for_ones(option, training=False).values():
        assert torch.equal(output, torch.ones(500, 64))


def test_dropped_weights_also_drop_their_relative_values() -> None:
    """Where all but a share of the weights is dropped, so much of the values' vectors is, too."""
    packed = Packed.from_rows([[7] * 16] * 8)
    zeros = torch.zeros(128, 2, 4, dtype=torch.float64)
    vectors = torch.zeros(16, 16, 4), torch.ones(16, 16, 4)
    torch.manual_seed(1)
    mixed = attention(zeros, zeros, zeros, Segments(packed, packed), vectors=vectors, dropout=0.25)
    # 128 x 2 x 16 draws, of which 0.75 are kept and scaled by 1 / 0.75: 0.009 is one deviation.
    assert mixed.mean().item() == pytest.approx(1, abs=0.04)
    assert mixed.std() > 0.05


def test_xavier_uniform_applies_to_embeddings_and_not_to_linear_layers() -> None:
    options = {"positions": "learned", "max_positions": 30, "embeddings": "separate"}
    model = small_model(embedding_init="xavier-uniform", **options)
    plain = small_model(**options)
    for name, parameter in model.named_parameters():
        if name.startswith(("encoder.", "decoder.")) or parameter.ndim == 1:
            assert torch.equal(parameter, plain.get_parameter(name)), name
            continue
        bound = (6 / sum(parameter.shape)) ** 0.5
        assert bound * 0.98 < parameter.abs().max() <= bound, name
        # A uniform variable between -b and b has the standard deviation b / sqrt(3).
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.05), name


def test_each_of_several_fused_matrices_begins_like_a_separate_layer() -> None:
    """Xavier-uniform: bounds of sqrt(6 / (rows + columns)) of the single matrix."""
    model = small_model(activation="swiglu", num_kv_heads=2)
    parts = {"query_key_value": [32, 16, 16], "key_value": [16, 16], "inner": [64, 64]}
    for name, weight in model.named_parameters():
        if weight.ndim == 1 or not name.startswith(("encoder.", "decoder.")):
            continue
        for matrix in weight.split(parts.get(name.split(".")[-2], [len(weight)])):
            bound = (6 / sum(matrix.shape)) ** 0.5
            assert 0.98 * bound < matrix.abs().max() <= bound, name


def test_parameters_are_counted_with_the_side_that_they_belong_to() -> None:
    model = small_model(norm_position="pre", output_bias=True, embeddings="separate")
    encoder, decoder = (
        sum(parameter.numel() for part in parts for parameter in part.parameters())
        for parts in ((model.encoder, model.encoder_norm), (model.decoder, model.decoder_norm))
    )
    # Three tables of 50 x 32, and a bias of 50.
    expected = {"embeddings": 3 * 50 * 32 + 50, "encoder": encoder, "decoder": decoder}
    assert count_parameters(model) == expected


@torch.no_grad()
def test_a_narrow_output_gives_the_logits_of_its_tokens() -> None:
    model = small_model(output_bias=True)
    random_parameters(model)
    hidden = torch.randn(3, 32)
    tokens = torch.tensor([7, 3, 49])
    found = model.narrow_output(tokens)(hidden)
    torch.testing.assert_close(found, model.logits(hidden)[:, tokens])


def test_tables_are_shared_as_the_option_says_and_stored_once() -> None:
    model = small_model(embeddings="inputs-shared", output_bias=True)
    assert model.target_embeddings is model.source_vectors
    assert model.output_weight is model.output_vectors
    assert "target_vectors" not in model.state_dict()
    with pytest.raises(ValueError, match="inputs-shared embeddings need one vocabulary"):
        build_model(ModelConfig.model_validate({**SMALL, "embeddings": "inputs-shared"}), 50, 60)


def test_standard_deviation_norm_has_a_finite_gradient_for_equal_features() -> None:
    norm = make_norm(ModelConfig(norm="layer-std"), 4)
    values = torch.full((1, 4), 3.0, requires_grad=True)
    norm(values).sum().backward()
    assert values.grad is not None
    assert values.grad.isfinite().all()


@torch.no_grad()
def test_norms_are_worked_out_in_float32_and_returned_in_the_dtype_of_their_input() -> None:
    values = torch.randn(5, 16)
    for kind in ("layer-std", "rms"):
        norm = make_norm(ModelConfig.model_validate({"norm": kind}), 16).bfloat16()
        found = norm(values.bfloat16())
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found, norm.float()(values.bfloat16().float()).bfloat16())


@pytest.mark.parametrize("kind", ["layer", "layer-std", "rms"])
def test_a_norm_without_a_gain_trains_in_16_bits_and_has_only_its_bias(kind: str) -> None:
    """Training casts the parameters, and no other tensors."""
    config = ModelConfig.model_validate({"norm": kind, "norm_gain": False})
    norm = make_norm(config, 16)
    for parameter in norm.parameters():
        parameter.data = parameter.data.bfloat16()
    values = torch.randn(5, 16).bfloat16().requires_grad_()
    normed = norm(values)
    normed.square().sum().backward()
    assert normed.dtype == torch.bfloat16
    torch.testing.assert_close(normed.float().square().mean(1), torch.ones(5), atol=0.02, rtol=0)
    expected_names = [] if kind == "rms" else ["bias"]
    assert [name for name, _ in norm.named_parameters()] == expected_names
