"""Commands on small models, called in the process of the tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner, Result

from nmt.cli.app import EPILOG, app
from nmt.cli.builder import COMMANDS

_ACTED_ON = re.compile(
    r"fix: .*?(nmt [^`(\n]*)|(?<!\S)(--?[a-z][\w-]*)|\b([a-z]\w*(?:\.[a-z]\w*)+(?::\d+)?)"
)
FLAGS = ("--device", "cpu", "--threads", "1")


def all_commands(
    group: Any = None, name: str = "nmt", above: Any = None
) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, as in ``nmt config show``."""
    group = group or get_command(app)
    context = group.make_context(name.rpartition(" ")[2], [], parent=above, resilient_parsing=True)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if hasattr(command, "list_commands"):
            yield from all_commands(command, f"{name} {word}", context)
        else:
            yield f"{name} {word}", command


def examples() -> list[str]:
    """Every example of the help, in an order in which each finds what it reads."""
    lines = re.findall(r"^  (nmt .*)$", EPILOG, re.MULTILINE)
    for entry in COMMANDS.values():
        lines += entry.examples.strip().splitlines()
    return lines


def acted_on(message: str) -> list[str]:
    """Return what a reader acts on: flags, keys, lines of files and the command after "fix:"."""
    return ["".join(groups) for groups in _ACTED_ON.findall(message)]


def call(command: str, run: Path, *arguments: object, text: str | bytes = "") -> Result:
    flags = [str(argument) for argument in (run, *FLAGS, *arguments)]
    return CliRunner().invoke(app, [command, *flags], input=text)


def lines_of(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "" or result.stdout.endswith("\n")
    return result.stdout.split("\n")[:-1]


def refused(result: Result, code: int, *words: str) -> None:
    """The command has failed with a message, not with a traceback, and printed no data."""
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr
