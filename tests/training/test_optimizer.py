"""Flat buffers, EMA weights, and saving and loading of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from nmt.config.training import OptimizerConfig
from nmt.device.distributed import Processes
from nmt.device.precision import Precision
from nmt.errors import CheckpointError, ConfigError
from nmt.model.transformer import Transformer
from nmt.training import optimizer
from nmt.training.optimizer import AdamW, FlatParameters, ModelOptimizer, freeze, is_matrix
from nmt.training.optimizers import Muon
from nmt.training.update import GradientReduction, Updater
from tests.examples import FEW
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizers import KINDS, WARM_UP, close, drive, optimizer_of, weights_of

WAYS = tuple(way for way in product(KINDS, (None, 0.7)) if way != ("schedule-free", 0.7))
"""Kinds of optimizer, and decays of the running mean."""


def everything(model: Transformer, optimizer: ModelOptimizer) -> dict[str, Tensor]:
    weights, state = optimizer.weights(), optimizer.state()
    parts = {"working": weights_of(model), "weights": weights, "state": state}
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
def test_the_moving_average_equals_values_computed_by_hand(kind: str, decay: float) -> None:
    model, twin = small_model(), small_model()
    optimizer = optimizer_of(model, kind=kind, ema_decay=decay)
    plain = optimizer_of(twin, kind=kind)
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
def test_eval_weights_are_used_inside_the_context_only(
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
    assert torch.equal(shown["source_vectors"], before["working:source_vectors"]) != is_other
    assert_same(everything(model, optimizer), before)


def updater_for(
    model: Transformer, kind: str, ema_decay: float | None, precision: Precision
) -> Updater:
    optimizer = optimizer_of(model, kind=kind, ema_decay=ema_decay, dtype=precision.weight_dtype)
    return updater_of(model, optimizer, precision)


def train(updater: Updater, begin: int, end: int) -> None:
    for step in range(begin, end):
        torch.manual_seed(step)  # for dropout
        rate = 0.02 * min(step / 3, 1.0)  # the first update is made at rate 0
        updater([batch_of([5, 4], step), batch_of([3], step)], rate)


@pytest.mark.parametrize(("steps_before", "freezes"), [(0, False), (4, True)])
@pytest.mark.parametrize("precision", [FLOAT32, BF16], ids=lambda precision: precision.name)
@pytest.mark.parametrize(("kind", "ema_decay"), WAYS)
def test_a_restored_optimizer_makes_bit_exact_updates(
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
    with pytest.raises(
        CheckpointError, match=r"optimizer state of the checkpoint does not fit.* Stored: .* Needed"
    ) as caught:
        target.load(source.weights(), source.state())
    assert "ema_decay" in caught.value.fix
    assert "config.yaml" in caught.value.fix


@pytest.mark.parametrize("precision", [FLOAT32, BF16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("rates", [(), WARM_UP])
@pytest.mark.parametrize(("kind", "ema_decay"), WAYS)
def test_loading_only_weights_resets_the_optimizer(
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


PARTS = (
    "source_vectors",
    "target_vectors",
    "encoder",
    "decoder.1",
    "decoder.0.feed_forward.inner.weight",
    "decoder_norm",
)
DTYPES = (torch.float32, torch.bfloat16)


def model_with(frozen: list[str] | tuple[str, ...] = ()) -> Transformer:
    model = small_model(embeddings="decoder-tied", decoder_layers=2, norm_position="pre")
    freeze(model, frozen)
    return model


@FEW
@given(frozen=st.lists(st.sampled_from(PARTS), unique=True), dtype=st.sampled_from(DTYPES))
def test_the_buffer_contains_every_parameter_once_and_in_order(
    frozen: list[str], dtype: torch.dtype
) -> None:
    model = model_with(frozen)
    before = weights_of(model)
    flat = FlatParameters(model, dtype)
    trained, kept = flat.views(flat.weights), flat.frozen()
    assert trained.keys() | kept.keys() == before.keys()
    assert not trained.keys() & kept.keys()
    assert kept.keys() == {
        n for n in before if any(n == f or n.startswith(f + ".") for f in frozen)
    }
    assert torch.equal(torch.cat([v.flatten() for v in trained.values()]), flat.weights)
    are_matrices = [is_matrix(name, view) for name, view in trained.items()]
    assert are_matrices == sorted(are_matrices, reverse=True)  # matrices come first
    assert flat.matrix_size == sum(v.numel() for n, v in trained.items() if is_matrix(n, v))
    assert not any(is_matrix(n, p) for n, p in model.named_parameters() if n.endswith("vectors"))
    assert flat.trained_size == len(flat.weights) == len(flat.gradient)
    for name, parameter in model.named_parameters():
        assert torch.equal((trained | kept)[name], before[name])
        assert parameter.dtype == dtype
        assert torch.equal(parameter, before[name].to(dtype))
        assert parameter.grad is None


@pytest.mark.parametrize(
    "use",
    [
        lambda _, flat: AdamW(flat, OptimizerConfig(weight_decay=0.1)),
        lambda _, flat: Muon(flat, OptimizerConfig()),
        lambda model, flat: GradientReduction(model, flat, Processes(), in_slices=True),
    ],
)
def test_an_order_in_which_matrices_do_not_come_first_is_noticed_where_it_matters(
    use: Callable[[Transformer, FlatParameters], object],
) -> None:
    model = small_model()
    flat = FlatParameters(model, torch.float32)
    flat._trained = dict(reversed(flat._trained.items()))
    with pytest.raises(AssertionError, match="the matrices must come first"):
        use(model, flat)


def test_bf16_gradients_are_summed_in_float32_and_weights_are_copied_on_request() -> None:
    model = model_with()
    before = model.source_vectors.detach().clone()
    flat = FlatParameters(model, torch.bfloat16)
    gradients = flat.views(flat.gradient)
    for _ in range(2):
        flat.gradient.fill_(7)  # of the update before: never added to
        for value in (256.0, 1.0):  # bf16 has no 257
            (model.source_vectors * value).sum().backward()
            flat.accumulate()
        assert bool((gradients["source_vectors"] == 257).all())
        assert int(flat.gradient.count_nonzero()) == model.source_vectors.numel()
        assert model.source_vectors.grad is None
        flat.clear()
    flat.weights.add_(1)
    assert torch.equal(model.source_vectors, before.bfloat16())
    flat.sync_from_master()
    assert torch.equal(model.source_vectors, (before + 1).bfloat16())


def test_gradients_of_a_large_model_are_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with()
    monkeypatch.setattr(optimizer, "LARGE", sum(p.numel() for p in model.parameters()))
    flat = FlatParameters(model, torch.float32)
    gradient = flat.views(flat.gradient)["source_vectors"]
    for _ in range(2):
        for _ in range(2):
            (model.source_vectors * 3).sum().backward()
            flat.accumulate()
        assert bool((gradient == 6).all())
        buffers = {
            p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None
        }
        assert buffers == {flat.gradient.untyped_storage().data_ptr()}
        flat.clear()


def test_freeze_names_all_unknown_parts_and_must_leave_parameters_to_train() -> None:
    model = model_with()
    with pytest.raises(ConfigError, match=r"begins with 'enc', 'decoder\.2'\.") as caught:
        freeze(model, ["enc", "encoder", "decoder.2"])
    assert "encoder, encoder_norm, source_vectors" in caught.value.fix
    assert all(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ConfigError, match="no parameter"):
        freeze(model, [name.split(".")[0] for name, _ in model.named_parameters()])


@pytest.mark.parametrize("part", ["encoder", "target_vectors"])
@pytest.mark.parametrize(("policy", "ema_decay"), [(FLOAT32, 0.5), (BF16, None)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_never_change(
    kind: str, policy: Precision, ema_decay: float | None, part: str
) -> None:
    model = model_with([part])
    optimizer = optimizer_of(model, kind=kind, ema_decay=ema_decay, dtype=policy.weight_dtype)
    updater = updater_of(model, optimizer, policy)
    before = weights_of(model)
    exact = {name: tensor.clone() for name, tensor in optimizer.weights().items()}
    for step in range(3):
        updater([batch_of([5, 4], step)], 0.1)
    saved = optimizer.weights()
    assert saved.keys() == exact.keys()
    for name, weights in model.named_parameters():
        is_frozen = name == part or name.startswith(f"{part}.")
        assert torch.equal(weights, before[name]) == is_frozen, name
        assert torch.equal(saved[name], exact[name]) == is_frozen, name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lent_weights_are_used_without_a_copy_inside_the_context(dtype: torch.dtype) -> None:
    model = model_with(["encoder"])
    flat = FlatParameters(model, dtype)
    lent = {name: torch.full_like(p, 2.5).float() for name, p in model.named_parameters()}
    own = {name: p.data for name, p in model.named_parameters()}
    with flat.lend(lent):
        assert all(p.data_ptr() == lent[name].data_ptr() for name, p in model.named_parameters())
        assert model.output_weight.dtype == torch.float32
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype
        assert parameter.data_ptr() == own[name].data_ptr()


def test_lent_weights_leave_no_parameter_changed() -> None:
    """Frozen matrices of another file have 16 bits again after a validation in float32."""
    model = small_model()
    model.encoder.requires_grad_(requires_grad=False)
    flat = FlatParameters(model, torch.bfloat16, torch.bfloat16)
    before = {name: parameter.data for name, parameter in model.named_parameters()}
    assert {each.dtype for each in before.values()} == {torch.bfloat16}
    with flat.lend(flat.views(flat.weights)):
        assert {each.dtype for each in model.parameters()} == {torch.float32}
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.data_ptr() == before[name].data_ptr()
