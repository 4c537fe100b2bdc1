"""A loss, an optimizer or a schedule can be added by one file and its registration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nmt.config.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from nmt.data.loader import Batch
from nmt.model.transformer import Transformer
from nmt.training.losses import LOSSES, LossSum, loss_name
from nmt.training.optimizer import OPTIMIZERS, ModelOptimizer, OptimizerConstructor, is_matrix
from nmt.training.optimizers import from_torch
from nmt.training.schedule import SCHEDULES, build_schedule
from tests.training.small import batch_of, small_model, updater_of
from tests.training.test_optimizer import assert_same, everything


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave them as they were."""
    for registry in (LOSSES, OPTIMIZERS, SCHEDULES):
        monkeypatch.setattr(registry, "_entries", dict(vars(registry)["_entries"]))


class SquaredError:
    """A toy loss: squared distance of each state from the vector of the right subword."""

    def __call__(self, model: Transformer, batch: Batch) -> LossSum:
        aim = model.output_weight[batch.gold]
        loss = (model(batch.source, batch.target) - aim).square().sum()
        return LossSum(loss, batch.num_target_tokens)


def test_a_loss() -> None:
    LOSSES.register("squared_error", lambda _config: SquaredError())
    config = TrainingConfig(max_steps=1, loss="squared_error")
    updater = updater_of(small_model())
    updater.objective = LOSSES[loss_name(config)](config)
    found = [updater([batch_of([5, 3])], 0.01).loss_sum for _ in range(5)]
    first = SquaredError()(small_model(), batch_of([5, 3])).loss_sum
    assert found[0] == pytest.approx(first.item())
    assert found[-1] < found[0]


def test_a_schedule() -> None:
    SCHEDULES.register("steps", lambda config, _dim, _total: lambda n: config.peak_lr / n)
    rate = build_schedule(ScheduleConfig(shape="steps", peak_lr=1.0), model_dim=8, total_steps=None)
    assert rate(4) == 0.25


TORCH: dict[str, tuple[OptimizerConstructor, Callable[[list[Any]], torch.optim.Optimizer]]] = {
    "sgd": (
        from_torch(torch.optim.SGD, lambda config: {"momentum": config.momentum}),
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.95),
    ),
    "adafactor": (
        from_torch(torch.optim.Adafactor),
        lambda groups: torch.optim.Adafactor(groups, 0.1),
    ),
    "adam": (from_torch(torch.optim.Adam), lambda groups: torch.optim.Adam(groups, 0.1)),
}


def optimizer_of(kind: str, model: Transformer, **options: object) -> ModelOptimizer:
    OPTIMIZERS.register(kind, TORCH[kind][0])
    config = OptimizerConfig.model_validate({"kind": kind, "weight_decay": 0.1, **options})
    return ModelOptimizer(model, config, torch.float32)


def set_gradients(model: Transformer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = gradient


@pytest.mark.parametrize("kind", TORCH)
def test_an_optimizer_of_torch_makes_its_own_steps(kind: str) -> None:
    ours, theirs = small_model(), small_model()
    optimizer, named = optimizer_of(kind, ours), list(theirs.named_parameters())
    twin = TORCH[kind][1](
        [
            {"params": [p for n, p in named if is_matrix(n, p) == decays], "weight_decay": decay}
            for decays, decay in ((True, 0.1), (False, 0.0))
        ]
    )
    for step in range(4):
        set_gradients(ours, step)
        optimizer.parameters.accumulate()
        optimizer.step(0.1, 1.0, torch.zeros(()))
        set_gradients(theirs, step)
        twin.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", TORCH)
def test_an_optimizer_of_torch_resumes_and_skips_to_the_bit(kind: str) -> None:
    """FAULTS 18 and 23."""
    model = small_model()
    whole = updater_of(model, optimizer_of(kind, model))
    for step in range(2):
        whole([batch_of([5, 4], step)], 0.01)
    saved = everything(model, whole.optimizer)
    weights_and_state = [
        {name: tensor.clone() for name, tensor in part.items()}
        for part in (whole.optimizer.weights(), whole.optimizer.state())
    ]
    set_gradients(model, 1)
    model.source_vectors.grad.fill_(torch.nan)  # type: ignore[union-attr]
    whole.optimizer.parameters.accumulate()
    whole.optimizer.step(0.1, torch.tensor(torch.nan), torch.ones(()))
    assert_same(everything(model, whole.optimizer), saved)
    other = small_model(norm_position="post")
    resumed = updater_of(other, optimizer_of(kind, other))
    resumed([batch_of([3])], 0.5)
    resumed.optimizer.load(*weights_and_state)
    assert_same(everything(other, resumed.optimizer), saved)
    for step in range(2, 5):
        for updater in (whole, resumed):
            updater([batch_of([5, 4], step)], 0.01)
    assert_same(everything(other, resumed.optimizer), everything(model, whole.optimizer))
