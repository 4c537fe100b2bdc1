"""Every command, from commands.toml: builds it from its options, its function and its help.

Only commands.toml names modules of extras. Texts with flags are there, because texts in other
modules contain field names in place of flags.

The options are imported when the user types the command, the function when the command runs.
Therefore ``nmt --help`` and usage errors do not load torch, and a missing extra disables only
the commands of the extra.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from inspect import Parameter, Signature, get_annotations
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from nmt.cli.messages import configure_logging, spelled
from nmt.config.flag import Flag, file_name, meanings_of, option_name, without_none
from nmt.device import is_first
from nmt.files.terminal import columns_of, fitted
from nmt.installation import read_toml
from nmt.registry import load_attribute


@dataclass(frozen=True)
class Entry:
    """A command in commands.toml."""

    options: str  # ``module:class`` of its options.
    function: str  # ``module:function`` that takes the options and returns None or a `Result`.
    text: str  # Help: one sentence, a blank line, details.
    examples: str


_NAMES = read_toml(__file__, "table.toml")
# Words after ``nmt`` -> the command.
COMMANDS = {name: Entry(**values) for name, values in read_toml(__file__, "commands.toml").items()}
# Headings of ``nmt --help`` -> their commands.
GROUPS: Mapping[str, Sequence[str]] = _NAMES["groups"]
# Commands with subcommands -> their help.
PARENTS: Mapping[str, str] = _NAMES["parents"]
# Commands of other tools, with hyphens -> the command to type here.
FOREIGN_COMMANDS: Mapping[str, str] = _NAMES["foreign"]
# Commands -> the flags that users most likely meant with extra arguments.
BY_POSITION: Mapping[str, Sequence[str]] = _NAMES["by_position"]


@dataclass(frozen=True)
class Field:
    """A field of an options class that users can set on the command line."""

    name: str
    kind: Any  # Its type, without None.
    flag: Flag
    default: Any  # `MISSING` where a value is required.
    title: str | None  # Section of ``--help``.

    @property
    def spelling(self) -> str:
        """Name on the command line: ``--beam-size``, or ``MODEL``."""
        name = option_name(self.name)
        if self.flag.argument:
            return self.flag.metavar or name.upper()
        return f"--{name.replace('_', '-')}"


_METAVARS = {int: "N", float: "X", Path: "FILE", str: "TEXT"}


@dataclass(frozen=True, kw_only=True)
class _Verbosity:
    """Options that every command accepts.

    Args:
        quiet: Print only results, warnings and errors.
        verbose: Print debug messages and tracebacks; -vv also prints log messages of libraries.
    """

    quiet: Annotated[bool, Flag(short="q")] = False
    verbose: Annotated[int, Flag(short="v")] = 0


def fields_of(options_class: type) -> list[Field]:
    """Return the fields that users can set; fields of base classes come first."""
    hints = get_type_hints(options_class, include_extras=True)
    defaults = {field.name: field.default for field in fields(options_class)}
    settable_fields: dict[str, Field] = {}
    for owner in _bases_first(options_class):
        title = owner.__dict__.get("title")
        meanings = meanings_of(owner.__doc__)
        for name in get_annotations(owner):
            if name not in defaults:
                continue  # an annotation of something else than a field
            kind = hints[name]
            flag = Flag()
            if get_origin(kind) is Annotated:
                kind, *notes = get_args(kind)
                for note in notes:
                    if isinstance(note, Flag):
                        flag = note
                        break
            if flag.hidden:
                continue
            if not flag.help:
                flag = replace(flag, help=meanings.get(name, ""))
            settable_fields[name] = Field(name, without_none(kind), flag, defaults[name], title)
    return list(settable_fields.values())


def _bases_first(owner: type) -> Iterator[type]:
    """Yield all base classes of a class, then the class itself."""
    for base in owner.__bases__:
        yield from _bases_first(base)
    yield owner


def make_options(options_class: type, values: Mapping[str, Any]) -> Any:
    """Return the options of a command. For ``values``, see `run_command`."""
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            value = tuple(value)
        # None keeps the default of the field.
        if value is not None and name not in ("quiet", "verbose"):
            arguments[name] = value
    return options_class(**arguments)


def run_command(entry: Entry, options_class: type, values: dict[str, Any]) -> None:
    """Call the function of a command with its options, and print the result.

    Args:
        entry: The command in commands.toml.
        options_class: Class of its options.
        values: What Typer has parsed, by field; None where the user has set nothing.
    """
    configure_logging(quiet=values["quiet"], verbosity=values["verbose"])
    options = make_options(options_class, values)
    result = load_attribute(entry.function)(options)
    if result is None:
        return
    if is_first():  # under torchrun, only the first process prints
        if values.get("json"):
            text = dumps(result.as_dict(), ensure_ascii=False)
        elif getattr(result, "is_document", False):
            text = result.as_text()
        else:
            text = fitted(result.as_text(), columns_of(sys.stdout))
        if text:
            typer.echo(text)
    failure = getattr(result, "failure", None)
    if failure:
        raise failure


def make_command(name: str, entry: Entry, command_class: type) -> Any:
    """Build a Typer command.

    Args:
        name: Command without ``nmt``, for example ``config show``.
        entry: The command in commands.toml.
        command_class: Typer class of the command.

    Raises:
        ConfigError: The command belongs to an extra that is not installed.
    """
    options_class = load_attribute(entry.options)
    if "://" in os.environ.get("NMT_PORT", ""):
        # Not of the user: Kubernetes sets it to tcp://ADDRESS:PORT for a service named nmt.
        del os.environ["NMT_PORT"]
    settable_fields = fields_of(options_class) + fields_of(_Verbosity)
    spellings = {option_name(field.name): field.spelling for field in settable_fields}
    parameters = [_parameter(field, spellings) for field in settable_fields]

    def call(**values: Any) -> None:
        run_command(entry, options_class, values)

    # Typer makes an argument or option from each parameter of a function.
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    examples = "\n".join(f"  {line}" for line in entry.examples.strip().splitlines())
    heading = "Examples" if "\n" in examples else "Example"
    epilog = f"\b\n{heading}:\n{examples}"  # \b: keep the lines of a paragraph
    if hasattr(options_class, "notes"):
        epilog += f"\n\n\b\n{options_class.notes}"
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        name.rpartition(" ")[2],  # the last word
        help=entry.text,
        epilog=epilog,
        cls=command_class,
        context_settings={
            "help_option_names": ["-h", "--help"],
            # In containers, flags are set as variables: NMT_PORT for --port.
            "auto_envvar_prefix": "NMT" if name == "serve" else None,
        },
    )(call)
    return typer.main.get_command(app)


def parameter_name(parameter: Any) -> str:
    """Return the name of a parameter: the metavar of an argument, the long flag of an option."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return max(parameter.opts, key=len)


def _parameter(field: Field, spellings: Mapping[str, str]) -> Parameter:
    """Return the parameter of a function from which Typer makes the flag or argument of a field.

    ``spellings`` are the flags of all fields of the command, for the help.
    """
    flag = field.flag
    kind = field.kind  # the type for Typer; a parser returns the type of the field
    default = field.default
    is_required = default is MISSING
    shows_default = not is_required and default is not None
    is_repeated = get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis
    item_kind = get_args(kind)[0] if is_repeated else kind
    parser = flag.parser
    if parser is None and item_kind is Path:
        parser = file_name
    if is_repeated and flag.separator:  # one word contains all values
        parser = partial(_split, flag.separator, parser or item_kind)
        kind = str
        default = flag.separator.join(map(str, default)) if default else None
    elif is_repeated:  # Typer repeats an option if it is a list
        kind = list[item_kind]  # type: ignore[valid-type]
        shows_default = is_required or bool(default)
        if not is_required:
            default = list(default)
    settings: dict[str, Any] = {
        "help": spelled(flag.help, spellings),
        "metavar": flag.metavar or _metavar(field),
        "min": flag.min,
        "max": flag.max,
        "show_envvar": False,
        "rich_help_panel": field.title,
        "show_default": spelled(flag.shown, spellings) or shows_default,  # words, or yes or no
    }
    if field.name == "verbose":  # -vv is 2
        settings |= {"count": True, "show_default": False}
    if parser:
        settings["parser"] = _keep_message(parser)
    if is_required:
        default = ...  # what Typer calls a required value
    if flag.argument:
        option = typer.Argument(default, **settings)
    else:
        option = typer.Option(default, *_names(field), **settings)
    if default is None:
        kind = kind | None
    return Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=kind, default=option)


def _metavar(field: Field) -> str | None:
    """Return the word for a value (of a tuple, for an item) in the help: N, FILE, [chrf|bleu]."""
    kind = field.kind
    if field.flag.argument:
        return field.spelling
    if get_origin(kind) is Literal:
        return f"[{'|'.join(get_args(kind))}]"
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return _METAVARS.get(kind)


def _names(field: Field) -> list[str]:
    """Return the flags of an option: long, or a pair such as ``--x/--no-x``; and short."""
    name = field.spelling
    if field.kind is bool and field.default is not False:
        name += f"/--no-{name.removeprefix('--')}"
    if not field.flag.short:
        return [name]
    return [name, f"-{field.flag.short}"]


def _split(separator: str, parse: Callable[[str], Any], text: str) -> tuple[Any, ...]:
    """Parse the values between separators; blank values are left out."""
    words = filter(None, map(str.strip, text.split(separator)))
    try:
        return tuple(map(parse, words))
    except ValueError:
        raise ValueError(f"{text} is not a list of values separated by {separator!r}") from None


def _keep_message(parser: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that keeps the message of a ValueError, which Typer would discard."""

    def parse(text: Any) -> Any:
        try:
            return parser(text) if isinstance(text, str) else text  # a default is not a text
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse
