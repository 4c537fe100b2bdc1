"""Compiled layers against the same layers as they are, which use another attention, too."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.device.compilation import compile_layers, compiled
from nmt.device.precision import Precision
from nmt.model.attention import Padding
from nmt.model.transformer import Transformer
from tests.compiling import Backend
from tests.model.small import VARIANTS, packed, random_parameters, results, small_model
from tests.training.small import batch_of, updater_of
from tests.training.small import small_model as model_to_train

# Torch warns itself of what it does when it reads code; `compile_layers` hides that, too.
pytestmark = pytest.mark.filterwarnings("ignore")

Shape = tuple[list[int], list[int]]

SHAPES: list[Shape] = [
    ([8, 8, 8, 7, 1], [1, 7, 8, 8, 8]),  # as many tokens on both sides as the model is wide
    ([3, 3], [4, 4]),
    ([4, 2, 7, 1], [4, 6, 3, 2]),
    ([9], [8]),  # one sentence
    ([16, 16, 16], [16, 16, 16]),  # no padding of any kind
    ([1, 1], [1, 1]),
    ([32, 5], [3, 40]),
    ([2] * 20, [5] * 20),
]


def two_models(**options: Any) -> tuple[Transformer, Transformer]:
    """The same model twice; the layers of the second are compiled."""
    models = small_model(**options), small_model(**options)
    for model in models:
        random_parameters(model)
    models[1].compile_layers(compiled)
    return models


def assert_alike(models: tuple[Transformer, Transformer], shape: Shape) -> None:
    expected, found = (results(model.train(), *shape) for model in models)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-6)


def hidden_of(model: Transformer, shape: Shape) -> Tensor:
    hidden: Tensor = model(packed(shape[0]), packed(shape[1]))
    return hidden


@pytest.mark.parametrize(
    ("variant", "counting"),
    [
        pytest.param("relative", "eager", marks=pytest.mark.long),
        pytest.param("modern", "eager", marks=pytest.mark.long),
        ("two-widths", "eager"),
        pytest.param("paper", "aot_eager", marks=pytest.mark.long),
    ],
    indirect=["counting"],
)
@pytest.mark.long
def test_loss_and_gradients_are_those_of_plain_layers(variant: str, counting: Backend) -> None:
    layers = {"encoder_layers": 1 + (variant != "paper"), "decoder_layers": 1}
    models = two_models(**{**VARIANTS[variant], **layers, "dropout": 0.0})
    for shape in SHAPES:
        assert_alike(models, shape)
    assert counting.num_graphs == 2


@pytest.mark.long
def test_one_compiled_graph_serves_all_layers_and_batches(counting: Backend) -> None:
    plain, model = two_models(encoder_layers=3, dropout=0.1)
    for shape in SHAPES:
        results(model.train(), *shape)
    assert counting.num_graphs == 2
    with torch.inference_mode():
        for shape in SHAPES:
            later, expected = hidden_of(model.eval(), shape), hidden_of(plain, shape)
            torch.testing.assert_close(later, expected, rtol=1e-4, atol=1e-5)
    assert counting.num_graphs == 4
    for shape in SHAPES:  # nor does it matter what came between
        results(model.train(), *shape)
    assert counting.num_graphs == 4


@pytest.mark.long
def test_weights_of_a_mixed_precision_share_their_graphs(counting: Backend) -> None:
    """All layers see the same dtypes, so that none is compiled for the first one alone."""
    _, model = two_models(norm_position="pre", norm="rms")
    with torch.autocast("cpu", torch.bfloat16):
        for shape in SHAPES[:4]:
            results(model.train(), *shape)
    assert counting.num_graphs == 2


@pytest.mark.long
@pytest.mark.parametrize("counting", ["aot_eager"], indirect=True)
def test_recomputing_layers_draws_the_same_dropout(counting: Backend) -> None:
    found = []
    _, model = two_models(encoder_layers=1, decoder_layers=1, dropout=0.3)
    for recompute in (False, True):
        model.recompute = recompute
        torch.manual_seed(7)
        found.append({**results(model.train(), *SHAPES[2]), "random": torch.get_rng_state()})
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert counting.num_graphs == 2
    assert not torch.equal(hidden_of(model, SHAPES[2]), hidden_of(model, SHAPES[2]))  # it was drawn


@pytest.mark.parametrize("lengths", [[3, 1, 2], [8], [8, 8], [9, 16]])
def test_unpadding_restores_tokens_and_gradients(lengths: list[int]) -> None:
    cells = Padding.of(packed(lengths))
    batch_size, width = cells.token.shape
    values = torch.randn(sum(lengths), 3, requires_grad=True)
    padded = cells.pad(values)
    assert (batch_size, width) == (max(len(lengths), 2), -(-max(lengths) // 8) * 8)
    for row, sentence in enumerate(values.split(lengths)):
        assert torch.equal(padded[row, : lengths[row]], sentence)
        assert cells.is_real[row].tolist() == [place < lengths[row] for place in range(width)]
    assert torch.equal(cells.unpad(padded), values)
    weights = torch.randn(padded.shape)
    (padded * weights).sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, cells.unpad(weights))
    leaf = padded.detach().requires_grad_()
    cells.unpad(leaf).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad[: len(lengths), :, 0] == 1, cells.is_real[: len(lengths)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_on_a_gpu_training_is_unchanged(precision: Any) -> None:
    device, losses = torch.device("cuda"), []
    for wanted in (False, True):
        model = model_to_train(model_dim=64, ff_dim=128, encoder_layers=2).to(device)
        updater = updater_of(model, precision=Precision(precision, "cuda"))
        warm_up = partial(updater.warm_up, batch_of([9, 5, 12]))
        found = compile_layers(wanted, device, switch=model.compile_layers, warm_up=warm_up)
        assert found.is_on == wanted
        batches = [batch_of([5 + step, 4, 3], step) for step in range(12)]
        losses.append([updater([batch], 1e-3).loss_sum for batch in batches])
    tolerance = 1e-4 if precision == "float32" else 2e-2
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
