"""The mean of the weights of several checkpoints of a run, and the model folder it makes.

Late checkpoints of a run scatter around what they have learned; their mean is usually better than
each of them, and costs nothing when translating.
Source: Vaswani et al. (2017), section 6.1; Popel and Bojar (2018).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.checkpoint.files import MODEL, load_tensors
from nmt.checkpoint.model_folder import write_model_folder
from nmt.checkpoint.retention import by_score
from nmt.errors import CheckpointError
from nmt.files.atomic import write_json
from nmt.files.json_file import field, read_json
from nmt.files.manifest import Manifest
from nmt.version import __version__

RECORD = "average.json"
"""What a model folder tells about the checkpoints it is the mean of."""
_MOST_PROBLEMS = 10


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
    if best is None:
        return sorted(steps)[-count:]
    return sorted(by_score(steps, scores)[:count])


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of checkpoints: float32, on the CPU.

    Every checkpoint is compared with its manifest before it is read. Sums are float64, and are
    rounded to float32 once, at the end: of n checkpoints with weights w, the mean found is at most
    half a unit in the last place, plus n * 2**-53 * mean(abs(w)), from the exact one. The mean of
    equal weights is that weight, to the bit.

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
        _add(sums, path, paths[0])
    return {name: sums.pop(name).div_(len(paths)).float() for name in list(sums)}


def _add(sums: dict[str, Tensor], path: Path, first: Path) -> None:
    """Add one checkpoint. A function, so that its weights are gone before the next is read."""
    weights = _load_weights(path)
    if not sums:
        sums.update({name: weight.to(torch.float64) for name, weight in weights.items()})
        return
    _check_same_model(weights, sums, path, first)
    for name, weight in weights.items():
        sums[name] += weight


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


def _check_same_model(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path, first: Path
) -> None:
    problems = [f"missing: {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"only here: {name}" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name}: {tuple(found[name].shape)} here, {tuple(tensor.shape)} there"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        shown = problems[:_MOST_PROBLEMS] + ([f"... and {more} more"] if more > 0 else [])
        raise CheckpointError(
            f"{path} holds another model than {first}:\n  " + "\n  ".join(shown),
            fix="Average checkpoints of one run, trained with one configuration.",
        )


def write_average(
    folder: Path,
    run_dir: Path,
    paths: Sequence[Path],
    *,
    score: float | None = None,
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

    def write(place: Path) -> None:
        save_file(average_weights(paths), place / MODEL)
        write_json(place / RECORD, _record(manifests, score))

    newest = max(manifest.step for manifest in manifests)
    write_model_folder(folder, run_dir, newest, write)


@dataclass(frozen=True, slots=True)
class AverageRecord:
    """What is recorded with a mean."""

    steps: tuple[int, ...]
    """Of the checkpoints it is of, oldest first."""
    score: float | None
    """Of its validation."""

    @classmethod
    def read(cls, folder: Path) -> AverageRecord:
        """Read that of a model folder.

        Raises:
            FileNotFoundError: It has none.
            CheckpointError: It is damaged.
        """
        path = folder / RECORD
        try:
            values = read_json(path)
            steps = field(values, "steps", kind=list)
            if not all(type(step) is int for step in steps):
                raise ValueError("steps should hold whole numbers")
            score = values.get("score") and field(values, "score", kind=float)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: {error}.", fix="Remove it.") from error
        return cls(tuple(steps), score)


def _record(manifests: Sequence[Manifest], score: float | None) -> dict[str, Any]:
    return {
        **({} if score is None else {"score": score}),
        "package_version": __version__,
        "steps": [manifest.step for manifest in manifests],
        "checkpoints": [
            {"step": manifest.step, "sha256": manifest.files[MODEL].sha256}
            for manifest in manifests
        ],
    }
