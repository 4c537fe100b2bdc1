"""Which checkpoints are best, which to keep, and the mean of the weights of several.

The mean is usually better than each of them, and costs nothing when translating.
Source: Vaswani et al. (2017), section 6.1; Popel and Bojar (2018).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.checkpoint.files import MODEL, load_tensors, save_tensors, tensor_differences
from nmt.checkpoint.new_model_folder import write_model_folder
from nmt.errors import CheckpointError
from nmt.files.atomic import write_json
from nmt.files.manifest import Manifest
from nmt.version import __version__

if TYPE_CHECKING:  # choosing checkpoints needs no torch
    from torch import Tensor

# In a model folder that is a mean: the ``steps`` of its checkpoints and, if known, ``score``.
RECORD = "average.json"


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


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints: float32, on the CPU.

    Every checkpoint is compared with its manifest before it is read. Sums are float64, and are
    rounded to float32 once, at the end: of n checkpoints with weights w, the mean found is at most
    half a unit in the last place, plus n * 2**-53 * mean(abs(w)), from the exact one. The mean of
    equal weights is that weight, bit by bit.

    Takes 8 bytes a weight for the sums and one checkpoint's weights, however many there are.

    Args:
        paths: Checkpoint folders of one run.

    Raises:
        CheckpointError: One is missing or damaged, holds a weight that is not finite, or has
            other names or shapes than the first.
        ValueError: ``paths`` is empty.
    """
    if not paths:
        raise ValueError("the mean of no checkpoint is not defined")
    sums: dict[str, Tensor] = {}
    for path in paths:
        weights = _load_weights(path)
        if sums and (problems := tensor_differences(weights, sums)):
            raise CheckpointError(
                f"{path} holds another model than {paths[0]}:\n  {problems}",
                fix="Average checkpoints of one run, trained with one configuration.",
            )
        for name in list(weights):
            if name in sums:  # what is popped is gone before the next checkpoint is read
                sums[name] += weights.pop(name)
            else:
                sums[name] = weights.pop(name).double()
    return {name: sums.pop(name).div_(len(paths)).float() for name in list(sums)}


def _load_weights(path: Path) -> dict[str, Tensor]:
    try:
        Manifest.read(path).verify(path, (MODEL,))
        weights = load_tensors(path / MODEL)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be read: {error.strerror or error}.",
            fix="If the run is being trained it may just have removed it: start again.",
        ) from error
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise CheckpointError(
                f"{path / MODEL}: {name} holds values that are not finite.",
                fix="Leave this checkpoint out: its training diverged.",
            )
    return weights


def write_average(
    folder: Path, run_dir: Path, paths: Sequence[Path], *, score: float | None = None
) -> None:
    """Write the mean of checkpoints as a model folder: whole, or not at all.

    Beside the weights it holds the run's configuration and tokenizer, and `RECORD`. The same
    checkpoints give the same bytes.

    Args:
        folder: Folder to make; missing or empty.
        run_dir: The run, for its configuration and tokenizer.
        paths: Checkpoint folders of that run.
        score: Validation score of the mean, for the record.

    Raises:
        CheckpointError: As `average_weights`; or ``folder`` holds something, or cannot be written.
    """
    manifests = [Manifest.read(path) for path in paths]
    steps = [manifest.step for manifest in manifests]
    made_of = [{"step": x.step, "sha256": x.files[MODEL].sha256} for x in manifests]
    record: dict[str, Any] = {} if score is None else {"score": score}
    record |= {"package_version": __version__, "steps": steps, "checkpoints": made_of}

    def write(place: Path) -> None:
        save_tensors(average_weights(paths), place / MODEL)
        write_json(place / RECORD, record)

    write_model_folder(folder, run_dir, max(steps), write)
