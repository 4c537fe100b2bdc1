"""Trainings seen from outside: how far a process is, and what differs between two runs' ends."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

    Nothing but its run folder is looked at, so it trains as any other does.

    Args:
        command: What to start.
        run_dir: Where it trains. Its output is written beside that.
    """

    def __init__(self, command: Sequence[str], run_dir: Path) -> None:
        self.run_dir = run_dir
        self._metrics = run_dir / "metrics.jsonl"
        self._before = self._stamp()
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

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._metrics.stat()
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


@dataclass(slots=True)
class Stopwatch:
    """Measures a training while it runs; starts when made."""

    seconds_per_update: float = 0.0
    """With the share of validating and saving; 0 until the first report."""
    saves: int = 0
    """Saves begun."""
    _begin: float = field(default_factory=time.monotonic)
    _first: tuple[float, int] | None = None
    _saving_since: float | None = None
    _saving_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._begin

    @property
    def save_seconds(self) -> float:
        """Mean time of a save."""
        return self._saving_seconds / max(self.saves, 1)

    @property
    def start_seconds(self) -> float:
        """Time from the start to the first report."""
        return self._first[0] - self._begin if self._first else self.seconds

    def look(self, training: WatchedTraining, *, report_every: int) -> None:
        """Take the time; to be called often."""
        now, step = time.monotonic(), training.step
        if training.is_saving:
            if self._saving_since is None:
                self.saves += 1
            else:
                self._saving_seconds += now - self._saving_since
            self._saving_since = now
        else:
            self._saving_since = None
        if step and self._first is None:
            self._first = now, step
        if self._first is not None:
            begin, first_step = self._first
            # Before the second report, as many updates as that will hold are under way.
            self.seconds_per_update = (now - begin) / max(step - first_step, report_every)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ends of two runs. Pairs are of the one and of the other."""

    weights_sha256: tuple[str, str]
    """Hashes of model.safetensors."""
    optimizer_sha256: tuple[str, str]
    """Hashes of optimizer.safetensors, which holds the random generators too."""
    metrics_lines: int
    """Lines of metrics.jsonl of the one."""
    differences: tuple[str, ...]
    """What differs, in words; times in metrics.jsonl do not count."""


def compare_runs(one: Path, other: Path, step: int) -> Comparison:
    """Compare the checkpoints of ``step``, the last of both runs, and the losses on the way.

    Raises:
        CheckpointError: One of them has no whole checkpoint of this step as its newest.
    """
    ends = _end(one, step), _end(other, step)
    differences: list[str] = []
    hashes = {}
    for name in (MODEL, OPTIMIZER):
        left, right = (sha256_of_file(end / name) for end in ends)
        hashes[name] = left, right
        if left != right:
            differences.append(f"{name}: sha256 {left} and {right}")
            differences += _differing_tensors(ends[0] / name, ends[1] / name)
    metrics = [[_timeless(line) for line in read_metrics(run)] for run in (one, other)]
    differences += _differing_lines(*metrics)
    return Comparison(hashes[MODEL], hashes[OPTIMIZER], len(metrics[0]), tuple(differences))


def _end(run_dir: Path, step: int) -> Path:
    newest = newest_checkpoint(run_dir, strict=True)
    if newest is None or newest != checkpoint_dir(run_dir, step):
        raise CheckpointError(
            f"{run_dir} was trained to step {step:,}, but its newest checkpoint is "
            f"{newest.name if newest else 'missing'}.",
            fix="Start again; if it stays so, please report it.",
        )
    return newest


def _timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if "second" not in key}


def _differing_lines(
    one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Tell the first difference."""
    for number, (left, right) in enumerate(zip(one, other, strict=False), start=1):
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                place = f"metrics.jsonl: line {number} (step {left.get('step')}), {key}"
                yield f"{place}: {left.get(key)} and {right.get(key)}"
                return
    if len(one) != len(other):
        yield f"metrics.jsonl: {len(one)} lines and {len(other)}"


def _differing_tensors(one: Path, other: Path) -> Iterator[str]:
    """Tell the first differences, in the order of the names."""
    left, right = load_tensors(one), load_tensors(other)
    names = sorted({*left, *right})
    found = [name for name in names if not _is_same(left.get(name), right.get(name))]
    yield f"  {len(found)} of {len(names)} tensors differ"
    for name in found[:_MOST_TENSORS]:
        yield f"  {name}: {_difference(left.get(name), right.get(name))}"


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors have the same bits; NaN equals itself here."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    one_bytes, other_bytes = (tensor.reshape(-1).view(torch.uint8) for tensor in (one, other))
    return torch.equal(one_bytes, other_bytes)


def _difference(one: Tensor | None, other: Tensor | None) -> str:
    if one is None or other is None:
        return "only in one of them"
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    apart = (one.double() - other.double()).abs()
    return f"{int((apart != 0).sum()):,} of {apart.numel():,} values, by up to {apart.max():.3g}"
