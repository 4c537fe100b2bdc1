"""Commands on small models, called in the process of the tests."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from nmt.cli.app import app

FLAGS = ("--device", "cpu", "--threads", "1")


def call(command: str, run: Path, *arguments: object, text: str | bytes = "") -> Result:
    """Call a command that uses a model."""
    flags = [str(argument) for argument in (run, *FLAGS, *arguments)]
    return CliRunner().invoke(app, [command, *flags], input=text)


def lines_of(result: Result) -> list[str]:
    """The output lines of a command that has succeeded."""
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "" or result.stdout.endswith("\n")
    return result.stdout.split("\n")[:-1]


def refused(result: Result, code: int, *words: str) -> None:
    """The command has failed with a message, not with a traceback, and printed no data."""
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    assert "Traceback" not in result.stderr
    assert all(word in result.stderr for word in words), result.stderr
