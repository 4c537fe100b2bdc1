"""Where blocks of a corpus are worked on: in this process, in others, or by Dask.

The only module that imports Dask.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import NamedTuple, ParamSpec, TypeVar

from nmt.data.workers import InlineExecutor, Mapped, ProcessExecutor, map_here, map_in_order
from nmt.device import usable_cores
from nmt.errors import ConfigError

LOCAL = "local"
"""Name of a Dask scheduler that is started here, with workers on this machine."""
_CONNECT_SECONDS = 10

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class Workers(NamedTuple):
    """An executor and how much it does at once."""

    executor: Executor
    ahead: int
    """Blocks that are sent before the first has come back: two for each worker."""
    threads: int
    """Threads of a worker."""
    see_files: bool = False
    """Whether these are other processes, which see the files that this one writes."""

    def map(self, make: Callable[[T], R], items: Iterator[T], /) -> Iterator[R]:
        """Yield ``make(item)`` in order."""
        return map_in_order(self.executor, make, items, ahead=self.ahead)

    @property
    def mapped(self) -> Mapped:
        """`map`, for what needs files of this process."""
        return self.map if self.see_files else map_here

    def submit(self, make: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> Future[R]:
        """Have something done that needs files of this process, meanwhile if that is possible."""
        executor = self.executor if self.see_files else InlineExecutor()
        return executor.submit(make, *arguments, **options)


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
        with _dask(scheduler, workers) as found:
            yield found
    elif workers is None or workers == 1:
        yield Workers(InlineExecutor(), 1, workers or usable_cores())
    else:
        with ProcessExecutor(workers) as executor:
            for _ in range(workers):  # meanwhile this process looks at held-out sets
                executor.submit(_import)
            yield Workers(executor, 2 * workers, 1, see_files=True)


def _import() -> None:
    import nmt.data.preparation  # noqa: F401, PLC0415 - imports this module


@contextmanager
def _dask(scheduler: str, workers: int | None) -> Iterator[Workers]:
    try:
        import distributed  # noqa: PLC0415 - a second, and seldom needed
    except ImportError as error:
        raise ConfigError(
            "--scheduler needs Dask, which is not installed.",
            fix="Run `pip install 'nmt[cluster]'`.",
        ) from error
    if scheduler != LOCAL and workers is not None:
        raise ConfigError(
            f"--workers {workers} cannot be had of a scheduler that runs already.",
            fix="Leave --workers out: all workers of the scheduler are used.",
        )
    try:
        client = (
            distributed.Client(
                n_workers=workers or usable_cores(),
                threads_per_worker=1,
                dashboard_address=None,
                silence_logs=logging.ERROR,
            )
            if scheduler == LOCAL
            else distributed.Client(scheduler, timeout=_CONNECT_SECONDS)
        )
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"No Dask scheduler answers at {scheduler}: {error}",
            fix="Start `dask scheduler` there, and name its address, such as tcp://host:8786.",
        ) from error
    with client:
        size = sum(client.nthreads().values())
        is_here = scheduler == LOCAL
        yield Workers(client.get_executor(), 2 * max(size, 1), 1, see_files=is_here)
