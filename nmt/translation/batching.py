"""Lengths of segments -> batches for the search. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MOST_PROBABILITIES = 1 << 26  # held at once for the next tokens of all beams: 256 MiB


def most_rows(num_hypotheses: int, vocab_size: int, num_workers: int = 1) -> int:
    """Return how many sentences a batch may have, by the memory of their probabilities.

    Args:
        num_hypotheses: Of each sentence.
        vocab_size: Probabilities of each hypothesis.
        num_workers: Batches searched at the same time.
    """
    return max(1, _MOST_PROBABILITIES // num_workers // (num_hypotheses * vocab_size))


def batch_by_length(
    lengths: Sequence[int], *, max_tokens: int, max_rows: int
) -> Iterator[list[int]]:
    """Yield rows of like length, the shortest first.

    Args:
        lengths: Source tokens of each row, without EOS.
        max_tokens: Most tokens of a batch, with EOS and padding; a longer row is one by itself.
        max_rows: Most rows of a batch: what short lines and a wide beam meet first.

    >>> list(batch_by_length([7, 2, 3, 2], max_tokens=8, max_rows=2))
    [[1, 3], [2], [0]]
    """
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        tokens = (len(batch) + 1) * (lengths[row] + 1)  # and EOS
        if batch and (tokens > max_tokens or len(batch) == max_rows):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
