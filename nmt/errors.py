"""Errors with a problem, a place and a fix."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Self

from nmt.installation import CLONE, DISTRIBUTION

MAX_COMPARED = 100  # Characters of a word that are compared: the time grows with their square.


class NmtError(Exception):
    """A failure with a known cause. The command line prints it without a traceback.

    Args:
        problem: What is wrong and where: file, line, key or value.
        fix: Next action of the user, preferably a command to type.
    """

    exit_code = 1  # Exit code of the process.

    def __init__(self, problem: str, *, fix: str) -> None:
        super().__init__(f"{problem}\n  fix: {fix}")
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), fix=self.fix), (self.problem,)


class ConfigError(NmtError):
    """The configuration or an option is wrong. Lists all problems, one per line."""

    exit_code = 2

    @classmethod
    def unknown(cls, kind: str, name: str, names: Iterable[str], *, near: bool = True) -> Self:
        """Return the error for an unknown name; the fix has all names.

        Args:
            kind: Word for what the name means, for example ``metric``.
            name: The unknown name.
            names: All names.
            near: Whether the fix begins with the most similar name.
        """
        names = list(names)
        fix = "No names are defined."
        if names:
            fix = f"Use one of {', '.join(names)}."
        if near:
            fix = f"{did_you_mean(name.lower(), names)} {fix}".lstrip()
        return cls(f"{name} is not a known {kind}.", fix=fix)

    @classmethod
    def needs(cls, what: str, package: str, *, extra: str) -> ConfigError:
        """Return the error for an optional package that is not installed."""
        problem = f"{what} needs {package}, which is not installed."
        return cls(problem, fix=install_command(extra))

    @classmethod
    def of_import(cls, error: Exception, setting: str, package: str) -> ConfigError:
        """Return the error for ``package``, named in ``setting``, that cannot be imported.

        If the package itself is missing, the fix is to install it; else to repair it.
        """
        missing_module = error.name if isinstance(error, ModuleNotFoundError) else None
        # The package may be a module of another one, such as ``torch.utils.tensorboard``.
        if missing_module is not None and missing_module.rpartition(".")[2] == package:
            return cls.needs(setting, package, extra=package)
        problem = f"{package} cannot be imported: {type(error).__name__}: {error}"
        return cls(problem, fix=f"Repair the package, or remove it from {setting}.")

    @classmethod
    def joined(cls, errors: Sequence[NmtError]) -> ConfigError:
        """Combine several errors into one."""
        *earlier_errors, last_error = errors
        problems = [*map(str, earlier_errors), last_error.problem]
        return cls("\n".join(problems), fix=last_error.fix)


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
        fix: str = "Export both files together again; line i of each must be the same sentence.",
    ) -> DataError:
        """Return the error for two files with different numbers of lines."""
        return cls(f"{source} has {counts[0]:,} lines but {target} has {counts[1]:,}.", fix=fix)


class TokenizerError(DataError):
    """A tokenizer cannot be trained or loaded."""


class VocabularySizeError(TokenizerError):
    """The text is too small or too large for the configured vocabulary size."""

    exit_code = 2


class CheckpointError(NmtError):
    """A model or checkpoint is missing, damaged, locked or incompatible."""

    exit_code = 4


class DeviceError(NmtError):
    """The machine does not have the requested device, precision, memory or disk space."""

    exit_code = 2


class DivergedError(NmtError):
    """Training diverged and cannot recover."""

    exit_code = 5


class GateError(NmtError):
    """A quality gate was not met: a score is below its limit, or worse than the baseline's."""

    exit_code = 6


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the most similar word, or None."""
    nearest = get_close_matches(word[:MAX_COMPARED], list(words), n=1)
    return nearest[0] if nearest else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `` Did you mean X?`` for the most similar word, or an empty text."""
    near = nearest_word(word, words)
    if near is None:
        return ""
    return f" Did you mean {near}?"


def shell_command(command: str, *arguments: object, **options: object) -> str:
    """Return a command for the user to type. The arguments are those of `command_words`.

    >>> shell_command("config show", "my runs/x.yaml")
    "nmt config show 'my runs/x.yaml'"
    """
    return join_words(command_words(command, *arguments, **options))


def command_words(command: str, *arguments: object, **options: object) -> list[str]:
    """Return the words of a command.

    Args:
        command: For example ``translate`` or ``config show``.
        arguments: Positional arguments.
        options: Flags. True is a switch, a list repeats the flag, None and False are omitted.
    """
    words = ["nmt", *command.split(), *arguments]
    for name, value in options.items():
        flag = f"--{name.removesuffix('_').replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            for item in value:
                words += [flag, item]
        elif value is not None and value is not False:
            words += [flag, value]
    return list(map(str, words))


def join_words(words: Iterable[str]) -> str:
    """Join the words of a command, with the quotes that the user's shell needs."""
    if os.name != "nt":
        return shlex.join(words)
    return " ".join(f'"{word}"' if " " in word else word for word in words)


def install_command(extra: str) -> str:
    """Return the command that installs an extra into this installation."""
    if CLONE is None:
        return join_words(["pip", "install", f"{DISTRIBUTION}[{extra}]"])
    clone = "." if Path.cwd() == CLONE else CLONE
    return join_words(["pip", "install", "-e", f"{clone}[{extra}]"])
