"""Detects common mistakes in a command line and suggests the correct command.

Mistakes: flags of other tools, too many arguments, text files in place of a configuration, a
sentence in place of a file, and checkpoints of other tools. `Spelling` looks up flags of other
tools in ``nmt/config/aliases.yaml``.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from nmt.cli.builder import parameter_name
from nmt.config.keys import aliases, all_keys, find_key, is_of_command_line
from nmt.errors import ConfigError, join_words

# Flags that users most likely meant with extra arguments.
_BY_POSITION = {
    **dict.fromkeys(("init", "average", "export", "import", "translate", "pull"), ("--output",)),
    **dict.fromkeys(("score", "inspect"), ("--source", "--target")),
    "train": ("--run-dir",),
    "augment": ("--model", "--output"),
}
_FILE = re.compile(r"\S*(/\S*|\.[A-Za-z]\w*)|-")
_CHECKPOINT = re.compile(r".*\.(pt|pth|ckpt)")
# Values that other tools accept after a switch: ``--gpu 0``.
_SWITCH_VALUE = re.compile(r"\d[\d.,e-]*|true|false", re.IGNORECASE)
# sacreBLEU accepts several metrics in a row.
_METRIC = re.compile(r"bleu|chrf(\+\+)?|ter|comet", re.IGNORECASE)
_LANGUAGE = re.compile("(?!out)[a-z]{2,3}")
_REMARK = ": "  # Separates our flag from a remark on the difference.
SIDES = ("SOURCE", "TARGET")


def check_line(path: str, parameters: Sequence[Any], args: Sequence[str]) -> None:
    """Raise an error with the correct command, where Typer's message would not help.

    Args:
        path: The full command, for example ``nmt translate``.
        parameters: Typer's parameters of the command.
        args: The words after the command.

    Raises:
        ConfigError: The line contains a known mistake; the fix is the correct command.
    """
    spelling = Spelling(path, parameters)
    line = spelling.read(args)
    given = {spelling.long.get(word.partition("=")[0]) for word in args if word[:1] == "-" != word}
    _refuse_other_inputs(spelling, line, has_unknown=None in given and not line.found)
    if line.found:
        named = [f"{x} (here: {ours.removeprefix(_REMARK)})" for x, ours in line.found.items()]
        problem = f"{path}: unknown option {', '.join(named)}."
        raise ConfigError(problem, fix=f"Type: {spelling.command(line)}")
    if any(flag == "--set" and "=" not in value for flag, value in pairwise(line.flags)):
        return  # the extra word is its value
    free = [flag for flag in _BY_POSITION.get(spelling.name, ()) if flag not in given]
    num_arguments = len(spelling.arguments)
    extra = line.plain[num_arguments:]
    if extra and len(extra) <= len(free) and None not in given and not spelling.has_many:
        line.plain = line.plain[:num_arguments]
        line.flags += [word for pair in zip(free, extra, strict=False) for word in pair]
        problem = f"{path}: too many arguments: {', '.join(extra)}."
        raise ConfigError(problem, fix=f"Type: {spelling.command(line)}")


def _refuse_other_inputs(spelling: Spelling, line: Line, *, has_unknown: bool) -> None:
    """Raise an error for text files as CONFIG, sentences, and checkpoints of other tools."""
    texts = [line.arguments.get(side) for side in SIDES] if spelling.trains else []
    if spelling.trains and len(line.plain) > 1 and all(map(os.path.isfile, line.plain)):
        texts += [] if line.plain[0].endswith((".yaml", ".yml")) else line.plain[:2]
    if prefix := line.arguments.get("PREFIX"):
        texts = [f"{prefix}.{code}" for code in [*line.codes, *SIDES][:2]]
    if any(texts):
        files = [text or side for text, side in zip(texts[-2:], SIDES, strict=True)]
        fix = f"Type: nmt init {join_words(files)} (writes a configuration for two text files)"
        raise ConfigError(f"{spelling.path} needs a configuration, not text files.", fix=fix)
    models = [*line.arguments.values(), *line.plain][:2] if "MODEL" in spelling.arguments else []
    if model := next(filter(_CHECKPOINT.fullmatch, models), None):
        origin = "a run folder of `nmt train` or a model folder of `nmt import`"
        fix = f"Type: {spelling.path} RUN FILE, where RUN is {origin}."
        raise ConfigError(f"{model} is a checkpoint of a different tool.", fix=fix)
    words = line.plain[1:] if spelling.name == "translate" and not has_unknown else []
    if len(words) > 1 and not any(os.path.lexists(x) or _FILE.fullmatch(x) for x in words):
        line.plain = line.plain[:1]
        problem = f"{spelling.path} reads text from a file or from standard input."
        fix = f"Type: echo {join_words([' '.join(words)])} | {spelling.command(line)}"
        raise ConfigError(problem, fix=fix)


@dataclass
class Line:
    """A parsed command line, in which nmt's flags replace those of other tools."""

    plain: list[str] = field(default_factory=list)  # Words without a flag.
    flags: list[str] = field(default_factory=list)  # Flags and their values.
    found: dict[str, str] = field(default_factory=dict)  # Flag of another tool -> ours.
    # Values of foreign flags that are arguments here.
    arguments: dict[str, str] = field(default_factory=dict)
    codes: list[str] = field(default_factory=list)  # Language codes in place of files.


class Spelling:
    """The flags and arguments of one command, with the names in other tools.

    Args:
        path: The full command, for example ``nmt translate``.
        parameters: Typer's parameters of the command.
    """

    def __init__(self, path: str, parameters: Sequence[Any]) -> None:
        self.path, self.name = path, path.rpartition(" ")[2]
        options = [each for each in parameters if each.param_type_name == "option"]
        names = [(name, each) for each in options for name in (*each.opts, *each.secondary_opts)]
        self._num_values = {name: 0 if x.is_flag or x.count else x.nargs for name, x in names}
        # Options that several values may follow, such as FILE...
        self._spread = {name for name, x in names if (x.metavar or "").endswith("...")}
        self.long = {name: parameter_name(each) for name, each in names}
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        self.arguments = [parameter_name(each) for each in arguments]
        if self.arguments == ["PLACE"]:  # two files are the usual places
            self.arguments = list(SIDES)
        self.has_many = any(each.nargs < 0 for each in arguments)
        self.trains = self.name in ("train", "prepare")

    def read(self, args: Sequence[str]) -> Line:
        """Parse a command line; replace flags of other tools with flags of nmt."""
        line, rest = Line(), deque(args)
        is_named = any(
            word[:1] != "-"
            and not _METRIC.fullmatch(word)
            and (before[:1] != "-" or "=" in before or not self._num_values.get(before, 1))
            for before, word in pairwise(["", *args])
        )
        while rest and (word := rest.popleft()) != "--":  # no flag comes after it
            name, equals, value = word.partition("=")
            if name in self._num_values:
                count = max(self._num_values[name] - bool(equals), 0)
                values = [rest.popleft() for _ in range(min(count, len(rest)))]
                while name in self._spread and rest and not rest[0].startswith("-"):
                    values.append(rest.popleft())
                if count > 1 and (len(values) < count or any(x[:1] == "-" for x in values)):
                    raise ConfigError(f"{name} needs {count} values.", fix=f"Pass {count} values.")
                line.flags += [word, *values]
            elif _METRIC.fullmatch(word) and line.flags[-2:-1] in (["--metric"], ["-m"]):
                line.flags[-1] += f",{word}"
                line.found[word] = f"--metric {line.flags[-1]}"
            elif word == "-" or not word.startswith("-"):
                line.plain.append(word)
            elif ours := self._ours(name, is_named):
                if not equals and rest and self._is_value(ours, rest[0]):
                    value = rest.popleft()
                self._replace(line, rest, (name, ours, value))
            else:
                line.flags.append(word)
        line.plain += rest
        if line.codes and "--languages" not in map(self.long.get, line.flags):
            line.flags += ["--languages", "-".join([*line.codes, "TARGET"][:2])]
        return line

    def _replace(self, line: Line, rest: deque[str], foreign: tuple[str, str, str]) -> None:
        """Add the replacement of a flag (name, replacement, value) to ``line`` or ``rest``."""
        name, ours, value = foreign
        target, _, remark = ours.partition(_REMARK)
        flag, _, fixed = target.partition(" ")
        line.found[name] = ours
        if flag in ("--input", "--output", *SIDES) and _LANGUAGE.fullmatch(value):
            ours = {"--input": "--from", "--output": "--to"}.get(flag, "--languages")
            line.found[name] = ours
            line.codes += [value] if flag in SIDES else []
            line.flags += [] if flag in SIDES else [ours, value]
        elif target.isupper():
            if target in line.arguments:
                values = f"{line.arguments[target]} and {value}"
                fix = "Merge the files, or override single keys with --set KEY=VALUE."
                raise ConfigError(f"{self.path} accepts only one {target}: {values}.", fix=fix)
            line.arguments[target] = value or target
        elif ours in self._num_values:
            rest.extendleft([value or "VALUE", ours] if self._num_values[ours] > 0 else [ours])
        elif flag in self._num_values and fixed and not (remark and flag in line.flags):
            if fixed.endswith("cuda") and value.isdecimal() and int(value):
                fixed += f":{value}"
            elif flag == "--set" and "=" not in fixed:
                fixed += f"={value or ('true' if _is_switch(fixed) else 'VALUE')}"
            line.flags += [flag, fixed]

    def command(self, line: Line) -> str:
        """Return the corrected command, with placeholders for missing arguments."""
        plain = list(line.plain)
        for name in sorted(line.arguments, key=self.arguments.index):
            place = self.arguments.index(name)
            plain += self.arguments[len(plain) : place]  # placeholders of missing arguments
            plain.insert(place, line.arguments[name])
        return f"{self.path} {join_words([*plain, *line.flags])}".rstrip()

    def _ours(self, name: str, is_named: bool) -> str | None:
        """Return the flag or argument of this command for a flag of another tool, or None."""
        word = name.lstrip("-").lower().replace("-", "_")
        for ours in self._candidates(word) if word else ():
            target = re.split("[ :]", ours)[0]
            if ours.startswith("--set "):  # other keys of a trained model are fixed
                fits = "CONFIG" in self.arguments or ours.startswith("--set decoding.")
                fits = fits and "--set" in self._num_values
            elif target == "--hypothesis" and word in ("i", "input"):
                fits = "--hypothesis" in self._num_values and not is_named  # else of the model
            elif target == "--to" and word in ("t", "target", "f", "format"):
                fits = "--to" in self._num_values and "--from" not in self._num_values  # export
            elif target in (*SIDES, "PREFIX") and self.trains:
                fits = not is_named
            else:
                known = (*self.arguments, *self._num_values)
                fits = not (is_of_command_line(ours) and target) or target in known
            if fits:
                return ours
        return None

    @staticmethod
    def _candidates(word: str) -> Iterator[str]:
        listed = aliases().get(word, ())
        yield f"--{word.replace('_', '-')}"
        yield from filter(is_of_command_line, listed)
        if len(word) > 1:  # single letters are symbols in formulas
            named = [".".join(key.path) for key in all_keys() if key.path[-1] == word]
            keys = [key for key in listed if not is_of_command_line(key)] or named
            plain = [key for key in keys if re.fullmatch(r"[a-z_0-9.]+", key)]  # without a remark
            yield from (f"--{key.rpartition('.')[2].replace('_', '-')}" for key in plain)
            yield from (f"--set {key}" for key in plain)
            yield from (f"{key} in the configuration" for key in keys)

    def _is_value(self, ours: str, following: str) -> bool:
        """Return whether the word after a flag of another tool is the value of the flag."""
        flag, _, fixed = ours.partition(_REMARK)[0].partition(" ")
        is_whole = "=" in fixed or _is_switch(fixed) if flag == "--set" else bool(fixed)
        is_whole = is_whole and "{" not in ours  # a JSON field has a value
        if is_whole or not self._num_values.get(flag, True):
            return _SWITCH_VALUE.fullmatch(following) is not None
        return following == "-" or not following.startswith("-")


def _is_switch(key: str) -> bool:
    found = find_key(key.split("."))
    return found is not None and found.allowed == "true or false"
