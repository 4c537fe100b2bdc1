"""Text that goes round in circles."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def longest_loop(tokens: Sequence[Hashable]) -> int:
    """Return how many tokens in a row repeat what stands right before them, in whole copies.

    >>> longest_loop("a dog runs".split()), longest_loop("a dog a dog a dog runs".split())
    (0, 4)
    """
    if len(set(tokens)) == len(tokens):
        return 0
    longest = 0
    for period in range(1, len(tokens) // 2 + 1):
        run = 0
        for token, before in zip(tokens[period:], tokens, strict=False):
            run = run + 1 if token == before else 0
            if run > longest and run >= period:
                longest = run
    return longest
