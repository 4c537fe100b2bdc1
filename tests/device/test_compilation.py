"""Whether layers are compiled, and what happens if compilation fails."""

from __future__ import annotations

import os
from typing import Any, Literal

import pytest
import torch

from nmt.device import compilation
from nmt.device.compilation import Compilation, compile_layers, compiled, keep_compiled_code
from nmt.errors import DeviceError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
BACKEND = compilation._BACKEND


class Layers:
    """Remembers how they were told to run."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.told: list[Any] = []
        self._trouble = trouble

    def warm_up(self) -> None:
        self.told.append("warm_up")
        if self._trouble is not None:
            raise self._trouble

    def set_up(self, wanted: Literal["auto"] | bool, device: torch.device) -> Compilation:
        return compile_layers(wanted, device, switch=self.told.append, warm_up=self.warm_up)


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("wanted", ["auto", False, True])
def test_layers_are_compiled_in_a_warm_up_or_not_at_all(
    wanted: Literal["auto"] | bool, device: torch.device
) -> None:
    layers = Layers()
    found = layers.set_up(wanted, device)
    if wanted is True or (wanted, device) == ("auto", GPU):
        assert found.is_on
        assert found.remark.startswith("layers compiled in ")
        assert layers.told == [compiled, "warm_up"]
    else:
        assert found == Compilation(is_on=False)
        assert layers.told == []


def test_auto_does_not_compile_for_a_short_training() -> None:
    layers = Layers()
    options: Any = {"switch": layers.told.append, "warm_up": layers.warm_up, "is_worth_it": False}
    found = compile_layers("auto", GPU, **options)
    assert not found.is_on
    assert "too short" in found.remark
    assert layers.told == []
    assert compile_layers(True, GPU, **options).is_on


@pytest.mark.parametrize(
    ("cache", "given", "expected"),
    [
        ("/of/the/user", None, "/of/the/user/nmt/compiled"),
        ("/of/the/user", "/of/the/system", "/of/the/system"),
        (None, None, "/home/of/the/user/.cache/nmt/compiled"),
        ("relative", None, "/home/of/the/user/.cache/nmt/compiled"),  # not valid, says XDG
    ],
)
def test_compiled_code_is_kept_in_the_cache_folder(
    cache: str | None, given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/of/the/user")
    for name, value in (("XDG_CACHE_HOME", cache), ("TORCHINDUCTOR_CACHE_DIR", given)):
        monkeypatch.setenv(name, value or "")  # restored afterwards, also if deleted
        if value is None:
            monkeypatch.delenv(name)
    keep_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == expected


@pytest.mark.usefixtures("counting")
def test_the_limit_of_graphs_gives_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compilation, "_MAX_GRAPHS", 2)
    forward = compiled(lambda values: values * 2)
    try:
        for dtype in (torch.float32, torch.float64, torch.int64, torch.int32, torch.float32):
            values = torch.arange(3, dtype=dtype)
            assert torch.equal(forward(values), values * 2)
    finally:
        torch.compiler.set_stance("default")
    notes = [record.getMessage() for record in caplog.records if "maximum of 2" in record.message]
    assert len(notes) == 1


def test_a_failed_compilation_is_an_error_unless_auto() -> None:
    layers = Layers(RuntimeError("\nNo C compiler\n\nSet THIS=1 for more"))
    found = layers.set_up("auto", GPU)
    assert found == Compilation(is_on=False, remark="layers not compiled (No C compiler)")
    assert layers.told == [compiled, "warm_up", None]
    with pytest.raises(DeviceError, match=r"on cpu: No C compiler\n.*compile to false"):
        Layers(RuntimeError("No C compiler\n\nmore")).set_up(True, CPU)
    # A lack of memory is not taken for a lack of a compiler.
    short = DeviceError("Memory does not hold a batch.", fix="Smaller ones.")
    with pytest.raises(DeviceError, match="Memory does not hold"):
        Layers(short).set_up("auto", GPU)


@pytest.mark.usefixtures("counting")
def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config

    inductor: Any = torch._inductor.config
    monkeypatch.setattr(compilation, "_BACKEND", BACKEND)
    forward = compiled(lambda values: values.sin() + values.cos())
    missing = {"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}
    with (
        inductor.patch(missing),
        pytest.raises(DeviceError, match=r"No working C\+\+ compiler .*no-such-compiler"),
    ):
        compile_layers(True, CPU, switch=lambda _: None, warm_up=lambda: forward(torch.ones(99)))
