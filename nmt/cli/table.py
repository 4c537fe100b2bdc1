"""Every command: its options, its function, and the text of its help, from commands.toml.

Only commands.toml names modules of extras. Texts with flags are there, because texts in other
modules contain field names in place of flags.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from nmt.cli.builder import Entry

# Words after ``nmt`` -> the command.
_TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
COMMANDS = {name: Entry(**values) for name, values in _TABLE.items()}
# Headings of ``nmt --help`` -> their commands.
GROUPS = {
    "Data": ("init", "prepare", "augment"),
    "Train": ("train", "distill", "average"),
    "Use": ("translate", "score", "serve"),
    "Measure": ("evaluate", "report", "inspect"),
    "Models": ("import", "export", "pull", "push"),
    "Setup": ("config", "doctor"),
}
# Commands with subcommands -> their help.
PARENTS = {"config": "Print, check and explain configurations."}
# Commands of other tools, with hyphens -> the command to type here.
FOREIGN_COMMANDS = {
    **dict.fromkeys(("decode", "generate", "interactive"), "translate"),
    "test": "evaluate",
    **dict.fromkeys(("publish", "upload"), "push"),
    "download": "pull",
    "average-checkpoints": "average",
    "build-vocab": "prepare",
    **dict.fromkeys(("finetune", "fine-tune"), "train CONFIG --set training.init_from=RUN"),
    "completion": "--install-completion",
    **{name: f"config {name}" for name in ("check", "show", "schema", "keys")},
}
