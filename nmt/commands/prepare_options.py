"""Options of `nmt.prepare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import ConfigFile, Json, Overrides
from nmt.config.flag import Flag, changed
from nmt.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PreparationOptions:
    """How to prepare, whatever the configuration; training prepares with the defaults."""

    report_only: Annotated[bool, Flag("Print the report; write only `report`.")] = False
    report: Annotated[
        Path | None, Flag("Folder for report.json, report.html and lists of pairs.", metavar="DIR")
    ] = None
    force: Annotated[bool, Flag("Prepare again even if nothing has changed.")] = False
    workers: Annotated[
        int | None, Flag("Processes; the output is the same.", min=1, shown_default="this process")
    ] = None
    scheduler: Annotated[
        str | None,
        Flag("Work through Dask: its address, or local to start it.", metavar="local|ADDRESS"),
    ] = None
    score_with: Annotated[
        tuple[Path, ...],
        Flag("Score pairs by two models, one a direction.", separator=",", metavar="RUN,RUN"),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(PreparationOptions):
    """Which experiment to prepare, and how."""

    config: ConfigFile
    verify: Annotated[bool, Flag("Only compare the prepared folder with its manifest.")] = False
    set_: Overrides = ()
    json: Json = False

    def __post_init__(self) -> None:
        names = ("report_only", "report", "force", "workers", "scheduler", "score_with")
        if self.verify and (others := changed(self, *names)):
            problem = f"`verify` only reads the folder, so `{others[0]}` has no effect."
            raise ConfigError(problem, fix=f"Leave `{others[0]}` out.")
