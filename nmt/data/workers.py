"""Parallel work on text: in threads, in processes, or with Dask.

No other module starts processes for text, and no other module imports Dask.

`map_blocks` calls a function for each block of a corpus. `StoredResults` writes the results to
files, so that little work is lost if the process is killed. A result is stored under a hash of its
inputs: the settings of the function and the content of the block. Files are written atomically and
have checksums. The last, smaller block of a corpus is not stored, so a small corpus needs no files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, tee
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import Block
from nmt.device import usable_cores
from nmt.errors import ConfigError, DataError, DeviceError
from nmt.files.progress import progress_bar

LOCAL = "local"  # starts a Dask scheduler with workers on this machine
_CONNECT_SECONDS = 10
T = TypeVar("T")
R = TypeVar("R")
_VALUES = "values"  # name of the array that contains `BlockResult.values` in a file
Arrays = Mapping[str, npt.NDArray[Any]]
logger = logging.getLogger(__name__)


def map_ahead(
    make: Callable[[T], R], items: Iterator[T], executor: Executor, ahead: int
) -> Iterator[R]:
    """Yield ``make(item)`` in order. The executor computes the next results in the meantime.

    Args:
        make: Called by the executor.
        items: Read in the caller's thread, only as far as needed.
        executor: Threads or processes.
        ahead: Number of results that are computed in advance.

    Raises:
        DeviceError: A worker process was killed or could not start.
    """
    futures = deque(executor.submit(make, item) for item in islice(items, ahead))
    try:
        while futures:
            result = futures.popleft().result()
            # Submit the next item, if there is one, before the caller uses the result.
            futures.extend(executor.submit(make, item) for item in islice(items, 1))
            yield result
    except BrokenProcessPool as error:
        fix = "If memory is short, use fewer workers; the same command resumes. If a Python script "
        fix += "calls nmt, put the call under `if __name__ == '__main__':`."
        raise DeviceError("A worker process was killed or could not start.", fix=fix) from error
    finally:
        for future in futures:
            future.cancel()


@contextmanager
def process_pool(
    size: int, install: Callable[[T], object] | None = None, value: T | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes that share no memory with this one, and that always end with it.

    Args:
        size: Number of processes.
        install: Called once in each process, with ``value``.
        value: Pickled once per process.
    """
    # Forking a process with threads may deadlock, and torch and tokenizers start threads.
    pool = ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), _begin, (install, value))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(install: Callable[[Any], object] | None, value: Any) -> None:
    """Initialize a worker process: ignore Ctrl-C, end with the parent, call ``install``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent process handles an interrupt
    # A worker has both ends of its queue open, so it would wait forever for a killed parent.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if install is not None:
        install(value)


def _end_with_parent() -> None:
    """Wait for the end of the parent process, then end this process at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Inline(Executor):
    """Calls submitted functions immediately, in this thread."""

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        future = Future[T]()
        future.set_result(function(*arguments, **options))
        return future


class Workers(NamedTuple):
    """An executor for blocks of a corpus: this thread, processes, or Dask."""

    executor: Executor
    ahead: int  # number of blocks in progress: two per worker
    threads: int  # threads per worker
    see_files: bool = False  # whether the workers are other processes on this machine

    def map(self, make: Callable[[T], R], items: Iterator[T], /) -> Iterator[R]:
        """Yield ``make(item)`` in order."""
        return map_ahead(make, items, self.executor, self.ahead)

    @property
    def near(self) -> Workers:
        """These workers if they can read local files, else this process."""
        return self if self.see_files else HERE

    def submit(self, make: Callable[..., R], *arguments: Any) -> Future[R]:
        """Call a function that needs local files, in the background if possible."""
        return self.near.executor.submit(make, *arguments)


HERE = Workers(_Inline(), 1, 1)


@contextmanager
def open_workers(workers: int | None, scheduler: str | None) -> Iterator[Workers]:
    """Start the workers of `nmt prepare`, or connect to a Dask scheduler; stop them at the end.

    Args:
        workers: Number of processes with one thread each; 1 uses this process. None uses this
            process with one thread per CPU core, or one Dask worker per core with ``local``.
        scheduler: Address of a Dask scheduler, or ``local``; None works without Dask.

    Raises:
        ConfigError: Dask is not installed, or no scheduler answers at the address.
    """
    if scheduler is not None:
        yield from _dask(scheduler, workers)
    elif workers is None or workers == 1:
        yield Workers(_Inline(), 1, workers or usable_cores())
    else:
        with process_pool(workers) as executor:
            for _ in range(workers):  # start now, while this process reads the held-out sets
                executor.submit(os.getpid)
            yield Workers(executor, 2 * workers, 1, see_files=True)


def _dask(scheduler: str, workers: int | None) -> Iterator[Workers]:
    """Yield the workers of a Dask scheduler. For the arguments see `open_workers`."""
    try:
        import distributed  # noqa: PLC0415 - a second, and seldom needed
    except ImportError as error:
        raise ConfigError.needs("`scheduler`", "Dask", extra="cluster") from error
    is_here = scheduler == LOCAL
    if not is_here and workers is not None:
        raise ConfigError(
            "`workers` cannot be combined with the address of a running scheduler.",
            fix="Remove `workers`: nmt uses all workers of the scheduler.",
        )
    options: dict[str, Any] = {"address": scheduler, "timeout": _CONNECT_SECONDS}
    if is_here:
        options = {"n_workers": workers or usable_cores(), "threads_per_worker": 1}
        options |= {"dashboard_address": None, "silence_logs": logging.ERROR}
    try:
        client = distributed.Client(**options)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"No Dask scheduler answers at {scheduler}: {error}",
            fix="Run `dask scheduler` on that host, and pass its address, such as tcp://host:8786.",
        ) from error
    with client:
        num_threads = sum(client.nthreads().values())  # of all workers; 0 before they connect
        yield Workers(client.get_executor(), 2 * max(num_threads, 1), 1, see_files=is_here)


class BlockResult(NamedTuple):
    """The result of a function for a block, in a form that can be stored."""

    arrays: Arrays
    values: Any = None  # JSON data


def map_blocks(
    name: str,
    blocks: Iterator[Block],
    function: Callable[[Block], BlockResult],
    *,
    workers: Workers = HERE,
    total: int | None = None,
) -> Iterator[tuple[Block, BlockResult]]:
    """Call a function for each block; yield each block with its result, in order.

    Args:
        name: Text of the progress bar: a verb and the corpus, such as ``reading train.de``.
        blocks: Read in this process, a few blocks in advance.
        function: A deterministic, picklable function; may be `StoredResults`.
        workers: Workers that call the function.
        total: Number of lines of all blocks, if known.

    Raises:
        DataError: The number of lines differs from ``total``.
    """
    num_lines = 0
    # One copy for the workers, and one to yield. The blocks that are in progress are buffered.
    submitted, blocks = tee(blocks)
    with progress_bar(name, unit="pairs", total=total, leave=False) as progress:
        for block, result in zip(blocks, workers.map(function, submitted), strict=True):
            yield block, result
            num_lines += len(block)
            progress.update(len(block))
    if total is not None and num_lines != total:
        raise has_changed(name.partition(" ")[2])  # the corpus, without the verb


def has_changed(corpus: str) -> DataError:
    """Return the error for a corpus whose lines have changed since the first pass."""
    return DataError(
        f"The corpus {corpus} changed during `nmt prepare`.",
        fix="Run the same command again when no program writes to the corpus.",
    )


@dataclass(frozen=True)
class StoredResults:
    """Wraps a function of a block, and caches its results in files."""

    function: Callable[[Block], BlockResult]
    folder: Path
    key: str  # hash of all inputs of the function other than the block
    min_lines: int = 0  # minimum number of lines of a block whose result is stored

    def __call__(self, block: Block) -> BlockResult:
        """Read the result from its file, or compute and store it. Can run in any process."""
        # Workers on other machines may not have access to the folder.
        if len(block) < self.min_lines or not self.folder.is_dir():
            return self.function(block)
        digest = hashlib.sha256(f"{self.key} {block.content}".encode()).hexdigest()
        path = self.folder / f"{block.first:010}-{digest[:32]}.shard"
        try:
            with path.open("rb") as file, np.load(file) as stored:
                if stored.zip.testzip() is not None:
                    raise BadZipFile("its content has changed")
                arrays: dict[str, Any] = dict(stored)  # reads all arrays
            return BlockResult(arrays, json.loads(arrays.pop(_VALUES).tobytes()))
        except FileNotFoundError:  # not computed yet
            pass
        except Exception:  # of the system, zipfile, numpy or JSON
            logger.warning("%s is damaged: computing it again", path)
        result = self.function(block)
        # If no pair of a pass is kept, an error may follow, after which nothing should stay.
        if not np.any(result.arrays.get("is_kept", True)):
            return result
        values = np.frombuffer(json.dumps(result.values).encode(), np.uint8)
        arrays = {**result.arrays, _VALUES: values}
        # The rename is atomic but not synced: checksums detect damage by a power cut. The process
        # id keeps two processes that compute the same result apart.
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as new:
            np.savez(new, **arrays)
        temporary.replace(path)
        return result


@contextmanager
def work_folder(beside: Path) -> Iterator[Path]:
    """Create a folder for shards next to ``beside``; remove it at the end.

    After an error it stays if it contains shards, so that the next start can use them.

    Raises:
        OSError: The folder cannot be created.
    """
    folder = beside.with_name(f".{beside.name}.work")
    folder.mkdir(exist_ok=True)  # an interrupted run may have left it
    is_done = False
    try:
        yield folder
        is_done = True
    finally:
        if not is_done and any(folder.glob("*.shard")):
            logger.warning("interrupted; run the same command to continue from %s", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
