"""Muon against singular value decompositions, one matrix at a time, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.training.muon import orthogonalise
from nmt.training.parameters import is_matrix
from tests.training.test_rules import (
    DECAY,
    WARM_UP,
    close,
    drive,
    fused_model,
    naive_adamw,
    optimizer_of,
    slope,
    weights_of,
)
from tests.training.test_update import small_model

ROWS = {"query_key_value": [16, 8, 8], "key_value": [8, 8], "inner": [32, 32]}
"""Matrices one above the other in the weights of `fused_model`."""


def by_svd(matrix: Tensor, num_iterations: int) -> Tensor:
    """What `orthogonalise` must give: its polynomial, applied to the singular values alone."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / (values.norm() + 1e-7)
    for _ in range(num_iterations):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left * values @ right


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


@settings(max_examples=60)
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


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5)])
def test_five_iterations_bring_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.logspace(-2, 0, min(shape))  # the smallest is a hundredth of the largest
    found = orthogonalise((left * values @ right).unsqueeze(0), 5)[0]
    inner = left.T @ found @ right.T  # diagonal if the singular vectors were kept

    assert 0.66 < inner.diagonal().min() <= inner.diagonal().max() < 1.25
    torch.testing.assert_close(inner, inner.diagonal().diag(), rtol=0, atol=1e-4)


def test_a_matrix_of_zeros_stays_zero() -> None:
    assert torch.equal(orthogonalise(torch.zeros(2, 3, 4), 5), torch.zeros(2, 3, 4))


@pytest.mark.parametrize(("momentum", "num_iterations"), [(0.95, 5), (0.6, 3), (0.0, 5)])
def test_muon_steps_each_matrix_alone_and_leaves_the_rest_to_adamw(
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


def test_steps_of_muon_are_as_large_as_adamw_s() -> None:
    """Root mean square 0.2 at learning rate 1 (Liu et al. 2025)."""
    model = small_model()
    start = weights_of(model)
    optimizer = optimizer_of(model, kind="muon", weight_decay=0.0)
    optimizer.parameters.gradient.normal_(generator=torch.Generator().manual_seed(0))
    optimizer.step(1.0, 1.0)

    for name, weights in model.named_parameters():
        if is_matrix(name, weights):
            size = (weights.detach() - start[name]).square().mean().sqrt()
            assert 0.2 * 0.68 < size < 0.2 * 1.21, name
