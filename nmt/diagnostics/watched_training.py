"""One process of ``nmt train``, seen from outside: how far it is, and whether it saves."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nmt.checkpoint.files import checkpoints_dir, list_checkpoints
from nmt.errors import CheckpointError


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


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
