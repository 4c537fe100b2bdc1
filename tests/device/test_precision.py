"""The precision is chosen by the hardware, and a float16 loss keeps its scale."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.device import precision as precision_module
from nmt.device.precision import LossScale, choose_precision, has_fast_bf16

CPU = torch.device("cpu")


def test_auto_precision_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instructions of a CPU, and the capability of a GPU."""
    for has_it, name in (("avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("", "float32")):
        found = {has_it: True, "avx512_bw": True}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert has_fast_bf16(CPU) is bool(has_it)
        assert choose_precision("auto", CPU).name == name
    names = {(6, 1): "float32", (7, 0): "float16", (7, 5): "float16", (8, 0): "bfloat16"}
    for capability, name in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, at=capability: at)
        assert choose_precision("auto", torch.device("cuda")).name == name


def test_bf16_keeps_bf16_weights_on_a_cpu_and_casts_elsewhere() -> None:
    on_cpu, on_gpu = (choose_precision("bfloat16", torch.device(name)) for name in ("cpu", "cuda"))
    assert (on_cpu.weight_dtype, on_gpu.weight_dtype) == (torch.bfloat16, torch.float32)
    with on_cpu.autocast():
        assert not torch.is_autocast_enabled("cpu")


@given(
    outcomes=st.lists(st.booleans(), max_size=60),
    first=st.sampled_from([1.0, 2.0, 1024.0, 2.0**126]),
)
def test_the_scale_halves_at_each_overflow_and_doubles_after_many_good_updates(
    outcomes: list[bool], first: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_module, "_GROWTH_INTERVAL", 7)
        scale, expected, good = LossScale(CPU), first, 0
        scale.load_counters({"loss_scale": first, "good_in_a_row": 0})
        for skipped in outcomes:
            scale.adapt(torch.tensor(float(skipped)))
            good = 0 if skipped else good + 1
            if skipped:
                expected = max(expected / 2, 1.0)
            elif good % 7 == 0:
                expected = min(expected * 2, 2.0**127)
            assert scale.factor == expected
            other = LossScale(CPU)  # resumed here
            other.load_counters(scale.counters())
            scale = other
    scale = LossScale(CPU)
    scale.load_counters({})  # of another precision
    assert scale.counters() == {"loss_scale": 2.0**15, "good_in_a_row": 0}
