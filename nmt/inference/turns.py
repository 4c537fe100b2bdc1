"""Several chunks of lines at once: text work of some beside the search of another.

A GPU need not wait while lines are read, tokenized, checked and joined. Reading and searching stay
in one thread, that of the caller; of the others one at a time works on text. What is read comes
from a file, a pipe or the first of several processes: whatever comes slowly is read ahead only as
far as it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import starmap
from queue import SimpleQueue
from threading import Lock, local
from typing import Any, TypeVar, TypeVarTuple

from typing_extensions import override

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_CHUNKS = 3  # one is prepared, one is searched, one is finished


class Turns:
    """Says what is done when. Here: one chunk after another, all in one thread."""

    def map(
        self,
        translate: Callable[[*Ts], R],
        chunks: Iterator[tuple[*Ts]],
        is_ready: Callable[[], bool] = lambda: True,  # noqa: ARG002 - for those who read ahead
    ) -> Generator[R, None, None]:
        """Yield ``translate(*chunk)`` of each, in order.

        Args:
            translate: What is done with a chunk.
            chunks: Read in this thread.
            is_ready: Whether the next one is there. Asked before one is read while others are still
                to be answered; an answer waits for no chunk that is not ready.
        """
        yield from starmap(translate, chunks)

    def search(self, work: Callable[[], R]) -> R:
        """Return ``work()``, which searches. Called by what translates a chunk."""
        return work()

    def alone(self, work: Callable[[], R]) -> R:
        """Return ``work()``, beside which there is no work on other chunks."""
        return work()


class OverlappingTurns(Turns):
    """Up to three chunks at once: one is prepared, one is searched, one is finished.

    Results, and errors in place of them, come in the order of the chunks.
    """

    def __init__(self) -> None:
        self._text, self._own = Lock(), local()
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    @override
    def map(
        self,
        translate: Callable[[*Ts], R],
        chunks: Iterator[tuple[*Ts]],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> Generator[R, None, None]:
        started, is_open = deque[Future[R]](), True
        with ThreadPoolExecutor(_CHUNKS, thread_name_prefix="text") as pool:
            try:
                while True:
                    while is_open and len(started) < _CHUNKS and (not started or is_ready()):
                        future, is_open = self._start(pool, translate, chunks)
                        if future is not None:
                            future.add_done_callback(lambda _: self._asked.put(None))
                            started.append(future)
                    if not started:
                        return
                    while not started[0].done():
                        _do(self._asked.get())
                    yield started.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                while not all(future.done() for future in started):
                    if asked := self._asked.get():
                        asked[0].cancel()

    @override
    def search(self, work: Callable[[], R]) -> R:
        if not self._is_text_thread:
            return work()
        self._text.release()
        try:
            return self._ask(work)
        finally:
            self._text.acquire()

    @override
    def alone(self, work: Callable[[], R]) -> R:
        return self._ask(work) if self._is_text_thread else work()

    @property
    def _is_text_thread(self) -> bool:
        return getattr(self._own, "works_on_text", False)

    def _start(
        self,
        pool: ThreadPoolExecutor,
        translate: Callable[[*Ts], R],
        chunks: Iterator[tuple[*Ts]],
    ) -> tuple[Future[R] | None, bool]:
        """Start the next chunk, if any; and say whether to read on.

        An error in reading is the last chunk, and is raised in its turn.
        """
        try:
            chunk = next(chunks, None)
        except Exception as error:
            failed: Future[R] = Future()
            failed.set_exception(error)
            return failed, False
        if chunk is None:
            return None, False
        return pool.submit(self._translate, translate, chunk), True

    def _translate(self, translate: Callable[[*Ts], R], chunk: tuple[*Ts]) -> R:
        self._own.works_on_text = True
        with self._text:
            return translate(*chunk)

    def _ask(self, work: Callable[[], R]) -> R:
        """Have the caller's thread do it."""
        answer: Future[R] = Future()
        self._asked.put((answer, work))
        return answer.result()


def _do(asked: tuple[Future[Any], Callable[[], Any]] | None) -> None:
    if asked is None:  # a chunk is done
        return
    answer, work = asked
    try:
        answer.set_result(work())
    except Exception as error:  # it belongs to the chunk
        answer.set_exception(error)
    except BaseException:  # an interrupt: to this thread
        answer.cancel()
        raise
