"""Options of `nmt.average`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import Json, OutputFolder
from nmt.config.flag import Flag, changed
from nmt.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """Which checkpoints of a run to average."""

    run: Annotated[Path, Flag("Run folder that `nmt train` wrote.", argument=True)]
    output: OutputFolder
    last: Annotated[
        int | None, Flag("Average the N newest checkpoints, or all.", min=1, shown_default="10")
    ] = None
    best: Annotated[
        int | None, Flag("Average the N checkpoints with the best validation score instead.", min=1)
    ] = None
    step: Annotated[
        tuple[int, ...], Flag("Average the checkpoint of step S. Repeatable.", min=1, metavar="S")
    ] = ()
    json: Json = False

    def __post_init__(self) -> None:
        names = changed(self, "last", "best", "step")
        if len(names) > 1:
            problem = f"`{'` and `'.join(names)}` choose checkpoints in different ways."
            raise ConfigError(problem, fix="Give one of them.")
        if twice := sorted({step for step in self.step if self.step.count(step) > 1}):
            raise ConfigError(
                f"`step` {', '.join(map(str, twice))} is given more than once.",
                fix="Name every checkpoint once: all have the same weight in the mean.",
            )
