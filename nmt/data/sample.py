"""A random sample of a stream of pairs, in bounded memory, the same for the same stream."""

from __future__ import annotations

import random
from collections.abc import Iterator


class Reservoir:
    """Keeps a uniform random sample of the pairs it is shown (Vitter 1985, algorithm R).

    Args:
        capacity: Most pairs to keep.
        max_characters: Most characters to keep. When the sample outgrows them, a random half of
            it goes, which leaves it uniform.
        seed: Decides what is drawn.
    """

    def __init__(self, capacity: int, *, max_characters: int, seed: int) -> None:
        self._capacity = capacity
        self._max_characters = max_characters
        self._random = random.Random(seed)
        self._pairs: list[tuple[str, str]] = []
        self._seen = 0
        self._characters = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, source: str, target: str) -> None:
        """Show a pair."""
        self._seen += 1
        if len(self._pairs) < self._capacity:
            self._pairs.append((source, target))
        else:
            slot = self._random.randrange(self._seen)
            if slot >= self._capacity:
                return
            self._characters -= sum(map(len, self._pairs[slot]))
            self._pairs[slot] = (source, target)
        self._characters += len(source) + len(target)
        if self._characters > self._max_characters and len(self._pairs) > 1:
            self._halve()

    def _halve(self) -> None:
        self._capacity = len(self._pairs) // 2
        self._pairs = self._random.sample(self._pairs, self._capacity)
        self._characters = sum(len(source) + len(target) for source, target in self._pairs)

    def drain(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs and forget them, so that whoever copies them needs no room for two."""
        self._pairs.reverse()
        while self._pairs:
            yield self._pairs.pop()
