"""The device is decided once, and refusals say why."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from nmt.checkpoint.run import machine
from nmt.device.device import (
    choose_device,
    choose_device_queue,
    deterministic,
    is_out_of_memory,
    prefetch,
    prepare_process,
    random_state,
    restore_random_state,
)
from nmt.device.precision import choose_precision
from nmt.errors import DeviceError

CPU = torch.device("cpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU
    with pytest.raises(DeviceError, match="torch sees no GPU") as caught:
        choose_device("cuda")
    assert caught.value.exit_code == 2


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """What stands for a GPU: chosen, and never used."""
    for name, answer in {"is_available": True, "device_count": 1, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield choose_device("auto")
    torch.backends.cuda.enable_cudnn_sdp(before)


def test_a_number_chooses_among_several_gpus(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError, match=r"There is no cuda:1: 1 can be used, counted from 0"):
        choose_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # it plans anew for each shape
    assert torch.backends.cuda.flash_sdp_enabled()
    assert choose_device("cuda:1") == torch.device("cuda", 1) == chosen[0]
    assert choose_device("cuda:0") == choose_device("cuda") == gpu == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(DeviceError, match="2 processes cannot share cuda:1"):
        choose_device("cuda:1")


def test_sums_have_an_order_while_it_is_wanted_and_an_operation_without_one_is_told(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_NVLS_ENABLE"):
        monkeypatch.setenv(name, "restored")
        monkeypatch.delenv(name)
    is_on = torch.are_deterministic_algorithms_enabled
    settings: Any = torch.utils.deterministic
    for device, wanted in ((CPU, True), (gpu, False)):
        with deterministic(device, wanted=wanted):
            assert not is_on()
    with deterministic(gpu, wanted=True):
        assert is_on()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert os.environ["NCCL_NVLS_ENABLE"] == "0"
        assert not settings.fill_uninitialized_memory
    assert (is_on(), settings.fill_uninitialized_memory) == (False, True)
    text = "histc_cuda does not have a deterministic implementation, but you set\nmore"
    with (
        pytest.raises(DeviceError, match="histc_cuda does not have") as caught,
        deterministic(gpu, wanted=True),
    ):
        raise RuntimeError(text)
    assert "training.deterministic to false" in caught.value.fix
    with pytest.raises(RuntimeError, match="other"), deterministic(gpu, wanted=True):
        raise RuntimeError("other")
    assert not is_on()


def test_what_a_lack_of_memory_is() -> None:
    for error, is_it in (
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: an illegal memory access"), False),
        (ValueError("can't allocate memory"), False),
    ):
        assert is_out_of_memory(error) is is_it, error


def test_random_numbers_go_on_where_they_were_and_threads_are_set() -> None:
    state = random_state(CPU)
    first = torch.rand(5)
    restore_random_state(state, CPU)
    assert torch.equal(torch.rand(5), first)
    before = torch.get_num_threads()
    try:
        prepare_process(1)
        assert torch.get_num_threads() == 1
    finally:
        prepare_process(before)


def test_a_cpu_is_not_run_ahead_of_and_a_gpu_is() -> None:
    cpu, gpu = (choose_device_queue(each) for each in (CPU, torch.device("cuda", 1)))
    items = iter([1])
    assert (cpu.max_inflight_updates, cpu.uses_threads) == (1, False)
    assert (gpu.max_inflight_updates > 1, gpu.uses_threads) == (True, True)
    with cpu.stream(items) as stream:
        assert stream is items
    with gpu.stream(iter([1, 2, 3])) as stream:
        assert list(stream) == [1, 2, 3]


def test_one_item_is_made_ahead_in_a_thread_and_an_error_comes_in_its_place() -> None:
    made, is_ahead = list[int](), threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(3):
            assert threading.current_thread() is not threading.main_thread()
            made.append(number)
            if number == 1:
                is_ahead.set()
            yield number
        raise ValueError("no more")

    with prefetch(numbers()) as stream:
        assert next(stream) == 0
        assert is_ahead.wait(60)  # while 0 is used
        assert made == [0, 1]  # and no more
        assert [next(stream), next(stream)] == [1, 2]
        with pytest.raises(ValueError, match="no more"):
            next(stream)
    with suppress(KeyError), prefetch(itertools.count()) as stream:
        next(stream)
        raise KeyError
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_apples_gpu_is_chosen_by_name_and_trains_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its selection alone: no test here can run on one."""
    mps = torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="No mps device"):
        choose_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("mps") == mps
    assert choose_device("auto") == CPU
    precision, pace = choose_precision("auto", mps), choose_device_queue(mps)
    assert (precision.dtype, precision.weight_dtype) == (torch.float32, torch.float32)
    assert (pace.max_inflight_updates, pace.uses_threads) == (1, False)
    with pytest.raises(DeviceError, match="float32, not in bfloat16"):
        choose_precision("bfloat16", mps)
    assert machine(mps)["device"] == "mps"
