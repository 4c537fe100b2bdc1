"""Which checkpoints to keep. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping


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
        scores: Validation score of some of them; higher is better.
        keep_last: Newest checkpoints to keep; see `newest`.
        keep_best: Best checkpoints to keep besides; the earlier of equals.
        due_every: A checkpoint is due at the multiples of these.

    >>> scores = {10: 3.0, 20: 9.0, 30: 5.0}
    >>> expired([10, 20, 30, 40], scores, keep_last=1, keep_best=1, due_every=[10])
    [10, 30]
    """
    scored = sorted((step for step in steps if step in scores), key=lambda s: (-scores[s], s))
    kept = {*newest(steps, keep_last, due_every=due_every), *scored[:keep_best]}
    return sorted(step for step in steps if step not in kept)
