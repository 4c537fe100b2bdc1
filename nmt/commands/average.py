"""``nmt average``: checkpoints of a run -> a model folder with their average."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from nmt.checkpoint.files import (
    STATE,
    ValidationScore,
    by_score,
    list_checkpoints,
    read_state,
)
from nmt.checkpoint.model_folder import (
    check_new_folder,
    load_model,
    log_next_commands,
    write_average,
)
from nmt.commands.options import AverageOptions, TextResult
from nmt.errors import CheckpointError
from nmt.files.json_file import Manifest

logger = logging.getLogger(__name__)

_DEFAULT_LAST = 10  # Checkpoints to average by default.


def average(options: AverageOptions) -> TextResult:
    """Write the average of several checkpoints as a model folder.

    The run may still be training. The result has the folder, and the averaged steps in rising
    order.

    Raises:
        ConfigError: ``output`` exists and is not empty.
        CheckpointError: A checkpoint is missing, damaged or from a different model.
    """
    run_dir = options.run
    check_new_folder(options.output, run_dir)
    checkpoints = dict(list_checkpoints(run_dir))  # step -> folder
    if not checkpoints:
        raise CheckpointError(
            f"{run_dir} has no checkpoints.", fix="Pass a run folder created by `nmt train`."
        )
    missing_steps = [str(step) for step in sorted(options.step) if step not in checkpoints]
    if missing_steps:
        raise CheckpointError(
            f"{run_dir} has no checkpoint of step {', '.join(missing_steps)}.",
            fix=f"Set `step` to one of: {', '.join(map(str, sorted(checkpoints)))}.",
        )
    if options.best is not None:
        num_wanted = options.best
        steps = by_score(checkpoints, _scores(checkpoints))[:num_wanted]
        if not steps:
            raise CheckpointError(f"{run_dir} has no scores.", fix="Use `last` in place of `best`.")
    elif options.step:
        num_wanted = len(options.step)
        steps = list(options.step)
    else:
        num_wanted = options.last or _DEFAULT_LAST
        steps = sorted(checkpoints)[-num_wanted:]
    if len(steps) < num_wanted:
        option = "best" if options.best else "last"
        text = "%s has only %d checkpoints, not %d; to keep more, set training.keep_%s"
        level = logging.WARNING if options.best or options.last else logging.INFO
        logger.log(level, text, run_dir, len(steps), num_wanted, option)
    folders = {step: checkpoints[step] for step in sorted(steps)}
    for step, folder in folders.items():
        recorded_step = Manifest.read(folder).step
        if recorded_step != step:  # the folder was renamed
            raise CheckpointError(
                f"{folder} contains the checkpoint of step {recorded_step:,}.",
                fix=f"Rename the folder to step-{recorded_step:08}.",
            )
    # Fail now if the model could not be loaded later.
    load_model(run_dir, f"step-{max(folders)}")
    logger.info("averaging the checkpoints of step %s", ", ".join(f"{step:,}" for step in folders))
    write_average(options.output, run_dir, list(folders.values()))
    log_next_commands(options.output)
    output = str(options.output)
    return TextResult(output, {"output": output, "steps": list(folders)})


def _scores(checkpoints: Mapping[int, Path]) -> dict[int, ValidationScore]:
    """Return all validation scores of the run by step, from its newest checkpoint.

    Args:
        checkpoints: Folders by step.

    Raises:
        CheckpointError: The newest checkpoint is damaged, or no checkpoint has a score.
    """
    folder = checkpoints[max(checkpoints)]
    Manifest.read(folder).verify(folder, (STATE,))
    history = read_state(folder).get("progress", {}).get("history", [])
    scores = {step: ValidationScore(*values) for step, *values in history}
    if not scores.keys() & checkpoints.keys():
        raise CheckpointError(
            f"{folder / STATE} contains no validation scores, so `best` cannot be used.",
            fix="Use `last` or `step` instead of `best`.",
        )
    return scores
