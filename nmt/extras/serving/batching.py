"""Batches the texts of all clients for a few translation threads.

All threads share one queue. A free thread picks a first text: alternately the oldest text, and the
oldest text of the client with the fewest tokens in the queue. It adds the texts that are closest in
length and have the same task, up to a token budget. If the queue is short, the free threads divide
it. So an idle server starts immediately, and a busy server uses full batches.

Each client may have a limited number of tokens in the queue. Its other texts wait outside, and
enter as the queued texts are taken, one text from each of its requests in turn. So a client that
sends a large file delays other clients only by this limit. Texts whose client has disconnected are
dropped.

While all threads need long for their batches, a spare thread translates short texts, so that they
do not wait for the long texts of other clients.
"""

from __future__ import annotations

import asyncio
import math
import textwrap
import threading
import time
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
_MIN_BATCH_TOKENS = 64
# A token has roughly four bytes of UTF-8, in alphabetic and in logographic scripts.
_BYTES_OF_TOKEN = 4
# If no thread has taken a batch for so long, the spare thread translates short texts.
_PATIENCE_SECONDS = 0.5
_SHORT_TOKENS = 64
_JOIN_SECONDS = 5.0  # Time for a thread to end its batch when the server stops.
_SHOWN_CHARACTERS = 60  # of a sentence in an error


# Returns for each request of a batch its result or its error. Texts with equal tasks can share a
# batch. The second argument is called regularly during the search, and raises if all clients have
# disconnected.
BatchTask = Callable[[Sequence[Request], Callable[[object], None]], Sequence[Any]]


@dataclass(slots=True, eq=False)
class _Sentence:
    """One text that a client has submitted."""

    task: BatchTask
    client: str
    request: Request
    future: Future[Any] = field(default_factory=Future)  # of the result

    @property
    def num_tokens(self) -> int:
        """Estimated source tokens, rounded up, with EOS."""
        return len(self.request.text.encode("utf-8", "replace")) // _BYTES_OF_TOKEN + 2

    @property
    def queued_tokens(self) -> int:
        """Tokens that count in the queue: a long text leaves room for texts of other requests."""
        return min(self.num_tokens, BATCH_TOKENS // 4)


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
        self._max_queued_tokens = threads * batch_tokens  # of a client
        # All state from here on belongs to this lock. It is notified when texts arrive and at the
        # end.
        self._changed = threading.Condition()
        self._queue = list[_Sentence]()  # the oldest text first
        self._queued_tokens = Counter[str]()  # client -> tokens in the queue
        # Client -> the texts outside of the queue, for each of its requests. The next text to enter
        # is the first of the first request.
        self._outside = dict[str, deque[deque[_Sentence]]]()
        self._is_closed = False
        self._num_free = 0  # threads that wait for a batch or are choosing it
        self._last_take = 0.0  # time of the last batch, in seconds
        self._takes_oldest = False  # whether the last batch began with the oldest text
        self._threads = list[threading.Thread]()
        for index in range(threads + 1):  # with a spare thread, see `_take`
            name = f"translate-{index}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def submit(
        self, client: str, requests: Iterable[tuple[BatchTask, Request]]
    ) -> list[asyncio.Future[Any]]:
        """Queue texts; return a future for each result. Must be called in an event loop.

        Cancelled texts are dropped. An error affects only the text that causes it.
        """
        sentences = [_Sentence(task, client, request) for task, request in requests]
        if sentences:
            with self._changed:
                self._outside.setdefault(client, deque()).append(deque(sentences))
                self._admit(client)
                self._changed.notify_all()
        return [asyncio.wrap_future(sentence.future) for sentence in sentences]

    async def run(self, client: str, work: Callable[[], T]) -> T:
        """Run ``work`` in one of the threads, in its turn, and return the result."""
        no_text = Request("")
        # A task of its own is not equal to any other, so it is a batch of its own.
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
        while requests and self._queued_tokens[client] < self._max_queued_tokens:
            # One text of each request in turn: a request with more texts goes to the end.
            sentences = requests.popleft()
            sentence = sentences.popleft()
            if sentences:
                requests.append(sentences)
            self._queue.append(sentence)
            self._queued_tokens[client] += sentence.queued_tokens
        if not requests:
            self._outside.pop(client, None)

    def _run(self) -> None:
        """Translate batches in this thread until `close`."""
        while batch := self._take():
            self._on_batch(len(batch))
            _translate(batch)

    def _take(self) -> list[_Sentence]:
        """Wait for texts and take a batch from the queue. Returns an empty list after `close`."""
        with self._changed:
            self._num_free += 1
            batch = list[_Sentence]()
            while not (batch or self._is_closed):
                if not self._queue:
                    self._changed.wait()
                    continue
                waiting = [sentence for sentence in self._queue if not sentence.future.cancelled()]
                candidates = waiting
                if self._num_free == 1:  # the spare thread
                    candidates = [entry for entry in waiting if entry.num_tokens <= _SHORT_TOKENS]
                    is_early = time.monotonic() < self._last_take + _PATIENCE_SECONDS
                    if is_early or not candidates:
                        self._changed.wait(_PATIENCE_SECONDS)
                        continue
                batch = self._choose_batch(candidates)
                chosen = set(batch)
                remaining = [sentence for sentence in waiting if sentence not in chosen]
                removed = set(self._queue).difference(remaining)  # chosen or cancelled
                self._queue = remaining
                for sentence in removed:
                    self._queued_tokens[sentence.client] -= sentence.queued_tokens
                for client in {sentence.client for sentence in removed}:
                    self._admit(client)
                # Unary plus of a Counter removes clients without tokens.
                self._queued_tokens = +self._queued_tokens
            self._num_free -= 1
            self._last_take = time.monotonic()
            return batch

    def _choose_batch(self, waiting: Sequence[_Sentence]) -> list[_Sentence]:
        """Choose the first text and the texts that are closest to it in length.

        Args:
            waiting: The texts to choose from, the oldest first.
        """
        if not waiting:
            return []
        self._takes_oldest = not self._takes_oldest
        first = waiting[0]
        if not self._takes_oldest:
            # The oldest text of the client with the fewest tokens in the queue.
            first = min(waiting, key=lambda sentence: self._queued_tokens[sentence.client])
        # Texts that can share a batch with the first one, this one included, by distance in length.
        candidates = [sentence for sentence in waiting if sentence.task == first.task]
        candidates.sort(key=lambda sentence: abs(sentence.num_tokens - first.num_tokens))
        # Share of each free thread but the spare one, rounded up.
        num_tokens = sum(sentence.num_tokens for sentence in candidates)
        share = math.ceil(num_tokens / max(1, self._num_free - 1))
        max_tokens = min(self._batch_tokens, max(_MIN_BATCH_TOKENS, share))
        batch = list[_Sentence]()
        longest = 0
        for sentence in candidates:
            longest = max(longest, sentence.num_tokens)
            if batch and (len(batch) + 1) * longest > max_tokens:  # with padding
                break
            batch.append(sentence)
        return batch


def _translate(batch: Sequence[_Sentence]) -> None:
    """Translate a batch. If the whole batch fails, translate each text alone.

    The result or the error of each text becomes that of its future.
    """

    def check(_: object) -> None:
        """Interrupt the search if nobody waits for the batch."""
        if all(sentence.future.cancelled() for sentence in batch):
            raise CancelledError

    try:
        results = batch[0].task([sentence.request for sentence in batch], check)
    except CancelledError:
        return
    except Exception as error:
        if len(batch) > 1 and not isinstance(error, ConfigError):  # wrong options fail for all
            for sentence in batch:
                _translate([sentence])
            return
        if not isinstance(error, NmtError):
            log_fault(error)
        results = [error.with_traceback(None)] * len(batch)
    for sentence, result in zip(batch, results, strict=True):
        with suppress(InvalidStateError):  # cancelled in the meantime
            if isinstance(result, DataError) and sentence.request.text:
                start = textwrap.shorten(sentence.request.text, _SHOWN_CHARACTERS, placeholder="…")
                result = DataError(f"{result.problem} The sentence: {start}", fix=result.fix)
            if isinstance(result, Exception):
                sentence.future.set_exception(result)
            else:
                sentence.future.set_result(result)
