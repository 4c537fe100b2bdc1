from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nmt.cli.app import app
from tests.cli.commands import all_commands

GOLDEN = Path(__file__).with_name("flags.txt")


def test_the_flags_are_those_that_scripts_rely_on() -> None:
    """A flag that goes or changes breaks somebody's script; one that comes is added to the file."""
    lines = []
    for name, command in all_commands():
        for parameter in command.params:
            is_option = parameter.param_type_name == "option"
            shown = "/".join(sorted(parameter.opts)) if is_option else parameter.name.upper()
            lines.append(f"{name} {shown}\n")
            assert parameter.help, f"{name}: {parameter.name}"
    assert "".join(sorted(lines)) == GOLDEN.read_text(encoding="utf-8")


def test_every_command_that_runs_a_model_has_a_device_and_threads() -> None:
    """Of the others, `prepare` has workers."""
    expected = "augment distill evaluate inspect score serve train translate"
    with_both = []
    for name, command in all_commands():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        if {"--device", "--threads"} <= flags:
            with_both.append(name.removeprefix("nmt "))
        assert ("--device" in flags) == ("--threads" in flags)
    assert " ".join(sorted(with_both)) == expected


@pytest.mark.parametrize("group", [(), ("config",)])
def test_no_line_of_a_list_of_commands_is_cut(group: tuple[str, ...]) -> None:
    """In a terminal of the usual 80 columns."""
    shown = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "80"}).stdout
    rows = [row for row in shown.splitlines() if re.match(r"  [a-z]+  ", row)]
    assert len(rows) >= 4
    assert [row for row in rows if row.endswith("...")] == []


@pytest.mark.parametrize("name", [name for name, _ in all_commands()])
def test_every_command_explains_itself_with_an_example(name: str) -> None:
    result = CliRunner().invoke(app, [*name.split()[1:], "--help"])
    assert result.exit_code == 0
    assert f"  {name} " in result.stdout or f"  {name}\n" in result.stdout
    assert "Example" in result.stdout
    assert "\\b" not in result.stdout
