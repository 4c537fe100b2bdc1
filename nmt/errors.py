"""Errors a user can understand: what is wrong, where, and how to fix it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, ClassVar


class NmtError(Exception):
    """A failure with a known cause. The command line prints it without a traceback.

    Args:
        problem: What went wrong and where: the file, line, key or value at fault.
        fix: The next thing for the user to do, as one sentence.
    """

    exit_code: ClassVar[int] = 1  # What the process returns to the shell.

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(f"{problem}\n  fix: {fix}")
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), fix=self.fix), (self.problem,)


class ConfigError(NmtError):
    """The configuration or an option is wrong. Carries every problem found, one a line."""

    exit_code = 2

    @classmethod
    def unknown(cls, kind: str, name: str, names: Iterable[str]) -> ConfigError:
        """Return the error about a name that is none of those of its kind."""
        known = list(names)
        near = did_you_mean(name.lower(), known).lstrip()
        fix = f"{near} Use one of {', '.join(known)}." if known else "There are none."
        return cls(f"{name} is not a known {kind}.", fix=fix.lstrip())

    @classmethod
    def joined(cls, errors: Sequence[NmtError]) -> ConfigError:
        """Return several errors as one."""
        last = errors[-1]
        return cls("\n".join([*map(str, errors[:-1]), last.problem]), fix=last.fix)


class DataError(NmtError):
    """Text or stored data is missing, damaged, or not parallel."""

    exit_code = 3

    @classmethod
    def not_parallel(
        cls,
        source: str,
        target: str,
        counts: tuple[int, int],
        *,
        fix: str = "Line i of both files must translate each other; re-export the pair together.",
    ) -> DataError:
        """Two files that should pair line by line differ in length."""
        return cls(f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}.", fix=fix)


class TokenizerError(DataError):
    """A tokenizer cannot be trained on this text, or cannot be read."""


class VocabularySizeError(TokenizerError):
    """The text allows no vocabulary of the configured size."""

    exit_code = 2


class CheckpointError(NmtError):
    """A model or checkpoint is missing, damaged, locked, or of another kind."""

    exit_code = 4


class DeviceError(NmtError):
    """The machine lacks what was asked for: a device, a precision, memory or disk space."""

    exit_code = 2


class DivergedError(NmtError):
    """Training left the range where it can recover."""

    exit_code = 5


class GateError(NmtError):
    """A score is below what a gate asks for."""

    exit_code = 6


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the most similar of some words, or None if none is similar."""
    return next(iter(get_close_matches(word, list(words), n=1)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a sentence, after a space, that names the most similar word; nothing if none is."""
    near = nearest_word(word, words)
    return f" Did you mean {near}?" if near else ""


def shell_command(command: str, *arguments: object, **options: object) -> str:
    """Return a command for the user to type.

    Args:
        command: Such as ``translate`` or ``config show``.
        arguments: Given by position.
        options: Given by flag; True is a switch, a list repeats its flag, None and False are left
            out.

    >>> shell_command("config show", "my runs/x.yaml")
    "nmt config show 'my runs/x.yaml'"
    """
    words = [*command.split(), *arguments]
    for name, value in options.items():
        flag = f"--{name.removesuffix('_').replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words += [word for each in value for word in (flag, each)]
        elif value is not None and value is not False:
            words += [flag, value]
    return shlex.join(["nmt", *map(str, words)])
