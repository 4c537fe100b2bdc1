"""Checkpoints that a thread writes while updates go on, as beside a GPU."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nmt.checkpoint.files import host_copies, list_checkpoints, load_checkpoint
from nmt.training import checkpoints
from tests.training import test_trouble
from tests.training.runs import Harm, Run, assert_equal
from tests.training.test_faults import assert_whole
from tests.training.test_trouble import poison, run

KILLS = 4

values = test_trouble.values


def test_copies_are_equal_of_their_own_and_made_buffer_by_buffer() -> None:
    whole, other = torch.randn(60), torch.arange(6, dtype=torch.int64)
    tensors = {"a": whole[:12].view(3, 4), "b": whole[20:50].view(5, 6).T, "c": other[2:3]}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    copies = host_copies(tensors)
    for buffer in (whole, other):
        buffer.zero_()
    for name, tensor in expected.items():
        assert torch.equal(copies[name], tensor)
    storages = {tensor.untyped_storage().data_ptr() for tensor in copies.values()}
    assert len(storages) == 2


def test_updates_go_on_while_a_checkpoint_is_written(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, run_ahead: Callable[[], None]
) -> None:
    """Saved is what there was when saving began; one is written at a time."""
    run_ahead()
    made, write = poison(monkeypatch, 0, 0), vars(checkpoints)["save_checkpoint"]
    begun, kept = threading.Event(), list[tuple[int, Tensor]]()
    seen = []

    def slow(run_dir: Path, step: int, **parts: Any) -> Path:
        if not begun.is_set():
            begun.set()
            kept.append((step, next(iter(parts["model"].values())).clone()))
            while len(made) < step + 3:  # waits for ever unless updates go on
                threading.Event().wait(0.001)
        seen.append((step, threading.current_thread() is threading.main_thread()))
        return write(run_dir, step, **parts)

    monkeypatch.setattr(checkpoints, "save_checkpoint", slow)
    folder = run({**values, "training": values["training"] | {"keep_last": 9}})

    steps = [step for step, _ in list_checkpoints(folder)]
    assert [step for step, _ in seen] == steps
    assert not any(is_main for _, is_main in seen)
    step, weights = kept[0]
    found = load_checkpoint(dict(list_checkpoints(folder))[step])
    assert found.state["progress"]["step"] == step
    assert any(torch.equal(weights, tensor) for tensor in found.model.values())


def test_kills_while_a_thread_writes_leave_the_last_whole_checkpoint(run: Run, whole: Run) -> None:
    """FAULT 7: the end is the same to the bit."""
    draw = random.Random(18)
    for place in ("save", "update") * (KILLS // 2):
        harm = Harm(place, draw.randint(1, 2 if place == "save" else 9), (signal.SIGKILL,))
        harm = replace(harm, ahead=True)
        assert run.train("--strict-resume", harm=harm).code in (0, -signal.SIGKILL)
    run.finish("--exact", "--strict-resume")
    assert_equal(run, whole)
    assert_whole(run)
