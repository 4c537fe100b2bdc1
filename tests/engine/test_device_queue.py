"""Running ahead of the device: what is read when, and data made ready in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from nmt.engine.device import choose_device_queue, prefetch


def test_a_cpu_is_not_run_ahead_of_and_a_gpu_is() -> None:
    cpu, gpu = (
        choose_device_queue(torch.device("cpu")),
        choose_device_queue(torch.device("cuda", 1)),
    )
    items = iter([1])

    assert (cpu.max_inflight_updates, cpu.prefetches) == (1, False)
    assert gpu.max_inflight_updates > 1
    assert gpu.prefetches
    with cpu.stream(items) as stream:
        assert stream is items
    with gpu.stream(iter([1, 2, 3])) as stream:
        assert list(stream) == [1, 2, 3]


class Numbers:
    """Counts from 0; tells what it has given, and in which threads."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.given: list[int] = []
        self.threads: set[str] = set()
        self.news = threading.Condition()
        self._fails_at = fails_at

    def __iter__(self) -> Iterator[int]:
        number = 0
        while number != self._fails_at:
            with self.news:
                self.given.append(number)
                self.threads.add(threading.current_thread().name)
                self.news.notify_all()
            yield number
            number += 1
        raise ValueError("no more")


def test_the_next_item_is_made_in_a_thread_while_the_last_is_used() -> None:
    numbers = Numbers()
    with prefetch(iter(numbers)) as stream:
        for expected in range(4):
            assert next(stream) == expected
            with numbers.news:
                assert numbers.news.wait_for(lambda: len(numbers.given) >= expected + 2, 60)  # noqa: B023
    assert numbers.given == list(range(5))  # one ahead, and no more
    assert threading.main_thread().name not in numbers.threads
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]


def test_an_error_comes_when_its_item_is_asked_for() -> None:
    with prefetch(iter(Numbers(fails_at=2))) as stream:
        assert [next(stream), next(stream)] == [0, 1]
        with pytest.raises(ValueError, match="no more"):
            next(stream)


def test_an_error_of_the_caller_ends_the_thread() -> None:
    stream = prefetch(iter(Numbers()))
    with suppress(KeyError), stream as numbers:
        next(numbers)
        raise KeyError
    assert not [thread for thread in threading.enumerate() if "prefetch" in thread.name]
