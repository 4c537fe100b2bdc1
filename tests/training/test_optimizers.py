"""Each optimizer against a simple float64 implementation for one parameter at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.model.transformer import Transformer
from nmt.training.optimizer import AdamW, FlatParameters, ModelOptimizer, is_matrix
from nmt.training.optimizers import orthogonalise
from tests.training.small import small_model

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
) -> ModelOptimizer:
    values = {"epsilon": EPSILON, "weight_decay": DECAY, **options}
    config = OptimizerConfig.model_validate(values)
    return ModelOptimizer(model, config, dtype, ema_decay=ema_decay)


def flat_of(values: Tensor, matrix_size: int) -> FlatParameters:
    """Parameters of which the first are a matrix, and so decayed, and the rest a vector."""
    model = torch.nn.Module()
    model.encoder = torch.nn.Module()
    if matrix_size:
        model.encoder.matrix = torch.nn.Parameter(values[:matrix_size].unsqueeze(0).clone())
    if matrix_size < len(values):
        model.encoder.vector = torch.nn.Parameter(values[matrix_size:].clone())
    return FlatParameters(model, torch.float32)


def slope(weights: Tensor) -> Tensor:
    """A gradient that depends on where it is taken."""
    return torch.sin(5 * weights + 1)


def drive(model: Transformer, optimizer: ModelOptimizer, learning_rates: Sequence[float]) -> None:
    flat = optimizer.parameters
    for learning_rate in learning_rates:
        flat.accumulate()
        for name, gradient in flat.views(flat.gradient).items():
            gradient.copy_(slope(model.get_parameter(name).detach()))
        optimizer.step(learning_rate, 1.0, NOT_SKIPPED)


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


@given(
    size=st.integers(1, 200),
    share=st.floats(0, 1),
    rates=st.lists(st.floats(0, 0.1), min_size=1, max_size=5),
    decay=st.sampled_from([0.0, DECAY]),
)
def test_adamw_is_bit_exact_with_torch(
    size: int, share: float, rates: list[float], decay: float
) -> None:
    torch.manual_seed(size)
    cut = round(share * size)
    parameters = flat_of(torch.randn(size), cut)
    weights, gradient = parameters.weights, parameters.gradient
    config = OptimizerConfig(weight_decay=decay)
    pieces = [(weights, 0.0)]
    if decay:
        pieces = [(weights[:cut], decay), (weights[cut:], 0.0)]
    groups = [
        {"params": [torch.nn.Parameter(piece.clone())], "weight_decay": decay_of_piece}
        for piece, decay_of_piece in pieces
        if len(piece)
    ]
    theirs = torch.optim.AdamW(groups, betas=config.betas, eps=config.epsilon, fused=True)
    ours = AdamW(parameters, config)
    copies = [group["params"][0] for group in theirs.param_groups]
    for rate in rates:
        gradient.copy_(torch.randn(size))
        sizes = [len(parameter) for parameter in copies]
        for parameter, own in zip(copies, gradient.split(sizes), strict=True):
            parameter.grad = own.clone()
        for group in theirs.param_groups:
            group["lr"] = rate
        ours.step(rate, NOT_SKIPPED)
        theirs.step()
    assert torch.equal(weights, torch.cat([parameter.detach() for parameter in copies]))


@pytest.mark.parametrize("betas", [(0.9, 0.98), (0.5, 0.9)])
@pytest.mark.parametrize("kind", ["adamw", "schedule-free"])
def test_adamw_decays_the_matrices_only_and_schedule_free_trains_at_y_and_gives_x(
    kind: str, betas: tuple[float, float]
) -> None:
    model = fused_model()
    start = weights_of(model)
    optimizer = optimizer_of(model, kind=kind, betas=betas)
    drive(model, optimizer, WARM_UP)
    used = optimizer.weights()
    for name, weights in model.named_parameters():
        decay = DECAY if is_matrix(name, weights) else 0.0
        if kind == "adamw":
            y = x = naive_adamw(start[name], WARM_UP, betas, decay)
        else:
            y, x = naive_schedule_free(start[name], WARM_UP, betas, decay)
        close(weights.detach(), y, name)
        close(used[name], x, name)


ROWS = {"query_key_value": [16, 8, 8], "key_value": [8, 8], "inner": [32, 32]}
"""Matrices one above the other in the weights of `fused_model`."""


JORDAN = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan et al. (2024)."""
TWO = [(6.7524, -18.3510, 13.2633), (2.5379, -1.8747, 0.4413)]
"""Coefficients of two iterations."""


def by_svd(matrix: Tensor, num_iterations: int) -> Tensor:
    """What `orthogonalise` must give: its polynomials, applied to the singular values alone."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / (values.norm() + 1e-7)
    polynomials = [JORDAN] * num_iterations
    if num_iterations == 2:
        polynomials = TWO
        squared_bound = (values**4).sum().sqrt() + 1e-7
        values = values / squared_bound.sqrt()
    for a, b, c in polynomials:
        values = a * values + b * values**3 + c * values**5
    return left * values @ right


def test_two_iterations_have_the_best_polynomials() -> None:
    """Each polynomial deviates from 1 least, and equally often up and down (Chebyshev)."""
    lowest, highest = 0.05, 1.0
    for a, b, c in TWO:
        values = torch.linspace(lowest, highest, 100_001, dtype=torch.float64)
        found = a * values + b * values**3 + c * values**5
        error = (found - 1).abs().max().item()
        # A minimax polynomial with three coefficients has four extremes of the same size.
        slopes = a + 3 * b * values**2 + 5 * c * values**4
        is_turn = slopes[1:].sign() != slopes[:-1].sign()
        extremes = torch.cat([found[:1], found[1:][is_turn], found[-1:]]) - 1
        signs = torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64)
        torch.testing.assert_close(extremes, error * signs, rtol=0, atol=2e-3)
        lowest, highest = 1 - error, 1 + error


def naive_muon(
    weights: Tensor, rates: Sequence[float], *, momentum: float, num_iterations: int
) -> Tensor:
    weights = weights.double()
    mean = torch.zeros_like(weights)
    for rate in rates:
        gradient = slope(weights)
        mean = momentum * mean + (1 - momentum) * gradient
        ahead = momentum * mean + (1 - momentum) * gradient
        step = 0.2 * max(weights.shape) ** 0.5 * by_svd(ahead, num_iterations)
        weights = (1 - rate * DECAY) * weights - rate * step
    return weights


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    iterations=st.integers(1, 6),
)
def test_orthogonalise_changes_the_singular_values_only(
    rows: int, columns: int, seed: int, scale: float, iterations: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.randn(2, rows, columns, generator=generator, dtype=torch.float64) * scale
    found = orthogonalise(matrices, iterations)
    expected = torch.stack([by_svd(matrix, iterations) for matrix in matrices])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(orthogonalise(matrices.mT, iterations).mT, found)


@pytest.mark.parametrize(("momentum", "num_iterations"), [(0.95, 5), (0.6, 3), (0.0, 5)])
def test_muon_updates_each_matrix_and_adamw_the_other_parameters(
    momentum: float, num_iterations: int
) -> None:
    model = fused_model()
    start = weights_of(model)
    optimizer = optimizer_of(
        model, kind="muon", momentum=momentum, newton_schulz_steps=num_iterations
    )
    drive(model, optimizer, WARM_UP)
    for name, weights in model.named_parameters():
        if not is_matrix(name, weights):
            expected = naive_adamw(start[name], WARM_UP, (0.9, 0.98), 0.0)
        else:
            blocks = start[name].split(ROWS.get(name.split(".")[-2], [len(weights)]))
            expected = torch.cat(
                [
                    naive_muon(block, WARM_UP, momentum=momentum, num_iterations=num_iterations)
                    for block in blocks
                ]
            )
        close(weights.detach(), expected, name)


def test_muon_trains_a_model_without_trained_matrices() -> None:
    model = small_model()
    model.encoder.requires_grad_(requires_grad=False)
    model.decoder.requires_grad_(requires_grad=False)
    start = weights_of(model)
    drive(model, optimizer_of(model, kind="muon"), WARM_UP)
    expected = naive_adamw(start["source_vectors"], WARM_UP, (0.9, 0.98), 0.0)
    close(model.source_vectors.detach(), expected, "source_vectors")


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [(torch.float32, 0, 1e-5), (torch.bfloat16, 1e-3, 0.03)]
)
def test_muon_has_the_dtype_of_the_training(dtype: torch.dtype, least: float, most: float) -> None:
    options = {"momentum": 0.0, "newton_schulz_steps": 3, "weight_decay": 0.0}
    optimizer = optimizer_of(small_model(), kind="muon", dtype=dtype, **options)
    parameters = optimizer.parameters
    before, size = parameters.weights.clone(), parameters.matrix_size
    gradient = parameters.gradient.normal_(generator=torch.Generator().manual_seed(0)).clone()
    optimizer.step(1.0, 1.0, NOT_SKIPPED)
    steps = parameters.matrices((before - parameters.weights)[:size])
    for step, matrix in zip(steps, parameters.matrices(gradient[:size]), strict=True):
        exact = 0.2 * max(matrix.shape) ** 0.5 * by_svd(matrix, 3)
        assert least <= (step - exact).norm() / exact.norm() < most
