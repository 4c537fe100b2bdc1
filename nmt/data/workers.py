"""Work that is done ahead of its use: in threads, in other processes, or by Dask.

The only module that starts processes for text work, and the only one that imports Dask.

`map_blocks` works on the blocks of a corpus, and `Stored` keeps results, so that a kill costs
little. A result is stored under a hash of all that it was made from: the function's settings and
the block's content. Its file appears whole and holds checksums. The last, smaller block of a corpus
is made again: a small corpus leaves no files behind.
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

LOCAL = "local"  # name of a Dask scheduler that is started here, with workers on this machine
_CONNECT_SECONDS = 10
T = TypeVar("T")
R = TypeVar("R")
_VALUES = "values"
logger = logging.getLogger(__name__)


def map_ahead(
    make: Callable[[T], R], items: Iterator[T], executor: Executor, ahead: int
) -> Iterator[R]:
    """Yield ``make(item)`` in order; the executor makes the next ones while the last one is used.

    Args:
        make: Called wherever the executor calls functions.
        items: Read in the caller's thread, only as far as they are needed.
        executor: Threads or processes.
        ahead: Results that are under way before they are asked for.
    """
    coming = deque(executor.submit(make, item) for item in islice(items, ahead))
    try:
        while coming:
            result = coming.popleft().result()
            coming.extend(executor.submit(make, item) for item in islice(items, 1))
            yield result
    except BrokenProcessPool as error:
        raise DeviceError(
            "A worker process was killed or could not start.",
            fix="Use fewer workers if memory is short; the same command resumes. A script that "
            "calls nmt needs `if __name__ == '__main__':`, as its processes import it.",
        ) from error
    finally:
        for future in coming:
            future.cancel()


@contextmanager
def process_pool(
    size: int, install: Callable[[T], object] | None = None, value: T | None = None
) -> Iterator[ProcessPoolExecutor]:
    """Start processes that share nothing with this one and end with it, however that happens.

    Args:
        size: Processes.
        install: Called once in each process, with ``value``.
        value: Is pickled once for each process.
    """
    # A fork of a process with threads may deadlock, and torch and tokenizers have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(size, context, _begin, (install, value))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(install: Callable[[Any], object] | None, value: Any) -> None:
    """Prepare a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the process that started us
    # A worker holds both ends of the queue that it reads, so it would wait for a killed parent.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if install is not None:
        install(value)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Inline(Executor):
    """Calls functions in this thread, when they are submitted."""

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        future = Future[T]()
        future.set_result(function(*arguments, **options))
        return future


class Workers(NamedTuple):
    """Where blocks of a corpus are worked on."""

    executor: Executor
    ahead: int  # blocks that are sent before the first has come back: two for each worker
    threads: int  # of a worker
    see_files: bool = False  # whether these are other processes, which see this one's files

    def map(self, make: Callable[[T], R], items: Iterator[T], /) -> Iterator[R]:
        """Yield ``make(item)`` in order."""
        return map_ahead(make, items, self.executor, self.ahead)

    @property
    def near(self) -> Workers:
        """Workers for what needs files of this process: these, or this process."""
        return self if self.see_files else HERE

    def submit(self, make: Callable[..., R], *arguments: Any) -> Future[R]:
        """Call what needs files of this process, meanwhile if that is possible."""
        return self.near.executor.submit(make, *arguments)


HERE = Workers(_Inline(), 1, 1)


@contextmanager
def open_workers(workers: int | None, scheduler: str | None) -> Iterator[Workers]:
    """Start or reach the workers of `nmt prepare`, and leave none behind.

    Args:
        workers: Processes of one thread each; with 1, it is this one. None for this one with
            threads for all processors, or as many workers of Dask.
        scheduler: Address of a Dask scheduler, or ``local``; None for none.

    Raises:
        ConfigError: Dask is not installed, or no scheduler answers there.
    """
    if scheduler is not None:
        yield from _dask(scheduler, workers)
    elif workers is None or workers == 1:
        yield Workers(_Inline(), 1, workers or usable_cores())
    else:
        with process_pool(workers) as executor:
            for _ in range(workers):  # they start while this process reads held-out sets
                executor.submit(os.getpid)
            yield Workers(executor, 2 * workers, 1, see_files=True)


def _dask(scheduler: str, workers: int | None) -> Iterator[Workers]:
    try:
        import distributed  # noqa: PLC0415 - a second, and seldom needed
    except ImportError as error:
        problem = "`scheduler` needs Dask, which is not installed."
        raise ConfigError(problem, fix="Run `pip install 'nmt[cluster]'`.") from error
    is_here = scheduler == LOCAL
    if not is_here and workers is not None:
        problem = "`workers` cannot be set for a scheduler that is already running."
        fix = "Leave `workers` out: all workers of the scheduler are used."
        raise ConfigError(problem, fix=fix)
    options: dict[str, Any] = {"address": scheduler, "timeout": _CONNECT_SECONDS}
    if is_here:
        options = {"n_workers": workers or usable_cores(), "threads_per_worker": 1}
        options |= {"dashboard_address": None, "silence_logs": logging.ERROR}
    try:
        client = distributed.Client(**options)
    except (OSError, ValueError, TypeError) as error:
        fix = "Start `dask scheduler` there, and name its address, such as tcp://host:8786."
        raise ConfigError(f"No Dask scheduler answers at {scheduler}: {error}", fix=fix) from error
    with client:
        size = sum(client.nthreads().values())
        yield Workers(client.get_executor(), 2 * max(size, 1), 1, see_files=is_here)


class Result(NamedTuple):
    """What a function makes of a block, in a form that a file can hold."""

    arrays: Mapping[str, npt.NDArray[Any]]
    values: Any = None  # plain data, as JSON has it


def map_blocks(
    name: str,
    blocks: Iterator[Block],
    function: Callable[[Block], Result],
    *,
    workers: Workers = HERE,
    total: int | None = None,
) -> Iterator[tuple[Block, Result]]:
    """Yield each block with its result, in order.

    Args:
        name: What is done, for the progress bar, such as ``reading train.de``.
        blocks: Read in this process, a few ahead of their use.
        function: Pure and picklable; perhaps `Stored`.
        workers: Where the function is called.
        total: Lines of all blocks, if that is known.

    Raises:
        DataError: There are more or fewer lines than ``total``.
    """
    done = 0
    sent, blocks = tee(blocks)  # holds those that are sent and have not come back
    with progress_bar(name, unit="pairs", total=total, leave=False) as progress:
        for block, result in zip(blocks, workers.map(function, sent), strict=True):
            yield block, result
            done += len(block)
            progress.update(len(block))
    if total is not None and done != total:
        raise has_changed(name.partition(" ")[2])


def has_changed(corpus: str) -> DataError:
    """Return the error of a corpus that has other lines than when it was read before."""
    return DataError(
        f"The corpus {corpus} changed while it was read.",
        fix="Prepare again when nothing writes to the corpora any more.",
    )


@dataclass(frozen=True, slots=True)
class Stored:
    """A function whose results are read from files, or made and stored there."""

    function: Callable[[Block], Result]
    folder: Path
    key: str  # a hash of all that the function depends on beside its block
    least: int = 0  # lines of a block that is worth a file

    def __call__(self, block: Block) -> Result:
        """Return the result, in any process."""
        # Workers on other machines may not see the folder.
        if len(block) < self.least or not self.folder.is_dir():
            return self.function(block)
        digest = hashlib.sha256(f"{self.key} {block.content}".encode()).hexdigest()
        path = self.folder / f"{block.first:010}-{digest[:32]}.shard"
        try:
            with path.open("rb") as file, np.load(file) as stored:
                if stored.zip.testzip() is not None:
                    raise BadZipFile("its content has changed")
                arrays: dict[str, Any] = dict(stored)
            return Result(arrays, json.loads(arrays.pop(_VALUES).tobytes()))
        except FileNotFoundError:
            pass
        except Exception:  # of the system, zipfile, numpy or JSON
            logger.warning("%s is damaged, and is made again", path)
        result = self.function(block)
        values = np.frombuffer(json.dumps(result.values).encode(), np.uint8)
        arrays = {**result.arrays, _VALUES: values}
        # It appears whole. A power cut may damage it, which its checksums show.
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as new:
            np.savez(new, **arrays)
        temporary.replace(path)
        return result


@contextmanager
def work_folder(beside: Path) -> Iterator[Path]:
    """Make a folder of shards beside another folder. It goes at the end, unless there is an error.

    Raises:
        OSError: It cannot be made.
    """
    folder = beside.with_name(f".{beside.name}.work")
    folder.mkdir(exist_ok=True)
    is_done = False
    try:
        yield folder
        is_done = True
    finally:
        if not is_done and any(folder.glob("*.shard")):
            logger.warning("%s keeps what is done; the same command continues there", folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
