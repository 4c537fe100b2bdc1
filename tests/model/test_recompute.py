"""Activation checkpointing: less is kept, and nothing else is other than without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.device.precision import Precision
from nmt.model.transformer import Transformer
from nmt.training.optimizer import build_optimizer, freeze
from tests.model.small import VARIANTS, packed, small_model
from tests.training.small import batch_of, updater_of

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


@pytest.mark.parametrize("part", ["encoder", "decoder", "source_vectors", "encoder.0"])
def test_frozen_parts_change_nothing(part: str) -> None:
    plain, saving = (model_of(recompute=recompute) for recompute in (False, True))
    for model in (plain, saving):
        freeze(model, [part])

    assert_same(results(saving), results(plain))


def test_under_autocast_the_same_rounding_is_made_again() -> None:
    found = []
    for recompute in (True, False):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model := model_of(recompute=recompute))
        loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    assert_same(*found)


def test_dropout_matters_to_these_tests() -> None:
    """Were dropout off, drawing other numbers in the second pass would go unseen."""
    model = model_of(recompute=True)
    first = loss_of(model)
    torch.manual_seed(8)
    batch = (packed([5, 2, 7]), packed([4, 6, 3]))

    assert not torch.equal(model(*batch), model(*batch))
    assert not torch.equal(first, loss_of(model.eval()))


@pytest.mark.parametrize(("recompute", "training"), [(False, True), (True, True), (True, False)])
def test_layers_run_again_in_the_backward_pass_of_training(recompute: bool, training: bool) -> None:
    model = model_of(recompute=recompute).train(training)
    runs = []
    for layer in (*model.encoder, *model.decoder):
        layer.register_forward_pre_hook(lambda own, _inputs: runs.append(id(own)))
    loss = loss_of(model)
    assert len(runs) == 4
    loss.backward()

    assert len(runs) == (8 if recompute and training else 4)
    assert len(set(runs)) == 4


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


@pytest.mark.parametrize(
    ("precision", "r_drop"), [("float32", 5.0), ("bfloat16", 0.0), ("float16", 0.0)]
)
def test_updates_make_the_same_weights(precision: Any, r_drop: float) -> None:
    found = []
    for recompute in (True, False):
        model = model_of(recompute=recompute)
        policy = Precision(precision, "cpu")
        optimizer = build_optimizer(model, OptimizerConfig(), policy.weight_dtype)
        updater = updater_of(model, optimizer, policy, clip_norm=1.0, r_drop=r_drop)
        torch.manual_seed(9)
        for step in range(3):
            updater([batch_of([5, 4], step), batch_of([3, 3], step)], 0.01)
        found.append(optimizer.weights())

    assert_same(*found)
