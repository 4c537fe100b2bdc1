"""What limits memory, how much of it is left, and the peak that work takes."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nmt.device import device as memory
from nmt.device.device import free_bytes, measure_peak

CPU = torch.device("cpu")
MEBIBYTE = 2**20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups, one inside the other, with this process in the inner one."""
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/elsewhere\n0::/outer/inner\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_OWN_GROUP", own)
    (tmp_path / "groups" / "outer" / "inner").mkdir(parents=True)
    return tmp_path / "groups"


def limit(group: Path, limit: str, used: int) -> None:
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used + MEBIBYTE}\n")
    (group / "memory.stat").write_text(f"active_file 3\ninactive_file {MEBIBYTE}\n")


def test_the_narrowest_group_counts(groups: Path) -> None:
    unlimited = free_bytes(CPU)
    limit(groups / "outer", "max", 3)
    assert free_bytes(CPU) == pytest.approx(unlimited, rel=0.2)
    limit(groups, str(9 * MEBIBYTE), MEBIBYTE)
    limit(groups / "outer" / "inner", str(7 * MEBIBYTE), MEBIBYTE)
    assert free_bytes(CPU) == 6 * MEBIBYTE
    limit(groups / "outer", str(5 * MEBIBYTE), 6 * MEBIBYTE)
    assert free_bytes(CPU) == 0


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = tmp_path / "statm"
    sizes.write_text("100 50 3 0 0 0 0\n")
    monkeypatch.setattr(memory, "_OWN_SIZES", sizes)
    pages = 100 * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (pages + 5 * MEBIBYTE, -1))
    assert free_bytes(CPU) == 5 * MEBIBYTE
    monkeypatch.setattr(resource, "getrlimit", lambda _: (pages - 1, -1))
    assert free_bytes(CPU) == 0


def test_the_peak_is_of_what_lives_at_one_time() -> None:
    held = torch.ones(1000)
    views: list[Tensor] = []

    def work() -> None:
        first = torch.empty(100)  # 400 bytes
        second = held + 1  # 4,000: together the peak
        views.extend((first[:50], held[:10]))  # nothing new
        held.add_(1)
        del first, second, views[:]
        torch.empty(1000).neg_()  # 4,000 again, alone

    assert measure_peak(work, CPU) == (None, 4_400)
    result, peak = measure_peak(lambda: held.mul_(2).view(20, 50), CPU)
    assert (result.shape, peak) == ((20, 50), 0)


def test_compiled_code_is_followed_as_it_was_written() -> None:
    def work(values: torch.Tensor) -> torch.Tensor:
        return (values + 1).sum()

    compiled = torch.compile(work, backend="eager", fullgraph=True)
    values = torch.zeros(1000)
    found = [measure_peak(partial(run, values), CPU) for run in (compiled, work)]
    assert [(total.item(), peak) for total, peak in found] == [(1000.0, 4_004)] * 2


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="has no huge pages to give"
)
def test_huge_pages_take_addresses_and_no_memory() -> None:
    """The flag ``hg`` of Linux marks mappings that it backs with huge pages."""
    program = (
        "from nmt.device.device import prepare_process\n"
        "from nmt.device.device import use_huge_pages\n"
        "prepare_process(1); use_huge_pages(); print(open('/proc/self/smaps').read())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", found.stdout.decode())
    marked = [each for each in mappings if re.search(r"VmFlags:.* hg\b", each)]
    sizes, resident = (
        sum(int(re.findall(rf"{name}: *(\d+) kB", each)[0]) for each in marked)
        for name in ("Size", "Rss")
    )
    assert sizes * 1024 > 2**31 - 2**24
    assert resident * 1024 < 2**25
