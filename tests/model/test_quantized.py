"""Small weights: close to float32, and every row for itself."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.model.factory import build_model
from nmt.model.quantized import Float16Linear, Int8Linear, quantize


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
