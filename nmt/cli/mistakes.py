"""Answers to command lines that nmt refuses: the line to type, or what nmt has of its settings.

Every refused word is exchanged, by ``nmt/config/aliases.yaml`` or for a similar one. Then the whole
line is read again, with the files and the device that it names. Only a line that passes stands
behind ``Type:``.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from nmt.cli.builder import BY_POSITION, COMMANDS, make_command, make_options, parameter_name
from nmt.config.inference import LANGUAGE_KEYS
from nmt.config.keys import LANGUAGE, aliases, find_key, known_key, normal
from nmt.config.translation import MANY, Translation
from nmt.errors import ConfigError, DeviceError, NmtError, join_words
from nmt.registry import load_attribute

YAML = (".yaml", ".yml")  # Endings of configurations.
_MODELS = ("model", "models", "teachers", "with_")
_OUTPUTS = ("output", "run_dir", "report", "report_dir", "save_hypotheses")
_FILE = re.compile(r"\S*(/\S*|\.[A-Za-z]\w*)|-")
_GLUED = re.compile(r"-[A-Za-z]\d.*")
_FLAG = re.compile("-+[A-Za-z].*", re.DOTALL)
_LANGUAGE_FLAG = re.compile("-+[st]")  # --source and --tgt-lang, but not --output.
_PLACEHOLDER = re.compile("[A-Z/]+")
_REMARK = ": "  # Separates our flag from a remark on the difference.
_PAIR = ("--source", "--target")
_SIDES = ("SOURCE", "TARGET")
# Flags of files, which mean languages if their values are language codes.
_OF_TEXTS = {"--input": "--from", "--output": "--to"} | dict.fromkeys(_SIDES, "--languages")
_MAX_SETTINGS = {"init": 0, "train": MANY, "prepare": MANY}  # More are shown as YAML.
_MANY = 99
_USAGE_ERROR: Any = typer.BadParameter.__base__  # Typer exports only this subclass.


def explain(
    command: Any, path: str, args: Sequence[str], error: Any, foreign: str | None = None
) -> ConfigError:
    """Return the answer to a refused command line.

    Args:
        command: The Typer command.
        path: Its name, for example ``nmt config check``.
        args: The words after it.
        error: Typer's error.
        foreign: What is wrong with the command of another tool that the user has typed.
    """
    name = path.removeprefix("nmt ")
    line = Line(command, name, args)
    if not line.names_first():
        line = Line(command, name, args, is_named=False)
    texts = line.texts()
    if texts:
        problem = f"{path} needs a configuration, not text files."
        remark = " (writes a configuration for two text files)"
        return proposal(problem, "init", texts, line.translation, remark=remark)
    if name == "augment" and line.plain and Path(line.plain[0]).is_dir():  # the model
        line.plain = [*line.plain[1:], line.plain[0]]
    extra = line.plain[len(line.arguments) - len(line.places) :]
    free = [flag for flag in BY_POSITION.get(name, ()) if flag not in line.flags]
    has_place = 0 < len(extra) <= len(free) and not any(map(str.isdecimal, extra))
    if line.renamed or (foreign and line.translation.left):
        if has_place:
            line.move(extra, free)
        problem = foreign or ""
        if line.renamed:
            problem = f"{path}: unknown option {', '.join(line.renamed)}."
        return proposal(problem, name, line.words(), line.translation)
    rest = line.plain[len(line.arguments) - 1 :]
    if extra and Path(" ".join(rest)).exists():
        line.plain[len(line.arguments) - 1 :] = [" ".join(rest)]
        return proposal(f"{path}: quote a name with spaces.", name, line.words())
    is_missing = getattr(error, "param", None) and not error.message
    if is_missing and not has_place:
        first = line.missing(len(line.plain))[0]
        remark = f" ({first.help.rstrip('.')}; {path} --help)"
        problem = f"{path} needs {parameter_name(first)}."
        return proposal(problem, name, line.words(), line.translation, remark=remark)
    if name == "translate" and len(line.plain) > 2 and not any(map(_is_file, line.plain[1:])):
        problem = f"{path} reads text from a file or from standard input."
        text = " ".join(line.plain[1:])
        del line.plain[1:]
        return proposal(problem, name, line.words(), before=f"echo {join_words([text])} | ")
    if not (line.arguments and (is_missing or "extra argument" in error.format_message())):
        return usage_error(error, path)
    is_output = free[:1] in (["--output"], ["--run-dir"])
    if not has_place or (is_output and any(map(os.path.exists, extra))):
        problem = f"{path} accepts only one {line.arguments[-1]}: {' and '.join(rest)}."
        return ConfigError(problem, fix=f"Pass one at a time. {_example(name)}")
    line.move(extra, free)
    problem = f"{path}: too many arguments: {', '.join(extra)}."
    if name == "score" and Path(line.plain[0]).is_file():
        remark = " (scores translations with a reference; nmt score needs a model)"
        return proposal(problem, "evaluate", [*line.plain, *extra], remark=remark)
    return proposal(problem, name, line.words())


def _is_file(word: str) -> bool:
    return os.path.lexists(word) or _FILE.fullmatch(word) is not None


def proposal(
    problem: str,
    name: str,
    words: Sequence[str],
    translation: Translation | None = None,
    *,
    before: str = "",
    remark: str = "",
) -> ConfigError:
    """Return the error whose fix is a command, behind ``Type:`` if nmt accepts the command.

    Args:
        problem: What is wrong with the words that the user has typed.
        name: The command, for example ``config check``.
        words: The words after it. Those in capitals stand for values to fill in.
        translation: Settings of the user, which are shown as YAML if the command is not accepted.
        before: What the shell runs first.
        remark: Explanation behind the command.
    """
    translation = translation or Translation()
    overrides: list[str] = []
    if name != "init":
        for key, text in translation.settings.items():
            overrides += ["--set", f"{key}={text}"]
    command = f"{before}{join_words(['nmt', *name.split(), *words, *overrides])}{remark}"
    fix = f"Type: {command}"
    blanks = list(filter(is_blank, words))
    num_settings = len(translation.settings)
    is_block = num_settings > _MAX_SETTINGS.get(name, num_settings)
    if blanks:
        fix = f"Fill in {', '.join(blanks)}: {command}"
    try:
        check(name, [*words, *overrides])
        is_block &= name == "init"
    except NmtError as refusal:
        problem += f"\n  {refusal.problem}"
        fix = refusal.fix
        # Unless the command is not right, or the fix has the values of a configuration.
        if not isinstance(refusal.__cause__, _USAGE_ERROR) and not re.match(
            "Type|Fill in|.*\n", fix
        ):
            then = {DeviceError: "Where the device is", ConfigError: "Change this line"}
            wrong = refusal.problem.split()[0].strip("'")  # Mostly a file.
            if not (isinstance(refusal, DeviceError) or "not exist" in refusal.problem):
                command = re.sub(rf"(?<= ){re.escape(wrong)}(?= |$)", "OTHER", command)
            fix = f"{fix.rstrip('.')}. {then.get(type(refusal), 'Then')}: {command}"
    is_block |= num_settings > 0 and "CONFIG" in blanks
    if is_block:
        if name != "init":
            problem = f"nmt {name}: these are options of another toolkit."
            flags = words if blanks else ["CONFIG", *words[1:]]
            fix = "Write a configuration (nmt init SOURCE TARGET). "
            fix += f"Then: nmt {name} {join_words(flags)}"
        fix += f"\n  {translation.as_yaml()}"
    return ConfigError(f"{problem}{translation.rest()}", fix=fix)


def check(name: str, words: Sequence[str]) -> None:
    """Read a command line as nmt does, with the files and the device that it names.

    Raises:
        NmtError: nmt would refuse the command line.
    """
    entry = COMMANDS[name]
    command = make_command(name, entry, load_attribute("nmt.cli.app:Command"))
    values = parsed(command, name, words)
    options = make_options(load_attribute(entry.options), values)
    if name == "evaluate" and not options.list_:
        options = load_attribute("nmt.commands.evaluation_set:sort_files")(options)
        load_attribute("nmt.commands.evaluation_set:check_options")(options)
    device = getattr(options, "device", None) or "auto"
    for option, value in vars(options).items():
        for path in value if isinstance(value, tuple) else (value,):
            if not isinstance(path, Path) or is_blank(str(path)) or name == "import":
                continue
            if option == "config":
                overrides = getattr(options, "overrides", options.set_)
                load_config = load_attribute("nmt.commands.config:load_config")
                device = load_config(path, overrides, explain=lambda _: None).training.device
            elif option in _MODELS and name != "inspect":
                load_attribute("nmt.checkpoint.model_folder:load_folder_config")(path)
            else:
                _check_path(path, is_output=option in _OUTPUTS)
    if device != "auto":
        load_attribute("nmt.device.device:choose_device")(device)


def is_blank(word: str) -> bool:
    """Return whether a word stands for a value to fill in."""
    return _PLACEHOLDER.fullmatch(word) is not None and not Path(word).exists()


def _check_path(path: Path, *, is_output: bool) -> None:
    if is_output and path.is_file():
        raise ConfigError(f"{path} exists and would be replaced.", fix="Choose another name.")
    if not is_output and not path.exists() and ":" not in path.name:
        raise ConfigError(f"{path} does not exist.", fix="Correct the path.")


def parsed(command: Any, name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the values of a command's parameters; raises `ConfigError` for Typer's errors."""
    context = command.context_class(command, info_name=name)
    try:
        with context:
            command.read(context, words)
    except _USAGE_ERROR as error:
        raise usage_error(error, f"nmt {name}") from error
    return dict(context.params)


def usage_error(error: Any, path: str) -> ConfigError:
    """Return Typer's error as ours."""
    problem = error.format_message().replace("Value error, ", "").rstrip(".")
    flag = getattr(error, "option_name", "")
    for meaning in aliases().get(normal(flag.lstrip("-")), ()):
        if "." in meaning and not meaning.startswith("-"):  # keys, which are several or not exact
            problem += f" (in the configuration: {meaning})"
    return ConfigError(f"{problem}.", fix=f"Run `{path} --help` for arguments and options.")


def _example(name: str) -> str:
    example = COMMANDS[name].examples.split("\n")[0]
    return f"For example: {example} (`nmt {name} --help` has all options)"


class Line:
    """A command line, in which nmt's words replace those of other tools.

    Args:
        command: The Typer command.
        name: Its name without ``nmt``.
        args: The words after the name.
        is_named: Whether the first argument, such as CONFIG, is among them.
    """

    def __init__(
        self, command: Any, name: str, args: Sequence[str], *, is_named: bool = True
    ) -> None:
        self.renamed: list[str] = []  # Flags of other tools, with ours.
        self.translation = Translation()  # What is set in the configuration.
        self.plain: list[str] = []  # Words without a flag.
        self.flags: list[str] = []  # Flags and their values.
        self.places: dict[str, str] = {}  # Values of flags that are arguments here.
        self.arguments: list[str] = []
        self._name = name
        self._trains = name in ("train", "prepare")
        self._codes: list[str] = []  # Language codes in place of files.
        self._command = command
        self._is_named = is_named
        self._options: dict[str, Any] = {}  # Flag -> Typer's parameter.
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                self.arguments.append(parameter_name(parameter))
            else:
                flags = (*parameter.opts, *parameter.secondary_opts)
                self._options.update(dict.fromkeys(flags, parameter))
        if self.arguments == ["PLACE"]:  # two files are the usual places
            self.arguments = list(_SIDES)
        rest = deque(args)
        while rest:
            self._read(rest.popleft(), rest)
        is_full = self.renamed and len([*self.plain, *self.places]) > len(self.arguments)
        for word in list(self.plain):
            place = Path(word)
            is_read = place.is_file() or (place / "config.yaml").exists()
            # A folder of another tool's data, or a value of a flag.
            is_data = place.is_dir() or (self.places and not place.suffix)
            is_unread = is_full or (self.renamed and is_data)
            takes_config = "CONFIG" in self.arguments or ("MODEL" in self.arguments and not is_full)
            is_config = word.endswith(YAML) and not takes_config
            if is_config or (is_unread and not is_read):
                self.plain.remove(word)
                self.translation.left.append(word)
        if self._codes and "--languages" in self._options:
            self.flags += ["--languages", "-".join([*self._codes, "TARGET"][:2])]

    def _read(self, word: str, rest: deque[str]) -> None:
        """Add a word, and its values if it is a flag."""
        flag, equals, value = word.partition("=")
        if word == "--":  # no flag comes after it
            self.plain += rest
            rest.clear()
        elif equals and "--set" in self._options and find_key(flag.split(".")):  # as in Hydra
            self._replace(flag, f"--set {flag}", [value])
        elif not _FLAG.fullmatch(word):
            self.plain.append(word)
        elif _GLUED.fullmatch(word):  # -b6
            rest.appendleft(word[2:])
            self._read(word[:2], rest)
        elif flag in self._options and equals and flag.startswith("--"):
            self.flags.append(word)
        else:
            if equals:
                rest.appendleft(value)
            ours = flag
            if flag not in self._options:
                ours = self._ours(normal(flag.lstrip("-")))
            values = self._values(flag, ours, rest)
            if ours in _SIDES and values[1:]:  # both texts
                self.places.update(zip(_SIDES, values, strict=False))
            elif ours in (*_PAIR, "--hypothesis") and values[1:]:
                names = _PAIR if ours in _PAIR else [ours] * len(values)
                for name, value in zip(names, values, strict=False):
                    self._replace(flag, name, [value])
            else:
                self._replace(flag, ours, values)

    def _num_values(self, flag: str) -> int:
        """Return how many values nmt's flag has; a large number for FILE..."""
        option = self._options[flag]
        if option.is_flag or option.count:
            return 0
        metavar = option.metavar or ""
        return _MANY if "," in metavar or metavar.endswith("...") else 1

    def _ours(self, word: str) -> str:
        """Return nmt's flag, argument or ``--set KEY`` for a flag of another tool, or nothing."""
        listed = [f"--{word.replace('_', '-')}", *aliases().get(word, ())]
        key = ""
        if len(word) > 1:  # single letters are symbols in formulas
            key = known_key((word,))
            if "data.valid." in key and key not in listed:  # nearest, but not meant
                key = ""
            listed += [f"--{key.rpartition('.')[2].replace('_', '-')}", f"--set {key}"]
        for ours in listed:
            target = re.split("[ :]", ours)[0]
            fits = target in self._options or target in self.arguments or not target
            if target == "--set":
                is_set = "CONFIG" in self.arguments or ours.startswith("--set decoding.")
                fits = fits and is_set and key != ""
            elif target == "--hypothesis" and word in ("i", "input"):
                fits = fits and not self._is_named  # else of the model
            elif target == "--to" and word in ("t", "target", "f", "format"):
                fits = fits and "--from" not in self._options  # export
            elif target in (*_SIDES, "PREFIX") and self._trains:
                fits = not self._is_named
            if fits:
                return ours
        near = get_close_matches(listed[0], self._options, n=1, cutoff=0.85)
        return near[0] if near else f": {key} in the configuration" * bool(key)

    def _values(self, foreign: str, ours: str, rest: deque[str]) -> list[str]:
        """Take the values of a flag."""
        flag, _, fixed = ours.partition(_REMARK)[0].partition(" ")
        num_values = _MANY
        num_files = 1
        is_switch = bool(fixed) and "{" not in ours
        if flag == "--set" and fixed:
            key = find_key(fixed.split("."))
            is_switch = "=" in fixed or (key is not None and key.allowed == "true or false")
        elif flag == foreign and not (self._trains and self._num_values(flag)):
            num_values = self._num_values(flag)
        elif flag in self._options and not fixed:
            num_files = self._num_values(flag)
            is_switch = num_files == 0
            is_list = self._options[flag].multiple or flag in (foreign, "--target")
            if not (is_switch or is_list):
                num_values = num_files
        values: list[str] = []
        while rest and len(values) < num_values and not _FLAG.fullmatch(rest[0]):
            word = rest[0]
            # A file may be an argument of the command.
            is_file = word.endswith((".yaml", ".yml")) if self._trains else Path(word).exists()
            is_next = is_file and (len(values) >= num_files or not ours)
            if flag == "MODEL" and Path(word, "config.yaml").exists():  # of an ensemble
                is_next = False
            # The references precede the translations of sacreBLEU; Marian scores two texts.
            if (flag == "--hypothesis" and self.plain) or flag == "--target":
                is_next = False
            if is_next or (is_switch and (values or _is_file(word))):
                break
            values.append(rest.popleft())
        if flag == "MODEL" and len(values) == 1:
            return values[0].split(os.pathsep)  # an ensemble
        return values

    def _replace(self, foreign: str, ours: str, values: list[str]) -> None:
        """Add a flag and its values in nmt's words."""
        target, _, remark = ours.partition(_REMARK)
        flag, _, fixed = target.partition(" ")
        value = ",".join(values)
        typed = " ".join([foreign, *values])
        words: list[str] = []
        may_be_code = _LANGUAGE_FLAG.match(foreign) and LANGUAGE.fullmatch(value)
        if flag in _OF_TEXTS and may_be_code:
            ours = _OF_TEXTS[flag]
            if flag in _SIDES:
                self._codes.append(value)
            else:
                words = [ours, value]
        elif flag == "--set" and fixed:
            text = {0: "true", 1: value}.get(len(values), f"[{', '.join(values)}]")
            if not self.translation.add(typed, fixed, text):
                return
        elif target.isupper():
            if target in self.places:
                self.plain += values[:1]
            self.places.setdefault(target, [*values, target][0])
            for other in values[1:]:  # an ensemble
                words += ["--with", other]
        elif fixed:
            fixed = {"-1": "cpu"}.get(value, fixed)  # --gpu -1
            if fixed.endswith("cuda") and value.isdecimal() and int(value):
                fixed += f":{value}"
            if not remark or flag not in self.flags:
                words = [flag, fixed]
        elif flag in self._options:
            words = [flag, *values]
            if not (self._options[flag].metavar or "").endswith("..."):
                words = [flag, value][: 1 + self._num_values(flag)]
            meanings = [x for x in aliases().get(normal(value), ()) if x.startswith(f"{flag} ")]
            if meanings:
                ours = meanings[0]
                words = ours.split()
        if not ours or not self._accepts(words):
            self.translation.left.append(typed)
            return
        self.flags += words
        if ours != foreign:
            self.renamed.append(f"{typed} (here: {ours.removeprefix(_REMARK)})")

    def _accepts(self, words: Sequence[str]) -> bool:
        """Return whether nmt accepts a flag with its values."""
        try:
            parsed(self._command, self._name, words)
        except ConfigError as error:
            # Typer's error without a message means that an argument is missing.
            return error.__cause__ is not None and not getattr(error.__cause__, "message", "")
        return True

    def move(self, extra: Sequence[str], flags: Sequence[str]) -> None:
        """Put ``flags`` before the last words without a flag."""
        del self.plain[-len(extra) :]
        for flag, value in zip(flags, extra, strict=False):
            self.flags += [flag, value]

    def names_first(self) -> bool:
        """Return whether the first argument, such as CONFIG or MODEL, is among the words."""
        if self._name == "evaluate" and all(map(os.path.isfile, self.plain)):
            return bool(self.places)
        return bool(self.plain or self.places)

    def words(self) -> list[str]:
        """Return the words of the command, with placeholders for arguments that are missing."""
        plain = list(self.plain)
        # The references of sacreBLEU.
        if self._name == "evaluate" and "--hypothesis" in self.flags and not self._is_named:
            plain = [f"--reference={file}" for file in plain]
        for name in sorted(self.places, key=self.arguments.index):
            place = self.arguments.index(name)
            plain += self.arguments[len(plain) : place]
            plain.insert(place, self.places[name])
        words = [*plain, *self.flags]
        for parameter in self.missing(len(plain)):
            words.append(parameter_name(parameter))
            if parameter.param_type_name != "argument":
                words.append(parameter.metavar)
        return words

    def missing(self, num_plain: int) -> list[Any]:
        """Return the required parameters that are not among some arguments and the flags."""
        missing: list[Any] = []
        for parameter in self._command.params:
            is_given = bool({*parameter.opts} & {*self.flags})
            if parameter.param_type_name == "argument":
                num_plain -= 1
                is_given = num_plain >= 0
            if parameter.required and not is_given:
                missing.append(parameter)
        return missing

    def texts(self) -> list[str]:
        """Return two texts that are passed in place of a configuration, if there are any."""
        places = self.places
        if not self._trains:
            return []
        files = list(filter(os.path.isfile, self.plain))
        if files[1:] and not files[0].endswith((".yaml", ".yml")):
            return files[:2]
        if "PREFIX" in places:
            settings = self.translation.settings
            languages = filter(None, map(settings.get, LANGUAGE_KEYS))
            codes = [*self._codes, *languages, *_SIDES]
            return [f"{places['PREFIX']}.{code}" for code in codes[:2]]
        if places.keys().isdisjoint(_SIDES):
            return []
        return [places.get(side, side) for side in _SIDES]
