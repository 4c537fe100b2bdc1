"""Activation checkpointing: less is kept, and nothing else is other than without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.model.transformer import Transformer
from tests.model.small import VARIANTS, packed, results, small_model

DROPOUT: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.2, "word_dropout": 0.1}


def model_of(*, recompute: bool, **options: Any) -> Transformer:
    model = small_model(**{**DROPOUT, **options}).train()
    model.recompute = recompute
    return model


def seeded(model: Transformer) -> dict[str, Tensor]:
    """Loss, gradients, and the state of the generator afterwards."""
    torch.manual_seed(7)
    return {**results(model, [5, 2, 7], [4, 6, 3]), "random": torch.get_rng_state()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradients_are_the_same_to_the_bit(variant: str) -> None:
    plain, saving = (seeded(model_of(recompute=x, **VARIANTS[variant])) for x in (False, True))
    torch.testing.assert_close(saving, plain, rtol=0, atol=0)


def test_less_is_kept_for_the_backward_pass_of_training() -> None:
    kept = []
    for recompute, training in ((False, True), (True, True), (False, False), (True, False)):
        sizes: list[int] = []

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model = model_of(recompute=recompute).train(training)
            model(packed([5, 2, 7]), packed([4, 6, 3]))
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]
    assert kept[2] == kept[3]
