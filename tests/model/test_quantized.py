"""Small weights: close to float32, and every row for itself."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.model import quantized as quantized_module
from nmt.model.factory import build_model
from nmt.model.quantized import Float16Linear, Int8Linear, input_ranges, quantize
from nmt.model.transformer import Transformer
from tests.model import test_traced, test_transformer


def layer(inputs: int, outputs: int, *, bias: bool, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias)


def rows(count: int, width: int, seed: int) -> Tensor:
    """Rows of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10 ** (4 * torch.rand(count, 1, generator=generator) - 2)
    return torch.randn(count, width, generator=generator) * sizes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 8), (64, 200), (256, 256)])
def test_a_product_is_close_to_the_exact_one(inputs: int, outputs: int, bias: bool) -> None:
    exact = layer(inputs, outputs, bias=bias)
    values = rows(50, inputs, seed=1)
    with torch.no_grad():
        expected, found = exact(values), Int8Linear(exact.weight, exact.bias)(values)

    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    # A step is 1/63 of the largest input of a row, and 1/127 of the largest weight.
    assert float(errors.max()) < 0.04
    assert found.dtype == torch.float32


def test_it_equals_rounding_by_hand() -> None:
    exact = layer(8, 4, bias=True)
    values = rows(5, 8, seed=3)
    with torch.no_grad():
        scales = exact.weight.abs().amax(1, keepdim=True) / 127
        weight = (exact.weight / scales).round().clamp(-128, 127)
        largest = values.abs().amax(1, keepdim=True)
        inputs = (values / largest * 63).round()
        expected = inputs @ weight.T * (scales.T * largest / 63) + exact.bias
        found = Int8Linear(exact.weight, exact.bias)(values)

    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@given(count=st.integers(1, 9), row=st.integers(0, 8), seed=st.integers(0, 99))
def test_a_row_does_not_depend_on_the_others(count: int, row: int, seed: int) -> None:
    """To the bit: else a translation would depend on what shares its batch."""
    quantized = Int8Linear(*_parameters(layer(24, 40, bias=True)))
    values = rows(count, 24, seed)
    row %= count

    assert torch.equal(quantized(values)[row], quantized(values[row : row + 1])[0])


def _parameters(module: nn.Linear) -> tuple[Tensor, Tensor]:
    return module.weight, module.bias


def test_rows_and_weights_of_zeros_give_the_bias() -> None:
    exact = layer(8, 4, bias=True)
    with torch.no_grad():
        exact.weight[1] = 0
    found = Int8Linear(exact.weight, exact.bias)(torch.stack((torch.zeros(8), torch.ones(8))))

    assert torch.equal(found[0], exact.bias)
    assert found[1, 1] == exact.bias[1]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 7])
def test_16_bit_weights_are_the_only_rounding(bias: bool, count: int) -> None:
    exact = layer(48, 40, bias=bias)
    values = rows(count, 48, seed=2)
    with torch.no_grad():
        weight = exact.weight.half().double()
        expected = values.double() @ weight.T + (exact.bias.double() if bias else 0)
        found = Float16Linear(exact.weight, exact.bias)(values)

    assert found.dtype == torch.float32
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6 * largest)


@pytest.mark.parametrize(
    ("dtype", "least"), [("float16", 0.99999), ("int8", 0.99)], ids=["float16", "int8"]
)
@pytest.mark.parametrize("preset", ["tiny", "modern"])
@pytest.mark.parametrize("embeddings", ["tied", "separate"])
def test_a_model_with_small_weights_says_nearly_the_same(
    preset: str, embeddings: str, dtype: Literal["float16", "int8"], least: float
) -> None:
    torch.manual_seed(1)
    shape = {"model_dim": 64, "ff_dim": 128, "num_heads": 4, "encoder_layers": 2}
    if preset == "modern":
        shape["num_kv_heads"] = 2
    config = ModelConfig.model_validate({
        **shape, "preset": preset, "decoder_layers": 2, "embeddings": embeddings,
    })  # fmt: skip
    model = build_model(config, 300, 300).eval()
    small = copy.deepcopy(model)
    quantize(small, dtype)
    source = torch.randint(4, 300, (3, 7))
    lengths = torch.tensor([7, 5, 2])
    with torch.inference_mode():
        found, expected = (each.start(source, lengths) for each in (small, model))
        for tokens in torch.randint(4, 300, (6, 3, 1)):
            new, found = small.step(found, tokens)
            old, expected = model.step(expected, tokens)
            likeness = torch.cosine_similarity(new.flatten(1), old.flatten(1), dim=1)
            assert float(likeness.min()) > least
    kinds = {type(module) for module in small.modules()}
    assert nn.Linear not in kinds
    assert {Float16Linear, Int8Linear} & kinds


# Inputs of a known range

RANGES = ((-2.0, 1.0), (-0.1, 3.0), (0.0, 1.5))
"""Wider below, wider above, and never negative."""


def by_hand(values: Tensor, exact: nn.Linear, low: float, high: float) -> Tensor:
    """Inputs get whole numbers from 0 to 255: 1 to 255 around 128, or all for what is never
    negative. Weights get -63 to 63, so that sums of two products fit into 16 bits."""
    weight = exact.weight.detach().double().numpy()
    scales = np.abs(weight).max(axis=1) / 63
    zero = 128 if low < 0 else 0
    step = max(high, -low) / 127 if low < 0 else high / 255
    inputs = np.clip(np.round(values.double().numpy() / step) + zero, 0, 255) - zero
    products = inputs @ np.round(weight / scales[:, None]).T * (step * scales)
    found = torch.from_numpy(products).float()
    return found if _bias(exact) is None else found + exact.bias.detach()


def _bias(module: nn.Linear) -> Tensor | None:
    return module.bias


def within(count: int, width: int, limits: tuple[float, float], seed: int = 1) -> Tensor:
    """Rows of numbers in a range."""
    generator = torch.Generator().manual_seed(seed)
    low, high = limits
    return torch.rand(count, width, generator=generator) * (high - low) + low


@pytest.mark.parametrize("limits", RANGES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 4), (64, 200)])
def test_inputs_of_a_known_range_are_rounded_as_by_hand(
    limits: tuple[float, float], bias: bool, inputs: int, outputs: int
) -> None:
    exact = layer(inputs, outputs, bias=bias)
    values = within(20, inputs, limits)
    with torch.no_grad():
        found, product = Int8Linear(exact.weight, exact.bias, limits)(values), exact(values)

    expected = by_hand(values, exact, *limits)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    errors = (found - product).norm(dim=1) / product.norm(dim=1)
    assert float(errors.max()) < 0.05


@pytest.mark.parametrize("limits", RANGES)
@pytest.mark.parametrize("narrowed", [False, True])
def test_what_is_beyond_the_range_is_cut(limits: tuple[float, float], narrowed: bool) -> None:
    exact = layer(16, 6, bias=True)
    values = within(8, 16, limits)
    values[:, ::4] *= 1000
    with torch.no_grad():
        small = Int8Linear(exact.weight, exact.bias, limits)
        found = small.narrow(torch.arange(6))(values) if narrowed else small(values)

    torch.testing.assert_close(found, by_hand(values, exact, *limits), rtol=1e-4, atol=1e-4)
    largest = 1.02 * max(-limits[0], limits[1]) * exact.weight.abs().sum(1) + exact.bias.abs()
    assert bool((found.abs() <= largest).all())


@pytest.mark.parametrize("factor", [1.0, 1.5, 3.0, 100.0])
def test_no_sum_overflows(factor: float) -> None:
    """The largest inputs meet the largest weights, everywhere."""
    small = Int8Linear(torch.ones(5, 64), None, (-2.0, 2.0))
    inputs = torch.full((3, 64), 2.0 * factor)
    for product in (small, small.narrow(torch.arange(5))):
        torch.testing.assert_close(product(inputs), torch.full((3, 5), 128.0))
        lowest = 128.0 if factor == 1 else 128.0 * 128 / 127  # there is one number more below 0
        torch.testing.assert_close(product(-inputs), torch.full((3, 5), -lowest))
    positive = Int8Linear(-torch.ones(5, 64), None, (0.0, 2.0))
    torch.testing.assert_close(positive(inputs), torch.full((3, 5), -128.0))


@given(
    count=st.integers(1, 9),
    row=st.integers(0, 8),
    seed=st.integers(0, 99),
    limits=st.sampled_from(RANGES),
    narrowed=st.booleans(),
)
def test_with_a_known_range_a_row_does_not_depend_on_the_others(
    count: int, row: int, seed: int, limits: tuple[float, float], narrowed: bool
) -> None:
    """To the bit, and whatever the rows are: most are far beyond the range."""
    quantized = Int8Linear(*_parameters(layer(24, 40, bias=True)), limits)
    product = quantized.narrow(torch.tensor([0, 3, 4, 17, 39])) if narrowed else quantized
    values = rows(count, 24, seed)
    row %= count

    assert torch.equal(product(values)[row], product(values[row : row + 1])[0])


def test_a_range_of_zeros_gives_the_bias() -> None:
    exact = layer(8, 4, bias=True)
    found = Int8Linear(exact.weight, exact.bias, (0.0, 0.0))(torch.zeros(2, 8))

    assert torch.equal(found, exact.bias.detach().expand(2, 4))


@pytest.mark.parametrize("limits", [None, *RANGES])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 6])
def test_few_outputs_are_columns_of_all(
    limits: tuple[float, float] | None, bias: bool, count: int
) -> None:
    exact = layer(48, 90, bias=bias)
    tokens = torch.tensor([0, 1, 2, 3, 7, 8, 40, 41, 42, 43, 60, 89])
    values = within(count, 48, limits or (-3.0, 2.0)).view(count, 1, 48)
    with torch.no_grad():
        for small in (
            Int8Linear(exact.weight, exact.bias, limits),
            Float16Linear(exact.weight, exact.bias),
        ):
            found, whole = small.narrow(tokens)(values), small(values)
            assert found.shape == (count, 1, 12)
            largest = float(whole.abs().max())
            torch.testing.assert_close(found, whole[..., tokens], rtol=1e-5, atol=1e-5 * largest)
            everything = small.narrow(torch.arange(90))(values)
            torch.testing.assert_close(everything, whole, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("limits", [None, *RANGES])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("width", [24, 1024])
def test_packed_or_not_few_outputs_are_the_same_to_the_bit(
    limits: tuple[float, float] | None, bias: bool, width: int
) -> None:
    """Also where all numbers are the largest there are, and a row of zeros gives the bias."""
    exact = layer(width, 40, bias=bias)
    with torch.no_grad():
        exact.weight[0], exact.weight[1] = 1.0, -1.0
        small = Int8Linear(exact.weight, exact.bias, limits)
    values = torch.cat((rows(6, width, 1), torch.zeros(1, width), torch.full((2, width), 5.0)))
    values[-1] *= -1
    tokens = torch.arange(40)
    plain = small.narrow(tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized_module, "_FEW", 0)
        packed = small.narrow(tokens)

    assert type(plain) is not type(packed)
    assert torch.equal(plain(values), packed(values))
    if bias:
        assert exact.bias is not None
        nothing = plain(torch.zeros(1, width))[0]
        torch.testing.assert_close(nothing, exact.bias.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bf16", "float16", "int8"])
@pytest.mark.parametrize("changes", [{}, {"output_bias": True, "embeddings": "separate"}])
@torch.no_grad()
def test_a_model_gives_the_logits_of_few_tokens_alone(
    dtype: Literal["float32", "bf16", "float16", "int8"], changes: dict[str, Any]
) -> None:
    model = test_transformer.small_model(**changes)
    if model.output_bias is not None:
        model.output_bias.normal_()
    if dtype == "bf16":
        model.to(torch.bfloat16)
    elif dtype != "float32":
        quantize(model, dtype)
    tokens = torch.tensor([0, 1, 2, 3, 8, 30, 49])
    hidden = torch.randn(5, model.output_weight.shape[1]).to(model.output_weight.dtype)
    whole = model.logits(hidden)

    tolerance = 0.02 if dtype == "bf16" else 1e-5
    torch.testing.assert_close(
        model.narrow_output(tokens)(hidden), whole[:, tokens], rtol=tolerance, atol=tolerance
    )


ARCHITECTURES: dict[str, dict[str, Any]] = {
    **test_transformer.VARIANTS,
    **{f"traced {name}": dict(changes) for name, changes in test_traced.VARIANTS.items()},
}


def read(model: Transformer) -> None:
    """Let a model read a few sentences with their translations."""
    lengths, target_lengths = [9, 4, 1, 6], [7, 7, 2, 1]
    test_transformer.logits_of(model, lengths, target_lengths)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_inputs_of_every_linear_layer_are_seen(name: str) -> None:
    """And nothing is left on the model."""
    model = test_transformer.small_model(**ARCHITECTURES[name])
    ranges = input_ranges(model, lambda: read(model))

    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert set(ranges) == linear | {"output_layer"}
    assert all(low <= 0 <= high and low < high for low, high in ranges.values())
    assert not any(x._forward_hooks or x._forward_pre_hooks for x in model.modules())
    for layer_name, (low, _) in ranges.items():
        is_activated = layer_name.endswith("feed_forward.outer")
        assert (low == 0) == (is_activated and model.config.activation == "relu")


def test_ranges_are_those_of_all_that_was_read() -> None:
    model = test_transformer.small_model(norm_position="pre")
    seen: dict[str, list[Tensor]] = {}
    first = model.get_submodule("decoder.0.feed_forward.inner")
    hooks = [
        first.register_forward_pre_hook(lambda _, x: seen.setdefault("inner", []).append(x[0])),
        model.decoder_norm.register_forward_hook(
            lambda _, __, out: seen.setdefault("output", []).append(out)
        ),
    ]

    def read_twice() -> None:
        test_transformer.logits_of(model, [9, 4], [7, 2])
        test_transformer.logits_of(model, [3], [5])

    ranges = input_ranges(model, read_twice)
    for hook in hooks:
        hook.remove()
    for key, name in (("inner", "decoder.0.feed_forward.inner"), ("output", "output_layer")):
        values = torch.cat([x.flatten() for x in seen[key]])
        assert ranges[name] == (float(values.min()), float(values.max()))


def test_where_reading_fails_nothing_is_left_on_the_model() -> None:
    model = test_transformer.small_model()

    def fail() -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        input_ranges(model, fail)
    assert not any(x._forward_hooks or x._forward_pre_hooks for x in model.modules())


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_a_model_with_fixed_ranges_says_nearly_the_same(name: str) -> None:
    model = test_transformer.small_model(**ARCHITECTURES[name])
    fixed, by_row = copy.deepcopy(model), copy.deepcopy(model)
    quantize(fixed, "int8", input_ranges(model, lambda: read(model)))
    quantize(by_row, "int8")
    source, lengths = torch.randint(4, 50, (3, 7)), torch.tensor([7, 5, 2])
    states = [each.start(source, lengths) for each in (model, fixed, by_row)]
    for tokens in torch.randint(4, 50, (5, 3, 1)):
        exact, ours, theirs = (
            each.step(state, tokens)
            for each, state in zip((model, fixed, by_row), states, strict=True)
        )
        states = [exact[1], ours[1], theirs[1]]
        assert float(torch.cosine_similarity(exact[0], ours[0], dim=-1).min()) > 0.95
        assert not torch.equal(ours[0], theirs[0])


@torch.no_grad()
def test_ranges_that_are_not_known_are_those_of_each_row() -> None:
    """As if there were none at all; other names and other dtypes do no harm."""
    plain, others = (test_transformer.small_model() for _ in range(2))
    quantize(plain, "int8")
    quantize(others, "int8", {"decoder.9.feed_forward.inner": (-1.0, 1.0)})
    source, lengths, tokens = (
        torch.randint(4, 50, (2, 5)),
        torch.tensor([5, 3]),
        torch.full((2, 1), 2),
    )
    logits = [each.step(each.start(source, lengths), tokens)[0] for each in (plain, others)]
    assert torch.equal(*logits)

    small = [test_transformer.small_model() for _ in range(2)]
    quantize(small[0], "float16")
    quantize(small[1], "float16", {"output_layer": (-1e-9, 1e-9)})
    logits = [each.step(each.start(source, lengths), tokens)[0] for each in small]
    assert torch.equal(*logits)
