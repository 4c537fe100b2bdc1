"""Batches the texts of all clients for a few translation threads.

All threads share one queue. A free thread picks a first text: alternately the oldest text, and the
oldest text of the client with the fewest tokens in the queue. It adds the texts that are closest in
length and have the same task, up to a token budget. If the queue is short, the free threads divide
it. So an idle server starts immediately, and a busy server uses full batches.

Each client may have a limited number of tokens in the queue. Its other texts wait outside, and
enter as the queued texts are taken, one text from each of its requests in turn. So a client that
sends a large file delays other clients only by this limit. Texts whose client has disconnected are
dropped.
"""

from __future__ import annotations

import asyncio
import textwrap
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from nmt.errors import ConfigError, DataError, NmtError
from nmt.extras.serving.bodies import log_fault
from nmt.inference.request import Request

T = TypeVar("T")
# Half the batch size of `nmt translate` on a CPU: 7% slower, but a new text waits only half as long
# for a free thread.
BATCH_TOKENS = 1024
# Smallest batch when free threads divide the queue: smaller batches waste computation.
_FEWEST_TOKENS = 64
# A token has roughly four bytes of UTF-8, in alphabetic and in logographic scripts.
_BYTES_OF_TOKEN = 4
_JOIN_SECONDS = 5.0
_SHOWN = 60  # characters of a sentence in an error


# Returns for each request of a batch its result or its error. Texts with equal tasks can share a
# batch. The second argument is called regularly during the search, and raises if all clients have
# disconnected.
BatchTask = Callable[[Sequence[Request], Callable[[object], None]], Sequence[Any]]


@dataclass(slots=True, eq=False)
class _Sentence:
    """One text of a request."""

    task: BatchTask
    client: str
    request: Request
    future: Future[Any] = field(default_factory=Future)

    @property
    def tokens(self) -> int:
        return len(self.request.text.encode("utf-8", "replace")) // _BYTES_OF_TOKEN + 2


class Batcher:
    """Translates the texts of many clients in shared batches.

    Args:
        threads: Batches translated in parallel.
        on_batch: Called with the number of texts in each batch.
        batch_tokens: Approximate size of a batch, in source tokens with padding.
    """

    def __init__(
        self,
        threads: int,
        on_batch: Callable[[int], object] = lambda _: None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self._on_batch = on_batch
        self._batch_tokens = batch_tokens
        self._bound = threads * batch_tokens
        self._queue: list[_Sentence] = []
        self._queued: Counter[str] = Counter()  # client -> tokens in the queue
        self._outside: dict[str, deque[deque[_Sentence]]] = {}  # client -> its requests
        self._changed = threading.Condition()
        self._is_closed = False
        self._num_free = 0
        self._takes_oldest = False
        self._threads: list[threading.Thread] = []
        for number in range(threads):
            name = f"translate-{number}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(
        self, client: str, requests: Iterable[tuple[BatchTask, Request]]
    ) -> list[asyncio.Future[Any]]:
        """Queue texts; return a future for each result. Must be called in an event loop.

        Cancelled texts are dropped. An error affects only the text that causes it.
        """
        units = [_Sentence(task, client, request) for task, request in requests]
        if units:
            with self._changed:
                self._outside.setdefault(client, deque()).append(deque(units))
                self._admit(client)
                self._changed.notify_all()
        return [asyncio.wrap_future(unit.future) for unit in units]

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Run ``work`` in one of the threads, in its turn, and return the result."""
        no_text = Request("")
        (future,) = self.submit(client, [(lambda *_: [work()], no_text)])
        result: T = await future
        return result

    @property
    def num_waiting(self) -> int:
        """Number of texts that are waiting for a thread."""
        with self._changed:
            requests = chain.from_iterable(self._outside.values())
            return len(self._queue) + sum(map(len, requests))

    def close(self) -> None:
        """Stop the threads after their current batches, and drop all waiting texts."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _admit(self, client: str) -> None:
        """Move texts of a client into the queue, up to its limit."""
        requests = self._outside.get(client, deque())
        while requests and self._queued[client] < self._bound:
            units = requests.popleft()
            unit = units.popleft()
            if units:
                requests.append(units)
            self._queue.append(unit)
            self._queued[client] += unit.tokens
        if not requests:
            self._outside.pop(client, None)

    def _run(self) -> None:
        while units := self._take():
            self._on_batch(len(units))
            _translate(units)

    def _take(self) -> list[_Sentence]:
        """Wait for texts and take a batch from the queue. Returns an empty list after `close`."""
        with self._changed:
            self._num_free += 1
            batch = list[_Sentence]()
            while not (batch or self._is_closed):
                if not self._queue:
                    self._changed.wait()
                    continue
                waiting = [unit for unit in self._queue if not unit.future.cancelled()]
                batch = self._batch(waiting)
                chosen = set(batch)
                kept = [unit for unit in waiting if unit not in chosen]
                taken = set(self._queue).difference(kept)
                self._queue = kept
                for unit in taken:
                    self._queued[unit.client] -= unit.tokens
                for client in {unit.client for unit in taken}:
                    self._admit(client)
                self._queued = +self._queued  # removes clients without texts
            self._num_free -= 1
            return batch

    def _batch(self, waiting: Sequence[_Sentence]) -> list[_Sentence]:
        """Choose the first text and the texts that are closest to it in length."""
        if not waiting:
            return []
        self._takes_oldest = not self._takes_oldest
        least = min(waiting, key=lambda unit: self._queued[unit.client])
        first = least
        if self._takes_oldest:
            first = waiting[0]
        alike = [unit for unit in waiting if unit.task == first.task]
        alike.sort(key=lambda unit: abs(unit.tokens - first.tokens))
        share = -(-sum(unit.tokens for unit in alike) // self._num_free)
        most = min(self._batch_tokens, max(_FEWEST_TOKENS, share))
        batch = list[_Sentence]()
        longest = 0
        for unit in alike:
            longest = max(longest, unit.tokens)
            if batch and (len(batch) + 1) * longest > most:
                break
            batch.append(unit)
        return batch


def _translate(units: Sequence[_Sentence]) -> None:
    """Translate a batch. If the whole batch fails, translate each text alone."""

    def check(_: object) -> None:
        if all(unit.future.cancelled() for unit in units):
            raise CancelledError

    try:
        results = units[0].task([unit.request for unit in units], check)
    except CancelledError:
        return
    except Exception as error:
        if len(units) > 1 and not isinstance(error, ConfigError):  # wrong options fail for all
            for unit in units:
                _translate([unit])
            return
        if not isinstance(error, NmtError):
            log_fault(error)
        results = [error.with_traceback(None)] * len(units)
    for unit, result in zip(units, results, strict=True):
        with suppress(InvalidStateError):  # cancelled in the meantime
            if isinstance(result, DataError) and unit.request.text:
                named = textwrap.shorten(unit.request.text, _SHOWN, placeholder="…")
                result = DataError(f"{result.problem} The sentence: {named}", fix=result.fix)
            if isinstance(result, Exception):
                unit.future.set_exception(result)
            else:
                unit.future.set_result(result)
