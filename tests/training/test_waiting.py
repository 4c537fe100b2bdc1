"""Updates do not wait for the device, and skipped updates still change nothing.

The device here is torch's ``meta``, which has shapes and no values: whatever would wait for a GPU
(``item``, ``tolist``, ``bool``, ``nonzero``, a mask as an index, a copy to the host) raises. It is
no CPU, so it takes the ways that a GPU takes. Beside a GPU a thread writes checkpoints
while updates go on, too.
"""

from __future__ import annotations

import json
import math
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from nmt.checkpoint import files
from nmt.checkpoint.files import list_checkpoints, load_checkpoint
from nmt.data.loader import Batch
from nmt.device.precision import Precision
from nmt.model.transformer import Transformer
from nmt.training.losses import LossSum
from nmt.training.update import Updater
from tests.process import LIMIT
from tests.training import test_trouble
from tests.training.runs import Harm, Run, assert_equal
from tests.training.small import BF16, FLOAT32, batch_of, small_model, updater_of
from tests.training.test_faults import assert_whole
from tests.training.test_optimizer import WAYS, assert_same, everything, updater_for
from tests.training.test_optimizers import optimizer_of
from tests.training.test_trouble import poison, run

META, CPU = torch.device("meta"), torch.device("cpu")
TENSORS_OF_A_BATCH = 5
FP16 = Precision("float16", "cuda")

values = test_trouble.values


class Copies(TorchDispatchMode):
    """Notes what is copied from the host to the device, and whether the host waits for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waiting: list[str] = []
        self.count = 0

    @override
    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        from_host = any(isinstance(value, Tensor) and value.device == CPU for value in args)
        if isinstance(result, Tensor) and result.device == META:
            if from_host and not _is_asynchronous(args, kwargs):
                self.waiting.append(str(func))
            self.count += from_host
        return result


def _is_asynchronous(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    return bool((kwargs or {}).get("non_blocking", False)) or args[2:3] == (True,)


class Pinned:
    """Counts the tensors that were put where copies need not wait."""

    count = 0

    def pin(self, tensor: Tensor) -> Tensor:
        self.count += 1
        return tensor


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> Pinned:
    pinned, tensor = Pinned(), torch.tensor

    def on_host(data: object, device: torch.device = CPU, **options: Any) -> Tensor:
        assert device == CPU, "a copy to the device that waits"
        return tensor(data, device=device, **options)

    monkeypatch.setattr(torch, "tensor", on_host)  # what it does is hidden from `Copies`
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.pin(tensor))
    monkeypatch.setattr(Precision, "autocast", lambda _: nullcontext())  # there is none for meta
    return pinned


def meta_updater(
    kind: str = "adamw",
    *,
    ema_decay: float | None = None,
    precision: Precision = FLOAT32,
    clip_norm: float = 1.0,
    r_drop: float = 0.0,
    **shape: object,
) -> Updater:
    model = small_model(dropout=0.1, **shape).to(META)
    optimizer = optimizer_of(model, kind=kind, ema_decay=ema_decay, dtype=precision.weight_dtype)
    return updater_of(model, optimizer, precision, clip_norm=clip_norm, r_drop=r_drop)


OPTIONS: tuple[dict[str, Any], ...] = (
    {"clip_norm": 0.0},
    {"r_drop": 5.0},
    {"precision": BF16},
    {"precision": FP16},
    {"norm_position": "post", "output_bias": True, "word_dropout": 0.1},
    {"norm": "rms", "positions": "rotary", "activation": "swiglu", "qk_norm": True},
)


@pytest.mark.parametrize(
    ("kind", "ema_decay", "options"),
    [(*way, {}) for way in WAYS] + [("adamw", None, options) for options in OPTIONS],
    ids=str,
)
def test_an_update_does_not_wait_for_its_device(
    kind: str, ema_decay: float | None, options: dict[str, Any], pinned: Pinned
) -> None:
    updater = meta_updater(kind, ema_decay=ema_decay, **options)
    batches = [batch_of([5, 3]), batch_of([2, 7, 4])]
    with Copies() as copies:
        updater(batches, 0.01)
        stats = updater(batches, 0.01)
    assert copies.waiting == []
    assert copies.count == pinned.count == 2 * len(batches) * TENSORS_OF_A_BATCH
    assert stats.target_tokens == 21
    with pytest.raises(NotImplementedError, match="meta tensor"):
        _ = stats.loss_sum


def _scaled(factor: float) -> Callable[[Tensor, Transformer], Tensor]:
    return lambda loss, _model: loss * factor


def _nan_loss_with_a_good_gradient(loss: Tensor, _model: Transformer) -> Tensor:
    return loss + math.nan


def _with_gradient(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Transformer], Tensor]:
    def fault(loss: Tensor, model: Transformer) -> Tensor:
        vectors = model.source_vectors * 1
        vectors.register_hook(change)
        return loss + vectors.float().sum() * 0

    return fault


FAULTS = {
    "nan loss": _scaled(math.nan),
    "one infinite gradient": _with_gradient(
        lambda gradient: gradient.index_fill(0, torch.tensor([3]), torch.inf)
    ),
    "infinite loss": _scaled(math.inf),
    "nan loss with a good gradient": _nan_loss_with_a_good_gradient,
    "overflowing norm": _with_gradient(lambda gradient: torch.full_like(gradient, 1e38)),
}


@pytest.mark.parametrize(("before", "precision"), [(0, FLOAT32), (3, BF16)], ids=str)
@pytest.mark.parametrize(
    ("kind", "ema_decay", "fault"),
    [("adamw", None, fault) for fault in FAULTS]
    + [(*way, fault) for way in WAYS[1:] for fault in list(FAULTS)[:2]],
)
def test_a_skipped_update_does_not_change_any_bit(
    kind: str, ema_decay: float | None, precision: Precision, before: int, fault: str
) -> None:
    """FAULT 23, of the second of two accumulated batches; the next update is as if it never was."""

    def go_on(updater: Updater, begin: int, end: int) -> None:
        for step in range(begin, end):
            assert not updater([batch_of([5, 4], step), batch_of([3], step)], 0.02).skipped

    updater, twin = (updater_for(small_model(), kind, ema_decay, precision) for _ in range(2))
    for each in (updater, twin):
        go_on(each, 0, before)
    expected = everything(twin.model, twin.optimizer)
    objective, calls = updater.objective_loss, 0

    def faulty(batch: Batch) -> LossSum:
        nonlocal calls
        calls += 1
        loss, tokens = objective(batch)
        return LossSum(loss if calls % 2 else FAULTS[fault](loss, updater.model), tokens)

    updater.objective_loss = faulty  # type: ignore[method-assign]
    for _ in range(2):
        assert updater([batch_of([5, 4]), batch_of([3])], 0.02).skipped
    updater.objective_loss = objective  # type: ignore[method-assign]
    assert_same(everything(updater.model, updater.optimizer), expected)
    for each in (updater, twin):
        go_on(each, before, before + 3)
    found = everything(updater.model, updater.optimizer)
    assert_same(found, everything(twin.model, twin.optimizer))


def hashes(run_dir: Path) -> list[bytes]:
    return [(path / "manifest.json").read_bytes() for _, path in list_checkpoints(run_dir)]


def told(run_dir: Path) -> tuple[list[str], list[str]]:
    """Return the notes with their lines of data, and the metrics without times."""
    log = [line[21:] for line in (run_dir / "log.txt").read_text().splitlines()]
    metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if "second" not in k} for line in metrics]
    return [line for line in log if "skipped" in line], [json.dumps(line) for line in kept]


def test_reading_statistics_late_reports_and_saves_the_same(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, run_ahead: Callable[[], None]
) -> None:
    values["training"] |= {"log_every": 3, "keep_last": 9}
    found = []
    for name in ("at-once", "late"):
        with monkeypatch.context() as patch:
            poison(patch, 4, 5)
            run_dir = run(values, name)
        found.append((told(run_dir), hashes(run_dir)))
        run_ahead()
    assert len(found[0][0][0]) == 2
    assert found[0][1]
    assert found[0] == found[1]


KILLS = 4


def test_updates_continue_while_a_checkpoint_is_written(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, run_ahead: Callable[[], None]
) -> None:
    """Saved is what there was when saving began; one is written at a time."""
    run_ahead()
    made, write = poison(monkeypatch, 0, 0), vars(files)["save_checkpoint"]
    begun, kept = threading.Event(), list[tuple[int, Tensor]]()
    seen = []

    def slow(run_dir: Path, step: int, **parts: Any) -> Path:
        if not begun.is_set():
            begun.set()
            kept.append((step, next(iter(parts["model"].values())).clone()))
            end = time.monotonic() + LIMIT
            while len(made) < step + 3:
                assert time.monotonic() < end, "no update is made meanwhile"
                threading.Event().wait(0.001)
        seen.append((step, threading.current_thread() is threading.main_thread()))
        return write(run_dir, step, **parts)

    monkeypatch.setattr(files, "save_checkpoint", slow)
    folder = run({**values, "training": values["training"] | {"keep_last": 9}})
    steps = [step for step, _ in list_checkpoints(folder)]
    assert [step for step, _ in seen] == steps
    assert not any(is_main for _, is_main in seen)
    step, weights = kept[0]
    found = load_checkpoint(dict(list_checkpoints(folder))[step])
    assert found.state["progress"]["step"] == step
    assert any(torch.equal(weights, tensor) for tensor in found.model.values())


@pytest.mark.long
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
