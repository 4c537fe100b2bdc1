"""Device and precision are decided once, and refusals say why."""

from __future__ import annotations

import pytest
import torch

from nmt.engine.device import choose_device, prepare_process
from nmt.engine.precision import choose_precision, has_fast_bf16
from nmt.engine.seeding import random_state, restore_random_state
from nmt.errors import DeviceError

CPU = torch.device("cpu")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert choose_device("auto") == CPU
    with pytest.raises(DeviceError, match="torch sees no GPU") as caught:
        choose_device("cuda")
    assert caught.value.exit_code == 2


def test_auto_precision_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it, name in ((True, "bf16"), (False, "float32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has_it=has_it: has_it)
        assert has_fast_bf16(CPU) is has_it
        assert choose_precision("auto", CPU).name == name


def test_bf16_keeps_bf16_weights_on_a_cpu_and_casts_elsewhere() -> None:
    on_cpu = choose_precision("bf16", CPU)
    on_gpu = choose_precision("bf16", torch.device("cuda"))

    assert (on_cpu.weight_dtype, on_gpu.weight_dtype) == (torch.bfloat16, torch.float32)
    assert not on_cpu.scales_loss
    assert choose_precision("fp16", CPU).scales_loss


def test_random_numbers_go_on_where_they_were() -> None:
    state = random_state(CPU)
    first = torch.rand(5)
    restore_random_state(state, CPU)

    assert torch.equal(torch.rand(5), first)


def test_threads_are_set() -> None:
    before = torch.get_num_threads()
    try:
        prepare_process(1)
        assert torch.get_num_threads() == 1
    finally:
        prepare_process(before)
