"""Updates against the optimizer of torch, and gradients summed over processes in slices."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from dataclasses import FrozenInstanceError, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override

from nmt.config.training import OptimizerConfig
from nmt.data.loader import Batch
from nmt.device import precision as precision_module
from nmt.device.compilation import compile_layers
from nmt.device.device import deterministic
from nmt.device.distributed import PendingSum, Processes, ProcessGroup
from nmt.device.precision import Precision
from nmt.model.transformer import Transformer
from nmt.packed import Packed, round_up
from nmt.training.losses import LossSum, Objective
from nmt.training.optimizer import FlatParameters, is_matrix
from nmt.training.update import GradientReduction, Updater, UpdateStats, read_together
from tests.examples import FEW
from tests.training.runs import Run, Server, all_stderr, codes
from tests.training.small import FLOAT32, VOCAB_SIZE, batch_of, small_model, updater_of
from tests.training.test_losses import assert_close, naive
from tests.training.test_optimizers import optimizer_of


def plain_loss(model: Transformer, batch: Batch) -> Tensor:
    hidden = model(batch.source, batch.target)
    return F.cross_entropy(model.logits(hidden), batch.gold, label_smoothing=0.1, reduction="sum")


def adamw_of(model: Transformer) -> torch.optim.AdamW:
    """Of a rate of 0.01, and a weight decay of 0.1 for matrices."""
    groups: list[dict[str, Any]] = [
        {"params": [p for n, p in model.named_parameters() if is_matrix(n, p)]},
        {
            "params": [p for n, p in model.named_parameters() if not is_matrix(n, p)],
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1)


def uneven_batch(seed: int) -> Batch:
    """Twelve source tokens and seven target tokens."""
    target = batch_of([4, 3], seed)
    return replace(batch_of([7, 5], seed), target=target.target, gold=target.gold)


@pytest.mark.parametrize(("clip_norm", "is_clipped"), [(0.3, True), (30.0, False), (0.0, False)])
def test_updates_equal_torch_s_adamw_with_clipping_and_accumulation(
    clip_norm: float, is_clipped: bool
) -> None:
    """Gradients beyond the limit are scaled down, and others are left alone."""
    # A large epsilon: the gradient of key biases is zero but for rounding (softmax ignores them),
    # and Adam would blow the rounding up to full steps.
    config = OptimizerConfig(weight_decay=0.1, epsilon=1e-3)
    ours, theirs = small_model(), small_model()
    updater, adam = updater_of(ours, config, clip_norm=clip_norm), adamw_of(theirs)
    for step in range(4):
        batches = [uneven_batch(step), batch_of([2, 7, 4], step + 10)]
        stats = updater(batches, 0.01)
        tokens = 7 + 13
        loss = torch.stack([plain_loss(theirs, batch) for batch in batches]).sum() / tokens
        adam.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or torch.inf)
        adam.step()
        assert (0 < clip_norm < norm) == is_clipped
        assert (stats.source_tokens, stats.target_tokens) == (12 + 13, tokens)
        assert stats.loss_sum / tokens == pytest.approx(loss.item(), rel=1e-5)
        assert stats.gradient_norm == pytest.approx(norm.item(), rel=1e-4)
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=2e-4, msg=name)


@FEW
@given(lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=40))
def test_padding_gives_few_sizes_and_does_not_change_loss_or_gradient(
    lengths: list[tuple[int, int]],
) -> None:
    longest = 41
    sides = [torch.randint(4, VOCAB_SIZE, (41,)).tolist() for _ in range(2)]
    rows = [
        [side[:n] for n in own] for side, own in zip(sides, zip(*lengths, strict=True), strict=True)
    ]
    source, target = map(Packed.from_rows, rows)
    batch = Batch(source, target, target.ids.flip(0), np.arange(len(lengths)))
    filler = round_up(source, target, longest)
    filled = replace(batch, source=filler[0], target=filler[1])
    results = []
    for each in (batch, filled):
        updater = updater_of(small_model())
        stats = updater([each], 0.0)
        updater._sum_gradients([each], 1.0)
        results.append((stats, updater.optimizer.parameters.gradient.clone()))
    for side, whole in ((filled.source, source), (filled.target, target)):
        assert side.num_tokens % 32 == 0
        assert len(side) % 4 == 0
        assert side.max_length % 4 == 0 or side.max_length == longest
        assert side.rows()[: len(whole)] == whole.rows()
        assert all(0 < n <= side.max_length for n in side.lengths.tolist())
    (plain, gradient), (with_filler, same) = results
    assert with_filler.source_tokens == plain.source_tokens
    assert with_filler.target_tokens == plain.target_tokens
    assert with_filler.loss_sum == pytest.approx(plain.loss_sum, rel=1e-5)
    torch.testing.assert_close(same, gradient, rtol=1e-4, atol=1e-4)
    if len(lengths) > 1:
        for half, own in zip(filled.halves(), batch.halves(), strict=True):
            assert half.source.rows() == own.source.rows()
            assert half.target.rows() == own.target.rows()
            assert torch.equal(half.gold, own.gold)


def _poisoned(original: Objective, factor: float = torch.nan) -> Objective:
    def loss(model: Transformer, batch: Batch) -> LossSum:
        loss_sum, tokens = original(model, batch)
        return LossSum(loss_sum * factor, tokens)

    return loss


def test_bf16_weights_with_float32_masters_follow_float32() -> None:
    exact, rounded = small_model(), small_model()
    exact_updater = updater_of(exact)
    rounded_updater = updater_of(rounded, precision=Precision("bfloat16", "cpu"))
    assert next(rounded.parameters()).dtype == torch.bfloat16
    losses = []
    for step in range(20):
        batches = [batch_of([5, 4], step % 2), batch_of([6], step % 2)]
        pair = [updater(batches, 0.01) for updater in (exact_updater, rounded_updater)]
        losses.append([stats.loss_sum / stats.target_tokens for stats in pair])
    assert losses[-1][0] < 0.7 * losses[0][0]
    assert losses[-1][1] == pytest.approx(losses[-1][0], rel=0.05)
    weights = rounded_updater.optimizer.weights()
    assert weights["source_vectors"].dtype == torch.float32
    assert torch.equal(weights["source_vectors"].bfloat16(), rounded.source_vectors)


def test_fp16_updates_equal_the_torch_gradient_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through an overflow and four doublings; weights are equal within the rounding of fp16."""
    monkeypatch.setattr(precision_module, "_GROWTH_INTERVAL", 2)
    ours, theirs = small_model(), small_model()
    config, precision = OptimizerConfig(weight_decay=0.1, epsilon=1e-3), Precision("float16", "cpu")
    updater, adam = updater_of(ours, config, precision), adamw_of(theirs)
    scaler = torch.amp.GradScaler("cpu", updater.counters()["loss_scale"], growth_interval=2)
    good, scales = updater.objective, []
    for step in range(9):
        fault = torch.inf if step == 4 else 1.0
        updater.objective = _poisoned(good, fault)
        batch = batch_of([5, 3, 7], step)
        stats = updater([batch], 0.01)
        adam.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = plain_loss(theirs, batch) * fault
        scaler.scale(loss / 15).backward()
        scaler.unscale_(adam)
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        scaler.step(adam)
        scaler.update()
        scales.append(updater.counters()["loss_scale"])
        assert scales[-1] == scaler.get_scale()
        assert stats.skipped == (step == 4)
        if not stats.skipped:
            assert stats.gradient_norm == pytest.approx(norm.item(), rel=1e-2)
    assert [scale / scales[0] for scale in scales] == [1, 2, 2, 4, 2, 2, 4, 4, 8]
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (mine - other).detach().norm().item() < 0.03 * other.detach().norm().item(), name


@pytest.mark.parametrize("fails", [False, True])
def test_a_warm_up_changes_nothing(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    model = small_model(dropout=0.3)
    updater = updater_of(model)
    weights = {name: value.clone() for name, value in updater.optimizer.weights().items()}
    random, modes = torch.get_rng_state(), []

    def forward(model: Transformer, *inputs: Packed) -> Tensor:
        modes.append((model.training, torch.is_inference_mode_enabled()))
        if fails and not model.training:
            raise RuntimeError("no compiler")
        return original(model, *inputs)

    original = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", forward)
    with pytest.raises(RuntimeError, match="no compiler") if fails else nullcontext():
        updater.warm_up(batch_of([4, 3]))
    assert modes == [(True, False), (False, True)]
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    parameters = updater.optimizer.parameters
    parameters.accumulate()  # of a pass without any gradient
    assert not parameters.shared.any()
    assert all(torch.equal(updater.optimizer.weights()[name], weights[name]) for name in weights)
    assert updater.optimizer.state()["step"] == 0


def gradient_of(model: Transformer, strength: float) -> tuple[Tensor, Tensor]:
    """Loss and whole gradient that an update with R-Drop works out."""
    updater = updater_of(model, clip_norm=0.0, r_drop=strength)
    torch.manual_seed(5)
    updater._sum_gradients([batch_of([5, 4])], 1.0)
    parameters = updater.optimizer.parameters
    return parameters.sums[0], parameters.gradient


@pytest.mark.parametrize("strength", [0.0, 5.0])
def test_an_update_makes_two_passes_with_other_dropout_or_one(strength: float) -> None:
    model, twin = small_model(dropout=0.3), small_model(dropout=0.3)
    loss, gradient = gradient_of(model, strength)
    batch = batch_of([5, 4])
    flat = FlatParameters(twin, torch.float32)
    torch.manual_seed(5)
    passes = [twin.logits(twin(batch.source, batch.target)) for _ in range(2)]
    assert not torch.equal(*passes)
    if strength:
        expected = naive((passes[0], passes[1]), batch.gold, smoothing=0.1, strength=strength)
    else:
        expected = F.cross_entropy(passes[0], batch.gold, label_smoothing=0.1, reduction="sum")
    expected.backward()
    flat.accumulate()
    torch.testing.assert_close(loss, expected.detach())
    assert_close([gradient], [flat.gradient])


BATCHES = [batch_of([5, 3]), batch_of([2, 7, 4], 1)]
SIZE = 500


def test_statistics_that_are_read_together_do_not_change_others() -> None:
    queued = [UpdateStats([], 0.1, 1, 2, 3, torch.tensor([loss, 0.0, 0.5])) for loss in (4.0, 7.0)]
    assert [stats.loss_sum for stats in read_together(queued)] == [4.0, 7.0]
    assert all(vars(stats).keys() == vars(queued[0]).keys() for stats in queued)
    with pytest.raises(FrozenInstanceError):
        queued[0].stop = True  # type: ignore[misc]


class Twins(Processes):
    """Two processes with the same gradient: a sum is twice the tensor."""

    size = 2

    def __init__(self) -> None:
        self.sent: list[tuple[int, Tensor]] = []
        self.is_finishing = False

    @override
    def begin_sum(self, tensor: Tensor) -> PendingSum:
        if tensor.dtype == torch.float32:  # others are counts of tokens
            self.sent.append((int(tensor.storage_offset()), tensor.clone()))
            tensor *= 2
        return PendingSum()


def twins(*, in_slices: bool, size: int = SIZE) -> tuple[Updater, Twins]:
    model, processes = small_model(encoder_layers=2, decoder_layers=2), Twins()
    optimizer = optimizer_of(model, kind="adamw", ema_decay=None, dtype=FLOAT32.weight_dtype)
    updater = updater_of(model, optimizer, FLOAT32)
    updater.processes = processes
    updater._reduction = GradientReduction(
        model, optimizer.parameters, processes, in_slices=in_slices, size=size
    )
    return updater, processes


def reduced_gradient(updater: Updater, reduction: GradientReduction | None) -> Tensor:
    torch.manual_seed(3)
    updater.model.train()
    updater._sum_gradients(BATCHES, 0.1, reduction)
    if reduction:
        reduction.finish()
    found = updater.optimizer.parameters.shared.clone()
    updater.optimizer.parameters.clear()
    return found


@pytest.mark.parametrize("size", [1, SIZE, 1 << 30])
def test_slices_cover_the_buffer_once_and_are_complete_when_sent(size: int) -> None:
    updater, processes = twins(in_slices=True, size=size)
    collected, _ = twins(in_slices=False)
    alone = reduced_gradient(collected, None)
    assert torch.equal(reduced_gradient(updater, updater._reduction), 2 * alone)
    places = sorted((begin, begin + len(part)) for begin, part in processes.sent)
    assert places[0][0] == 0
    assert places[-1][1] == len(alone)
    assert all(stop == begin for (_, stop), (begin, _) in pairwise(places))
    for begin, part in processes.sent:
        assert torch.equal(part, alone[begin : begin + len(part)])
    assert (len(places) > 5) == (size == 1 or size == SIZE)
    assert [begin for begin, _ in processes.sent[:-1]] == sorted(
        (begin for begin, _ in processes.sent[:-1]), reverse=True
    )


def test_slices_are_sent_only_in_the_last_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    updater, processes = twins(in_slices=True)
    counts, backward = [], Tensor.backward

    def counted(tensor: Tensor) -> None:
        backward(tensor)  # type: ignore[no-untyped-call]
        counts.append(len(processes.sent))

    monkeypatch.setattr(Tensor, "backward", counted)
    reduced_gradient(updater, updater._reduction)
    assert counts[0] == 0
    assert counts[1] > 5
    assert len(processes.sent) == counts[1] + 1  # what is complete at the end


@pytest.mark.parametrize("failures", [1, 2])
def test_what_was_sent_before_memory_ran_out_counts_once(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The others have it already; what is computed again is not sent again."""
    updater, processes = twins(in_slices=True)
    updater.model.eval()
    expected = 2 * reduced_gradient(updater, None)
    left, begin_sum = [failures], processes.begin_sum

    def short(tensor: Tensor) -> PendingSum:
        if len(processes.sent) == 5 - left[0] and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA error: out of memory")
        return begin_sum(tensor)

    monkeypatch.setattr(processes, "begin_sum", short)
    found = reduced_gradient(updater, updater._reduction)
    assert left == [0]
    num_sums = len(updater.optimizer.parameters.sums)
    torch.testing.assert_close(found[:-num_sums], expected[:-num_sums], rtol=1e-4, atol=1e-6)
    assert len({begin for begin, _ in processes.sent}) == len(processes.sent)


@pytest.mark.long
def test_two_processes_end_with_the_same_bytes(server: Server, whole_of_two: Run) -> None:
    """Of two numbers the sum has one order."""
    results = server.script(
        f"""
from functools import partial
import nmt
from nmt.training import update
kind = update.GradientReduction
def sliced(*arguments, in_slices, **options):
    return kind(*arguments, in_slices=True, size=1000, **options)
update.GradientReduction = sliced
from nmt.commands.train import fit
fit(nmt.load_config({str(whole_of_two.config)!r}, ["run_dir=runs/sliced"]))
"""
    )
    assert codes(results) == [0, 0], all_stderr(results)
    sliced: Any = Run(server, "sliced")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert sliced.hashes()[name] == whole_of_two.hashes()[name]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_compiled", [False, True])
def test_on_a_gpu_nccl_sends_slices_of_the_same_gradient(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    """One process alone, whose sum is its own: what counts is that nothing is sent too early."""
    device = torch.device("cuda")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    processes = ProcessGroup()
    found = []
    for in_slices in (False, True):
        model = small_model(encoder_layers=2, decoder_layers=2).to(device)
        optimizer = optimizer_of(model, kind="adamw", ema_decay=None, dtype=torch.float32)
        updater = updater_of(model, optimizer, Precision("bfloat16", "cuda"))
        updater.processes = processes
        parameters = optimizer.parameters
        updater._reduction = GradientReduction(
            model, parameters, processes, in_slices=in_slices, size=SIZE
        )
        warm_up = partial(updater.warm_up, BATCHES[0])
        compile_layers(is_compiled, device, switch=model.compile_layers, warm_up=warm_up)
        with deterministic(device, wanted=True):
            losses = [updater(BATCHES, 1e-3).loss_sum for _ in range(5)]
        found.append((losses, parameters.weights.cpu()))
    processes.leave()
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
