"""What limits memory, and how much of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nmt.engine import memory
from nmt.engine.memory import free_bytes

resource = pytest.importorskip("resource", reason="no such limits on this system")

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
