"""R-Drop against torch's own functions and autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.model.transformer import Transformer
from nmt.training import r_drop
from nmt.training.loss import chunked_loss
from nmt.training.optimizer import build_optimizer
from nmt.training.r_drop import r_drop_loss
from nmt.training.update import Updater
from tests.training.test_rules import optimizer_of
from tests.training.test_update import FLOAT32, batch_of, small_model

VOCAB_SIZE, DIM = 11, 6


def values_of(rows: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """States of two passes, weight and bias, which ask for a gradient; and ids to predict."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, DIM), (rows, DIM), (VOCAB_SIZE, DIM), (VOCAB_SIZE,))
    values = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    return values, torch.randint(0, VOCAB_SIZE, (rows,), generator=generator)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q), of logits; torch takes the arguments the other way round."""
    return F.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="sum")


def naive(
    logits: tuple[Tensor, Tensor], gold: Tensor, *, smoothing: float, strength: float
) -> Tensor:
    entropies = [
        F.cross_entropy(one, gold, label_smoothing=smoothing, reduction="sum") for one in logits
    ]
    one, two = logits
    between = divergence(one, two) + divergence(two, one)
    return torch.stack(entropies).sum() / 2 + strength / 4 * between


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-4) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def test_the_objective_is_the_one_worked_by_hand() -> None:
    # Two entries: p = (3/4, 1/4) and q = (1/2, 1/2), the first is right. Cross-entropy: ln(4/3)
    # and ln 2. KL(p||q) + KL(q||p) = sum of (p - q) ln(p/q) = ln(3/2)/4 - ln(1/2)/4 = ln(3)/4.
    weight = torch.tensor([[1.0], [0.0]])
    hidden = torch.log(torch.tensor([[3.0]])), torch.zeros(1, 1)
    found = r_drop_loss(hidden, weight, None, torch.tensor([0]), smoothing=0.0, strength=5.0)

    expected = (torch.tensor(4 / 3).log() + torch.tensor(2.0).log()) / 2
    expected += 5 / 4 * torch.tensor(3.0).log() / 4
    torch.testing.assert_close(found, expected)


@settings(max_examples=40)
@given(
    rows=st.integers(1, 600),
    smoothing=st.sampled_from([0.0, 0.1]),
    strength=st.sampled_from([0.0, 1.0, 5.0]),
    has_bias=st.booleans(),
    scale=st.floats(0.1, 3),
)
def test_loss_and_gradients_are_those_of_autograd(
    rows: int, smoothing: float, strength: float, has_bias: bool, scale: float
) -> None:
    values, gold = values_of(rows, seed=rows)
    wanted = values if has_bias else values[:-1]
    one, two, weight, bias = values
    used = bias if has_bias else None
    options = {"smoothing": smoothing, "strength": strength}
    logits = F.linear(one, weight, used), F.linear(two, weight, used)
    theirs = naive(logits, gold, **options)
    ours = r_drop_loss((one, two), weight, used, gold, **options)

    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    assert_close(
        list(torch.autograd.grad(ours * scale, wanted)),
        list(torch.autograd.grad(theirs * scale, wanted)),
    )


@settings(max_examples=20)
@given(rows=st.integers(1, 60), chunk=st.integers(1, 70))
def test_the_size_of_chunks_changes_nothing(rows: int, chunk: int) -> None:
    (one, two, weight, bias), gold = values_of(rows)
    results = []
    for size in (chunk, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(r_drop, "_ROWS_PER_CHUNK", size)
            loss = r_drop_loss((one, two), weight, bias, gold, smoothing=0.1, strength=5.0)
        results.append([loss, *torch.autograd.grad(loss, (one, two, weight, bias))])

    assert_close(results[0], results[1], tolerance=1e-5)


def test_the_order_of_the_passes_changes_nothing() -> None:
    (one, two, weight, bias), gold = values_of(7)
    there, back = (
        r_drop_loss(pair, weight, bias, gold, smoothing=0.1, strength=5.0)
        for pair in ((one, two), (two, one))
    )

    torch.testing.assert_close(there, back)


@pytest.mark.parametrize("strength", [0.0, 5.0])
def test_equal_passes_give_the_plain_loss(strength: float) -> None:
    (one, _, weight, bias), gold = values_of(9)
    both = r_drop_loss((one, one), weight, bias, gold, smoothing=0.1, strength=strength)
    plain = chunked_loss(one, weight, bias, gold, 0.1).nats

    torch.testing.assert_close(both, plain)
    inputs = (one, weight, bias)
    assert_close(list(torch.autograd.grad(both, inputs)), list(torch.autograd.grad(plain, inputs)))


def test_rounded_states_give_gradients_near_the_exact_ones_in_the_dtype_of_each() -> None:
    """As under autocast: states in bf16, weights in float32."""
    values, gold = values_of(40)
    one, two, weight, bias = values
    exact = r_drop_loss((one, two), weight, bias, gold, smoothing=0.1, strength=1.0)
    rounded = [one.detach().bfloat16(), two.detach().bfloat16()]
    states = [tensor.requires_grad_() for tensor in rounded]
    found = r_drop_loss((states[0], states[1]), weight, bias, gold, smoothing=0.1, strength=1.0)

    torch.testing.assert_close(found, exact, rtol=0.02, atol=0)
    ours = torch.autograd.grad(found, (*states, weight, bias))
    theirs = torch.autograd.grad(exact, values)
    assert [tensor.dtype for tensor in ours] == [torch.bfloat16] * 2 + [torch.float32] * 2
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.float() - other).norm() < 0.03 * other.norm()


def gradient_of(model: Transformer, strength: float) -> tuple[Tensor, Tensor]:
    """Loss and whole gradient that an update with R-Drop works out."""
    optimizer = build_optimizer(model, OptimizerConfig(), torch.float32)
    updater = Updater(
        model, optimizer, FLOAT32, label_smoothing=0.1, clip_norm=0.0, r_drop=strength
    )
    torch.manual_seed(5)
    updater._sum([batch_of([5, 4])], 1.0)
    return optimizer.parameters.sums[0], optimizer.parameters.gradient


@pytest.mark.parametrize("strength", [0.0, 0.5, 5.0])
def test_an_update_makes_two_passes_with_other_dropout_or_one(strength: float) -> None:
    model, twin = small_model(dropout=0.3), small_model(dropout=0.3)
    nats, gradient = gradient_of(model, strength)
    batch = batch_of([5, 4])
    gold = batch.target_output.flatten()[batch.target_index]
    flat = optimizer_of(twin).parameters
    torch.manual_seed(5)
    passes = [
        twin.logits(twin(batch.source, batch.source_index, batch.target_input, batch.target_index))
        for _ in range(2)
    ]
    assert not torch.equal(*passes)
    if strength:
        expected = naive((passes[0], passes[1]), gold, smoothing=0.1, strength=strength)
    else:
        expected = F.cross_entropy(passes[0], gold, label_smoothing=0.1, reduction="sum")
    expected.backward()

    torch.testing.assert_close(nats, expected.detach())
    assert_close([gradient], [flat.gradient])
