"""Translation in several processes, and tokenization while a GPU searches. Does not import torch.

Under torchrun each process translates a part of every chunk of lines. Only the first process (rank
0) reads and writes. The first process also decides everything that affects the order of collective
calls, such as whether more input is available.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

from nmt.device import is_one_of_torchrun
from nmt.device.distributed import Processes, join, report_one_failure
from nmt.errors import DataError
from nmt.inference.request import Request
from nmt.inference.translator import LineResults, Translator

Chunk = tuple[int, Sequence[Request | DataError]]  # Number of the first line, and lines.
T = TypeVar("T")
P = TypeVar("P")


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Yield the processes that torchrun started; they must make the same collective calls.

    If several processes fail, only the first one reports its error.

    Raises:
        DeviceError: The processes cannot connect to each other.
        PeerLostError: Another process ended without reporting an error.
    """
    processes = join() if is_one_of_torchrun() else Processes()
    with report_one_failure(processes):
        yield processes
        processes.leave()


def translated(
    translator: Translator,
    chunks: Iterator[Chunk],
    processes: Processes,
    is_ready: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Chunk, LineResults]]:
    """Translate chunks together with the other processes, and yield each with its results.

    Every process yields the same chunks and results.

    Args:
        translator: A translator of the same model in every process.
        chunks: First line number and lines of each chunk. Only the first process's chunks are read.
        processes: All processes.
        is_ready: Whether the next chunk can be read without blocking; called in the first process.
            If not, pending results are yielded first.
    """

    def prepare(chunk: Chunk) -> Any:
        """Return a chunk, and the segments of the lines that this process translates."""
        first_line, lines = chunk
        start, part = part_of(lines, processes.rank, processes.size)
        return chunk, translator.segment(part, first_line + start)

    shared_chunks = shared(processes, chunks)
    prepared: Iterator[Any] = map(prepare, shared_chunks)
    if translator.engine.on_gpu:  # tokenize the next chunk while the GPU searches
        prepared = ahead(shared_chunks, prepare, lambda: processes.share(is_ready()))
    for chunk, segmented in prepared:
        results = translator.finish(segmented)
        # The parts of all processes, in the order of the lines.
        yield chunk, list(chain(*processes.gather(results)))


def shared(processes: Processes, chunks: Iterator[T]) -> Iterator[T]:
    """Yield the chunks of the first process in every process; ignore chunks of other processes."""
    while True:
        try:
            chunk = next(chunks, None)
        except Exception:  # the input is damaged: all processes finish the chunks read before
            processes.share(None)
            raise
        # The chunk of the first process; None after its last chunk.
        shared_chunk = processes.share(chunk)
        if shared_chunk is None:
            return
        yield shared_chunk


def part_of(lines: Sequence[T], rank: int, size: int) -> tuple[int, Sequence[T]]:
    """Return the part of ``lines`` for process ``rank``: its start index, and its lines.

    All parts have about the same length.

    >>> [part_of("abc", rank, size=2) for rank in range(2)]
    [(0, 'a'), (1, 'bc')]
    """
    start = len(lines) * rank // size
    end = len(lines) * (rank + 1) // size  # the start of the next part
    return start, lines[start:end]


def ahead(
    chunks: Iterator[T], prepare: Callable[[T], P], is_ready: Callable[[], bool]
) -> Iterator[P]:
    """Yield ``prepare(chunk)`` for each chunk, prepared in a thread one chunk ahead.

    Chunks are read in the caller's thread, because Python delivers signals to the main thread.

    Args:
        chunks: Input.
        prepare: Runs in the background thread.
        is_ready: Whether the next chunk can be read without blocking.
    """
    pending = deque[Future[P]]()  # Results that are not yielded yet, in order: at most two.
    has_more = True  # Whether `chunks` may have another chunk.
    with ThreadPoolExecutor(1, thread_name_prefix="text") as pool:
        while True:
            # With one pending result, only read more input if that does not delay the result.
            while has_more and len(pending) < 2 and (not pending or is_ready()):
                try:
                    chunk = next(chunks, None)
                except Exception as error:  # raised after the results of earlier chunks
                    failed: Future[P] = Future()
                    failed.set_exception(error)
                    pending.append(failed)
                    has_more = False
                    break
                if chunk is None:
                    has_more = False
                else:
                    pending.append(pool.submit(prepare, chunk))
            if not pending:
                return
            yield pending.popleft().result()


@contextmanager
def errors_only() -> Iterator[None]:
    """Log only errors of nmt while the context is active."""
    logger = logging.getLogger("nmt")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
