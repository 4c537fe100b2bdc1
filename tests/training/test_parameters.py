"""The flat buffers and their names, and what stays as it is when parts are frozen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.device.precision import Precision
from nmt.errors import ConfigError
from nmt.model.transformer import Transformer
from nmt.training.optimizer import FlatParameters, freeze, is_matrix
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizers import KINDS, optimizer_of, weights_of

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


def test_matrices_are_those_of_the_layers() -> None:
    found = {name for name, p in model_with().named_parameters() if is_matrix(name, p)}
    assert "encoder.0.self_attention.query_key_value.weight" in found
    assert "decoder.1.feed_forward.outer.weight" in found
    assert not found & {"source_vectors", "target_vectors", "decoder_norm.weight"}
    assert not any(name.endswith(("bias", "norm.weight")) for name in found)


@settings(max_examples=25)
@given(frozen=st.lists(st.sampled_from(PARTS), unique=True), dtype=st.sampled_from(DTYPES))
def test_the_buffer_holds_every_parameter_once_and_in_order(
    frozen: list[str], dtype: torch.dtype
) -> None:
    model = model_with(frozen)
    before = weights_of(model)
    flat = FlatParameters(model, dtype)
    trained, kept = dict(flat.views(flat.weights)), dict(flat.frozen())
    assert trained.keys() | kept.keys() == before.keys()
    assert not trained.keys() & kept.keys()
    assert kept.keys() == {
        n for n in before if any(n == f or n.startswith(f + ".") for f in frozen)
    }
    assert torch.equal(torch.cat([v.flatten() for v in trained.values()]), flat.weights)
    are_matrices = [is_matrix(name, view) for name, view in trained.items()]
    assert are_matrices == sorted(are_matrices, reverse=True)  # matrices come first
    assert flat.matrix_size == sum(v.numel() for n, v in trained.items() if is_matrix(n, v))
    assert flat.trained_size == len(flat.weights) == len(flat.gradient)
    for name, parameter in model.named_parameters():
        assert torch.equal((trained | kept)[name], before[name])
        assert parameter.dtype == dtype
        assert torch.equal(parameter, before[name].to(dtype))
        has_gradient = dtype == torch.float32 and name in trained
        assert (parameter.grad is not None) == has_gradient


def test_in_bf16_gradients_add_up_in_float32_and_weights_wait_to_be_published() -> None:
    model = model_with()
    before = model.source_vectors.detach().clone()
    flat = FlatParameters(model, torch.bfloat16)
    gradients = dict(flat.views(flat.gradient))
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_and_sums_are_added_up_and_cleared_as_one_buffer(dtype: torch.dtype) -> None:
    flat = FlatParameters(model_with(["encoder"]), dtype)
    flat.gradient.fill_(1)
    flat.sums.copy_(torch.tensor([2.0, 3.0]))
    flat.shared.add_(flat.shared.clone())
    assert bool((flat.gradient == 2).all())
    assert flat.sums.tolist() == [4, 6]
    assert len(flat.shared) == flat.trained_size + 2
    flat.clear()
    flat.accumulate()  # of a pass without any gradient
    assert not flat.shared.any()


def test_unknown_parts_are_all_named_and_something_must_be_left_to_train() -> None:
    model = model_with()
    with pytest.raises(ConfigError, match=r"'enc', 'decoder\.2', but") as caught:
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
def test_lent_weights_are_used_as_they_are_and_given_back(dtype: torch.dtype) -> None:
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
