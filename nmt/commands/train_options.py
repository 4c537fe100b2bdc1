"""Options of `nmt.train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nmt.commands.options import ConfigFile, Json, Overrides
from nmt.config.flag import Flag


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train, and how to go on."""

    config: ConfigFile
    set_: Overrides = ()
    run_dir: Annotated[
        Path | None, Flag("Run folder, instead of the configuration's.", metavar="FOLDER")
    ] = None
    strict_resume: Annotated[bool, Flag("Fail if the newest checkpoint is damaged.")] = False
    exact: Annotated[bool, Flag("Refuse to resume where the result may not be bit-exact.")] = False
    devices: Annotated[int, Flag("Processes, each with one GPU or some CPU cores.", min=1)] = 1
    dry_run: Annotated[bool, Flag("Estimate memory, FLOPs and time; do not train.")] = False
    json: Json = False

    @property
    def overrides(self) -> tuple[str, ...]:
        """Changes of the configuration, that of the run folder among them."""
        if self.run_dir is None:
            return self.set_
        # A YAML string in single quotes takes any path as text.
        quoted = str(self.run_dir).replace("'", "''")
        return (*self.set_, f"run_dir='{quoted}'")
