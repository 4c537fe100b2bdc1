"""Texts of all clients -> batches, for a few threads that translate.

There is one queue. A thread that is free takes by turns the oldest text and one of the client with
least in the queue, and with it the texts most like it in length that are asked for in the same way,
up to a budget. When little waits, it is shared out among the free threads; so an idle server starts
at once, and a busy one works in full batches.

Each client has a bound of text in the queue. What exceeds it waits outside, and comes in as texts
of the client are taken, a text of each of its requests in turn: whoever sends a file does not make
others wait for more than the bound. A text that nobody waits for any more is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from nmt.errors import ConfigError, NmtError
from nmt.extras.serving.bodies import log_fault
from nmt.inference.request import Request

T = TypeVar("T")
# Half of what `nmt translate` takes at once on a CPU: 7% slower, and half the time to wait for a
# batch (scripts/README.md).
BATCH_TOKENS = 1024
# Of a batch where texts are shared out among free threads: fewer are not worth a search.
_FEWEST_TOKENS = 64
# Four bytes of UTF-8 a token hold, roughly, for alphabets and for signs.
_BYTES_OF_TOKEN = 4
_JOIN_SECONDS = 5.0


class Key(Hashable, Protocol):
    """What texts of a batch have in common."""

    def translate(
        self, requests: Sequence[Request], check: Callable[[object], None]
    ) -> Sequence[Any]:
        """Return the result of each request, or the error in its place.

        Args:
            requests: A batch.
            check: To be called now and then; raises if nobody waits any more.
        """


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """Something else that keeps a thread busy, as a key of its own."""

    work: Callable[[], Any]

    def translate(self, requests: object, check: object) -> Sequence[Any]:
        del requests, check
        return [self.work()]


@dataclass(slots=True, eq=False)
class _Unit:
    """One text of a request."""

    key: Key
    client: str
    request: Request
    future: Future[Any] = field(default_factory=Future)

    @property
    def tokens(self) -> int:
        return len(self.request.text.encode("utf-8", "replace")) // _BYTES_OF_TOKEN + 2


class Batcher:
    """Translates texts of many clients together.

    Args:
        threads: How many batches are translated at the same time.
        on_batch: Called with the number of texts of every batch.
        batch_tokens: Of a batch, about.
    """

    def __init__(
        self,
        threads: int,
        on_batch: Callable[[int], object] = lambda _: None,
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        self._on_batch, self._batch_tokens = on_batch, batch_tokens
        self._bound = threads * batch_tokens
        self._queue: list[_Unit] = []
        self._queued: Counter[str] = Counter()  # client -> tokens in the queue
        self._outside: dict[str, deque[deque[_Unit]]] = {}  # client -> its requests
        self._changed, self._is_closed, self._num_free = threading.Condition(), False, 0
        self._takes_oldest = False
        self._threads = [
            threading.Thread(target=self._run, name=f"translate-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, client: str, requests: Iterable[tuple[Key, Request]]
    ) -> list[asyncio.Future[Any]]:
        """Return the future result of each text; cancelled ones are dropped. A failure fails alone.

        Called in an event loop.
        """
        units = [_Unit(key, client, request) for key, request in requests]
        if units:
            with self._changed:
                self._outside.setdefault(client, deque()).append(deque(units))
                self._admit(client)
                self._changed.notify_all()
        return [asyncio.wrap_future(unit.future) for unit in units]

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Return ``work()``, done in one of the threads when its turn comes."""
        (future,) = self.submit(client, [(_Work(work), Request(""))])
        result: T = await future
        return result

    @property
    def num_waiting(self) -> int:
        """Texts that no thread has taken yet."""
        with self._changed:
            outside = sum(len(own) for requests in self._outside.values() for own in requests)
            return len(self._queue) + outside

    def close(self) -> None:
        """End the threads after the batches they are at, or soon; the rest is dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _admit(self, client: str) -> None:
        """Let texts of a client into the queue, up to the bound."""
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

    def _take(self) -> list[_Unit]:
        """Wait for texts, and remove a batch from the queue; nothing when this is closed."""
        with self._changed:
            self._num_free += 1
            batch: list[_Unit] = []
            while not (batch or self._is_closed):
                if not self._queue:
                    self._changed.wait()
                    continue
                gone = [unit for unit in self._queue if unit.future.cancelled()]
                batch = self._batch([unit for unit in self._queue if not unit.future.cancelled()])
                taken = {*gone, *batch}
                self._queue = [unit for unit in self._queue if unit not in taken]
                for unit in taken:
                    self._queued[unit.client] -= unit.tokens
                for client in {unit.client for unit in taken}:
                    self._admit(client)
                self._queued = +self._queued  # forgets clients without texts
            self._num_free -= 1
            return batch

    def _batch(self, waiting: Sequence[_Unit]) -> list[_Unit]:
        """Return a text and those that are most like it in length.

        By turns the oldest, and the first of the client with least in the queue.
        """
        if not waiting:
            return []
        self._takes_oldest = not self._takes_oldest
        least = min(waiting, key=lambda unit: self._queued[unit.client])
        first = waiting[0] if self._takes_oldest else least
        alike = [unit for unit in waiting if unit.key == first.key]
        alike.sort(key=lambda unit: abs(unit.tokens - first.tokens))
        share = -(-sum(unit.tokens for unit in alike) // self._num_free)
        most = min(self._batch_tokens, max(_FEWEST_TOKENS, share))
        batch: list[_Unit] = []
        longest = 0
        for unit in alike:
            longest = max(longest, unit.tokens)
            if batch and (len(batch) + 1) * longest > most:
                break
            batch.append(unit)
        return batch


def _translate(units: Sequence[_Unit]) -> None:
    """Translate a batch; if it fails as a whole, each text by itself."""

    def check(_: object) -> None:
        if all(unit.future.cancelled() for unit in units):
            raise CancelledError

    try:
        results = units[0].key.translate([unit.request for unit in units], check)
    except CancelledError:
        return
    except Exception as error:
        if len(units) > 1 and not isinstance(error, ConfigError):  # which all texts share
            for unit in units:
                _translate([unit])
            return
        if not isinstance(error, NmtError):
            log_fault(error)
        results = [error.with_traceback(None)] * len(units)
    for unit, result in zip(units, results, strict=True):
        with suppress(InvalidStateError):  # it was cancelled meanwhile
            if isinstance(result, Exception):
                unit.future.set_exception(result)
            else:
                unit.future.set_result(result)
