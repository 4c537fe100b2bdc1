"""Work that is done ahead of its use: by threads, and by processes where Python itself is slow."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

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
        coming = deque(pool.submit(make, item) for item in islice(items, ahead))
        while coming:
            result = coming.popleft().result()
            coming.extend(pool.submit(make, item) for item in islice(items, 1))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)


class WorkerPool(Generic[P, R]):
    """Calls a function in processes of its own: a context, called by several threads.

    The processes are new ones, which share nothing with this one, and end when it does, however
    that happens: their input ends. If one of them is killed, what it had to do is done here.

    Args:
        function: Pickled once for each process.
        size: Processes.
    """

    def __init__(self, function: Callable[P, R], size: int) -> None:
        self._function, self._size = function, size
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()

    def __enter__(self) -> Self:
        # They find the packages where this process has found them.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for _ in range(self._size):
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # an interrupt from the terminal is for this process
            )
            self._processes.append(process)
            _send(process, self._function)
            self._idle.put(process)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that must be kept
            process.communicate()

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> R:
        """Return what the function returns; waits for a process that has nothing to do.

        Raises:
            Exception: The function has raised it.
        """
        process = self._idle.get()
        try:
            if process is not None:
                try:
                    result, error = _ask(process, (arguments, options))
                except (OSError, EOFError, pickle.UnpicklingError):
                    logger.warning("a worker process has ended: its work is done here, more slowly")
                    process = None
                else:
                    if error is not None:
                        raise error
                    return cast(R, result)
            return self._function(*arguments, **options)
        finally:
            self._idle.put(process)


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
