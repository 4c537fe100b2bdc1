"""Processes seen from one of them; several real ones are in tests/training/test_processes.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.device import is_one_of_torchrun
from nmt.device.distributed import interleave, join
from nmt.errors import DeviceError


@given(values=st.lists(st.integers()), size=st.integers(1, 6))
def test_what_was_dealt_out_is_put_together_in_the_same_order(values: list[int], size: int) -> None:
    assert interleave([]) == []
    assert interleave([values[rank::size] for rank in range(size)]) == values


@pytest.mark.parametrize(
    ("run_id", "size", "expected"),
    [("a run", "2", True), ("a run", "1", False), (None, "2", False)],
)
def test_a_process_of_torchrun_has_others_beside_it(
    monkeypatch: pytest.MonkeyPatch, run_id: str | None, size: str, expected: bool
) -> None:
    """A WORLD_SIZE alone may be left over from something else."""
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if run_id is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    assert is_one_of_torchrun() == expected


@pytest.mark.parametrize("name", ["MASTER_ADDR", "RANK", "MASTER_PORT"])
def test_an_environment_without_peers_is_explained(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A WORLD_SIZE that was left over from something else, for example."""
    place = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    place |= {"MASTER_PORT": "none"} if name == "MASTER_PORT" else {}
    for each, value in place.items():
        monkeypatch.setenv(each, value)
    if name != "MASTER_PORT":
        monkeypatch.delenv(name)
    with pytest.raises(DeviceError, match="The 2 processes do not find") as caught:
        join()
    assert "`devices`" in caught.value.fix
