"""What a command returns, and what it says at its end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

from nmt.checkpoint.model_folder import load_folder_config
from nmt.errors import shell_command

logger = logging.getLogger(__name__)


class Result(Protocol):
    """The outcome of a command; the command line prints one of its forms.

    A result may also have ``failure``, an `NmtError` that is raised after printing.
    """

    def as_text(self) -> str:
        """Return what a user reads, without the last line break."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain data for JSON."""
        ...


def log_next_commands(folder: Path) -> None:
    """Say what a new model is for: the commands to type next."""
    commands = [shell_command("translate", folder, input="FILE", output="FILE")]
    if load_folder_config(folder).data.test:
        commands.insert(0, shell_command("evaluate", folder))
    logger.info("next: %s", ", ".join(commands))
