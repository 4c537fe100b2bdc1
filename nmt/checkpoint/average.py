"""The mean of the weights of several checkpoints of a run, as a model folder.

It is usually better than each of them, and costs nothing when translating.
Source: Vaswani et al. (2017), section 6.1; Popel and Bojar (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt.checkpoint.files import MODEL, load_tensors, tensor_differences
from nmt.checkpoint.model_folder import write_model_folder
from nmt.errors import CheckpointError
from nmt.files.atomic import write_json
from nmt.files.json_file import field, read_json
from nmt.files.manifest import Manifest
from nmt.version import __version__

RECORD = "average.json"
"""In a model folder that is a mean: of which checkpoints."""


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
                sums[name] = weights.pop(name).to(torch.float64)
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
    """Which checkpoints a model folder is the mean of."""

    steps: tuple[int, ...]
    """Their steps, oldest first."""
    score: float | None
    """Validation score of the mean."""

    @classmethod
    def read(cls, folder: Path) -> AverageRecord:
        """Read the record of a model folder.

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
