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

_DEFAULT_LAST = 10  # Checkpoints that are averaged if nothing is said.


@dataclass(frozen=True, slots=True)
class AverageSummary:
    """What was averaged, and where it is."""

    output: Path  # The model folder.
    steps: tuple[int, ...]  # Steps of the checkpoints, oldest first.

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
        fix = "Name a run folder that `nmt train` wrote."
        raise CheckpointError(f"{run_dir} has no checkpoints.", fix=fix)
    if missing := [str(step) for step in sorted(steps) if step not in present]:
        fix = f"Name some of these with `step`: {', '.join(map(str, sorted(present)))}."
        problem = f"{run_dir} has no checkpoint of step {', '.join(missing)}."
        raise CheckpointError(problem, fix=fix)
    wanted, kept = best or len(steps) or last or _DEFAULT_LAST, "best" if best else "last"
    if best is not None:
        chosen = by_score(present, _scores(present))[:best]
    else:
        chosen = list(steps) or sorted(present)[-wanted:]
    if len(chosen) < wanted:
        text = "%s has %d to choose from, not %d; training.keep_%s says how many a run keeps"
        logger.info(text, run_dir, len(chosen), wanted, kept)
    folders = {step: present[step] for step in sorted(chosen)}
    for step, folder in folders.items():
        if (found := Manifest.read(folder).step) != step:  # it was chosen by a step not its own
            fix = "Give the folder its own name back."
            raise CheckpointError(f"{folder} holds step {found:,}.", fix=fix)
    # Refuses now what could not be translated with later.
    load_model(run_dir, f"step-{max(folders)}")
    logger.info("averaging the checkpoints of step %s", ", ".join(f"{step:,}" for step in folders))
    write_average(options.output, run_dir, list(folders.values()))
    log_next_commands(options.output)
    return AverageSummary(options.output, tuple(folders))


def _scores(present: Mapping[int, Path]) -> dict[int, float]:
    """Return validation scores of the whole run so far, as its newest checkpoint records them."""
    folder = present[max(present)]
    Manifest.read(folder).verify(folder, (STATE,))
    scores = dict(read_state(folder).get("progress", {}).get("history", []))
    if not scores.keys() & present.keys():
        problem = f"{folder / STATE} records no validation score of a checkpoint that is there."
        raise CheckpointError(problem, fix="Use `last`, or name checkpoints with `step`.")
    return scores
