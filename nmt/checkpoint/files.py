"""Checkpoint folders: written whole or not at all, verified before anything is read; the best.

A folder is written under a temporary name beside its place: the files, each forced to the disk,
then the manifest, then the rename, then the parent. So whatever stops the process, a folder with
its final name is complete, and what it holds belongs together. Tensors are safetensors files,
everything else is JSON: loading runs no code from them.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from nmt.errors import CheckpointError
from nmt.files.atomic import (
    atomic_folder,
    remove_leftovers,
    restore_replaced,
    write_errors,
    write_text,
)
from nmt.files.json_file import Manifest, UnknownFormatError, field, read_json

if TYPE_CHECKING:  # finding a checkpoint needs no torch
    from torch import Tensor

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
AVERAGE = "average"  # Model folder in a run folder: the mean of the last checkpoints.
BEST = "best"  # File in a run folder that names its best weights.
_FILES = (MODEL, OPTIMIZER, STATE)
_MARGIN_BYTES = 1 << 20
_FULL, _FREE = (errno.ENOSPC, errno.EDQUOT), "Free disk space or lower training.keep_last"
_MAX_PROBLEMS = 10
_REPLACED = r"\.step-(\d+)\.replaced"  # Checkpoints that `atomic_folder` was replacing.
_ANOTHER = "Use another checkpoint of the run."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything that a run resumes from."""

    step: int  # Updates made.
    model: dict[str, Tensor]  # Weights by parameter name.
    optimizer: dict[str, Tensor]  # Moments and random generators.
    state: dict[str, Any]  # Plain data: progress, counters, identity of the run.


def checkpoints_dir(run_dir: Path) -> Path:
    """Return the folder that holds the checkpoints of a run."""
    return run_dir / "checkpoints"


def checkpoint_dir(run_dir: Path, step: int) -> Path:
    """Return the folder of one checkpoint."""
    return checkpoints_dir(run_dir) / checkpoint_name(step)


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of one checkpoint.

    >>> checkpoint_name(500)
    'step-00000500'
    """
    return f"step-{step:08d}"


def list_checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of all checkpoints with their final name, oldest first."""
    return _folders_named(run_dir, r"step-(\d+)")


def _folders_named(run_dir: Path, pattern: str) -> list[tuple[int, Path]]:
    paths = [path for path in checkpoints_dir(run_dir).glob("*") if path.is_dir()]
    matches = [(re.fullmatch(pattern, path.name), path) for path in paths]
    return sorted((int(match[1]), path) for match, path in matches if match)


def save_checkpoint(
    run_dir: Path,
    step: int,
    *,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write a checkpoint; return its folder.

    Raises:
        CheckpointError: The disk is full or not writable; nothing half-written is left, and
            earlier checkpoints are untouched.
    """
    folder = checkpoint_dir(run_dir, step)
    groups = {MODEL: model, OPTIMIZER: optimizer}
    needed = _MARGIN_BYTES + sum(t.nbytes for group in groups.values() for t in group.values())
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder.parent).free) < needed:
            found = f"it needs {needed / 2**20:,.1f} MiB, {free / 2**20:,.1f} MiB are free"
            raise OSError(errno.ENOSPC, found)
        with atomic_folder(folder, replace=True) as temporary:
            for name, group in groups.items():
                # Row by row. Views of one buffer may stay views, as none overlaps another.
                rows = {key: tensor.detach().cpu().contiguous() for key, tensor in group.items()}
                save_tensors(rows, temporary / name)
                del rows  # before the next group's copy on the CPU is made
            text = json.dumps(state, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (temporary / STATE).write_text(text, encoding="utf-8")
            Manifest.of(temporary, _FILES, step).write(temporary)
    except (OSError, safetensors.SafetensorError) as error:
        # safetensors passes the system's error on as text only
        reason = getattr(error, "strerror", None) or str(error)
        is_full = any(n == getattr(error, "errno", 0) or f"os error {n})" in reason for n in _FULL)
        todo = "Check that the folder can be written"
        fix = f"{_FREE if is_full else todo}, then start the same command again."
        raise CheckpointError(f"{folder} was not written: {reason}.", fix=fix) from error
    return folder


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU: those that are views of one buffer by one copy of all of it."""
    buffers: dict[int, Tensor] = {}
    copies = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in buffers:
            size = storage.nbytes() // tensor.element_size()
            whole = tensor.detach().as_strided((size,), (1,), 0)
            buffers[storage.data_ptr()] = whole.to("cpu", copy=True)
        buffer = buffers[storage.data_ptr()]
        copies[name] = buffer.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return copies


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint after comparing every file with its manifest.

    Raises:
        CheckpointError: Something is missing, changed, or no safetensors file.
    """
    manifest = Manifest.read(folder)
    manifest.verify(folder, _FILES)
    return Checkpoint(
        step=manifest.step,
        model=load_tensors(folder / MODEL),
        optimizer=load_tensors(folder / OPTIMIZER),
        state=read_state(folder),
    )


def read_state(folder: Path, name: str = STATE) -> dict[str, Any]:
    """Read the plain data of a checkpoint, or another record beside weights.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    path = folder / name
    try:
        return field(read_json(path), kind=dict)
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        problem = f"{path} is {'missing' if is_missing else f'damaged: {error}'}."
        raise CheckpointError(problem, fix=_ANOTHER) from error


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file."""
    from safetensors.torch import save_file  # noqa: PLC0415 - loads torch

    save_file(dict(tensors), path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file. The format bounds its header by the file: claims allocate nothing.

    Raises:
        CheckpointError: It is missing or of another format.
    """
    from safetensors.torch import load_file  # noqa: PLC0415 - loads torch

    with tensor_errors(path):
        return load_file(path)


@contextmanager
def tensor_errors(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a safetensors file is read into `CheckpointError`."""
    try:
        yield
    except (safetensors.SafetensorError, OSError) as error:
        problem = f"{path} is no readable safetensors file: {error}"
        raise CheckpointError(problem, fix=_ANOTHER) from error


def tensor_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Return how names and shapes of two sets of tensors differ, a line each; empty if not."""
    problems = [f"missing: {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"only here: {name}" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name}: {tuple(found[name].shape)}, not {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    more = len(problems) - _MAX_PROBLEMS
    return "\n  ".join(problems[:_MAX_PROBLEMS] + ([f"... and {more} more"] if more > 0 else []))


def newest_checkpoint(run_dir: Path, *, strict: bool = False) -> Path | None:
    """Return the newest whole checkpoint of a run, or None if there never was one.

    Logs a warning for each damaged one that is passed over; ``strict`` refuses to.

    Raises:
        CheckpointError: All are damaged, or the newest is and ``strict`` is set.
    """
    problems: list[str] = []
    # One whose replacement was cut short counts: nothing has taken its name yet.
    replaced = _folders_named(run_dir, _REPLACED)
    aside = [x for x in replaced if not checkpoint_dir(run_dir, x[0]).exists()]
    for step, folder in sorted(list_checkpoints(run_dir) + aside, reverse=True):
        try:
            manifest = Manifest.read(folder)
            if manifest.step != step:
                fix = "Give the folder its own name back."
                raise CheckpointError(f"{folder} holds step {manifest.step:,}.", fix=fix)
            manifest.verify(folder, _FILES)
        except UnknownFormatError:
            raise  # whole, and further than what older ones hold: not to be thrown away
        except CheckpointError as error:
            if strict:
                fix = "Restore it, or drop `strict_resume` to resume from an older checkpoint."
                raise CheckpointError(error.problem, fix=fix) from error
            problems.append(error.problem)
        else:
            for problem in problems:
                logger.warning("damaged checkpoint passed over: %s", problem)
            return folder
    if problems:
        fix = f"Restore one of them, or start again with another run_dir than {run_dir}."
        listed = "\n  ".join(problems)
        raise CheckpointError(f"No checkpoint of the run is whole:\n  {listed}", fix=fix)
    return None


def clean_partial(run_dir: Path) -> None:
    """Undo what an earlier process was writing, replacing or deleting when it was killed."""
    for step, _ in _folders_named(run_dir, _REPLACED):
        restore_replaced(checkpoint_dir(run_dir, step))
    for folder in (run_dir, checkpoints_dir(run_dir)):
        remove_leftovers(folder)


def set_damaged_aside(run_dir: Path, newest: int) -> None:
    """Rename the checkpoints after the newest whole one, from which training resumes; warn of each.

    All of them are damaged. Under their own names they would count as the newest, and what is saved
    from now on as expired.

    Raises:
        CheckpointError: That cannot be done.
    """
    for step, folder in list_checkpoints(run_dir):
        if step > newest:
            place = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(place, ignore_errors=True)
            fix = "Remove it, then start the same command again."
            with write_errors(f"{folder}, which is damaged,", CheckpointError, fix=fix):
                folder.rename(place)
            logger.warning("kept, to be looked at and removed: %s", place)


def write_best(run_dir: Path, name: str | None) -> None:
    """Record which checkpoint is best, or that the mean of checkpoints is: the name of its folder.

    A hint: it may name one that is gone, or none.
    """
    write_text(run_dir / BEST, f"{name or ''}\n")


def read_best(run_dir: Path) -> Path | None:
    """Return the folder of the best weights, or None if it is not recorded or is gone."""
    try:
        name = (run_dir / BEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(rf"step-\d+|{AVERAGE}", name):
        return None
    folder = (run_dir if name == AVERAGE else checkpoints_dir(run_dir)) / name
    return folder if folder.is_dir() else None


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


def newest_steps(steps: Collection[int], count: int, *, due_every: Collection[int]) -> list[int]:
    """Return the steps of the newest checkpoints that a run that was never stopped would have.

    Args:
        steps: Checkpoints there are. The last counts always; the others if they were due, and
            not only saved because the process was stopped.
        count: How many.
        due_every: A checkpoint is due at the multiples of these.

    >>> newest_steps([10, 20, 22, 30, 33], 3, due_every=[10])
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
        keep_last: Newest checkpoints to keep; see `newest_steps`.
        keep_best: Best checkpoints to keep besides; the earlier of equals.
        due_every: A checkpoint is due at the multiples of these.

    >>> scores = {10: 3.0, 20: 9.0, 30: 5.0}
    >>> expired([10, 20, 30, 40], scores, keep_last=1, keep_best=1, due_every=[10])
    [10, 30]
    """
    best = by_score(steps, scores)[:keep_best]
    kept = {*newest_steps(steps, keep_last, due_every=due_every), *best}
    return sorted(step for step in steps if step not in kept)
