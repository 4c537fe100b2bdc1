"""Slices of the gradient that are sent during backward add up to the sum of the whole."""

from __future__ import annotations

import socket
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from nmt.device.compilation import compile_layers
from nmt.device.device import deterministic
from nmt.device.distributed import PendingSum, Processes
from nmt.device.precision import Precision
from nmt.training.update import GradientReduction, Updater
from tests.training.runs import Run, Server, all_stderr, codes
from tests.training.small import FLOAT32, batch_of, small_model, updater_of
from tests.training.test_optimizers import optimizer_of

BATCHES = [batch_of([5, 3]), batch_of([2, 7, 4], 1)]
SIZE = 500


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


def gradient_of(updater: Updater, reduction: GradientReduction | None) -> Tensor:
    torch.manual_seed(3)
    updater.model.train()
    updater._sum_gradients(BATCHES, 0.1, reduction)
    if reduction:
        reduction.finish()
    found = updater.optimizer.parameters.shared.clone()
    updater.optimizer.parameters.clear()
    return found


@pytest.mark.parametrize("size", [1, SIZE, 1 << 30])
def test_slices_hold_all_numbers_once_and_are_complete_when_sent(size: int) -> None:
    updater, processes = twins(in_slices=True, size=size)
    alone = gradient_of(updater, None)
    found = gradient_of(updater, updater._reduction)
    assert torch.equal(found, 2 * alone)
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


def test_slices_are_sent_while_backward_goes_on_in_the_last_batch_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updater, processes = twins(in_slices=True)
    counts, backward = [], Tensor.backward

    def counted(tensor: Tensor) -> None:
        backward(tensor)  # type: ignore[no-untyped-call]
        counts.append(len(processes.sent))

    monkeypatch.setattr(Tensor, "backward", counted)
    gradient_of(updater, updater._reduction)
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
    expected = 2 * gradient_of(updater, None)
    left, begin_sum = [failures], processes.begin_sum

    def short(tensor: Tensor) -> PendingSum:
        if len(processes.sent) == 5 - left[0] and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA error: out of memory")
        return begin_sum(tensor)

    monkeypatch.setattr(processes, "begin_sum", short)
    found = gradient_of(updater, updater._reduction)
    assert left == [0]
    num_sums = len(updater.optimizer.parameters.sums)
    torch.testing.assert_close(found[:-num_sums], expected[:-num_sums], rtol=1e-4, atol=1e-6)
    assert len({begin for begin, _ in processes.sent}) == len(processes.sent)


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
    processes = Processes(launched=True)
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
