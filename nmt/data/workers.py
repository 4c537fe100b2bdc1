"""Work that is done ahead of its use: by threads, and by processes where Python itself is slow."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from nmt.errors import DeviceError

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_MOST_DEATHS = 3
_SERVE = "from nmt.data.workers import serve; serve()"

logger = logging.getLogger(__name__)


def map_ahead(
    make: Callable[[T], R], items: Iterator[T], *, threads: int, ahead: int
) -> Iterator[R]:
    """Yield ``make(item)`` in order; threads make the next ones while the caller uses the last.

    Args:
        make: May be called in several threads at once.
        items: Asked in the caller's thread.
        threads: How many.
        ahead: Results that are made before they are asked for.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    try:
        yield from map_in_order(pool, make, items, ahead=ahead)
    finally:
        pool.shutdown(cancel_futures=True)


def map_in_order(
    executor: Executor, make: Callable[[T], R], items: Iterator[T], *, ahead: int
) -> Iterator[R]:
    """Yield ``make(item)`` in order, whichever is done first; ``ahead`` of them are in memory."""
    coming = deque(executor.submit(make, item) for item in islice(items, ahead))
    while coming:
        result = coming.popleft().result()
        coming.extend(executor.submit(make, item) for item in islice(items, 1))
        yield result


class Mapped(Protocol):
    """Yields ``make(item)`` in order, as `map` does, whoever makes it."""

    def __call__(self, make: Callable[[T], R], items: Iterator[T], /) -> Iterator[R]:
        """Return the results."""


def map_here(make: Callable[[T], R], items: Iterator[T], /) -> Iterator[R]:
    """Make the results in this process, each when it is asked for."""
    return map(make, items)


def watched(mapped: Mapped, progress: Callable[[], object]) -> Mapped:
    """Return the same, but that ``progress`` is called at each result."""

    def see(make: Callable[[T], R], items: Iterator[T], /) -> Iterator[R]:
        for result in mapped(make, items):
            progress()
            yield result

    return see


class WorkerPool(Generic[P, R]):
    """Calls a function in processes of its own: a context, called by several threads.

    The processes are new ones, which share nothing with this one, and end when it does, however
    that happens: their input ends. If one of them is killed, another takes its place and its work.

    Args:
        function: Pickled once for each process.
        size: Processes.
    """

    def __init__(self, function: Callable[P, R], size: int) -> None:
        self._function, self._size = function, size
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._lock, self._is_closed = threading.Lock(), False

    def __enter__(self) -> Self:
        for _ in range(self._size):
            self._idle.put(self._start())
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        # It finds the packages where this process has found them.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with self._lock:
            if self._is_closed:
                raise CancelledError
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # an interrupt from the terminal is for this process
            )
            self._processes.append(process)
        with suppress(OSError):  # whoever asks it finds that it is gone
            _send(process, self._function)
        return process

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._is_closed = True
        for process in self._processes:
            _end(process)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R:
        """Return what the function returns; waits for a process that has nothing to do.

        Raises:
            Exception: The function has raised it.
            DeviceError: Each of some processes was killed at this call.
        """
        process = self._idle.get()
        try:
            for _ in range(_MOST_DEATHS):
                try:
                    result, error = _ask(process, (arguments, options))
                except (OSError, EOFError, ValueError, pickle.UnpicklingError):
                    _end(process)
                    process = self._start()
                    logger.warning("a worker process has ended: another one does its work")
                    continue
                if error is not None:
                    raise error
                return cast(R, result)
        finally:
            self._idle.put(process)
        raise DeviceError(
            f"Worker processes were killed {_MOST_DEATHS} times at the same work.",
            fix="Use fewer workers: the memory may be short.",
        )


class ProcessExecutor(Executor):
    """Processes as an `Executor`: what is killed is done again, alone, and none is left behind.

    In `concurrent.futures`, one that is killed ends all.

    Args:
        size: Processes.
    """

    def __init__(self, size: int) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="worker")
        self._pool = WorkerPool(_apply, size).__enter__()

    def submit(
        self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs
    ) -> Future[T]:
        """Have a picklable function called in one of the processes."""
        return self._threads.submit(self._pool, function, arguments, options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, and what they are doing if ``cancel_futures``."""
        self._threads.shutdown(wait=wait and not cancel_futures, cancel_futures=cancel_futures)
        self._pool.__exit__()
        self._threads.shutdown()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)


class InlineExecutor(Executor):
    """No processes: calls when it is asked."""

    def submit(
        self, function: Callable[P, T], /, *arguments: P.args, **options: P.kwargs
    ) -> Future[T]:
        """Call the function here and now."""
        future: Future[T] = Future()
        future.set_result(function(*arguments, **options))
        return future


def _apply(function: Callable[..., T], arguments: tuple[Any, ...], options: dict[str, Any]) -> T:
    return function(*arguments, **options)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # it holds nothing that must be kept
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not sent
                pipe.close()


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    pickle.dump(message, process.stdin, pickle.HIGHEST_PROTOCOL)
    process.stdin.flush()


def _ask(process: subprocess.Popen[bytes], message: Any) -> tuple[Any, Exception | None]:
    _send(process, message)
    assert process.stdout is not None
    result, error = pickle.load(process.stdout)
    return result, error


def serve() -> None:
    """Be one of the processes: read the function, then its arguments, until the input ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError, BrokenPipeError):
        function = pickle.load(source)
        while True:
            arguments, options = pickle.load(source)
            outcome: list[Any] = [None, None]
            try:
                outcome[0] = function(*arguments, **options)
            except Exception as error:
                outcome[1] = error
            pickle.dump(outcome, target, pickle.HIGHEST_PROTOCOL)
            target.flush()
