"""Which checkpoints are best, which to keep and which to average. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping


def rank(score: float) -> float:
    """Return a number to compare scores by: the score itself, but NaN is lowest.

    >>> max([float("nan"), -3.0, -5.0], key=rank)
    -3.0
    """
    return -math.inf if math.isnan(score) else score


def by_score(steps: Collection[int], scores: Mapping[int, float]) -> list[int]:
    """Return the steps that have a score, best first, the earlier of equals before the later.

    >>> by_score([10, 20, 30, 40], {10: float("nan"), 20: 3.0, 30: 9.0})
    [30, 20, 10]
    """
    scored = (step for step in steps if step in scores)
    return sorted(scored, key=lambda step: (-rank(scores[step]), step))


def newest(steps: Collection[int], count: int, *, due_every: Collection[int]) -> list[int]:
    """Return the steps of the newest checkpoints that a run that was never stopped would have.

    Args:
        steps: Checkpoints there are. The last counts always; the others if they were due, and
            not only saved because the process was stopped.
        count: How many.
        due_every: A checkpoint is due at the multiples of these.

    >>> newest([10, 20, 22, 30, 33], 3, due_every=[10])
    [20, 30, 33]
    """
    ordered = sorted(steps)
    due = [step for step in ordered[:-1] if any(step % every == 0 for every in due_every)]
    return [*due, *ordered[-1:]][-count:]


def expired(
    steps: Collection[int],
    scores: Mapping[int, float],
    *,
    keep_last: int,
    keep_best: int,
    due_every: Collection[int],
) -> list[int]:
    """Return the steps whose checkpoints may go.

    Args:
        steps: Checkpoints there are.
        scores: Validation score of some of them; higher is better, NaN is lowest.
        keep_last: Newest checkpoints to keep; see `newest`.
        keep_best: Best checkpoints to keep besides; the earlier of equals.
        due_every: A checkpoint is due at the multiples of these.

    >>> scores = {10: 3.0, 20: 9.0, 30: 5.0}
    >>> expired([10, 20, 30, 40], scores, keep_last=1, keep_best=1, due_every=[10])
    [10, 30]
    """
    best = by_score(steps, scores)[:keep_best]
    kept = {*newest(steps, keep_last, due_every=due_every), *best}
    return sorted(step for step in steps if step not in kept)


def choose_checkpoints(
    steps: Collection[int],
    scores: Mapping[int, float],
    *,
    last: int | None = None,
    best: int | None = None,
) -> list[int]:
    """Return the steps of the checkpoints to average, oldest first; fewer if there are no more.

    Args:
        steps: Checkpoints there are.
        scores: Validation score of some of them; higher is better, NaN is lowest.
        last: How many of the newest to take.
        best: How many of the best to take instead, the earlier of equals; needs scores.

    Raises:
        ValueError: Not exactly one of ``last`` and ``best`` is given, or it is below 1.

    >>> choose_checkpoints([10, 20, 30, 40], {10: 3.0, 20: 9.0, 30: 5.0}, last=2)
    [30, 40]
    >>> choose_checkpoints([10, 20, 30, 40], {10: 3.0, 20: 9.0, 30: 5.0}, best=2)
    [20, 30]
    """
    if (last is None) == (best is None):
        raise ValueError("give either last or best")
    count = last if best is None else best
    if count is None or count < 1:
        raise ValueError(f"cannot choose {count} checkpoints")
    return sorted(steps)[-count:] if best is None else sorted(by_score(steps, scores)[:count])
