"""Segments -> hypotheses: batches of like length that an engine takes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from nmt.config.decoding import DecodingConfig
from nmt.inference.engine import Engine, Task
from nmt.inference.segment import SearchResults, Segment
from nmt.search.hypothesis import NONE, Hypothesis


def fitting_batches(
    segments: Iterable[Segment], engine: Engine, options: DecodingConfig, vocab_size: int
) -> list[list[Segment]]:
    """Return segments of like length that the engine takes at once, the shortest first.

    Args:
        segments: In any order.
        engine: Says for what it has room.
        options: Of the search.
        vocab_size: Entries of the target vocabulary.
    """
    room, width = engine.room, options.num_hypotheses
    most = room.probabilities // engine.num_workers // (width * vocab_size)
    max_rows = max(1, min(most, room.hypotheses // width))
    wanted = options.batch_tokens
    max_tokens = room.tokens if wanted == "auto" else wanted
    return list(batch_by_length(segments, max_tokens=max_tokens, max_rows=max_rows))


def search_batches(
    engine: Engine,
    batches: Sequence[Sequence[Segment]],
    options: DecodingConfig,
    choose: Callable[[list[Hypothesis]], list[Hypothesis]],
    finish: Callable[[Sequence[Segment]], object],
) -> SearchResults:
    """Return the hypotheses of each segment.

    Args:
        engine: Searches.
        batches: What it searches at once.
        options: Of the search.
        choose: Returns the best of what was found for a segment.
        finish: Called with each batch; may raise to interrupt.
    """
    tasks = [make_task(batch) for batch in batches]
    found: list[tuple[Segment, list[Hypothesis]]] = []
    # Closed at once when interrupted: no worker may go on with a model that trains again.
    with closing(engine.search_all(tasks, options)) as results:
        for batch, hypotheses in zip(batches, results, strict=True):
            for segment, own in zip(batch, hypotheses, strict=True):
                found.append((segment, choose(own)))
            finish(batch)
    return found


def batch_by_length(
    segments: Iterable[Segment], *, max_tokens: int, max_rows: int
) -> Iterator[list[Segment]]:
    """Yield segments of similar length together, the shortest first.

    Args:
        segments: In any order; of equal length they stay in it.
        max_tokens: Most tokens of a batch, with EOS and padding; a longer one is by itself.
        max_rows: Most segments of a batch; the limit for short lines and wide beams.
    """
    batch: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: len(segment.ids)):
        tokens = (len(batch) + 1) * (len(segment.ids) + 1)  # and EOS
        if batch and (tokens > max_tokens or len(batch) == max_rows):
            yield batch
            batch = []
        batch.append(segment)
    if batch:
        yield batch


def make_task(segments: Sequence[Segment]) -> Task:
    """Return a batch of segments as an engine takes it."""
    constraints = [segment.constraints for segment in segments]
    is_free = all(own == NONE for own in constraints)
    return Task([segment.read_ids for segment in segments], None if is_free else constraints)
