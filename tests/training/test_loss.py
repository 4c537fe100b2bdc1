"""The loss against torch's own and against a hand-worked number."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.training.loss import LossFunction, choose_loss, chunked_loss, plain_loss

FORMS = [plain_loss, chunked_loss]


@pytest.mark.parametrize("form", FORMS)
def test_the_smoothed_loss_is_the_one_worked_by_hand(form: LossFunction) -> None:
    # Two entries with logits ln 3 and 0: probabilities 3/4 and 1/4. Smoothing 0.2 asks for
    # 0.9 and 0.1: loss = -0.9 ln(3/4) - 0.1 ln(1/4).
    weight = torch.tensor([[math.log(3)], [0.0]])
    nats, tokens = form(torch.ones(1, 1), weight, None, torch.tensor([0]), 0.2)

    assert tokens == 1
    assert float(nats) == pytest.approx(-0.9 * math.log(0.75) - 0.1 * math.log(0.25), abs=1e-6)


@settings(max_examples=30)
@given(
    rows=st.integers(1, 600),
    smoothing=st.sampled_from([0.0, 0.1]),
    has_bias=st.booleans(),
    scale=st.floats(0.1, 3),
)
def test_chunks_give_the_loss_and_gradients_of_torch_s_cross_entropy(
    rows: int, smoothing: float, has_bias: bool, scale: float
) -> None:
    torch.manual_seed(rows)
    values = [torch.randn(rows, 6), torch.randn(11, 6), torch.randn(11)]
    gold = torch.randint(0, 11, (rows,))
    results = []
    for chunked in (True, False):
        hidden, weight, bias = (value.clone().requires_grad_() for value in values)
        if chunked:
            used = bias if has_bias else None
            loss = chunked_loss(hidden, weight, used, gold, smoothing).nats
        else:
            logits = F.linear(hidden, weight, bias if has_bias else None)
            loss = F.cross_entropy(logits, gold, label_smoothing=smoothing, reduction="sum")
        (loss * scale).backward()
        gradients = [hidden.grad, weight.grad] + ([bias.grad] if has_bias else [])
        results.append((loss.detach(), gradients))

    (ours, our_gradients), (theirs, their_gradients) = results
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    for mine, other in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_losses_of_two_halves_add_up(form: LossFunction) -> None:
    hidden, weight, gold = torch.randn(7, 4), torch.randn(9, 4), torch.randint(0, 9, (7,))

    whole = form(hidden, weight, None, gold, 0.1)
    first = form(hidden[:3], weight, None, gold[:3], 0.1)
    second = form(hidden[3:], weight, None, gold[3:], 0.1)

    assert whole.tokens == first.tokens + second.tokens
    torch.testing.assert_close(whole.nats, first.nats + second.nats)


@pytest.mark.parametrize("form", FORMS)
def test_huge_logits_stay_finite(form: LossFunction) -> None:
    weight = torch.tensor([[1e4], [-1e4]])

    assert float(form(torch.ones(1, 1), weight, None, torch.tensor([1]), 0.0).nats) == 2e4


def test_chunks_are_chosen_for_float32_and_for_large_vocabularies_on_a_cpu() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")

    assert choose_loss(torch.float32, cpu, 8000) is chunked_loss
    assert choose_loss(torch.bfloat16, cpu, 8000) is plain_loss
    assert choose_loss(torch.bfloat16, cpu, 32_000) is chunked_loss
    assert choose_loss(torch.bfloat16, cuda, 8000) is plain_loss


def test_in_16_bits_the_gradient_of_the_weights_is_no_worse_for_the_chunks() -> None:
    """Many small parts are summed: in 16 bits, the last ones would be lost."""
    torch.manual_seed(1)
    rows, width, entries = 16_384, 8, 32
    hidden = torch.randn(rows, width).bfloat16()
    weight, bias = torch.randn(entries, width).bfloat16(), torch.randn(entries).bfloat16()
    gold = torch.randint(0, entries, (rows,))
    exact = [value.double().requires_grad_() for value in (weight, bias)]
    logits = F.linear(hidden.double(), *exact)
    F.cross_entropy(logits, gold, label_smoothing=0.1, reduction="sum").backward()

    def errors(form: LossFunction) -> list[float]:
        ours = [value.clone().requires_grad_() for value in (weight, bias)]
        form(hidden, ours[0], ours[1], gold, 0.1).nats.backward()
        return [
            float((mine.grad.double() - true.grad).norm() / true.grad.norm())
            for mine, true in zip(ours, exact, strict=True)
            if mine.grad is not None and true.grad is not None
        ]

    for chunked, plain in zip(errors(chunked_loss), errors(plain_loss), strict=True):
        assert chunked < max(1.5 * plain, 5e-3)
