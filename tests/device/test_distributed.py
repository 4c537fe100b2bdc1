"""Processes seen from one of them; several real ones are in tests/training/test_processes.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.device import is_first, local_rank
from nmt.device.distributed import (
    PEER_LOST,
    PeerLostError,
    Processes,
    interleave,
    join,
)
from nmt.errors import DeviceError


@given(values=st.lists(st.integers()), size=st.integers(1, 6))
def test_what_was_dealt_out_is_put_together_in_the_same_order(values: list[int], size: int) -> None:
    assert interleave([]) == []
    assert interleave([values[rank::size] for rank in range(size)]) == values


def test_one_process_is_alone_with_its_values() -> None:
    alone, numbers = Processes(), torch.tensor([1.0, 2.0])
    alone.sum(numbers)
    value = object()

    assert (alone.rank, alone.size) == (0, 1)
    assert numbers.tolist() == [1.0, 2.0]
    assert alone.gather(value) == [value]
    assert alone.share(value) is value
    assert alone.is_first_to_fail()
    alone.wait()


@pytest.mark.parametrize("world_size", [None, "1"])
def test_without_others_there_is_one_process(
    monkeypatch: pytest.MonkeyPatch, world_size: str | None
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)

    assert join().size == 1
    assert is_first()
    assert local_rank() == 0
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not is_first()
    assert local_rank() == 1


def test_a_command_that_one_of_the_processes_starts_is_none_of_them() -> None:
    """It would wait for peers that never come."""
    ask = "from nmt.device import is_one_of_torchrun as it; print(it())"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    for code, expected in ((ask, "True"), (start, "False")):
        place = os.environ | {"TORCHELASTIC_RUN_ID": "a run of this test", "WORLD_SIZE": "2"}
        found = subprocess.run(
            [sys.executable, "-c", code], env=place, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda patch: patch.delenv("MASTER_ADDR"),
        lambda patch: patch.delenv("RANK"),
        lambda patch: patch.setenv("MASTER_PORT", "none"),
    ],
    ids=["no address", "no rank", "no port"],
)
def test_an_environment_without_peers_is_explained(
    monkeypatch: pytest.MonkeyPatch, spoil: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """A WORLD_SIZE that was left over from something else, for example."""
    place = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    spoil(monkeypatch)
    with pytest.raises(DeviceError, match="The 2 processes do not find") as caught:
        join()

    assert "`devices`" in caught.value.fix


def test_a_lost_peer_has_an_exit_code_of_its_own() -> None:
    assert PeerLostError.exit_code == PEER_LOST
    assert PEER_LOST not in (0, 1, 2, 3, 4, 5, 6, 130, 141, 143)


CHILD = """
import os, time
from nmt.device.distributed import _save_when_the_launcher_dies
_save_when_the_launcher_dies()
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
time.sleep(60)
"""
