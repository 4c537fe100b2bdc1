"""Whether layers are compiled, and what happens where that does not work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch

from nmt.engine import compilation
from nmt.engine.compilation import Compilation, compile_layers, compiled
from nmt.errors import DeviceError
from tests.compiling import Backend, use_backend

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


@pytest.mark.parametrize(("wanted", "device"), [("auto", CPU), (False, CPU), (False, GPU)], ids=str)
def test_layers_stay_as_they_are(wanted: Literal["auto"] | bool, device: torch.device) -> None:
    layers = Layers()

    assert layers.set_up(wanted, device) == Compilation(is_on=False)
    assert layers.told == []


@pytest.mark.parametrize(("wanted", "device"), [("auto", GPU), (True, CPU), (True, GPU)], ids=str)
def test_layers_are_compiled_before_anything_depends_on_it(
    wanted: Literal["auto"] | bool, device: torch.device
) -> None:
    layers = Layers()
    found = layers.set_up(wanted, device)

    assert found.is_on
    assert found.remark.startswith("layers compiled in ")
    assert layers.told == [compiled, "warm_up"]


def test_auto_goes_on_without_where_it_does_not_work_and_says_why() -> None:
    layers = Layers(RuntimeError("\nNo C compiler\n\nSet THIS=1 for more"))
    found = layers.set_up("auto", GPU)

    assert found == Compilation(is_on=False, remark="layers not compiled (No C compiler)")
    assert layers.told == [compiled, "warm_up", None]


def test_what_is_asked_for_and_does_not_work_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"on cpu: No C compiler\n.*compile to false"):
        Layers(RuntimeError("No C compiler\n\nmore")).set_up(True, CPU)


def test_a_lack_of_memory_is_not_taken_for_a_lack_of_a_compiler() -> None:
    short = DeviceError("Memory does not hold a batch.", fix="Smaller ones.")
    with pytest.raises(DeviceError, match="Memory does not hold"):
        Layers(short).set_up("auto", GPU)


@pytest.fixture
def tidy() -> Iterator[Backend]:
    yield from use_backend("eager")


@pytest.mark.slow
@pytest.mark.usefixtures("tidy")
def test_a_machine_without_a_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config

    inductor: Any = torch._inductor.config
    monkeypatch.setattr(compilation, "_BACKEND", BACKEND)
    forward = compiled(lambda values: values.sin() + values.cos())

    def warm_up() -> None:
        forward(torch.ones(99))

    missing = {"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}
    with (
        inductor.patch(missing),
        pytest.raises(DeviceError, match=r"No working C\+\+ compiler .*no-such-compiler"),
    ):
        compile_layers(True, CPU, switch=lambda _: None, warm_up=warm_up)
