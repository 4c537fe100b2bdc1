"""What is typed wrongly -> the command to type: flags of other tools, what is missing or too many.

What they call ours stands beside the configuration's keys, in ``nmt/config/aliases.yaml``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from nmt.config.keys import aliases, all_keys, find_key, is_of_command_line
from nmt.errors import ConfigError
from nmt.files.lines import is_standard

_SWITCH_VALUE = re.compile(r"\d+(,\d+)*|true|false", re.IGNORECASE)
"""What may follow a flag that is a switch here: ``--gpu 0``."""
_CODE, _ANY_CODE = re.compile("[a-z]{2}"), re.compile("[a-z]{2,3}")
"""A language, which some name where we have a file: `out` may be either."""
_METRIC = re.compile(r"bleu|chrf(\+\+)?|ter|comet", re.IGNORECASE)
"""Of sacrebleu, which takes several in a row."""
_FILE = re.compile(r"\S*(/\S*|\.[A-Za-z]\w*)")
_PLAIN_KEY = re.compile(r"[a-z_0-9.]+")
"""Without a remark."""
_REMARK = ": "
"""Behind it: why a value of the foreign flag is none of ours."""
_BY_POSITION = {
    "init": ("--output",),
    "train": ("--run-dir",),
    "augment": ("--with", "--output"),
    "average": ("--output",),
    "export": ("--output",),
    "import": ("--output",),
    "translate": ("--output",),
    "score": ("--source", "--target"),
    "inspect": ("--source", "--target"),
    "pull": ("--output",),
}
"""What words behind the arguments of a command most probably are."""
FOREIGN_COMMANDS = {
    **dict.fromkeys(("decode", "generate", "interactive"), "translate"),
    "test": "evaluate",
    **dict.fromkeys(("publish", "upload"), "push"),
    "download": "pull",
    "average-checkpoints": "average",
    "build-vocab": "prepare",
    **dict.fromkeys(("finetune", "fine-tune"), "train CONFIG --set training.start_from=RUN"),
    "completion": "--install-completion",
    **{name: f"config {name}" for name in ("check", "show", "schema", "keys")},
}
"""What others call commands, with hyphens -> ours, perhaps with all that is to be typed."""
_FIELDS = {each: each for each in ("prefix", "required", "forbidden")} | {"constraints": "required"}
"""Flags that stand for a field of a line of JSON."""
_READS_JSON = "--input-format json"


@dataclass
class _Line:
    """What is found in a command line."""

    found: dict[str, str] = field(default_factory=dict)
    """Flag of others -> ours."""
    typed: list[str] = field(default_factory=list)
    """The words, with our flags."""
    places: list[int] = field(default_factory=list)
    """Where ``typed`` has a word without a flag."""
    arguments: dict[str, str] = field(default_factory=dict)
    """What flags of others said that are arguments here."""
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Flag of others, and a language, by the argument that is a file in it."""
    fields: dict[str, list[str]] = field(default_factory=dict)
    """What they said that is a field of JSON here."""


class Spelling:
    """The flags and arguments of one command, and what others call them.

    Args:
        path: The command as it is typed, for example ``nmt translate``.
        parameters: Its parameters.
    """

    def __init__(self, path: str, parameters: Sequence[Any]) -> None:
        self._path = path
        options = [each for each in parameters if each.param_type_name == "option"]
        self._takes_value = {  # how many
            name: 0 if each.is_flag or each.count else each.nargs
            for each in options
            for name in (*each.opts, *each.secondary_opts)
        }
        self._metavars = {name: each.metavar for each in options for name in each.opts}
        self._required = [each for each in parameters if each.required]
        self._long = {
            name: _name(each) for each in options for name in (*each.opts, *each.secondary_opts)
        }
        arguments = [each for each in parameters if each.param_type_name == "argument"]
        self._arguments = list(map(_name, arguments))
        self._most = math.inf if any(x.nargs < 0 for x in arguments) else len(arguments)

    def check(self, args: Sequence[str]) -> None:
        """Refuse a command line with flags that other tools have, or with words too many.

        Raises:
            ConfigError: Names each with ours, and the command to type.
        """
        joined = _metrics_joined(args) if "--metric" in self._takes_value else [*args]
        has_list, args = joined != [*args], joined
        line, rest = _Line(), deque(args)
        has_argument = self._has_argument(args)
        while rest:
            word = rest.popleft()
            if word == "--":  # no flag comes after it
                line.typed += [word, *rest]
                break
            name, equals, value = word.partition("=")
            ours = None if name in self._takes_value else self._ours(name, has_argument)
            if ours is None:
                if word == "-" or not word.startswith("-"):
                    line.places.append(len(line.typed))
                line.typed.append(word)
                line.typed += self._values(name, bool(equals), rest)
                continue
            if not equals and rest and self._is_value(ours, rest[0]):
                value = rest.popleft()
            self._replace(line, name, ours, value)
        self._settle_codes(line)
        if line.found:
            named = ", ".join(f"{name} (here: {ours})" for name, ours in line.found.items())
            raise ConfigError(f"{self._path} has no {named}.", fix=f"Type: {self._command(line)}")
        if has_list:
            raise ConfigError(
                "Several metrics are one word, with commas between.",
                fix=f"Type: {self._command(line)}",
            )
        self._refuse_extra(line.typed, line.places)

    def _values(self, flag: str, has_first: bool, rest: deque[str]) -> list[str]:
        """Take the words that belong to a flag of ours; it may have the first behind ``=``."""
        num = self._takes_value.get(flag, 0)
        values = [rest.popleft() for _ in range(min(num - has_first, len(rest)))]
        if num > 1 and (len(values) < num - has_first or any(x[:1] == "-" != x for x in values)):
            raise ConfigError(
                f"{flag} needs {num} words behind it.",
                fix=f"Write {flag} {self._metavars[flag]}.",
            )
        return values

    @staticmethod
    def _settle_codes(line: _Line) -> None:
        """Take a single code, or codes without files, for names of files."""
        if len(line.codes) < 2 or len(line.places) < 2:
            for ours, (name, value) in line.codes.items():
                line.found[name], line.arguments[ours] = ours, value
            line.codes.clear()

    def _replace(self, line: _Line, name: str, ours: str, value: str) -> None:
        """Put what is to be typed for a flag of others into ``line``."""
        if ours in ("--input", "--output") and _CODE.fullmatch(value):
            line.found[name] = "the model knows its languages"
            return
        if ours in ("SOURCE", "TARGET") and _ANY_CODE.fullmatch(value):
            line.found[name], line.codes[ours] = "--languages", (name, value)
            return
        line.found[name] = ours
        if ours.startswith(_READS_JSON):
            line.fields.setdefault(_FIELDS[name.lstrip("-").lower()], []).append(value or "...")
        elif ours.isupper():
            line.arguments[ours] = value or ours
        else:
            line.typed += self._words(ours, value)

    def _command(self, line: _Line) -> str:
        words, start = self._with_arguments(line.arguments, line.typed, line.places), ""
        if line.codes and "--languages" not in map(self._long.get, line.typed):
            codes = (line.codes[ours][1] for ours in ("SOURCE", "TARGET"))
            words = [*words, "--languages", "-".join(codes)]
        if line.fields:
            files = [line.typed[place] for place in line.places["MODEL" not in line.arguments :]]
            words = [*self._without_input(words, files), *_READS_JSON.split()]
            start = f"echo {shlex.quote(_json_line(line.fields))} | "
        return start + " ".join([self._path, *map(shlex.quote, words)])

    def _has_argument(self, args: Sequence[str]) -> bool:
        """Whether there is a word that is no flag, nor a value of one, it seems."""
        return any(
            word[:1] != "-"
            and (before[:1] != "-" or "=" in before or not self._takes_value.get(before, 1))
            for before, word in pairwise(["", *args])
        )

    def _without_input(self, words: Sequence[str], files: Sequence[str]) -> Iterator[str]:
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            is_input = self._long.get(name) == "--input"
            if is_input and not equals:
                next(rest, None)
            elif not is_input and word not in files:
                yield word

    def _with_arguments(
        self, found: Mapping[str, str], typed: list[str], places: Sequence[int]
    ) -> list[str]:
        """Put what flags of others said into the places of the arguments that they are here."""
        if not found:
            return typed
        plain = [typed[place] for place in places]
        for name in sorted(found, key=self._arguments.index):
            place = self._arguments.index(name)
            plain += self._arguments[len(plain) : place]  # which are missing
            plain.insert(place, found[name])
        return plain + [word for i, word in enumerate(typed) if i not in places]

    def explain(self, error: Any, args: Sequence[str]) -> ConfigError:
        """Return what Typer says about a command line, with the command to type if it is short."""
        parameter, more = getattr(error, "param", None), f"{self._path} --help"
        if parameter is None or error.message:  # nothing is missing
            problem = error.format_message().replace("Value error, ", "").rstrip(".")
            return ConfigError(f"{problem}.", fix=f"`{more}` lists what it takes.")
        given = {self._long.get(word.partition("=")[0]) for word in args}
        missing = [
            name if each.param_type_name == "argument" else f"{name} {each.metavar}"
            for each in self._required[self._required.index(parameter) :]
            if (name := _name(each)) not in given
        ]
        command = " ".join([self._path, *map(shlex.quote, args), *missing])
        fix = f"Type: {command} ({parameter.help.rstrip('.')}; {more})"
        table = re.search(r"(\S+\.(csv|tsv|jsonl))$", args[0]) if len(args) == 1 else None
        if table and missing == ["TARGET"]:
            corpus = f"data: {{train: [{{{table[2]}: {table[1]}}}]}}"
            fix = (
                f"Write a configuration, as in the README: {corpus}. It reads tables; this command "
                "takes two files of lines."
            )
        return ConfigError(f"{self._path} needs {_name(parameter)}.", fix=fix)

    def _refuse_extra(self, typed: list[str], places: Sequence[int]) -> None:
        flags = _BY_POSITION.get(self._path.rpartition(" ")[2], ())
        given = {self._long.get(x.partition("=")[0]) for x in typed if x[:1] == "-" != x}
        free = [flag for flag in flags if flag not in given]
        extra = places[int(min(self._most, len(places))) :]
        if not extra or None in given:  # perhaps its value
            return
        if any(flag == "--set" and "=" not in value for flag, value in pairwise(typed)):
            return  # the word belongs to it
        self._refuse_text(typed, places)
        if len(extra) > len(free):
            return
        words = [shlex.quote(word) for word in typed]
        for place, flag in zip(extra, free, strict=False):
            words[place] = f"{flag} {words[place]}"
        named = ", ".join(typed[place] for place in extra)
        raise ConfigError(
            f"{self._path} takes no {named} without a flag.",
            fix=f"Type: {' '.join([self._path, *words])}",
        )

    def _refuse_text(self, typed: Sequence[str], places: Sequence[int]) -> None:
        """Refuse a sentence where a file belongs, and texts in place of a configuration."""
        words = [typed[place] for place in places]
        are_texts = all(map(os.path.isfile, words)) and not words[0].endswith((".yaml", ".yml"))
        if self._path.endswith(" train") and are_texts:
            raise ConfigError(
                f"{self._path} takes a configuration.",
                fix=f"Type: nmt init {shlex.join(words[:2])} (writes one for these two files)",
            )
        text = words[1:]
        if self._path.endswith(" translate") and not any(map(looks_like_file, text)):
            others = [word for i, word in enumerate(typed) if i not in places[1:]]
            raise ConfigError(
                f"{self._path} takes text from a file or from standard input.",
                fix=f"Type: echo {shlex.quote(' '.join(text))} | {self._path} {shlex.join(others)}",
            )

    def _ours(self, name: str, has_argument: bool) -> str | None:
        """Return what this command has for a flag of others: a flag or an argument, perhaps."""
        word = name.lstrip("-").lower().replace("-", "_")
        if not name.startswith("-") or not word:
            return None
        is_source = has_argument and word in ("i", "input")  # of the model, which is named
        found = filter(self._has, self._candidates(word))
        return next((x for x in found if not (is_source and x == "--hypothesis")), None)

    def _candidates(self, word: str) -> Iterator[str]:
        listed = aliases().get(word, ())
        yield f"--{word.replace('_', '-')}"
        yield from filter(is_of_command_line, listed)
        if len(word) == 1:  # of formulas
            return
        named = [".".join(key.path) for key in all_keys() if key.path[-1] == word]
        keys = [key for key in (*listed, *named) if _PLAIN_KEY.fullmatch(key)]
        yield from (f"--{key.rpartition('.')[2].replace('_', '-')}" for key in keys)
        yield from (f"--set {key}" for key in keys)
        of_configuration = (key for key in (*listed, *named) if not is_of_command_line(key))
        yield from (f"{key} in the configuration" for key in of_configuration)

    def _has(self, ours: str) -> bool:
        if ours.startswith("--set "):  # a model that is trained has no other key to change
            return "--set" in self._takes_value and (
                "CONFIG" in self._arguments or ours.startswith("--set decoding.")
            )
        if not is_of_command_line(ours):
            return True
        return ours in self._arguments or re.split("[ :]", ours)[0] in self._takes_value

    def _is_value(self, ours: str, following: str) -> bool:
        """Whether the word after a foreign flag is its value."""
        if ours.startswith(_READS_JSON):
            return not following.startswith("-")
        flag, _, fixed = ours.partition(_REMARK)[0].partition(" ")
        is_whole = "=" in fixed or _is_switch(fixed) if flag == "--set" else bool(fixed)
        if is_whole or not self._takes_value.get(flag, True):
            return _SWITCH_VALUE.fullmatch(following) is not None
        return following == "-" or not following.startswith("-")

    def _words(self, ours: str, value: str) -> list[str]:
        """Return the words to type; none for what is said in the configuration only."""
        ours, _, remark = ours.partition(_REMARK)
        flag, _, fixed = ours.partition(" ")
        if not flag.startswith("--") or (remark and not fixed):
            return []
        if fixed.endswith("cuda") and value.isdecimal() and int(value):
            fixed += f":{value}"
        if flag == "--set":
            value = value or ("true" if _is_switch(fixed) else "VALUE")
            return [flag, fixed if "=" in fixed else f"{fixed}={value}"]
        if fixed:
            return [flag, fixed]
        return [flag, value or "VALUE"] if self._takes_value[flag] else [flag]


def _metrics_joined(args: Sequence[str]) -> list[str]:
    """Join the words that sacrebleu takes behind one ``-m`` with commas, as they are typed here."""
    joined: list[str] = []
    for word in args:
        if (
            _METRIC.fullmatch(word)
            and len(joined) > 1
            and joined[-2] in ("-m", "--metric", "--metrics")
        ):
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return joined


def looks_like_file(word: str) -> bool:
    """Whether a word names a file rather than being text to translate."""
    return is_standard(Path(word)) or os.path.lexists(word) or bool(_FILE.fullmatch(word))


def _is_switch(key: str) -> bool:
    found = find_key(key.split("."))
    return found is not None and found.allowed == "true or false"


def _json_line(fields: Mapping[str, Sequence[str]]) -> str:
    """Return a line of input with constraints."""
    values = {name: texts[0] if name == "prefix" else texts for name, texts in fields.items()}
    return json.dumps({"source": "...", **values}, ensure_ascii=False)


def _name(parameter: Any) -> str:
    """Return what a parameter is called: an argument by what it stands for."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return max(parameter.opts, key=len)
