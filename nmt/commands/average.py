"""``nmt average``: checkpoints of a run -> a model folder with the mean of their weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.checkpoint.files import STATE, by_score, list_checkpoints, read_state
from nmt.checkpoint.model_folder import check_new_folder, load_model, write_average
from nmt.commands.options import AverageOptions
from nmt.commands.result import log_next_commands
from nmt.errors import CheckpointError
from nmt.files.json_file import Manifest

logger = logging.getLogger(__name__)

DEFAULT_LAST = 10
"""Checkpoints that are averaged if nothing is said."""


@dataclass(frozen=True, slots=True)
class AverageSummary:
    """What was averaged, and where it is."""

    output: Path
    """The model folder."""
    steps: tuple[int, ...]
    """Steps of the checkpoints, oldest first."""

    def as_text(self) -> str:
        """Return the folder, for a script to read."""
        return str(self.output)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"output": str(self.output), "steps": list(self.steps)}


def average(options: AverageOptions) -> AverageSummary:
    """Write the mean of checkpoints of a run as a model folder.

    A run that is being trained may be averaged too.

    Raises:
        ConfigError: ``output`` is taken.
        CheckpointError: A checkpoint is missing or damaged, or is of another model.
    """
    run_dir, last, best, steps = options.run, options.last, options.best, options.step
    check_new_folder(options.output, run_dir)
    present = dict(list_checkpoints(run_dir))
    if not present:
        raise CheckpointError(
            f"{run_dir} has no checkpoints.", fix="Name a run folder that `nmt train` wrote."
        )
    if missing := [str(step) for step in sorted(steps) if step not in present]:
        raise CheckpointError(
            f"{run_dir} has no checkpoint of step {', '.join(missing)}; it has "
            f"{', '.join(map(str, sorted(present)))}.",
            fix="Name some of these with `step`.",
        )
    if best is not None:
        wanted, scored, kept = best, " with a validation score", "best"
        chosen = by_score(present, _scores(present))[:best]
    else:
        wanted, scored, kept = len(steps) or last or DEFAULT_LAST, "", "last"
        chosen = list(steps) or sorted(present)[-wanted:]
    if len(chosen) < wanted:
        advice = f"training.keep_{kept} says how many a run keeps"
        logger.info("%s has %s%s, not %d; %s", run_dir, _count(len(chosen)), scored, wanted, advice)
    folders = {step: present[step] for step in sorted(chosen)}
    for step, folder in folders.items():
        if (found := Manifest.read(folder).step) != step:  # it was chosen by a step not its own
            raise CheckpointError(
                f"{folder} holds step {found:,}.", fix="Give the folder its own name back."
            )
    # Refuses now what could not be translated with later.
    load_model(run_dir, f"step-{max(folders)}")
    shown = ", ".join(f"{step:,}" for step in folders)
    logger.info("averaging %s: step %s", _count(len(folders)), shown)
    write_average(options.output, run_dir, list(folders.values()))
    log_next_commands(options.output)
    return AverageSummary(options.output, tuple(folders))


def _scores(present: Mapping[int, Path]) -> dict[int, float]:
    """Return validation scores of the whole run so far, as its newest checkpoint records them."""
    folder = present[max(present)]
    Manifest.read(folder).verify(folder, (STATE,))
    scores = dict(read_state(folder).get("progress", {}).get("history", []))
    if not scores.keys() & present.keys():
        raise CheckpointError(
            f"{folder / STATE} records no validation score of a checkpoint that is there.",
            fix="Use `last`, or name checkpoints with `step`.",
        )
    return scores


def _count(number: int) -> str:
    return f"{number:,} checkpoint{'' if number == 1 else 's'}"
