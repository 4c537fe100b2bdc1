"""How a process works beside the device that it gives work to."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")

_MOST_UNREAD = 64


@dataclass(frozen=True, slots=True)
class Pace:
    """How far the process runs ahead of its device, so that the device never waits for work."""

    device: torch.device
    """Where the work is done."""
    most_unread: int
    """Updates whose numbers may stay on the device until they are read; 1 reads them at once."""
    prefetches: bool
    """Whether data are made ready in a thread, while the process gives the device its work."""

    def stream(self, items: Iterator[T]) -> AbstractContextManager[Iterator[T]]:
        """Give the same items, while the context is open; one is made ahead if that saves time."""
        return prefetch(items) if self.prefetches else nullcontext(items)

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release_memory(self) -> None:
        """Give freed memory back, so that it can be cut up otherwise."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_pace(device: torch.device) -> Pace:
    """Return the pace for ``device``: a CPU does its work at once, so nothing can run ahead."""
    if device.type == "cpu":
        return Pace(device, most_unread=1, prefetches=False)
    return Pace(device, most_unread=_MOST_UNREAD, prefetches=True)


@contextmanager
def prefetch(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Give ``items``, the next of which a thread makes while the caller uses the last.

    The thread must not touch the device: streams and graph captures belong to the caller's.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:
        yield _one_ahead(items, thread)


def _one_ahead(items: Iterator[T], thread: Executor) -> Iterator[T]:
    end = object()
    coming = thread.submit(next, items, end)
    while (item := coming.result()) is not end:
        coming = thread.submit(next, items, end)
        yield item  # type: ignore[misc]
