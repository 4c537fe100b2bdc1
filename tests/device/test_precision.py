"""The precision is chosen by the hardware, and a float16 loss keeps its scale."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.device import precision as precision_module
from nmt.device.precision import (
    LossScale,
    Precision,
    choose_precision,
    has_fast_bf16,
    precisions_to_compare,
    rounds_products,
)
from nmt.errors import DeviceError

CPU, FLOAT16 = torch.device("cpu"), Precision("float16", "cpu")


def test_auto_precision_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it, name in ((True, "bfloat16"), (False, "float32")):
        found = {"avx512_bf16": has_it}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert has_fast_bf16(CPU) is has_it
        assert choose_precision("auto", CPU).name == name


@pytest.mark.parametrize(
    ("capability", "name"),
    [((6, 1), "float32"), ((7, 0), "float16"), ((7, 5), "float16"), ((8, 0), "bfloat16")],
)
def test_auto_precision_of_a_gpu_follows_its_capability(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)

    chosen = choose_precision("auto", torch.device("cuda"))
    assert chosen.name == name
    assert (LossScale(chosen, CPU).factor != 1) == (name == "float16")


def test_bf16_keeps_bf16_weights_on_a_cpu_and_casts_elsewhere() -> None:
    on_cpu = choose_precision("bfloat16", CPU)
    on_gpu, narrow = (
        choose_precision("bfloat16", torch.device("cuda"), bf16_weights=on) for on in (False, True)
    )

    assert (on_cpu.weight_dtype, on_gpu.weight_dtype) == (torch.bfloat16, torch.float32)
    assert narrow.weight_dtype == torch.bfloat16
    with narrow.autocast():
        assert not torch.is_autocast_enabled("cuda")


@given(
    outcomes=st.lists(st.booleans(), max_size=60),
    first=st.sampled_from([1.0, 2.0, 1024.0, 2.0**126]),
)
def test_the_scale_halves_at_each_overflow_and_doubles_after_many_good_updates(
    outcomes: list[bool], first: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_module, "_GROWTH_INTERVAL", 7)
        scale, expected, good = LossScale(FLOAT16, CPU), first, 0
        scale.load_counters({"loss_scale": first, "good_in_a_row": 0})
        for skipped in outcomes:
            scale.adapt(torch.tensor(float(skipped)))
            good = 0 if skipped else good + 1
            if skipped:
                expected = max(expected / 2, 1.0)
            elif good % 7 == 0:
                expected = min(expected * 2, 2.0**127)
            assert scale.factor == expected
            other = LossScale(FLOAT16, CPU)  # resumed here
            other.load_counters(scale.counters())
            scale = other


def test_counters_of_another_precision_say_nothing() -> None:
    fixed, adaptive = (LossScale(Precision(name, "cpu"), CPU) for name in ("bfloat16", "float16"))
    adaptive.load_counters(fixed.counters())
    fixed.load_counters(adaptive.counters())

    assert (fixed.factor, adaptive.factor) == (1.0, 2.0**15)


def test_fast_products_are_of_one_precision_and_for_a_while() -> None:
    backend: Any = torch.backends.mkldnn
    before = backend.matmul.fp32_precision
    for name in ("float32", "bf16-products", "bfloat16"):
        precision = choose_precision(name, CPU)
        with suppress(KeyError), precision.fast_products():
            found = backend.matmul.fp32_precision
            raise KeyError
        assert found == ("bf16" if name == "bf16-products" else before)
        assert backend.matmul.fp32_precision == before
    products = choose_precision("bf16-products", CPU)
    assert (products.dtype, products.weight_dtype) == (torch.float32, torch.float32)
    assert products.repeats_sizes
    with pytest.raises(DeviceError, match="bf16-products is for CPUs"):
        choose_precision("bf16-products", torch.device("cuda"))


@pytest.mark.skipif(rounds_products(), reason="this CPU has AMX")
@pytest.mark.parametrize("size", [64, 1000])
def test_without_amx_fast_products_are_as_exact_as_float32(size: int) -> None:
    torch.manual_seed(1)
    left, right = torch.randn(size, 256), torch.randn(256, size)
    exact = left.double() @ right.double()
    with choose_precision("bf16-products", CPU).fast_products():
        found = left @ right
    errors = [float((x - exact).norm() / exact.norm()) for x in (found, left @ right)]
    assert max(errors) < 1e-6  # in bfloat16 it is 2e-3
    assert errors[0] < 4 * errors[1]


@pytest.mark.parametrize(
    ("found", "names"),
    [
        ({}, ["float32"]),
        ({"avx512_bw": True}, ["float32", "bf16-products"]),
        ({"avx512_bw": True, "avx512_bf16": True}, ["bfloat16", "bf16-products", "float32"]),
    ],
)
def test_what_may_be_fastest_follows_the_hardware(
    found: dict[str, bool], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
    assert precisions_to_compare(CPU) == names
