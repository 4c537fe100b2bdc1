"""How many operators the host starts for an update and for a decoding step.

A GPU runs most of them faster than the host starts them. So their number is what an update of a
small model costs there, and it can be counted without a GPU. The model has the depth of the base
model (`configs/base.yaml`) and is narrow, because the widths do not matter. In a failure, the
message says what starts how many.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nmt.config.model import DecodingConfig, ModelConfig
from nmt.device.precision import Precision
from nmt.inference.stepper import ModelStepper
from nmt.inference.torch_engine import TorchEngine
from nmt.model.layers import CrossAttention, FeedForward, Residual, SelfAttention
from nmt.model.positions import Embedding
from nmt.model.transformer import build_model
from nmt.search.beam import BeamSelector
from nmt.search.rules import Rules
from nmt.search.selector import BeamState
from nmt.training.losses import CrossEntropy
from nmt.training.optimizer import ModelOptimizer
from nmt.training.update import Updater
from tests.operators import Causes, counted, table
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizers import optimizer_of

DEPTH = {"encoder_layers": 6, "decoder_layers": 6}
IN_LAYERS: dict[str, type[nn.Module]] = {
    "self-attention": SelfAttention,
    "cross-attention": CrossAttention,
    "feed-forward": FeedForward,
    "residual, dropout, norm": Residual,
}
NUM_LAYERS = sum(DEPTH.values())


@pytest.fixture
def causes(monkeypatch: pytest.MonkeyPatch) -> Causes:
    causes = Causes(monkeypatch)
    for cause, kind in IN_LAYERS.items():
        causes.name(kind, "forward", cause)
    causes.name(Embedding, "forward", "embedding")
    return causes


def with_compiled_layers(counts: Counter[str]) -> int:
    """The number of operators if each pass through a compiled layer is one."""
    in_layers = (counts[cause] + counts[f"{cause}, backward"] for cause in IN_LAYERS)
    return counts.total() - sum(in_layers) + 2 * NUM_LAYERS


@pytest.mark.parametrize(
    ("kind", "precision", "shape", "most", "most_with_compiled_layers"),
    [
        ("adamw", FLOAT32, {}, 990, 115),
        ("muon", BF16, {}, 1065, 190),
        ("muon", BF16, {"positions": "rotary", "norm_position": "pre"}, 1345, 190),
    ],
    ids=["base", "muon", "rotary"],
)
def test_an_update_starts_few_operators(
    kind: str,
    precision: Precision,
    shape: dict[str, str],
    most: int,
    most_with_compiled_layers: int,
    causes: Causes,
) -> None:
    causes.name(CrossEntropy, "__call__", "loss")
    causes.name(ModelOptimizer, "step", "optimizer")
    causes.name(Updater, "__call__", "batch, clipping, statistics")
    model = small_model(dropout=0.1, **DEPTH, **shape)
    dtype = precision.weight_dtype
    optimizer = optimizer_of(model, kind=kind, dtype=dtype, weight_decay=0.0)
    updater = updater_of(model, optimizer, precision)
    updater([batch_of([4, 2])], 0.01)
    batch = batch_of([5, 3, 4])
    with counted() as counts:
        updater([batch], 0.01)
    assert counts.total() <= most, table(counts)
    assert with_compiled_layers(counts) <= most_with_compiled_layers, table(counts)
    assert counts["gradients of parameters"] == 0, table(counts)


def test_a_decoding_step_starts_few_operators(causes: Causes) -> None:
    causes.name(ModelStepper, "step", "output layer")
    causes.name(ModelStepper, "select", "reordered caches")
    causes.name(Rules, "__call__", "rules")
    causes.name(BeamSelector, "select", "choice of hypotheses")
    causes.name(BeamState, "advance", "histories")
    torch.manual_seed(1)
    shape = {"model_dim": 16, "ff_dim": 32, "num_heads": 2}
    model = build_model(ModelConfig.model_validate(shape), 4096, 4096)
    engine = TorchEngine(model, is_final=True)

    def searched(num_steps: int) -> Counter[str]:
        # No output ends before its maximum length.
        options = DecodingConfig(
            beam_size=5, max_length_factor=0.0, max_length_offset=num_steps - 1
        )
        with counted() as counts:
            engine.search([[5, 6, 7, 8], [9, 10, 11, 12, 13, 14]], options)
        return counts

    step = searched(11) - searched(10)
    assert 6 * 12 < step.total() <= 145, table(step)


def test_operators_are_counted_with_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sums:
        def of(self, values: torch.Tensor) -> torch.Tensor:
            return values.square().sum()

    Causes(monkeypatch).name(Sums, "of", "sums")
    weight = torch.ones(2, 2, requires_grad=True)
    values = torch.ones(3, 2)
    F.linear(values, weight).sum().backward()
    with counted() as counts:
        products = F.linear(values, weight).view(6)  # a product; its views do not count
        loss = Sums().of(products)  # a square (`pow`) and a sum
        loss.backward()  # begins with a gradient of ones
    # Backward: 2 * values * gradient are three operators for a square, and one product for the
    # product. The gradient is added to the earlier one.
    expected = {"other": 2, "sums": 2, "sums, backward": 3, "other, backward": 1}
    assert counts == {**expected, "gradients of parameters": 1}, table(counts)
