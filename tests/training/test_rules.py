"""Each rule against a plain twin that works one parameter at a time, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.model.transformer import Transformer
from nmt.training.optimizer import Optimizer, build_optimizer
from nmt.training.parameters import is_matrix
from nmt.training.rule import AdamW
from nmt.training.schedule_free import ScheduleFreeAdamW
from tests.training.test_update import small_model

KINDS = ("adamw", "schedule-free", "muon")
WARM_UP = (0.0, 0.01, 0.02, 0.03, 0.03, 0.03)
EPSILON, DECAY = 0.1, 0.5
NOT_SKIPPED = torch.zeros(())


def fused_model() -> Transformer:
    return small_model(activation="swiglu", num_kv_heads=1)


def optimizer_of(
    model: Transformer,
    *,
    ema_decay: float | None = None,
    dtype: torch.dtype = torch.float32,
    **options: object,
) -> Optimizer:
    values = {"epsilon": EPSILON, "weight_decay": DECAY, **options}
    config = OptimizerConfig.model_validate(values)
    return build_optimizer(model, config, dtype, ema_decay=ema_decay)


def slope(weights: Tensor) -> Tensor:
    """A gradient that depends on where it is taken."""
    return torch.sin(5 * weights + 1)


def drive(model: Transformer, optimizer: Optimizer, learning_rates: Sequence[float]) -> None:
    for learning_rate in learning_rates:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(slope(parameter.detach()))
        optimizer.parameters.accumulate()
        optimizer.step(learning_rate, 1.0)


def weights_of(model: Transformer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def close(ours: Tensor, theirs: Tensor, name: str, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=tolerance, msg=name)


def naive_adamw(
    weights: Tensor, rates: Sequence[float], betas: tuple[float, float], decay: float
) -> Tensor:
    weights = weights.double()
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for count, rate in enumerate(rates, 1):
        gradient = slope(weights)
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        scale = (square / (1 - betas[1] ** count)).sqrt() + EPSILON
        step = mean / (1 - betas[0] ** count) / scale
        weights = weights - rate * (step + decay * weights)
    return weights


def naive_schedule_free(
    start: Tensor, rates: Sequence[float], betas: tuple[float, float], decay: float
) -> tuple[Tensor, Tensor]:
    """Return the points y and x of algorithm 1 (Defazio et al. 2024), all three points kept."""
    x = z = y = start.double()
    square, total = torch.zeros_like(x), 0.0
    for count, rate in enumerate(rates, 1):
        gradient = slope(y)
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        scale = (square / (1 - betas[1] ** count)).sqrt() + EPSILON
        z = z - rate * (gradient / scale + decay * y)
        total += rate**2
        share = rate**2 / total if total else 0.0
        x = (1 - share) * x + share * z
        y = (1 - betas[0]) * z + betas[0] * x
    return y, x


@settings(max_examples=40)
@given(
    size=st.integers(1, 200),
    share=st.floats(0, 1),
    rates=st.lists(st.floats(0, 0.1), min_size=1, max_size=5),
)
def test_adamw_is_torch_s_to_the_bit(size: int, share: float, rates: list[float]) -> None:
    torch.manual_seed(size)
    weights, gradient, cut = torch.randn(size), torch.zeros(size), round(share * size)
    config = OptimizerConfig(weight_decay=DECAY)
    pieces = ((weights[:cut], DECAY), (weights[cut:], 0.0))
    groups = [
        {"params": [torch.nn.Parameter(piece.clone())], "weight_decay": decay}
        for piece, decay in pieces
        if len(piece)
    ]
    theirs = torch.optim.AdamW(groups, betas=config.betas, eps=config.epsilon, fused=True)
    ours = AdamW(weights, gradient, config, num_decayed=cut)
    parameters = [group["params"][0] for group in theirs.param_groups]
    for rate in rates:
        gradient.copy_(torch.randn(size))
        sizes = [len(parameter) for parameter in parameters]
        for parameter, own in zip(parameters, gradient.split(sizes), strict=True):
            parameter.grad = own.clone()
        for group in theirs.param_groups:
            group["lr"] = rate
        ours.step(rate, NOT_SKIPPED)
        theirs.step()

    assert torch.equal(weights, torch.cat([parameter.detach() for parameter in parameters]))


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.5, 0.9)])
def test_adamw_decays_the_matrices_of_the_layers_only(betas: tuple[float, float]) -> None:
    model = fused_model()
    start = weights_of(model)
    drive(model, optimizer_of(model, betas=betas), WARM_UP)

    for name, weights in model.named_parameters():
        decay = DECAY if is_matrix(name, weights) else 0.0
        close(weights.detach(), naive_adamw(start[name], WARM_UP, betas, decay), name)


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.5, 0.9)])
def test_schedule_free_trains_at_y_and_gives_x(betas: tuple[float, float]) -> None:
    model = fused_model()
    start = weights_of(model)
    optimizer = optimizer_of(model, kind="schedule-free", betas=betas)
    drive(model, optimizer, WARM_UP)
    used = optimizer.weights()

    for name, weights in model.named_parameters():
        decay = DECAY if is_matrix(name, weights) else 0.0
        y, x = naive_schedule_free(start[name], WARM_UP, betas, decay)
        close(weights.detach(), y, name)
        close(used[name], x, name)


@settings(max_examples=40)
@given(
    rates=st.lists(st.floats(0, 0.05), min_size=1, max_size=8),
    placed=st.sampled_from([0.5, 0.9, 0.98]),
    num_decayed=st.integers(0, 9),
)
def test_schedule_free_follows_any_learning_rate(
    rates: list[float], placed: float, num_decayed: int
) -> None:
    config = OptimizerConfig(betas=(placed, 0.95), epsilon=EPSILON, weight_decay=DECAY)
    weights = torch.linspace(-1, 1, 9, dtype=torch.float64)
    gradient = torch.zeros_like(weights)
    decays = [DECAY] * num_decayed + [0.0] * (9 - num_decayed)
    expected = [naive_schedule_free(weights[i], rates, config.betas, decays[i]) for i in range(9)]
    rule = ScheduleFreeAdamW(weights, gradient, config, num_decayed=num_decayed)
    for rate in rates:
        gradient.copy_(slope(weights))
        rule.step(rate, NOT_SKIPPED)

    close(weights, torch.stack([y for y, _ in expected]), "y", 1e-10)
    close(rule.used(), torch.stack([x for _, x in expected]), "x", 1e-10)


def test_at_a_constant_rate_schedule_free_uses_the_mean_of_its_steps() -> None:
    model = small_model()
    optimizer = optimizer_of(model, kind="schedule-free")
    points = []
    for _ in range(5):
        drive(model, optimizer, [0.02])
        points.append(optimizer.state()["z/source_vectors"].clone())

    close(optimizer.weights()["source_vectors"], torch.stack(points).double().mean(0), "x")
