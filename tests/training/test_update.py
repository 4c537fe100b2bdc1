"""Updates against torch's own optimizer and a hand-made loop."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt.config.model import ModelConfig
from nmt.config.training import OptimizerConfig
from nmt.data.batch import Batch
from nmt.engine.precision import Precision
from nmt.errors import CheckpointError
from nmt.model.factory import build_model
from nmt.model.layout import Layout
from nmt.model.transformer import Transformer
from nmt.training.loss import LossFunction, LossSum, chunked_loss
from nmt.training.optimizer import build_optimizer
from nmt.training.parameters import is_matrix
from nmt.training.update import Updater

FLOAT32 = Precision("float32", "cpu")


def small_model(**options: object) -> Transformer:
    torch.manual_seed(1)
    shape = {"model_dim": 16, "ff_dim": 32, "num_heads": 2, "encoder_layers": 1}
    config = ModelConfig.model_validate({**shape, "decoder_layers": 1, "dropout": 0.0, **options})
    return build_model(config, 30, 30)


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    layout = Layout.from_lengths(torch.tensor(lengths), max(lengths))

    def ids() -> Tensor:
        return torch.randint(4, 30, (len(lengths), max(lengths)), generator=generator)

    return Batch(
        source=ids(),
        source_index=layout.index,
        target_input=ids(),
        target_output=ids(),
        target_index=layout.index,
        rows=np.arange(len(lengths)),
    )


def updater_of(
    model: Transformer, config: OptimizerConfig | None = None, precision: Precision = FLOAT32
) -> Updater:
    optimizer = build_optimizer(model, config or OptimizerConfig(), precision.weight_dtype)
    return Updater(model, optimizer, precision, label_smoothing=0.1, clip_norm=1.0)


def plain_loss(model: Transformer, batch: Batch) -> Tensor:
    hidden = model(batch.source, batch.source_index, batch.target_input, batch.target_index)
    gold = batch.target_output.flatten()[batch.target_index]
    return F.cross_entropy(model.logits(hidden), gold, label_smoothing=0.1, reduction="sum")


def test_updates_equal_torch_s_adamw_with_clipping_and_accumulation() -> None:
    # A large epsilon: the gradient of key biases is zero but for rounding (softmax ignores them),
    # and Adam would blow the rounding up to full steps.
    config = OptimizerConfig(weight_decay=0.1, epsilon=1e-3)
    ours, theirs = small_model(), small_model()
    updater = updater_of(ours, config)
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in theirs.named_parameters() if is_matrix(n, p)]},
        {
            "params": [p for n, p in theirs.named_parameters() if not is_matrix(n, p)],
            "weight_decay": 0.0,
        },
    ]
    adam = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1)

    for step in range(4):
        batches = [batch_of([5, 3], step), batch_of([2, 7, 4], step + 10)]
        stats = updater(batches, 0.01)
        tokens = 8 + 13
        loss = torch.stack([plain_loss(theirs, batch) for batch in batches]).sum() / tokens
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        adam.step()
        assert stats.target_tokens == tokens
        assert stats.nats / tokens == pytest.approx(loss.item(), rel=1e-5)
        assert stats.gradient_norm == pytest.approx(norm.item(), rel=1e-4)

    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=2e-4, msg=name)


def test_accumulated_batches_count_by_their_tokens() -> None:
    """One batch of all pairs equals two of unequal size: the sum is divided once."""
    whole, parts = small_model(), small_model()
    batch = batch_of([6, 6, 6])
    first = Batch(
        batch.source[:1], torch.arange(6), batch.target_input[:1], batch.target_output[:1],
        torch.arange(6), np.arange(1),
    )  # fmt: skip
    rest = Batch(
        batch.source[1:], torch.arange(12), batch.target_input[1:], batch.target_output[1:],
        torch.arange(12), np.arange(2),
    )  # fmt: skip

    one = updater_of(whole)([batch], 0.01)
    two = updater_of(parts)([first, rest], 0.01)

    assert one.gradient_norm == pytest.approx(two.gradient_norm, rel=1e-5)
    assert one.nats == pytest.approx(two.nats, rel=1e-6)


def test_a_resumed_optimizer_makes_the_same_bytes() -> None:
    model = small_model()
    updater = updater_of(model)
    for step in range(3):
        updater([batch_of([5, 4], step)], 0.01)
    weights = {k: v.clone() for k, v in updater.optimizer.weights().items()}
    state = {k: v.clone() for k, v in updater.optimizer.state().items()}
    fresh = small_model(norm_position="post")
    resumed = updater_of(fresh)
    resumed.optimizer.load(weights, state)
    for step in range(3, 6):
        updater([batch_of([5, 4], step)], 0.01)
        resumed([batch_of([5, 4], step)], 0.01)

    for mine, other in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_loading_another_shape_names_the_tensor() -> None:
    optimizer = build_optimizer(small_model(), OptimizerConfig(), torch.float32)
    weights = dict(optimizer.weights())
    weights["source_vectors"] = torch.zeros(2, 2)

    with pytest.raises(CheckpointError, match=r"\(2, 2\) for source_vectors.*\(30, 16\)"):
        optimizer.load(weights, {})


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_chunked_loss_of_large_vocabularies_works_in_fp16_as_in_float32(
    norm_position: str,
) -> None:
    """Under autocast the products are fp16, while hidden states and weights are float32."""
    stats = []
    for precision in (FLOAT32, Precision("fp16", "cpu")):
        model = small_model(norm_position=norm_position, output_bias=True)
        updater = updater_of(model, precision=precision)
        updater._loss = chunked_loss
        stats.append([updater([batch_of([5, 4], step)], 0.01) for step in range(3)])

    for exact, rounded in zip(*stats, strict=True):
        assert not rounded.skipped
        assert rounded.nats == pytest.approx(exact.nats, rel=2e-3)
        assert rounded.gradient_norm == pytest.approx(exact.gradient_norm, rel=2e-2)


def test_an_update_with_a_loss_that_is_not_finite_is_left_out() -> None:
    """FAULTS 23: counted, weights unchanged, and training goes on."""
    model = small_model()
    updater = updater_of(model)
    updater([batch_of([5, 4])], 0.01)
    before = copy.deepcopy(model.state_dict())
    original = updater._loss
    updater._loss = _poisoned(original)

    stats = updater([batch_of([5, 4])], 0.01)

    assert stats.skipped
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    updater._loss = original
    assert not updater([batch_of([5, 4])], 0.01).skipped


def _poisoned(original: LossFunction) -> LossFunction:
    def loss(*inputs: Any) -> LossSum:
        nats, tokens = original(*inputs)
        return LossSum(nats * torch.nan, tokens)

    return loss


def test_bf16_weights_with_float32_masters_follow_float32() -> None:
    exact, rounded = small_model(), small_model()
    exact_updater = updater_of(exact)
    rounded_updater = updater_of(rounded, precision=Precision("bf16", "cpu"))
    assert next(rounded.parameters()).dtype == torch.bfloat16

    losses = []
    for step in range(20):
        batches = [batch_of([5, 4], step % 2), batch_of([6], step % 2)]
        pair = [updater(batches, 0.01) for updater in (exact_updater, rounded_updater)]
        losses.append([stats.nats / stats.target_tokens for stats in pair])

    assert losses[-1][0] < 0.7 * losses[0][0]
    assert losses[-1][1] == pytest.approx(losses[-1][0], rel=0.05)
    weights = rounded_updater.optimizer.weights()
    assert weights["source_vectors"].dtype == torch.float32
    assert torch.equal(weights["source_vectors"].bfloat16(), rounded.source_vectors)


def test_fp16_halves_its_loss_scale_at_an_overflow_and_remembers_it() -> None:
    updater = updater_of(small_model(), precision=Precision("fp16", "cpu"))
    assert not updater([batch_of([5, 4])], 0.01).skipped
    scale = float(updater.loss_scale.factor)
    original = updater._loss
    updater._loss = _poisoned(original)
    updater([batch_of([5, 4])], 0.01)
    updater._loss = original

    assert updater.loss_scale.factor == scale / 2
    other = updater_of(small_model(), precision=Precision("fp16", "cpu"))
    other.loss_scale.load_counters(updater.loss_scale.counters())
    assert other.loss_scale.factor == scale / 2


@pytest.mark.parametrize("trouble", [False, True])
def test_a_rehearsal_leaves_no_trace(trouble: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    model = small_model(dropout=0.3)
    updater = updater_of(model)
    weights = {name: value.clone() for name, value in updater.optimizer.weights().items()}
    random, modes = torch.get_rng_state(), []

    def loss(batch: Batch, smoothing: float) -> LossSum:
        modes.append((model.training, torch.is_inference_mode_enabled()))
        if trouble and not model.training:
            raise RuntimeError("no compiler")
        return Updater.loss(updater, batch, smoothing)

    monkeypatch.setattr(updater, "loss", loss)
    with pytest.raises(RuntimeError, match="no compiler") if trouble else nullcontext():
        updater.rehearse(batch_of([4, 3]))

    assert modes == [(True, False), (False, True)]
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert not updater.optimizer.parameters.shared.any()
    assert all(torch.equal(updater.optimizer.weights()[name], weights[name]) for name in weights)
    assert updater.optimizer.state()["step"] == 0
