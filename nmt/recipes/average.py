"""Checkpoints of a run -> a model folder with the mean of their weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt.checkpoint.bundle import load_model
from nmt.checkpoint.files import STATE, list_checkpoints, read_state
from nmt.checkpoint.model_folder import check_new_folder
from nmt.checkpoint.retention import by_score, write_average
from nmt.errors import CheckpointError, ConfigError
from nmt.files.manifest import Manifest

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


def average(
    run_dir: Path,
    output: Path,
    *,
    last: int | None = None,
    best: int | None = None,
    steps: Sequence[int] = (),
) -> AverageSummary:
    """Write the mean of checkpoints of a run as a model folder.

    A run that is being trained may be averaged too.

    Args:
        run_dir: The run folder.
        output: Folder to write; missing or empty.
        last: How many of the newest checkpoints; `DEFAULT_LAST` if nothing is said.
        best: Instead: how many of those with the highest validation score.
        steps: Instead: these checkpoints.

    Raises:
        ConfigError: More than one kind of choice, a count below 1, or ``output`` is taken.
        CheckpointError: A checkpoint is missing or damaged, or is of another model.
    """
    _check_choice(last, best, steps)
    check_new_folder(output, run_dir)
    present = dict(list_checkpoints(run_dir))
    if not present:
        raise CheckpointError(
            f"{run_dir} has no checkpoints.", fix="Name a run folder that `nmt train` wrote."
        )
    if steps:
        chosen = _named(run_dir, present, steps)
    elif best is not None:
        chosen = _best(run_dir, present, best)
    else:
        chosen = _last(run_dir, present, last or DEFAULT_LAST)
    _check_names(present, chosen)
    # Refuses now what could not be translated with later.
    load_model(run_dir, f"step-{chosen[-1]}")
    shown = ", ".join(f"{step:,}" for step in chosen)
    logger.info("averaging %s: step %s", _count(len(chosen)), shown)
    write_average(output, run_dir, [present[step] for step in chosen])
    return AverageSummary(output, tuple(chosen))


def _check_choice(last: int | None, best: int | None, steps: Sequence[int]) -> None:
    given = {"--last": last is not None, "--best": best is not None, "--step": bool(steps)}
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ConfigError(
            f"{' and '.join(names)} choose checkpoints in different ways.", fix="Give one of them."
        )
    for name, count in (("--last", last), ("--best", best)):
        if count is not None and count < 1:
            raise ConfigError(f"{name} is {count}.", fix="Average at least one checkpoint.")
    twice = sorted({step for step in steps if steps.count(step) > 1})
    if twice:
        raise ConfigError(
            f"--step {', '.join(map(str, twice))} is given more than once.",
            fix="Name every checkpoint once: all have the same weight in the mean.",
        )


def _named(run_dir: Path, present: Mapping[int, Path], steps: Sequence[int]) -> list[int]:
    missing = [str(step) for step in sorted(steps) if step not in present]
    if missing:
        there = ", ".join(map(str, sorted(present)))
        raise CheckpointError(
            f"{run_dir} has no checkpoint of step {', '.join(missing)}; it has {there}.",
            fix="Name some of these with --step.",
        )
    return sorted(steps)


def _last(run_dir: Path, present: Mapping[int, Path], count: int) -> list[int]:
    chosen = sorted(present)[-count:]
    if len(chosen) < count:
        logger.info(
            "%s has %s, not %d; training.keep_last says how many of the newest a run keeps",
            run_dir, _count(len(chosen)), count,
        )  # fmt: skip
    return chosen


def _best(run_dir: Path, present: Mapping[int, Path], count: int) -> list[int]:
    newest = present[max(present)]
    chosen = sorted(by_score(present, _scores(newest))[:count])
    if not chosen:
        raise CheckpointError(
            f"{newest / STATE} records no validation score of a checkpoint that is there.",
            fix="Use --last, or name checkpoints with --step.",
        )
    if len(chosen) < count:
        logger.info(
            "%s has %s with a validation score, not %d; training.keep_best says how many of the "
            "best a run keeps",
            run_dir, _count(len(chosen)), count,
        )  # fmt: skip
    return chosen


def _scores(folder: Path) -> dict[int, float]:
    """Validation scores of the whole run so far, as its checkpoint records them."""
    Manifest.read(folder).verify(folder, (STATE,))
    state = read_state(folder)
    return dict(state.get("progress", {}).get("history", []))


def _check_names(present: Mapping[int, Path], chosen: Sequence[int]) -> None:
    """Refuse checkpoints that were renamed: they were chosen by a step that is not theirs."""
    for step in chosen:
        found = Manifest.read(present[step]).step
        if found != step:
            raise CheckpointError(
                f"{present[step]} holds step {found:,}.", fix="Give the folder its own name back."
            )


def _count(number: int) -> str:
    return f"{number:,} checkpoint{'' if number == 1 else 's'}"
