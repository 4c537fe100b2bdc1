"""Command lines that cannot be meant -> the command to type.

Flags of other tools, words too many, texts in place of a configuration, a sentence in place of a
file, and checkpoints of other tools.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from nmt.cli.spelling import SIDES, Line, Spelling
from nmt.errors import ConfigError

# What words behind the arguments of a command most probably are.
_BY_POSITION = {
    **dict.fromkeys(("init", "average", "export", "import", "translate", "pull"), ("--output",)),
    **dict.fromkeys(("score", "inspect"), ("--source", "--target")),
    "train": ("--run-dir",),
    "augment": ("--with", "--output"),
}
_FILE = re.compile(r"\S*(/\S*|\.[A-Za-z]\w*)|-")
_CHECKPOINT = re.compile(r".*\.(pt|pth|ckpt)")


def check_line(path: str, parameters: Sequence[Any], args: Sequence[str]) -> None:
    """Refuse a command line that Typer would answer badly.

    Args:
        path: The command as it is typed, for example ``nmt translate``.
        parameters: Its parameters.
        args: The words behind it.

    Raises:
        ConfigError: Says what is wrong, and the command to type.
    """
    spelling = Spelling(path, parameters)
    line = spelling.read(args)
    given = {spelling.long.get(word.partition("=")[0]) for word in args if word[:1] == "-" != word}
    _refuse_other_inputs(spelling, line, has_unknown=None in given and not line.found)
    spelling.refuse_foreign(line)
    if any(flag == "--set" and "=" not in value for flag, value in pairwise(line.flags)):
        return  # a word that seems too many is its value
    free = [flag for flag in _BY_POSITION.get(spelling.name, ()) if flag not in given]
    num_arguments = len(spelling.arguments)
    extra = line.plain[num_arguments:]
    if extra and len(extra) <= len(free) and None not in given and not spelling.has_many:
        line.plain = line.plain[:num_arguments]
        line.flags += [word for pair in zip(free, extra, strict=False) for word in pair]
        problem = f"{path} takes no {', '.join(extra)} without a flag."
        raise ConfigError(problem, fix=f"Type: {spelling.command(line)}")


def _refuse_other_inputs(spelling: Spelling, line: Line, *, has_unknown: bool) -> None:
    """Refuse texts in place of a configuration, a sentence, and checkpoints of other tools."""
    texts = [line.arguments.get(side) for side in SIDES] if spelling.trains else []
    if spelling.trains and len(line.plain) > 1 and all(map(os.path.isfile, line.plain)):
        texts += [] if line.plain[0].endswith((".yaml", ".yml")) else line.plain[:2]
    if prefix := line.arguments.get("PREFIX"):
        texts = [f"{prefix}.{code}" for code in [*line.codes, *SIDES][:2]]
    if any(texts):
        files = [text or side for text, side in zip(texts[-2:], SIDES, strict=True)]
        fix = f"Type: nmt init {shlex.join(files)} (writes one for these two files)"
        raise ConfigError(f"{spelling.path} takes a configuration.", fix=fix)
    models = [*line.arguments.values(), *line.plain][:2] if "MODEL" in spelling.arguments else []
    if model := next(filter(_CHECKPOINT.fullmatch, models), None):
        fix = (
            f"Type: {spelling.path} RUN FILE, with a run folder of `nmt train`, or with a model "
            "of Marian or Hugging Face that `nmt import` converted."
        )
        raise ConfigError(f"{model} is a checkpoint of another tool.", fix=fix)
    words = line.plain[1:] if spelling.name == "translate" and not has_unknown else []
    if len(words) > 1 and not any(map(_looks_like_file, words)):
        line.plain = line.plain[:1]
        command = spelling.command(line)
        raise ConfigError(
            f"{spelling.path} takes text from a file or from standard input.",
            fix=f"Type: echo {shlex.quote(' '.join(words))} | {command}",
        )


def _looks_like_file(word: str) -> bool:
    """Whether a word names a file rather than being text to translate."""
    return os.path.lexists(word) or bool(_FILE.fullmatch(word))
