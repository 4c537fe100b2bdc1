"""Texts of all clients -> batches, for a few threads that translate.

Texts wait in one queue per `Key`: a model and how it is asked. A thread that is free takes what is
ready. When nothing is, it forms a round: texts of one queue up to a budget, a text of each client
in turn and of each of a client's requests in turn, put into batches of like length. The queue is
that of the client who has waited longest for a turn, however many queues others fill. When little
waits, it is shared out among the free threads; so an idle server starts at once, and a busy one
works in full batches. A small request of a client with nothing else under way does not wait for
what is ready: who types is answered beside others who send files. A text that nobody waits for any
more is dropped when it would be taken.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from nmt.errors import ConfigError, NmtError

logger = logging.getLogger(__name__)

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")
BATCH_TOKENS = 1024
"""Half of what `nmt translate` takes at once on a CPU: 7% slower, and half the time to wait for a
batch (scripts/README.md)."""
_ROUNDS = 2
"""Batches of a round for each thread: enough that lengths can be sorted, few enough that a client
who comes later does not wait long."""
_FEWEST_TOKENS = 64
"""Of a batch where texts are shared out among free threads, and at most of a small request."""
_BYTES_OF_TOKEN = 4
_JOIN_SECONDS = 5.0


class Line(Protocol):
    """A text with a known source."""

    @property
    def text(self) -> str:
        """What is read."""


class Key(Hashable, Protocol[R_co]):
    """What texts of a batch share."""

    def translate(self, lines: Sequence[Any], check: Callable[[], object]) -> Sequence[R_co]:
        """Translate; ``check`` is called now and then, and raises if nobody waits any more."""


@dataclass(frozen=True, slots=True)
class _NoLine:
    text: str = ""


_NOTHING = _NoLine()


@dataclass(frozen=True, slots=True, eq=False)
class _Work(Generic[R]):
    """Something else that keeps a thread busy, as a key of its own."""

    work: Callable[[], R]

    def translate(self, lines: Sequence[Line], check: Callable[[], object]) -> Sequence[R]:
        del lines, check
        return [self.work()]


@dataclass(slots=True, eq=False)
class _Unit(Generic[R]):
    """One text of a request."""

    line: Line
    client: str
    future: asyncio.Future[R]
    loop: asyncio.AbstractEventLoop

    @property
    def tokens(self) -> int:
        """Its length, roughly: four bytes of UTF-8 a token holds for alphabets and for signs."""
        return len(self.line.text.encode("utf-8", "replace")) // _BYTES_OF_TOKEN + 2

    def settle(self, result: R | Exception) -> None:
        """Give the result to whoever waits, in their thread."""
        self.loop.call_soon_threadsafe(_settle, self.future, result)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


@dataclass(slots=True)
class _Queue(Generic[R]):
    """What waits for one key: by clients, the units of each of their requests."""

    clients: OrderedDict[str, deque[deque[_Unit[R]]]] = field(default_factory=OrderedDict)

    def take_small(self, busy: Collection[str]) -> list[_Unit[R]]:
        """Remove and return the units of small requests of clients who are not busy."""
        found: list[_Unit[R]] = []
        for client, requests in list(self.clients.items()):
            units = requests[0]
            total = sum(unit.tokens for unit in islice(units, _FEWEST_TOKENS))
            if client not in busy and len(requests) == 1 and total <= _FEWEST_TOKENS:
                found += units
                del self.clients[client]
        return found

    def take(self) -> Iterator[_Unit[R]]:
        """Yield units that somebody waits for: clients in turn, and the requests of each."""
        while self.clients:
            client, requests = self.clients.popitem(last=False)
            units = requests.popleft()
            unit = units.popleft()
            if units:
                requests.append(units)
            if requests:
                self.clients[client] = requests
            if not unit.future.done():
                yield unit


class Batcher(Generic[R]):
    """Translates texts of many clients together.

    Args:
        threads: How many batches are translated at the same time.
        batch_tokens: Of a batch, about.
        on_batch: Called with the number of texts of every batch.
    """

    def __init__(
        self,
        threads: int,
        batch_tokens: int,
        on_batch: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._batch_tokens, self._on_batch = batch_tokens, on_batch
        self._queues: OrderedDict[Key[R], _Queue[R]] = OrderedDict()
        self._ready: deque[tuple[Key[R], list[_Unit[R]]]] = deque()
        self._changed, self._closed, self._num_free = threading.Condition(), False, 0
        self._busy: Counter[str] = Counter()
        """Client -> units that are ready or being translated."""
        self._rounds = 0
        self._turns: dict[str, int] = {}
        """Client that waits -> the round of its last turn, or in which it came."""
        self._was_small = False
        self._threads = [
            threading.Thread(target=self._work, name=f"translate-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: Key[R], client: str, lines: Sequence[Line]) -> list[asyncio.Future[R]]:
        """Return the future translation of each text. Cancelled futures drop their texts.

        Called in an event loop. A text that fails fails alone.
        """
        loop = asyncio.get_running_loop()
        units = [_Unit(line, client, loop.create_future(), loop) for line in lines]
        if units:
            with self._changed:
                if not any(client in queue.clients for queue in self._queues.values()):
                    self._turns[client] = self._rounds
                clients = self._queues.setdefault(key, _Queue()).clients
                clients.setdefault(client, deque()).append(deque(units))
                self._changed.notify_all()
        return [unit.future for unit in units]

    async def run(self, work: Callable[[], T]) -> T:
        """Return ``work()``, done in one of the threads when its turn comes."""
        (future,) = self.submit(_Work(work), "", [_NOTHING])  # type: ignore[arg-type]
        return await future  # type: ignore[return-value]

    @property
    def num_waiting(self) -> int:
        """Texts that no thread has taken yet, dropped ones among them."""
        with self._changed:
            queues = self._queues.values()
            waiting = sum(len(u) for q in queues for r in q.clients.values() for u in r)
            return waiting + sum(len(units) for _, units in self._ready)

    def close(self) -> None:
        """End the threads after the batches they are at, or soon; the rest is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            key, taken = batch
            units = [unit for unit in taken if not unit.future.done()]
            if units:
                self._on_batch(len(units))
                self._translate(key, units)
            with self._changed:
                self._busy -= Counter(unit.client for unit in taken)

    def _next_batch(self) -> tuple[Key[R], list[_Unit[R]]] | None:
        with self._changed:
            self._num_free += 1
            try:
                while not self._closed:
                    if self._ready:
                        # In turns, so that many newcomers do not starve what is ready.
                        small = None if self._was_small else self._newcomers()
                        self._was_small = small is not None
                        return small or self._ready.popleft()
                    if not self._queues:
                        self._changed.wait()
                    else:
                        self._form_round()
                return None
            finally:
                self._num_free -= 1

    def _newcomers(self) -> tuple[Key[R], list[_Unit[R]]] | None:
        """Return a batch of small requests of clients with nothing else under way, if there are."""
        for key, queue in self._queues.items():
            if units := queue.take_small(self._busy):
                if not queue.clients:
                    del self._queues[key]
                self._busy.update(unit.client for unit in units)
                return key, units
        return None

    def _form_round(self) -> None:
        """Make batches of what waits for the key whose turn it is."""
        key = min(
            self._queues, key=lambda key: min(self._turns[c] for c in self._queues[key].clients)
        )
        queue = self._queues.pop(key)
        budget = _ROUNDS * len(self._threads) * self._batch_tokens
        units, total = [], 0
        for unit in queue.take():
            units.append(unit)
            total += unit.tokens
            if total >= budget:
                break
        if queue.clients:
            self._queues[key] = queue
        self._busy.update(unit.client for unit in units)
        self._rounds += 1
        self._turns.update(dict.fromkeys((unit.client for unit in units), self._rounds))
        waiting = {client for queue in self._queues.values() for client in queue.clients}
        self._turns = {client: turn for client, turn in self._turns.items() if client in waiting}
        share = max(_FEWEST_TOKENS, -(-total // self._num_free))
        batches = _batches(units, min(share, self._batch_tokens))
        self._ready.extend((key, batch) for batch in batches)
        if len(self._ready) > 1:
            self._changed.notify_all()

    def _translate(self, key: Key[R], units: Sequence[_Unit[R]]) -> None:
        """Translate a batch; if that fails, its halves, down to the texts that fail."""

        def check() -> None:
            if all(unit.future.done() for unit in units):
                raise CancelledError

        try:
            check()
            found = key.translate([unit.line for unit in units], check)
            for unit, result in zip(units, found, strict=True):
                unit.settle(result)
        except CancelledError:
            return
        except Exception as error:
            if len(units) == 1 or isinstance(error, ConfigError):  # what all texts share
                if not isinstance(error, NmtError):
                    log_fault(error)
                for unit in units:
                    unit.settle(error.with_traceback(None))
                return
            middle = len(units) // 2
            self._translate(key, units[:middle])
            self._translate(key, units[middle:])


def _batches(units: Sequence[_Unit[R]], most_tokens: int) -> Iterator[list[_Unit[R]]]:
    """Yield units of like length together, the longest first."""
    batch: list[_Unit[R]] = []
    for unit in sorted(units, key=lambda unit: -unit.tokens):
        if batch and (len(batch) + 1) * batch[0].tokens > most_tokens:
            yield batch
            batch = []
        batch.append(unit)
    if batch:
        yield batch


def log_fault(error: BaseException) -> None:
    """Log an unexpected error by its kind and place: its text may hold what somebody sent."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    place = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last else "unknown place"
    logger.error("unexpected %s at %s: a bug, please report it", type(error).__name__, place)
