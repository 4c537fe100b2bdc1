"""Results of commands, and the log message with the next commands."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nmt.checkpoint.model_folder import load_folder_document
from nmt.errors import NmtError, shell_command

logger = logging.getLogger(__name__)


class Result(Protocol):
    """Result of a command; the command line prints it as text or JSON.

    A result can also have ``failure``, an `NmtError` that is raised after printing.
    """

    def as_text(self) -> str:
        """Return text for users, without the last line break."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        ...


@dataclass(frozen=True, slots=True)
class TextResult:
    """A text; ``values`` are its plain data."""

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    failure: NmtError | None = None

    def as_text(self) -> str:
        """Return the text without the last line break."""
        return self.text.removesuffix("\n")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dict(self.values)


def log_next_commands(folder: Path) -> None:
    """Log the commands to run next with a new model."""
    commands = [shell_command("translate", folder, input="FILE", output="FILE")]
    _, record = load_folder_document(folder)
    data = record.get("data")
    if isinstance(data, Mapping) and data.get("test"):
        commands.insert(0, shell_command("evaluate", folder))
    logger.info("next: %s", ", ".join(commands))
