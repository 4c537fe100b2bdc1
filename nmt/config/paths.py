"""Paths as users write them: ``~`` and environment variables, files, lists and patterns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{\w+\})", re.ASCII)
_WILDCARD = re.compile(r"[*?\[]")


def expanded(path: Path) -> Path:
    """Return a path with ``~`` and the environment variables in it replaced.

    A path that exists is taken literally.

    Raises:
        ValueError: A variable is not defined, or its value contains a variable: a recorded
            configuration, which is expanded again, would have another path.

    >>> expanded(Path("train.de"))
    PosixPath('train.de')
    """
    text = os.path.expanduser(os.path.expandvars(path))  # noqa: PTH111 - an unknown user is no error
    undefined = _VARIABLE.search(text)
    if (text == str(path) and not undefined) or path.exists():
        return path
    if undefined:
        name = undefined[0].strip("${}")
        problem = f"{path}: the environment variable {name} is not set"
        raise ValueError(f"{problem}, or the value of another one contains it")
    return Path(text)


def is_pattern(path: Path) -> bool:
    """Whether a path stands for all files that match it, such as ``part*.de``."""
    return _WILDCARD.search(str(path)) is not None and not path.exists()


def matching_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files that paths and patterns stand for; a pattern without a file stays.

    The files of a pattern are in natural order: part2 comes before part10.
    """
    files = list[Path]()
    for path in paths:
        matches = []
        if is_pattern(path):
            pattern = str(path.relative_to(path.anchor))
            matches = sorted(filter(Path.is_file, Path(path.anchor).glob(pattern)), key=_natural)
        files += matches or [path]
    return tuple(files)


def _natural(path: Path) -> list[str | int]:
    """Return a sort key in which numbers have their values."""
    parts = re.split(r"([0-9]+)", str(path))
    return [int(part) if part.isdecimal() else part for part in parts]


def shard_problem(sources: tuple[Path, ...], targets: tuple[Path, ...]) -> str:
    """Return why two lists of files are not the two sides of the same shards; or an empty text.

    The names may differ in the same way in every shard, as in part1.en and part1.de.
    """
    if len(sources) != len(targets):
        return f"source has {len(sources):,} files, but target has {len(targets):,}"
    if len(sources) == 1:
        return ""
    usual: set[tuple[str, str]] | None = None
    for source, target in zip(sources, targets, strict=True):
        difference = _difference(str(source), str(target))
        if usual is None:
            usual = difference
        if difference is None or difference != usual:
            return f"{source} and {target} do not have the same name apart from the language"
    return ""


def _difference(source: str, target: str) -> set[tuple[str, str]] | None:
    """Return the words in which two names differ; None if they differ in a number or in length."""
    words = [re.split(r"([0-9]+|[^\w]|_)", name) for name in (source, target)]
    if len(words[0]) != len(words[1]):
        return None
    difference = {pair for pair in zip(*words, strict=True) if pair[0] != pair[1]}
    if any(word.isdecimal() for pair in difference for word in pair):
        return None
    return difference
