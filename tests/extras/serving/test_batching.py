"""The queue: fair to clients, every text once, and equal answers alone and under load."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from nmt.errors import ConfigError, DataError
from nmt.extras.serving.batching import Batcher
from nmt.inference.request import Request
from tests.process import LIMIT


@dataclass(eq=False)
class Echo:
    """Translates by reversing the text, waits for a gate, and records batches."""

    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)

    def __call__(self, requests: Sequence[Request], check: Callable[[object], None]) -> list[str]:
        self.batches.append([request.text for request in requests])
        self.gate.wait(20)
        check(0)
        return [request.text[::-1] for request in requests]


def lines(echo: Echo, *texts: str) -> list[tuple[Echo, Request]]:
    return [(echo, Request(text)) for text in texts]


def run(test: Callable[[Batcher], Awaitable[object]], threads: int = 1, tokens: int = 1000) -> None:
    async def main() -> None:
        batcher = Batcher(threads, batch_tokens=tokens)
        try:
            await asyncio.wait_for(test(batcher), LIMIT)
        finally:
            batcher.close()

    asyncio.run(main())


async def started(echo: Echo, batches: int = 1) -> None:
    while len(echo.batches) < batches:
        await asyncio.sleep(0.001)


def batches_while_busy(*sent: tuple[str, Sequence[str]], tokens: int = 1000) -> list[list[str]]:
    """Return the batches of texts that clients send while the only thread is busy."""
    echo = Echo()

    async def test(batcher: Batcher) -> None:
        futures = batcher.submit("x", lines(echo, "block"))
        await started(echo)
        for client, texts in sent:
            futures += batcher.submit(client, lines(echo, *texts))
        texts = [text for _, own in sent for text in own]
        assert batcher.num_waiting == len(texts)
        echo.gate.set()
        assert await asyncio.gather(*futures) == [text[::-1] for text in ("block", *texts)]
        assert batcher.num_waiting == 0

    run(test, tokens=tokens)
    assert echo.batches[0] == ["block"]
    return echo.batches[1:]


def test_an_idle_thread_starts_immediately_and_a_busy_thread_collects_a_batch() -> None:
    assert batches_while_busy(("b", ["x", "y"]), ("c", ["x", "y"])) == [["x", "y", "x", "y"]]


def test_free_threads_divide_a_short_queue() -> None:
    echo = Echo()

    async def test(batcher: Batcher) -> None:
        futures = batcher.submit("a", lines(echo, *["w" * 400] * 4))
        await started(echo, 2)
        echo.gate.set()
        await asyncio.gather(*futures)

    run(test, threads=2)
    assert sorted(map(len, echo.batches)) == [2, 2]


def test_a_client_with_many_texts_does_not_delay_others() -> None:
    """One client sends 300 texts in three requests; later ten clients send one text each."""
    huge = [("huge", [f"h{request}-{i:03}" for i in range(100)]) for request in range(3)]
    small = [(f"c{i}", [f"small{i}"]) for i in range(10)]
    batches = batches_while_busy(*huge, *small, tokens=20)  # of a client: seven of these texts
    order = [text for batch in batches for text in batch]
    assert sorted(order) == sorted(set(order))
    assert max(order.index(f"small{i}") for i in range(10)) < 40
    # And the requests of one client take turns, too.
    own = [text[1] for text in order if text[0] == "h"]
    assert all(own[:30].count(request) >= 7 for request in "012")


def test_the_oldest_text_waits_for_one_batch_of_others_at_most() -> None:
    """Its client has the longest queue. The others have other options, so they need own batches."""
    large = Echo()
    small = Echo(large.gate, large.batches)

    async def test(batcher: Batcher) -> None:
        futures = batcher.submit("x", lines(large, "block"))
        await started(large)
        futures += batcher.submit("large", lines(large, "a1", "a2", "a3"))
        for number in range(9):
            futures += batcher.submit(f"c{number}", lines(small, f"b{number}"))
        large.gate.set()
        await asyncio.gather(*futures)

    run(test, tokens=6)  # three of these texts
    assert len(large.batches) == 5
    assert ["a1", "a2", "a3"] in large.batches[1:3]
    assert ["b0", "b1", "b2"] in large.batches[1:3]


def test_texts_of_similar_length_share_a_batch() -> None:
    sent = [(f"c{number}", ["w" * size]) for number, size in enumerate((40, 400, 44, 360, 4))]
    batches = batches_while_busy(*sent, tokens=40)  # 12 and 13, or 102; one thread's share is all
    assert [list(map(len, batch)) for batch in batches] == [[4, 40, 44], [400], [360]]


def test_cancelled_texts_are_not_translated() -> None:
    echo = Echo()

    async def test(batcher: Batcher) -> None:
        first = batcher.submit("a", lines(echo, "running"))
        await started(echo)
        second = batcher.submit("a", lines(echo, "dropped", "kept"))
        first[0].cancel()
        second[0].cancel()
        await asyncio.sleep(0)
        echo.gate.set()
        assert await second[1] == "tpek"
        assert batcher.num_waiting == 0

    run(test)
    assert echo.batches == [["running"], ["kept"]]


def test_other_work_takes_its_turn() -> None:
    echo, done = Echo(), list[str]()

    async def test(batcher: Batcher) -> None:
        def refuse() -> None:
            done.append("refused")
            raise DataError("No.", fix="Ask another.")

        def compute() -> int:
            done.append("computed")
            return 6 * 7

        first = batcher.submit("a", lines(echo, "running"))
        await started(echo)
        refused, computed = (asyncio.ensure_future(batcher.run("a", x)) for x in (refuse, compute))
        while batcher.num_waiting + len(done) < 2:
            await asyncio.sleep(0.001)
        assert done == []  # the only thread is busy
        echo.gate.set()
        assert await computed == 42
        with pytest.raises(DataError):
            await refused
        assert await first[0] == "gninnur"

    run(test)
    assert done == ["refused", "computed"]


@dataclass(eq=False)
class Refusing(Echo):
    """Fails on every batch with a certain text."""

    error: Exception = field(default_factory=RuntimeError)

    def __call__(self, requests: Sequence[Request], check: Callable[[object], None]) -> list[str]:
        found = super().__call__(requests, check)
        if any(request.text == "evil" for request in requests):
            raise self.error
        return found


@pytest.mark.parametrize(
    ("error", "is_logged", "is_divided"),
    [
        (DataError("No.", fix="Shorten it."), False, True),
        (ConfigError("No.", fix="Change it."), False, False),  # wrong options fail for all
        (RuntimeError("secret"), True, True),
    ],
)
def test_an_error_affects_the_text_that_causes_it(
    error: Exception, is_logged: bool, is_divided: bool, caplog: pytest.LogCaptureFixture
) -> None:
    echo, sizes = Refusing(error=error), list[int]()
    echo.gate.set()
    first = Echo()

    async def main() -> None:
        batcher = Batcher(1, sizes.append)
        try:
            futures = batcher.submit("a", lines(first, "block"))
            await started(first)
            futures += batcher.submit("a", lines(echo, "good", "evil", "fine"))
            first.gate.set()
            results = await asyncio.wait_for(
                asyncio.gather(*futures, return_exceptions=True), LIMIT
            )
        finally:
            batcher.close()
        block, good, bad, fine = results
        assert block == "kcolb"
        assert type(bad) is type(error)
        assert ("evil" in str(bad)) == isinstance(error, DataError)  # which names the sentence
        assert getattr(bad, "fix", None) == getattr(error, "fix", None)
        if is_divided:
            assert (good, fine) == ("doog", "enif")
        else:
            assert type(good) is type(fine) is type(error)

    asyncio.run(main())
    assert sizes == [1, 3]  # texts; those of a divided batch do not count again
    singles = [["good"], ["evil"], ["fine"]] if is_divided else []
    assert echo.batches == [["good", "evil", "fine"], *singles]
    assert ("RuntimeError" in caplog.text) == is_logged
    assert "secret" not in caplog.text


@pytest.mark.parametrize("threads", [1, 4])
def test_closing_ends_every_thread(threads: int) -> None:
    before = set(threading.enumerate())
    batcher = Batcher(threads)
    own = set(threading.enumerate()) - before
    assert len(own) == threads + 1  # with the spare thread
    end = time.monotonic() + LIMIT
    while batcher._num_free < len(own) and time.monotonic() < end:
        time.sleep(0.001)  # until all of them wait for texts
    batcher.close()
    assert not [thread for thread in own if thread.is_alive()]


@pytest.mark.parametrize("client", ["x", "y"])
def test_short_texts_do_not_wait_for_a_long_text_but_other_texts_do(client: str) -> None:
    """Those of the same client neither."""
    slow = Echo()
    quick = Echo()
    quick.gate.set()
    medium = "m" * 400

    async def test(batcher: Batcher) -> None:
        blocking = batcher.submit("x", lines(slow, *["l" * 5000] * 2))
        await started(slow)
        waiting = batcher.submit("x", lines(quick, medium))
        assert await asyncio.gather(*batcher.submit(client, lines(quick, "short"))) == ["trohs"]
        assert quick.batches == [["short"]]
        slow.gate.set()
        await asyncio.gather(*blocking, *waiting)

    run(test)
    assert quick.batches == [["short"], [medium]]
