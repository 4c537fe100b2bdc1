"""Which weights are used, and that optimizers go on from what they saved."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nmt.device.precision import Precision
from nmt.errors import CheckpointError
from nmt.model.transformer import Transformer
from nmt.training.optimizer import ModelOptimizer
from nmt.training.update import Updater
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizers import KINDS, WARM_UP, close, drive, optimizer_of, weights_of

WAYS = tuple(way for way in product(KINDS, (None, 0.7)) if way != ("schedule-free", 0.7))
"""Kinds of optimizer, and decays of the running mean."""


def everything(model: Transformer, optimizer: ModelOptimizer) -> dict[str, Tensor]:
    parts = {
        "working": weights_of(model),
        "weights": optimizer.weights(),
        "state": optimizer.state(),
    }
    return {f"{key}:{n}": t.clone() for key, part in parts.items() for n, t in part.items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        # As bytes: minus zero is not zero.
        bits = [value.flatten().view(torch.uint8) for value in (tensor, expected[name])]
        assert torch.equal(*bits), name


@pytest.mark.parametrize("decay", [0.3, 0.999])
@pytest.mark.parametrize("kind", KINDS)
def test_the_running_mean_is_the_one_worked_out_by_hand(kind: str, decay: float) -> None:
    model, twin = small_model(), small_model()
    optimizer, plain = (
        optimizer_of(model, kind=kind, ema_decay=decay),
        optimizer_of(twin, kind=kind),
    )
    mean = {name: tensor.double() for name, tensor in weights_of(model).items()}
    for count, rate in enumerate(WARM_UP, 1):
        drive(model, optimizer, [rate])
        drive(twin, plain, [rate])
        kept = min(decay, (1 + count) / (10 + count))
        mean = {n: kept * mean[n] + (1 - kept) * w.double() for n, w in weights_of(twin).items()}
    for name, used in optimizer.weights().items():
        close(used, mean[name], name, 1e-6)
    # The mean is kept beside training, which goes on as without it.
    assert_same(weights_of(model), weights_of(twin))


@pytest.mark.parametrize("precision", [FLOAT32, BF16], ids=lambda precision: precision.name)
@pytest.mark.parametrize(("kind", "ema_decay"), WAYS)
def test_the_weights_to_be_used_are_shown_and_taken_back(
    kind: str, ema_decay: float | None, precision: Precision
) -> None:
    model = small_model()
    dtype = precision.weight_dtype
    optimizer = optimizer_of(model, kind=kind, ema_decay=ema_decay, dtype=dtype)
    drive(model, optimizer, WARM_UP)
    before = everything(model, optimizer)
    expected = {name: tensor.to(dtype) for name, tensor in optimizer.weights().items()}
    with optimizer.eval_weights():
        shown = weights_of(model)
    assert_same(shown, expected)
    is_other = kind == "schedule-free" or ema_decay is not None
    trained = before["working:source_vectors"]
    assert torch.equal(shown["source_vectors"], trained) != is_other
    assert_same(everything(model, optimizer), before)


def updater_for(
    model: Transformer, kind: str, ema_decay: float | None, precision: Precision
) -> Updater:
    dtype = precision.weight_dtype
    optimizer = optimizer_of(model, kind=kind, ema_decay=ema_decay, dtype=dtype)
    return updater_of(model, optimizer, precision)


def train(updater: Updater, begin: int, end: int) -> None:
    for step in range(begin, end):
        torch.manual_seed(step)  # for dropout
        rate = 0.02 * min(step / 3, 1.0)  # the first update is made at rate 0
        updater([batch_of([5, 4], step), batch_of([3], step)], rate)


@pytest.mark.parametrize(("steps_before", "freezes"), [(0, False), (4, True)])
@pytest.mark.parametrize("precision", [FLOAT32, BF16], ids=lambda precision: precision.name)
@pytest.mark.parametrize(("kind", "ema_decay"), WAYS)
def test_a_saved_and_loaded_optimizer_makes_the_same_bytes(
    kind: str,
    ema_decay: float | None,
    precision: Precision,
    steps_before: int,
    freezes: bool,
    tmp_path: Path,
) -> None:
    """FAULT 18."""

    def model_of(**options: object) -> Transformer:
        model = small_model(dropout=0.1, **options)
        model.encoder.requires_grad_(not freezes)
        return model

    whole = updater_for(model_of(), kind, ema_decay, precision)
    train(whole, 0, steps_before)
    saved = everything(whole.model, whole.optimizer)
    save_file({n: t.clone() for n, t in whole.optimizer.weights().items()}, tmp_path / "model")
    save_file({n: t.clone() for n, t in whole.optimizer.state().items()}, tmp_path / "state")
    model = model_of()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)  # nothing of the new model's own may stay
    resumed = updater_for(model, kind, ema_decay, precision)
    resumed.optimizer.load(load_file(tmp_path / "model"), load_file(tmp_path / "state"))
    assert_same(everything(model, resumed.optimizer), saved)
    train(whole, steps_before, 7)
    train(resumed, steps_before, 7)

    assert_same(everything(model, resumed.optimizer), everything(whole.model, whole.optimizer))


@pytest.mark.parametrize(("written", "read"), [(a, b) for a, b in product(WAYS, WAYS) if a != b])
def test_the_state_of_another_kind_is_refused(
    written: tuple[str, float | None], read: tuple[str, float | None]
) -> None:
    models = small_model(), small_model()
    source, target = (
        optimizer_of(model, kind=kind, ema_decay=decay)
        for model, (kind, decay) in zip(models, (written, read), strict=True)
    )
    drive(models[0], source, WARM_UP)
    with pytest.raises(CheckpointError, match=r"of another optimizer: it has .* needs") as caught:
        target.load(source.weights(), source.state())
    assert "ema_decay" in caught.value.fix
    assert "config.yaml" in caught.value.fix


@pytest.mark.parametrize("precision", [FLOAT32, BF16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("rates", [(), WARM_UP])
@pytest.mark.parametrize(("kind", "ema_decay"), WAYS)
def test_loaded_weights_alone_begin_anew(
    kind: str, ema_decay: float | None, rates: tuple[float, ...], precision: Precision
) -> None:
    """Nothing that was remembered of other weights pulls at those that were loaded."""
    dtype = precision.weight_dtype
    model, fresh = small_model(), small_model()
    optimizer = optimizer_of(model, kind=kind, ema_decay=ema_decay, dtype=dtype)
    drive(model, optimizer, rates)
    start = {name: tensor + 0.5 for name, tensor in weights_of(fresh).items()}
    optimizer.load_weights(start)
    fresh.load_state_dict(start, strict=False)
    twin = optimizer_of(fresh, kind=kind, ema_decay=ema_decay, dtype=dtype)
    assert_same(optimizer.weights(), start)
    assert_same(everything(model, optimizer), everything(fresh, twin))
    drive(model, optimizer, WARM_UP)
    drive(fresh, twin, WARM_UP)
    assert_same(everything(model, optimizer), everything(fresh, twin))
