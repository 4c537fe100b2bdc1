"""Every command: its options, its function, and the text of its help, from commands.toml.

Only commands.toml names modules of extras. Texts with flags are there, because texts in other
modules contain field names in place of flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nmt.installation import read_toml


@dataclass(frozen=True, slots=True)
class Entry:
    """A command in commands.toml."""

    options: str  # ``module:class`` of its options.
    function: str  # ``module:function`` that takes the options and returns None or a `Result`.
    text: str  # Help: one sentence, a blank line, details.
    examples: str


_COMMANDS = read_toml(__file__, "commands.toml")
_NAMES = read_toml(__file__, "table.toml")
# Words after ``nmt`` -> the command.
COMMANDS = {name: Entry(**values) for name, values in _COMMANDS.items()}
# Headings of ``nmt --help`` -> their commands.
GROUPS: Mapping[str, Sequence[str]] = _NAMES["groups"]
# Commands with subcommands -> their help.
PARENTS: Mapping[str, str] = _NAMES["parents"]
# Commands of other tools, with hyphens -> the command to type here.
FOREIGN_COMMANDS: Mapping[str, str] = _NAMES["foreign"]
