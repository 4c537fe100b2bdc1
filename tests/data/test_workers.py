"""What is made ahead is the same, in the same order, whoever makes it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import BatchConfig
from nmt.data.loader import Loader, Position
from nmt.data.resegment import Resegmenter
from nmt.data.store import ParallelStore
from nmt.data.workers import ProcessExecutor, WorkerPool, map_ahead, map_in_order
from nmt.errors import DeviceError
from nmt.text.subword_dropout import SubwordDropout
from tests.data.kills import square_after_a_kill
from tests.data.test_store import store_of

LETTERS = "▁abcde"
MERGES = ["▁a", "ab", "bc", "▁ab", "cd", "▁abc", "de"]
PIECES = [*"....", *LETTERS, *MERGES]
NUM_PAIRS = 40


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Of words such as ``abcde``, whose subwords are drawn anew."""
    word = [PIECES.index(piece) for piece in ("▁abc", "de", "▁a", "cd")]
    pairs = [(word * (1 + n % 3), word * (1 + n % 2)) for n in range(NUM_PAIRS)]
    store: ParallelStore = store_of(tmp_path_factory.mktemp("store") / "new", pairs)
    scores = [0.0] * (len(PIECES) - len(MERGES)) + [-float(n) for n in range(len(MERGES))]
    side = SubwordDropout(PIECES, scores, [piece != "." for piece in PIECES], 0.3)
    config = BatchConfig(max_tokens=60, accumulate=2)
    resegment = Resegmenter((side, side), seed=1, longest=50)
    return Loader(store, config, weights=[1.0], seed=1, resegment=resegment)


def drawn(loader: Loader, start: Position, number: int) -> list[Any]:
    updates = loader.updates(start)
    found = [
        ([(b.source.ids.tolist(), b.gold.tolist(), b.rows.tolist()) for b in batches], after)
        for batches, after in islice(updates, number)
    ]
    updates.close()
    return found


@pytest.mark.parametrize(("num_workers", "start"), [(1, (0, 0)), (3, (0, 4))])
def test_worker_processes_draw_the_bits_of_one_thread_in_order(
    loader: Loader, num_workers: int, start: tuple[int, int]
) -> None:
    """Over the ends of epochs, and from any position."""
    number = loader.updates_per_epoch() * 2 + 3
    expected = drawn(loader, Position(*start), number)
    others = Loader(**{**fields_of(loader), "num_workers": num_workers})

    assert drawn(others, Position(*start), number) == expected
    first, later = (expected[n][0][0][0] for n in (0, -1))
    assert first != later


def fields_of(loader: Loader) -> dict[str, Any]:
    return {name: getattr(loader, name) for name in loader.__dataclass_fields__}


def test_a_worker_that_is_killed_costs_no_more_than_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with WorkerPool(os.getpid, 1) as pool:
        child = pool()
        assert child != os.getpid()
        os.kill(child, signal.SIGKILL)
        others = {pool(), pool()}
        assert len(others) == 1
        assert others.isdisjoint({child, os.getpid()})
    assert caplog.text.count("a worker process has ended") == 1


def test_twenty_killed_workers_cost_the_work_of_each_and_no_more(tmp_path: Path) -> None:
    with ProcessExecutor(2) as executor:
        make = partial(square_after_a_kill, tmp_path)
        found = [*map_in_order(executor, make, iter(range(20)), ahead=4)]
    assert found == [n * n for n in range(20)]


def test_work_that_kills_every_worker_ends_with_a_message() -> None:
    with WorkerPool(partial(eval), 1) as pool:
        with pytest.raises(DeviceError, match=r"killed 3 times.*\n.*fewer workers"):
            pool("__import__('os')._exit(9)")
        assert pool("2 + 2") == 4


def test_an_executor_of_processes_is_left_at_once_by_an_error() -> None:
    """What is under way is not waited for, and leaves no thread or process."""
    start = time.monotonic()
    executor = ProcessExecutor(2)
    waiting = [executor.submit(time.sleep, 60) for _ in range(4)]
    executor.__exit__(KeyboardInterrupt)
    assert time.monotonic() - start < 30
    assert all(each.cancelled() or isinstance(each.exception(), CancelledError) for each in waiting)
    assert not [thread for thread in threading.enumerate() if "worker" in thread.name]


def test_errors_come_back_and_workers_load_no_torch() -> None:
    with WorkerPool(partial(eval), 2) as pool:
        assert pool("'nmt.data.resegment' in __import__('sys').modules") is False
        assert pool("bool(__import__('nmt.data.resegment'))")
        assert pool("'torch' in __import__('sys').modules") is False
        with pytest.raises(ZeroDivisionError):
            pool("1 / 0")
        assert pool("1 + 1") == 2


PARENT = """
import os, signal
from nmt.data.workers import WorkerPool
with WorkerPool(os.getpid, 2) as pool:
    pool()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_parent_that_is_killed() -> None:
    # They inherit this pipe, which is closed when the last of them has ended.
    reader, writer = os.pipe()
    subprocess.run(
        [sys.executable, "-c", PARENT], stderr=writer, cwd=Path(__file__).parents[2], check=False
    )
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 20)
    assert ready
    os.close(reader)


@given(number=st.integers(0, 20), threads=st.integers(1, 3), ahead=st.integers(1, 6))
def test_results_keep_their_order(number: int, threads: int, ahead: int) -> None:
    found = map_ahead(lambda n: n * n, iter(range(number)), threads=threads, ahead=ahead)
    assert list(found) == [n * n for n in range(number)]


def test_no_more_is_made_than_asked_for_and_so_much_ahead() -> None:
    asked = []

    def items() -> Iterator[int]:
        for number in count():
            asked.append(number)
            yield number

    found = map_ahead(str, items(), threads=2, ahead=4)
    assert next(found) == "0"
    assert len(asked) == 5
    found.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]


def test_the_next_epoch_is_planned_before_this_one_ends(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, news, plan = [], threading.Condition(), Loader.plan

    def noted(self: Loader, epoch: int, stage: int = 0) -> Any:
        with news:
            planned.append((epoch, threading.current_thread() is threading.main_thread()))
            news.notify_all()
        return plan(self, epoch, stage)

    monkeypatch.setattr(Loader, "plan", noted)
    fields = fields_of(loader) | {"num_workers": 1, "resegment": None}
    updates = Loader(**fields).updates(Position())
    next(updates)
    with news:
        assert news.wait_for(lambda: len(planned) == 2, 20)
    updates.close()
    assert planned == [(0, False), (1, False)]
    planned.clear()
    next(loader.updates(Position()))
    assert planned == [(0, True)]  # on a CPU nothing is made before it is asked for
