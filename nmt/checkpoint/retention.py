"""Which checkpoints to keep. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def expired(
    steps: Collection[int], scores: Mapping[int, float], *, keep_last: int, keep_best: int
) -> list[int]:
    """Return the steps whose checkpoints may go.

    Args:
        steps: Checkpoints there are.
        scores: Validation score of some of them; higher is better.
        keep_last: Newest checkpoints to keep.
        keep_best: Best checkpoints to keep besides; the earlier of equals.

    >>> expired([10, 20, 30, 40], {10: 3.0, 20: 9.0, 30: 5.0}, keep_last=1, keep_best=1)
    [10, 30]
    """
    newest = sorted(steps)[-keep_last:]
    scored = sorted((step for step in steps if step in scores), key=lambda s: (-scores[s], s))
    kept = {*newest, *scored[:keep_best]}
    return sorted(step for step in steps if step not in kept)
