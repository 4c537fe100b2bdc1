"""Activation checkpointing: less is kept, and nothing else is other than without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.model.transformer import Transformer
from tests.model.small import VARIANTS, packed, small_model

DROPOUT: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.2, "word_dropout": 0.1}


def model_of(*, recompute: bool, **options: Any) -> Transformer:
    model = small_model(**{**DROPOUT, **options}).train()
    model.recompute = recompute
    return model


def loss_of(model: Transformer) -> Tensor:
    torch.manual_seed(7)
    target = packed([4, 6, 3])
    hidden = model(packed([5, 2, 7]), target)
    return F.cross_entropy(model.logits(hidden).float(), target.ids.roll(-1), reduction="sum")


def results(model: Transformer) -> dict[str, Tensor]:
    """Loss, gradients, and the state of the generator afterwards."""
    loss = loss_of(model)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "random": torch.get_rng_state(), **gradients}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradients_are_the_same_to_the_bit(variant: str) -> None:
    plain, saving = (
        model_of(recompute=recompute, **VARIANTS[variant]) for recompute in (False, True)
    )
    assert_same(results(saving), results(plain))


def test_less_is_kept_for_the_backward_pass() -> None:
    def kept(model: Transformer) -> int:
        sizes: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss_of(model)
        return sum(sizes)

    assert kept(model_of(recompute=True)) < 0.5 * kept(model_of(recompute=False))
