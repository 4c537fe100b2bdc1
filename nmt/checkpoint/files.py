"""Checkpoint folders: atomic writing, verified reading, and the choice of the best and the newest.

A folder is written under a temporary name next to its final place: first the files, each synced to
disk, then the manifest, then the rename, then a sync of the parent. Therefore a folder with its
final name is always complete, even after a crash. Tensors are safetensors files, everything else is
JSON, so loading a checkpoint never executes code from it.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from nmt.config.migration import FORMAT, FORMAT_KEY, Kind, migrate
from nmt.errors import CheckpointError, ConfigError, shell_command
from nmt.files import atomic
from nmt.files.json_file import Manifest, UnknownFormatError, field, read_json

if TYPE_CHECKING:  # finding a checkpoint must not import torch
    from torch import Tensor

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
AVERAGE = "average"  # Model folder in a run folder: the average of the last checkpoints.
BEST = "best"  # File in a run folder with the folder name of its best weights.
ADAPTER = "adapter"  # Key of an `AdapterRecord`.
_FILES = (MODEL, OPTIMIZER, STATE)
_MARGIN_BYTES = 1 << 20  # Disk space for everything but the tensors.
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAX_PROBLEMS = 10
# Folder name of an old checkpoint while `atomic_folder` replaces it.
_REPLACED = r"\.step-(\d+)\.replaced"
_FIX = "Use a different checkpoint of the run."

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint, on the CPU."""

    step: int  # Updates made.
    model: dict[str, Tensor]  # Weights by parameter name.
    optimizer: dict[str, Tensor]  # Optimizer state and states of the random generators.
    state: dict[str, Any]  # JSON data: progress, counters, settings and hashes of the run.


class AdapterRecord(TypedDict):
    """What the weights file of a model with adapters contains besides them (`training.lora`)."""

    base: str  # SHA-256 of the weights file of the base model.
    scale: float  # Factor on the product of the matrices of an adapter.


def checkpoints_dir(run_dir: Path) -> Path:
    """Return the folder of all checkpoints of a run."""
    return run_dir / "checkpoints"


def checkpoint_dir(run_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint of ``step``, which may not exist."""
    return checkpoints_dir(run_dir) / checkpoint_name(step)


def checkpoint_name(step: int) -> str:
    """Return the folder name of the checkpoint of ``step``.

    >>> checkpoint_name(500)
    'step-00000500'
    """
    return f"step-{step:08d}"


def list_checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of all completely written checkpoints, oldest first."""
    return _folders_named(run_dir, r"step-(\d+)")


def _folders_named(run_dir: Path, pattern: str) -> list[tuple[int, Path]]:
    """Return (step, folder) of all checkpoint folders with a name like ``pattern``, oldest first.

    The first group of the pattern is the step.
    """
    folders = []
    for path in checkpoints_dir(run_dir).glob("*"):
        match = re.fullmatch(pattern, path.name)
        if match and path.is_dir():
            folders.append((int(match[1]), path))
    return sorted(folders)


def save_checkpoint(
    run_dir: Path,
    step: int,
    *,
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write a checkpoint atomically; return its folder.

    Args:
        run_dir: The run folder.
        step: Updates made.
        model: Weights by parameter name.
        optimizer: Optimizer state and states of the random generators.
        state: JSON data of the run. The `AdapterRecord` is also stored with ``model``.

    Raises:
        CheckpointError: The disk is full or read-only. The unfinished files are removed, and
            earlier checkpoints are unchanged.
    """
    folder = checkpoint_dir(run_dir, step)
    tensors_by_file = {MODEL: model, OPTIMIZER: optimizer}
    needed_bytes = checkpoint_bytes(model, optimizer)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(folder.parent).free
        if free_bytes < needed_bytes:
            raise OSError(
                errno.ENOSPC,
                f"it needs {needed_bytes / 2**20:,.1f} MiB, {free_bytes / 2**20:,.1f} MiB are free",
            )
        with atomic.atomic_folder(folder, replace=True) as temporary:
            for name, tensors in tensors_by_file.items():
                # safetensors needs contiguous tensors. Views of one buffer are allowed, because
                # they do not overlap.
                on_cpu = {
                    key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()
                }
                adapter = state.get(ADAPTER) if name == MODEL else None
                save_tensors(on_cpu, temporary / name, adapter)
                del on_cpu  # frees memory before the tensors of the next file are copied
            document = {FORMAT_KEY: FORMAT, **state}
            text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
            (temporary / STATE).write_bytes(f"{text}\n".encode())
            Manifest.of(temporary, _FILES, step).write(temporary)
    except OSError as error:
        reason = error.strerror or error
        remedy = "Check that the folder can be written"
        if error.errno in _DISK_FULL:
            remedy = "Free disk space or lower training.keep_last"
        raise CheckpointError(
            f"{folder} was not written: {reason}.",
            fix=f"{remedy}, then run the same command again.",
        ) from error
    return folder


def checkpoint_bytes(model: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> int:
    """Return the disk space that a checkpoint needs, in bytes."""
    tensors = chain(model.values(), optimizer.values())
    return _MARGIN_BYTES + sum(tensor.nbytes for tensor in tensors)


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU. A buffer shared by several tensors is copied once."""
    copied_buffers: dict[int, Tensor] = {}  # By the address of the original buffer.
    copies = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in copied_buffers:
            # All values of the buffer as a flat tensor.
            num_values = storage.nbytes() // tensor.element_size()
            buffer = tensor.detach().as_strided((num_values,), (1,), 0)
            copied_buffers[address] = buffer.to("cpu", copy=True)
        offset = tensor.storage_offset()
        copies[name] = copied_buffers[address].as_strided(tensor.shape, tensor.stride(), offset)
    return copies


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint after verifying the hash of every file.

    Raises:
        CheckpointError: A file is missing, damaged, or not a safetensors file.
    """
    manifest = Manifest.read(folder)
    manifest.verify(folder, _FILES)
    return Checkpoint(
        step=manifest.step,
        model=load_tensors(folder / MODEL),
        optimizer=load_tensors(folder / OPTIMIZER),
        state=read_state(folder),
    )


def read_state(folder: Path) -> dict[str, Any]:
    """Read ``state.json`` of a checkpoint, in the present format.

    Raises:
        CheckpointError: The file is missing or damaged, or was written by a newer version of nmt.
    """
    path = folder / STATE
    try:
        return migrate(read_object(path), str(path), kind=Kind.CHECKPOINT)
    except ConfigError as error:
        raise CheckpointError(error.problem, fix=error.fix) from error


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint or model folder.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        return field(read_json(path), kind=dict)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.", fix=_FIX) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}.", fix=_FIX) from error


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, adapter: AdapterRecord | None = None
) -> None:
    """Write a safetensors file. Needs contiguous tensors; not atomic.

    Args:
        tensors: The tensors by name.
        path: The new file.
        adapter: Set if these are adapters only; see `adapter_record`.

    Raises:
        OSError: The file cannot be written.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - loads torch

    # One entry, because safetensors writes several entries in random order.
    metadata = {ADAPTER: json.dumps(adapter)} if adapter else None
    try:
        save_file(dict(tensors), path, metadata)
    except safetensors.SafetensorError as error:
        # The text of the error contains the number of an error of the system, if there was one.
        match = re.search(r"os error (\d+)\)", str(error))
        error_number = int(match[1]) if match else 0
        raise OSError(error_number, str(error)) from error


def adapter_record(path: Path) -> AdapterRecord | None:
    """Return the record in a file that contains adapters only; None if it contains all weights.

    Raises:
        CheckpointError: The file is missing, damaged, or not a safetensors file.
    """
    with tensor_errors(path), safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
    if ADAPTER not in metadata:
        return None
    try:
        return TypeAdapter(AdapterRecord).validate_json(metadata[ADAPTER])
    except ValidationError as error:
        raise CheckpointError(f"{path} has damaged metadata: {error}", fix=_FIX) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file to the CPU.

    A damaged header cannot make this function allocate more memory than the size of the file.

    Raises:
        CheckpointError: The file is missing or not a safetensors file.
    """
    from safetensors.torch import load_file  # noqa: PLC0415 - loads torch

    with tensor_errors(path):
        return load_file(path)


@contextmanager
def tensor_errors(path: Path) -> Iterator[None]:
    """Raise errors from reading a safetensors file as `CheckpointError`."""
    try:
        yield
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a valid safetensors file: {error}", fix=_FIX
        ) from error


def tensor_differences(tensors: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Describe the differences of names and shapes, one per line; empty if there are none.

    Args:
        tensors: Tensors by name.
        expected: Tensors with the expected names and shapes.
    """
    missing_names = sorted(expected.keys() - tensors.keys())
    unexpected_names = sorted(tensors.keys() - expected.keys())
    problems = [f"missing: {name}" for name in missing_names]
    problems += [f"unexpected: {name}" for name in unexpected_names]
    for name, expected_tensor in expected.items():
        if name in tensors and tensors[name].shape != expected_tensor.shape:
            shapes = f"shape {tuple(tensors[name].shape)}, expected {tuple(expected_tensor.shape)}"
            problems.append(f"{name}: {shapes}")
    num_more = len(problems) - _MAX_PROBLEMS
    if num_more > 0:  # replace the last problems by their number
        problems[_MAX_PROBLEMS:] = [f"... and {num_more} more"]
    return "\n  ".join(problems)


def new_run(run_dir: Path, differences: Sequence[str] = ()) -> str:
    """Return, for a message, the command that continues with the weights of a run in a new run.

    Args:
        run_dir: The run folder.
        differences: `training.init_differences` of the new run.
    """
    value = str(run_dir)
    if not re.fullmatch(r"[\w./-]+", value):  # YAML could mean something else
        value = json.dumps(value, ensure_ascii=False)
    overrides = [f"training.init_from={value}"]
    if differences:
        overrides.append(f"training.init_differences=[{', '.join(differences)}]")
    new_dir = run_dir.with_name(f"{run_dir.name}-2")
    command = shell_command("train", "CONFIG", run_dir=new_dir, set_=overrides)
    return f"To continue with the same weights in a new run, run `{command}`."


def newest_checkpoint(
    run_dir: Path, *, strict: bool = False, names: Sequence[str] = _FILES
) -> Path | None:
    """Return the folder of the newest intact checkpoint; None if the run has no checkpoint.

    Logs a warning for each damaged checkpoint that is skipped.

    Args:
        run_dir: The run folder.
        strict: Raise an error if the newest checkpoint is damaged, instead of skipping it.
        names: The files that must be intact.

    Raises:
        CheckpointError: All checkpoints are damaged; or the newest is, and ``strict`` is set.
    """
    problems = list[str]()  # One for each damaged checkpoint, newest first.
    # If a kill interrupted the replacement of a checkpoint, its old version still counts.
    folders = list_checkpoints(run_dir)
    for step, folder in _folders_named(run_dir, _REPLACED):
        if not checkpoint_dir(run_dir, step).exists():
            folders.append((step, folder))
    for step, folder in sorted(folders, reverse=True):
        try:
            manifest = Manifest.read(folder)
            if manifest.step != step:
                raise CheckpointError(
                    f"{folder} contains step {manifest.step:,}.",
                    fix=f"Rename the folder to {checkpoint_name(manifest.step)}.",
                )
            manifest.verify(folder, names)
        except UnknownFormatError:
            raise  # written by a newer release and maybe intact, so it must not be skipped
        except CheckpointError as error:
            if strict:
                raise CheckpointError(
                    error.problem,
                    fix="Restore the checkpoint, or remove `strict_resume` to use an older one.",
                ) from error
            problems.append(error.problem)
        else:
            for problem in problems:
                logger.warning("damaged checkpoint skipped: %s", problem)
            return folder
    if problems:
        fix = f"Restore one checkpoint. If its weights are intact: {new_run(run_dir)}"
        listed = "\n  ".join(problems)
        raise CheckpointError(f"All checkpoints of {run_dir} are damaged:\n  {listed}", fix=fix)
    return None


def clean_partial(run_dir: Path) -> None:
    """Clean up after a process that was killed while writing, replacing or deleting files."""
    for step, _ in _folders_named(run_dir, _REPLACED):
        atomic.restore_replaced(checkpoint_dir(run_dir, step))
    for folder in (run_dir, checkpoints_dir(run_dir)):
        atomic.remove_leftovers(folder)


def set_damaged_aside(run_dir: Path, newest: int) -> None:
    """Rename the damaged checkpoints that are newer than step ``newest``, and log warnings.

    Training resumes at ``newest``. Under their old names, the damaged checkpoints would still count
    as the newest ones, and new checkpoints would expire before them.

    Raises:
        CheckpointError: A checkpoint cannot be renamed.
    """
    for step, folder in list_checkpoints(run_dir):
        if step > newest:
            new_folder = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(new_folder, ignore_errors=True)
            fix = "Delete the folder, then run the same command again."
            with atomic.write_errors(f"{folder}, which is damaged,", CheckpointError, fix=fix):
                folder.rename(new_folder)
            logger.warning("damaged checkpoint moved to %s; delete it after inspection", new_folder)


def write_best(run_dir: Path, name: str | None) -> None:
    """Record the folder name of the best weights: a checkpoint, ``average``, or None.

    The recorded folder may be deleted later; `read_best` handles that.
    """
    atomic.write_text(run_dir / BEST, f"{name or ''}\n")


def read_best(run_dir: Path) -> Path | None:
    """Return the folder of the best weights; None if it is not recorded or does not exist."""
    try:
        name = (run_dir / BEST).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(rf"step-\d+|{AVERAGE}", name):
        return None
    parent = run_dir if name == AVERAGE else checkpoints_dir(run_dir)
    folder = parent / name
    return folder if folder.is_dir() else None


class ValidationScore(NamedTuple):
    """What the choice of the best checkpoint needs of a validation."""

    score: float  # Higher is better. NaN: the validation has no score.
    loss: float = math.inf  # Cross-entropy per token, in nats.
    is_noise: bool = False  # The score says nothing: see `Scores.problem`.

    @property
    def quality(self) -> tuple[bool, float, float]:
        """Sorts validations: by score, then by loss. All scores that are noise are equal."""
        score = 0.0 if self.is_noise else self.score
        return not self.is_noise, score, -self.loss


def by_score(steps: Collection[int], scores: Mapping[int, ValidationScore]) -> list[int]:
    """Return the steps that have a score, best first. Of equal ones, the earlier step is first.

    >>> nothing, low, high = map(ValidationScore, (float("nan"), 3.0, 9.0))
    >>> by_score([10, 20, 30, 40], {10: nothing, 20: low, 30: high})
    [30, 20]
    """
    validated_steps = [step for step in sorted(steps) if step in scores]
    scored_steps = [step for step in validated_steps if not math.isnan(scores[step].score)]
    # The sort is stable also in reverse: equal steps stay in ascending order.
    return sorted(scored_steps, key=lambda step: scores[step].quality, reverse=True)


def newest_steps(steps: Collection[int], count: int, *, due_every: Collection[int]) -> list[int]:
    """Return the steps of the ``count`` newest checkpoints, as in an uninterrupted run.

    Args:
        steps: Steps of the existing checkpoints. The last step always counts, other steps only
            if they were due, not if they were saved because a signal stopped training.
        count: Number of checkpoints.
        due_every: A checkpoint is due at every multiple of one of these numbers.

    >>> newest_steps([10, 20, 22, 30, 33], 3, due_every=[10])
    [20, 30, 33]
    """
    counted_steps = []
    last_step = max(steps, default=None)
    for step in sorted(steps):
        is_due = any(step % interval == 0 for interval in due_every)
        if is_due or step == last_step:
            counted_steps.append(step)
    return counted_steps[-count:]


def expired(
    steps: Collection[int],
    scores: Mapping[int, ValidationScore],
    *,
    keep_last: int,
    keep_best: int,
    due_every: Collection[int],
) -> list[int]:
    """Return the steps of the checkpoints to delete.

    Args:
        steps: Steps of the existing checkpoints.
        scores: Scores of the validated steps.
        keep_last: Number of newest checkpoints to keep; see `newest_steps`.
        keep_best: Number of best checkpoints to keep in addition; ties go to the earlier step.
        due_every: A checkpoint is due at every multiple of one of these numbers.

    >>> scores = {10: ValidationScore(3.0), 20: ValidationScore(9.0), 30: ValidationScore(5.0)}
    >>> expired([10, 20, 30, 40], scores, keep_last=1, keep_best=1, due_every=[10])
    [10, 30]
    """
    newest = newest_steps(steps, keep_last, due_every=due_every)
    best = by_score(steps, scores)[:keep_best]
    return sorted(set(steps) - set(newest) - set(best))
