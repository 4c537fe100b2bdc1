"""What a run folder keeps of training: checkpoints, and which of them is best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from nmt.checkpoint.files import (
    checkpoint_name,
    list_checkpoints,
    save_checkpoint,
    write_best,
)
from nmt.checkpoint.retention import expired
from nmt.config.run import RunConfig
from nmt.errors import CheckpointError
from nmt.files.atomic import remove_folder
from nmt.training.stopping import History


@dataclass(frozen=True, slots=True)
class CheckpointSaver:
    """Saves into a run folder, names the best, removes the expired. See `Saver`."""

    run_dir: Path
    config: RunConfig
    record: Mapping[str, Any]
    """Identity and machine, to be compared when the run goes on."""
    note: Callable[[int, str], None]

    def __call__(
        self,
        step: int,
        *,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        state: Mapping[str, Any],
        history: History,
    ) -> str | None:
        """Save; on a full disk stop or go on, as ``training.on_full_disk`` says."""
        training = self.config.training
        try:
            folder = save_checkpoint(
                self.run_dir,
                step,
                model=model,
                optimizer=optimizer,
                state={**state, **self.record},
            )
        except CheckpointError as error:
            if training.on_full_disk == "stop":
                raise
            self.note(step, f"not saved: {error.problem}")
            return None
        try:
            self._tidy(history)
        except OSError as error:  # the checkpoint is whole; the next one makes up for this
            self.note(step, f"best and old checkpoints not brought up to date: {error.strerror}")
        return folder.name

    def _tidy(self, history: History) -> None:
        """Name the best of the checkpoints there are, and remove the expired."""
        training = self.config.training
        present = dict(list_checkpoints(self.run_dir))
        scored = History(tuple(entry for entry in history.entries if entry.step in present))
        if scored.best is not None:
            write_best(self.run_dir, checkpoint_name(scored.best.step))
        scores = {entry.step: entry.score for entry in scored.entries}
        gone = expired(
            present,
            scores,
            keep_last=training.keep_last,
            keep_best=training.keep_best,
            due_every=(training.save_every, training.validate_every),
        )
        for old in gone:
            remove_folder(present[old])
