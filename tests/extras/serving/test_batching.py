"""Laws of the queue: fair by client, nothing twice, and the same answer alone and under load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from nmt.errors import DataError
from nmt.extras.serving.batching import Batcher


class Line(NamedTuple):
    text: str


@dataclass(eq=False)
class Echo:
    """Translates by spelling backwards; waits for a gate, remembers batches, fails on some."""

    gate: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)

    def wait(self) -> None:
        self.gate.wait(20)

    def translate(self, lines: Sequence[Line], check: Callable[[], object]) -> list[str]:
        self.batches.append([line.text for line in lines])
        self.wait()
        check()
        for line in lines:
            if line.text == "refused":
                raise DataError("No.", fix="Ask another.")
            if line.text == "broken":
                raise ZeroDivisionError
        return [line.text[::-1] for line in lines]


@dataclass(eq=False)
class Stepwise(Echo):
    """Translates one batch for every step."""

    steps: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wait(self) -> None:
        self.steps.acquire(timeout=20)


def lines(*texts: str) -> list[Line]:
    return [Line(text) for text in texts]


def run(test: Callable[[Batcher[str]], object], threads: int = 1, tokens: int = 1000) -> None:
    async def main() -> None:
        batcher = Batcher[str](threads, tokens)
        try:
            await test(batcher)  # type: ignore[misc]
        finally:
            batcher.close()

    asyncio.run(main())


async def started(echo: Echo, batches: int = 1) -> None:
    while len(echo.batches) < batches:
        await asyncio.sleep(0.001)


def test_an_idle_thread_starts_at_once_and_a_busy_one_gathers() -> None:
    echo = Echo()

    async def test(batcher: Batcher[str]) -> None:
        first = batcher.submit(echo, "a", lines("one"))
        await started(echo)
        rest = [batcher.submit(echo, client, lines("x", "y")) for client in ("b", "c")]
        echo.gate.set()
        assert [await future for future in first] == ["eno"]
        assert [await future for own in rest for future in own] == ["x", "y", "x", "y"]

    run(test)
    assert echo.batches == [["one"], ["x", "x", "y", "y"]]


def test_little_work_is_shared_out_among_free_threads() -> None:
    echo = Echo()

    async def test(batcher: Batcher[str]) -> None:
        futures = batcher.submit(echo, "a", lines(*["w" * 400] * 4))
        await started(echo, 2)
        echo.gate.set()
        await asyncio.gather(*futures)

    run(test, threads=2)
    assert sorted(map(len, echo.batches)) == [2, 2]


def test_a_client_with_many_texts_does_not_make_others_wait() -> None:
    """One client has queued 300 texts in three requests; ten come later with one each."""
    echo, order = Echo(), list[str]()

    async def test(batcher: Batcher[str]) -> None:
        block = batcher.submit(echo, "x", lines("block"))
        await started(echo)
        many = [
            future
            for request in range(3)
            for future in batcher.submit(
                echo, "huge", lines(*(f"h{request}-{i:03}" for i in range(100)))
            )
        ]
        few = [batcher.submit(echo, f"c{i}", lines(f"small{i}"))[0] for i in range(10)]
        echo.gate.set()
        await asyncio.gather(*block, *many, *few)

    run(test, tokens=20)  # rounds of about ten texts
    order = [text for batch in echo.batches[1:] for text in batch]
    assert sorted(order) == sorted(set(order))
    assert max(order.index(f"small{i}") for i in range(10)) < 30
    # And the requests of one client take turns, too.
    own = [text[1] for text in order if text[0] == "h"]
    assert all(own[:30].count(request) >= 8 for request in "012")


def test_a_client_with_many_keys_does_not_make_others_wait() -> None:
    """One client asks in twenty ways (seeds, say); another comes later with one long text."""
    block, long = Echo(), "long " * 100
    many, own = [Echo() for _ in range(20)], Echo()
    order, tasks = list[str](), list[asyncio.Task[None]]()

    async def remember(future: asyncio.Future[str], client: str) -> None:
        await future
        order.append(client)

    async def test(batcher: Batcher[str]) -> None:
        futures = batcher.submit(block, "x", lines("block"))
        await started(block)
        for echo in (*many, own):
            echo.gate.set()
            text, client = (long, "y") if echo is own else ("many " * 100, "x")
            (future,) = batcher.submit(echo, client, lines(text))
            futures.append(future)
            tasks.append(asyncio.create_task(remember(future, client)))
        block.gate.set()
        await asyncio.gather(*futures, *tasks)

    run(test, tokens=10)
    assert "y" in order[:2]


def test_a_small_request_does_not_wait_for_what_is_ready() -> None:
    """Unless its client has something else under way, or another such was the last batch."""
    echo = Stepwise()

    async def test(batcher: Batcher[str]) -> None:
        block = batcher.submit(echo, "x", lines("block"))
        await started(echo)
        many = batcher.submit(echo, "huge", lines(*(f"h{i:02}" for i in range(40))))
        echo.steps.release()
        await started(echo, 2)  # of the round that was formed a batch is left
        other = batcher.submit(echo, "huge", lines("other"))
        small = batcher.submit(echo, "small", lines("small"))
        echo.steps.release()
        await started(echo, 3)
        late = batcher.submit(echo, "late", lines("late"))
        echo.steps.release(100)
        await asyncio.gather(*block, *many, *small, *other, *late)

    run(test, tokens=20)
    assert [batch[0] for batch in echo.batches[:4]] == ["block", "h00", "small", "h10"]
    assert all("other" not in batch for batch in echo.batches[:4])


def test_what_nobody_waits_for_is_not_translated() -> None:
    echo = Echo()

    async def test(batcher: Batcher[str]) -> None:
        first = batcher.submit(echo, "a", lines("running"))
        await started(echo)
        second = batcher.submit(echo, "a", lines("dropped", "kept"))
        first[0].cancel()
        second[0].cancel()
        echo.gate.set()
        assert await second[1] == "tpek"
        assert batcher.num_waiting == 0

    run(test)
    assert echo.batches == [["running"], ["kept"]]


def test_texts_that_fail_fail_alone(caplog: pytest.LogCaptureFixture) -> None:
    echo = Echo()
    echo.gate.set()

    async def test(batcher: Batcher[str]) -> None:
        texts = ["good", "refused", "fine", "broken", "well"]
        futures = batcher.submit(echo, "a", lines(*texts))
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [found[0], found[2], found[4]] == ["doog", "enif", "llew"]
        assert isinstance(found[1], DataError)
        assert isinstance(found[3], ZeroDivisionError)

    run(test)
    assert "ZeroDivisionError" in caplog.text
    assert "broken" not in caplog.text


def test_other_work_takes_its_turn() -> None:
    echo = Echo()
    echo.gate.set()

    async def test(batcher: Batcher[str]) -> None:
        assert await batcher.run(lambda: 6 * 7) == 42
        with pytest.raises(DataError):
            await batcher.run(lambda: echo.translate(lines("refused"), lambda: None))

    run(test)
