"""A training seen from outside: how far its process is, and how its end differs from another's."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from nmt.checkpoint.files import (
    MODEL,
    OPTIMIZER,
    checkpoint_dir,
    checkpoints_dir,
    list_checkpoints,
    load_tensors,
    newest_checkpoint,
)
from nmt.errors import CheckpointError
from nmt.files.json_file import parse_json
from nmt.files.manifest import sha256_of_file

_MOST_TENSORS = 3


class WatchedTraining:
    """A process that trains; a context manager, which kills it at the end if it still lives.

    Nothing but its run folder is looked at, so it trains as any other does. Its output is written
    beside that.
    """

    # Time from the start to the last `look`, and to the first report.
    seconds, start_seconds = 0.0, 0.0
    # Time in saves, and of an update with its share of validating and saving.
    saving_seconds, seconds_per_update = 0.0, 0.0

    def __init__(self, command: Sequence[str], run_dir: Path) -> None:
        self.run_dir = run_dir
        self._before, self._begin = self._stamp(), time.monotonic()
        self._first_step, self._was_saving = 0, False
        self._output = run_dir.with_name(f"{run_dir.name}.txt")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> bool:
        """Send SIGKILL; return whether that is what it ended of."""
        self._process.kill()
        return self._process.wait() == -signal.SIGKILL

    def has_ended(self) -> bool:
        """Return whether it ended well.

        Raises:
            CheckpointError: It failed; what it wrote is part of the message.
        """
        code = self._process.poll()
        if code:
            output = self._output.read_text(encoding="utf-8", errors="backslashreplace").strip()
            raise CheckpointError(
                f"A training that was started for the proof ended with exit code {code}:\n{output}",
                fix="Remove the cause named above, then start the proof again.",
            )
        return code is not None

    @property
    def step(self) -> int:
        """The last update this process is known to have made or loaded; 0 while it starts."""
        # Lines that an earlier process made in vain go when this one is about to train.
        if self._stamp() == self._before:
            return 0
        steps = [line["step"] for line in read_metrics(self.run_dir)]
        return max([*steps, *(step for step, _ in list_checkpoints(self.run_dir))], default=0)

    @property
    def is_saving(self) -> bool:
        """Whether there is a checkpoint without its final name."""
        whole = {path for _, path in list_checkpoints(self.run_dir)}
        folder = checkpoints_dir(self.run_dir)
        return folder.is_dir() and any(path not in whole for path in folder.iterdir())

    def look(self) -> None:
        """Take the time; to be called often."""
        now, step, is_saving = time.monotonic() - self._begin, self.step, self.is_saving
        if is_saving and self._was_saving:
            self.saving_seconds += now - self.seconds
        if not self._first_step:
            self.start_seconds, self._first_step = now, step
        else:
            self.seconds_per_update = (now - self.start_seconds) / max(step - self._first_step, 1)
        self.seconds, self._was_saving = now, is_saving

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = (self.run_dir / "metrics.jsonl").stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return the whole lines of ``metrics.jsonl``, also while it is being written."""
    try:
        content = (run_dir / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return []
    return [parse_json(line) for line in content.split(b"\n")[:-1]]


def last_hashes(run_dir: Path, step: int) -> dict[str, str]:
    """Return the sha256 of weights and optimizer in the checkpoint of ``step``, by file.

    Raises:
        CheckpointError: It is not the newest checkpoint of the run, or damaged.
    """
    newest = newest_checkpoint(run_dir, strict=True)
    if newest is None or newest != checkpoint_dir(run_dir, step):
        raise CheckpointError(
            f"{run_dir} was trained to step {step:,}, but its newest checkpoint is "
            f"{newest.name if newest else 'missing'}.",
            fix="Start again; if it stays so, please report it.",
        )
    return {name: sha256_of_file(newest / name) for name in (MODEL, OPTIMIZER)}


def compare_runs(one: Path, other: Path, step: int) -> Iterator[str]:
    """Yield what differs between two runs that end with ``step``, in words.

    Compares the last checkpoints, and metrics.jsonl but for its times.
    """
    ends = [last_hashes(run_dir, step) for run_dir in (one, other)]
    for name in ends[0]:
        left, right = (hashes[name] for hashes in ends)
        if left != right:
            yield f"{name}: sha256 {left} and {right}"
            yield from _differing_tensors(*(checkpoint_dir(x, step) / name for x in (one, other)))
    metrics = [
        [{k: v for k, v in line.items() if "second" not in k} for line in read_metrics(run_dir)]
        for run_dir in (one, other)
    ]
    for number, (was, now) in enumerate(zip(*metrics, strict=False), start=1):
        keys = sorted(key for key in {*was, *now} if was.get(key) != now.get(key))
        if keys:
            place = f"line {number} (step {was.get('step')}), {keys[0]}"
            yield f"metrics.jsonl: {place}: {was.get(keys[0])} and {now.get(keys[0])}"
            return
    if len(metrics[0]) != len(metrics[1]):
        yield f"metrics.jsonl: {len(metrics[0])} lines and {len(metrics[1])}"


def _differing_tensors(one: Path, other: Path) -> Iterator[str]:
    left, right = load_tensors(one), load_tensors(other)
    names = sorted({*left, *right})
    found = [
        (name, text) for name in names if (text := _difference(left.get(name), right.get(name)))
    ]
    yield f"  {len(found)} of {len(names)} tensors differ"
    yield from (f"  {name}: {text}" for name, text in found[:_MOST_TENSORS])


def _difference(one: Tensor | None, other: Tensor | None) -> str:
    """Return how two tensors differ; empty if they have the same bits, where NaN equals itself."""
    if one is None or other is None:
        return "only in one of them"
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    if torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))):
        return ""
    apart = (one.double() - other.double()).abs()
    return f"{int((apart != 0).sum()):,} of {apart.numel():,} values, by up to {apart.max():.3g}"
