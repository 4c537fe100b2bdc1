"""What is made ahead is the same, in the same order, wherever it is made."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.config.data import BatchConfig
from nmt.data import corpus, lexicon
from nmt.data.loader import Loader, Position
from nmt.data.prepared import TIMES
from nmt.data.resegment import Resegmenter
from nmt.data.store import ParallelStore
from nmt.data.workers import map_ahead, open_workers, process_pool
from nmt.errors import ConfigError, DeviceError
from nmt.text.subword_dropout import SubwordDropout
from tests.commands.preparing import config_for, prepare
from tests.data.test_block_map import write_odd_pairs
from tests.data.test_store import store_of
from tests.process import LIMIT

LETTERS = "▁abcde"
MERGES = ["▁a", "ab", "bc", "▁ab", "cd", "▁abc", "de"]
PIECES = [*"....", *LETTERS, *MERGES]
NUM_PAIRS = 40

needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="needs the extra `cluster` (Dask)"
)


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Of words such as ``abcde``, whose subwords are drawn anew."""
    return loader_of(tmp_path_factory.mktemp("store") / "new", seed=1)


def loader_of(folder: Path, seed: int) -> Loader:
    word = [PIECES.index(piece) for piece in ("▁abc", "de", "▁a", "cd")]
    pairs = [(word * (1 + n % 3), word * (1 + n % 2)) for n in range(NUM_PAIRS)]
    store: ParallelStore = store_of(folder, pairs)
    scores = [0.0] * (len(PIECES) - len(MERGES)) + [-float(n) for n in range(len(MERGES))]
    side = SubwordDropout(PIECES, scores, [piece != "." for piece in PIECES], 0.3)
    config = BatchConfig(max_tokens=60, gradient_accumulation=2)
    resegment = Resegmenter((side, side), seed=seed, longest=50)
    return Loader(store, config, weights=[1.0], seed=1, changes=[resegment])


def drawn(loader: Loader, start: Position, number: int) -> list[Any]:
    updates = loader.updates(start)
    found = [
        ([(b.source.ids.tolist(), b.gold.tolist(), b.rows.tolist()) for b in batches], after)
        for batches, after in islice(updates, number)
    ]
    updates.close()
    return found


@pytest.mark.parametrize(("num_workers", "start"), [(1, (0, 0)), (2, (0, 4))])
def test_worker_processes_give_the_same_batches_as_one_thread(
    loader: Loader, num_workers: int, start: tuple[int, int]
) -> None:
    """Over the ends of epochs, and from any position."""
    number = next(loader.epoch_updates()) * 2 + 3
    expected = drawn(loader, Position(*start), number)
    assert drawn(replace(loader, num_workers=num_workers), Position(*start), number) == expected
    first, later = (expected[n][0][0][0] for n in (0, -1))
    assert first != later


def test_errors_are_raised_and_a_killed_worker_gives_a_fix() -> None:
    with process_pool(1) as pool:
        assert pool.submit(eval, "'torch' in __import__('sys').modules").result(LIMIT) is False
        assert pool.submit(os.getpid).result(LIMIT) != os.getpid()
        with pytest.raises(ZeroDivisionError):
            pool.submit(eval, "1 / 0").result(LIMIT)
        killing = map_ahead(eval, iter(["1", "__import__('os')._exit(9)", "2"]), pool, ahead=2)
        with pytest.raises(DeviceError, match=r"was killed.*\n.*fewer workers"):
            list(killing)


PARENT = """
import os, signal
from nmt.data.workers import process_pool
if __name__ == "__main__":
    with process_pool(2) as pool:
        pool.submit(os.getpid).result()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_parent_that_is_killed() -> None:
    # They inherit this pipe, which is closed when the last of them has ended.
    reader, writer = os.pipe()
    subprocess.run(
        [sys.executable, "-c", PARENT],
        stderr=writer,
        cwd=Path(__file__).parents[2],
        check=False,
        timeout=LIMIT,
    )
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 20)
    assert ready
    os.close(reader)


@given(number=st.integers(1, 20), threads=st.integers(1, 3), ahead=st.integers(1, 6))
def test_results_keep_their_order_and_few_are_ahead(number: int, threads: int, ahead: int) -> None:
    items = iter(range(number))
    with ThreadPoolExecutor(threads) as pool:
        found = map_ahead(lambda n: n * n, items, pool, ahead)
        assert next(found) == 0
        rest = [*items] if ahead < 3 else []
        assert len(rest) == (max(number - ahead - 1, 0) if ahead < 3 else 0)
        assert list(found) == [n * n for n in range(1, number - len(rest))]


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
    updates = replace(loader, num_workers=1, changes=()).updates(Position())
    next(updates)
    with news:
        assert news.wait_for(lambda: len(planned) == 2, 20)
    updates.close()
    assert planned == [(0, False), (1, False)]
    assert not [thread for thread in threading.enumerate() if "ahead" in thread.name]
    planned.clear()
    next(loader.updates(Position()))
    assert planned == [(0, True)]  # on a CPU nothing is made before it is asked for


def prepared(folder: Path, **options: Any) -> object:
    """Everything that is made of some corpora, but times."""
    write_odd_pairs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "BLOCK_PAIRS", 13)
        patch.setattr(lexicon, "_COOCCURRENCES_AT_ONCE", 1000)  # several batches, too
        prepare(config_for(folder), force=True, **options)
    files = [path for path in sorted((folder / "prepared").rglob("*")) if path.is_file()]
    return {
        path.name: path.read_bytes() for path in files if path.name not in (TIMES, "manifest.json")
    }


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    assert prepared(tmp_path, workers=3) == prepared(tmp_path)


@needs_dask
@pytest.mark.long
def test_dask_gives_the_same_bytes(tmp_path: Path) -> None:
    assert prepared(tmp_path, workers=2, scheduler="local") == prepared(tmp_path)


@needs_dask
def test_a_missing_dask_or_scheduler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt.data.workers._CONNECT_SECONDS", 0.2)
    for place, workers, message in (
        ("tcp://127.0.0.1:9", None, "No Dask scheduler answers at tcp://127"),
        ("tcp://127.0.0.1:9", 2, "cannot be combined with the address of a running scheduler"),
        ("local", 2, r"not installed.*\n.*pip install .*\[cluster\]"),
    ):
        if place == "local":
            monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(ConfigError, match=message), open_workers(workers, place):
            pass
