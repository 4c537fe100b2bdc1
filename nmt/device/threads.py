"""The number of CPU threads that is fastest while other programs use the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# A product of about the size of a layer of a small model.
_ROWS = 1024
_COLUMNS = 256
_WARMUP_SECONDS = 0.02
_SECONDS = 0.3  # Longer than several time slices of the operating system.
_CLEAR_GAIN = 1.3  # Fewer threads have to be faster by this factor: single measurements vary.


@contextmanager
def same_threads_after() -> Iterator[None]:
    """Restore the number of CPU threads of this process when the context ends."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fastest_threads(most: int) -> tuple[int, dict[int, float]]:
    """Time matrix products with all threads, half of them, a quarter and so on.

    The threads of an operation wait for the last of them. On a busy processor that one may wait for
    its turn, at every operation, and two threads have been 20 times slower than one.

    Args:
        most: The largest number of threads.

    Returns:
        The best number of threads, which is the largest one unless a smaller one is clearly faster;
        and the products per second of each number.
    """
    rates = dict[int, float]()
    best = most
    threads = most
    with same_threads_after():
        while threads >= 1:
            torch.set_num_threads(threads)
            _products_per_second(_WARMUP_SECONDS)
            rates[threads] = _products_per_second(_SECONDS)
            if rates[threads] > _CLEAR_GAIN * rates[best]:
                best = threads
            threads //= 2
    return best, rates


def _products_per_second(seconds: float) -> float:
    """Multiply for about ``seconds``."""
    left = torch.ones(_ROWS, _COLUMNS)
    right = torch.ones(_COLUMNS, _COLUMNS)
    products = 0
    begin = time.perf_counter()
    end = begin
    while end - begin < seconds:
        left @ right
        products += 1
        end = time.perf_counter()
    return products / (end - begin)
