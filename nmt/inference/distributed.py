"""Chunks of lines for several processes, and text work beside the search of a GPU. Loads no torch.

Under torchrun each process translates a part of every chunk, and the first one reads and writes, so
that all together behave as one. What decides about the order of their calls, such as whether more
input is there, is what the first one says.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol, TypeVar

from nmt.device import is_one_of_torchrun
from nmt.errors import DataError
from nmt.inference.request import Request, Result
from nmt.inference.translator import Translator

T = TypeVar("T")
P = TypeVar("P")

_SECONDS_TO_REPORT = 5


class Team(Protocol):
    """Processes that make the same calls, seen from one: see `nmt.device.distributed`."""

    rank: int
    size: int

    def share(self, value: T) -> T:
        """Return the value of the first process."""
        ...

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        ...


class Alone:
    """One process: the usual case."""

    rank, size = 0, 1

    def share(self, value: T) -> T:
        """Return the value."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return the value."""
        return [value]


@contextmanager
def join_team() -> Iterator[Team]:
    """Join the processes that torchrun has started, if it has; the first that fails reports why.

    Raises:
        DeviceError: The processes do not find each other.
        PeerLostError: Another one has ended without a report.
    """
    if not is_one_of_torchrun():
        yield Alone()
        return
    from nmt.device.distributed import join  # noqa: PLC0415 - loads torch

    processes = join()
    try:
        yield processes
        processes.leave()
    except Exception as error:
        if processes.is_first_to_fail():
            raise
        # As soon as one has failed torchrun ends the others: also the one that is to report.
        time.sleep(_SECONDS_TO_REPORT)
        raise SystemExit(getattr(error, "exit_code", 1)) from None


def translated(
    translator: Translator,
    chunks: Iterator[tuple[int, Sequence[Request | DataError]]],
    team: Team,
    is_ready: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[tuple[int, Sequence[Request | DataError]], list[Result | DataError]]]:
    """Yield the chunks of the first process with their results; each process translates a part.

    Args:
        translator: The same in all processes.
        chunks: The number of the first line, and lines; those of other processes are ignored.
        team: All processes.
        is_ready: Whether the next chunk is there, in the first process. What is not ready is not
            waited for while another chunk is to be answered.
    """

    def prepare(chunk: tuple[int, Sequence[Request | DataError]]) -> Any:
        first, lines = chunk
        begin, part = part_of(lines, team.rank, team.size)
        return chunk, translator.segment(part, first + begin)

    common = shared(team, chunks)
    prepared: Iterator[Any] = map(prepare, common)
    if translator.engine.on_gpu:  # it need not wait while lines are tokenized
        prepared = ahead(common, prepare, lambda: team.share(is_ready()))
    for chunk, segmented in prepared:
        yield chunk, list(chain(*team.gather(translator.finish(segmented))))


def shared(team: Team, chunks: Iterator[T]) -> Iterator[T]:
    """Yield in every process the chunks that the first one has; those of the others are ignored."""
    while True:
        try:
            chunk = next(chunks, None)
        except Exception:  # the input is damaged: what was read before is translated by all
            team.share(None)
            raise
        if (common := team.share(chunk)) is None:
            return
        yield common


def part_of(lines: Sequence[T], rank: int, size: int) -> tuple[int, Sequence[T]]:
    """Return where the part of a process begins, and the part; all parts are about as long.

    >>> [part_of("abc", rank, size=2) for rank in range(2)]
    [(0, 'a'), (1, 'bc')]
    """
    begin, end = (len(lines) * number // size for number in (rank, rank + 1))
    return begin, lines[begin:end]


def ahead(
    chunks: Iterator[T], prepare: Callable[[T], P], is_ready: Callable[[], bool]
) -> Iterator[P]:
    """Yield ``prepare(chunk)`` of each; a thread prepares one while the caller works on the last.

    Chunks are read in the caller's thread, where signals arrive.
    """
    waiting: deque[Future[P]] = deque()
    is_open = True
    with ThreadPoolExecutor(1, thread_name_prefix="text") as pool:
        while True:
            while is_open and len(waiting) < 2 and (not waiting or is_ready()):
                try:
                    chunk = next(chunks, None)
                except Exception as error:  # raised in its turn, after what was read before
                    failed: Future[P] = Future()
                    failed.set_exception(error)
                    waiting.append(failed)
                    is_open = False
                    break
                if chunk is None:
                    is_open = False
                else:
                    waiting.append(pool.submit(prepare, chunk))
            if not waiting:
                return
            yield waiting.popleft().result()


@contextmanager
def errors_only(name: str = "nmt") -> Iterator[None]:
    """Let nmt, or a part of it, log nothing below errors for a while."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
