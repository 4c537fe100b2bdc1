"""Builds a command from the names of an options class and a function.

The options are imported when the user types the command, the function when the command runs.
Therefore ``nmt --help`` and usage errors do not load torch, and a missing extra disables only
the commands of the extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from nmt.registry import load_attribute


@dataclass(frozen=True, slots=True)
class Entry:
    """A command in commands.toml."""

    options: str  # ``module:class`` of its options.
    function: str  # ``module:function`` that takes the options and returns None or a `Result`.
    text: str  # Help: one sentence, a blank line, details.
    examples: str


@dataclass(frozen=True, slots=True)
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


def fields_of(options: type) -> list[Field]:
    """Return the fields that users can set; fields of base classes come first."""
    hints = get_type_hints(options, include_extras=True)
    defaults = {field.name: field.default for field in fields(options)}
    found = {}
    for owner in _bases_first(options):
        title, meanings = owner.__dict__.get("title"), meanings_of(owner.__doc__)
        for name in filter(defaults.__contains__, get_annotations(owner)):
            is_marked = get_origin(hints[name]) is Annotated
            kind, *notes = get_args(hints[name]) if is_marked else [hints[name]]
            flag = next((note for note in notes if isinstance(note, Flag)), Flag())
            flag = replace(flag, help=flag.help or meanings.get(name, ""))
            if not flag.hidden:
                found[name] = Field(name, without_none(kind), flag, defaults[name], title)
    return list(found.values())


def _bases_first(owner: type) -> Iterator[type]:
    for base in owner.__bases__:
        yield from _bases_first(base)
    yield owner


def run_command(entry: Entry, options: type, values: dict[str, Any]) -> None:
    """Call the function of a command with its options, and print the result."""
    configure_logging(quiet=values.pop("quiet"), verbosity=values.pop("verbose"))
    values = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if value is not None  # keeps the default of the field
    }
    result = load_attribute(entry.function)(options(**values))
    if result is None:
        return
    if is_first():  # under torchrun, only the first process prints
        as_json = values.get("json")
        if text := dumps(result.as_dict(), ensure_ascii=False) if as_json else result.as_text():
            typer.echo(text)
    if failure := getattr(result, "failure", None):
        raise failure


def make_command(name: str, entry: Entry, kind: type) -> Any:
    """Build a Typer command.

    Args:
        name: Command without ``nmt``, for example ``config show``.
        entry: The command in commands.toml.
        kind: Typer class of the command.

    Raises:
        ConfigError: The command belongs to an extra that is not installed.
    """
    options = load_attribute(entry.options)
    known = fields_of(options) + fields_of(_Verbosity)
    spellings = {option_name(field.name): field.spelling for field in known}
    parameters = [_parameter(field, spellings) for field in known]

    def call(**values: Any) -> None:
        run_command(entry, options, values)

    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    examples = "\n".join(f"  {line}" for line in entry.examples.strip().splitlines())
    heading = "Examples" if "\n" in examples else "Example"
    notes = getattr(options, "notes", "")
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(
        name.rpartition(" ")[2],
        help=entry.text,
        epilog=f"\b\n{heading}:\n{examples}" + (f"\n\n\b\n{notes}" if notes else ""),
        cls=kind,
        context_settings={"help_option_names": ["-h", "--help"]},
    )(call)
    return typer.main.get_command(single)


def parameter_name(parameter: Any) -> str:
    """Return the name of a parameter: the metavar of an argument, the long flag of an option."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return max(parameter.opts, key=len)


def _parameter(field: Field, spellings: Mapping[str, str]) -> Parameter:
    flag, kind, default = field.flag, field.kind, field.default
    is_required, shown = default is MISSING, spelled(flag.shown, spellings)
    settings: dict[str, Any] = {
        "help": spelled(flag.help, spellings),
        "metavar": flag.metavar or (field.spelling if flag.argument else _metavar(kind)),
        "min": flag.min,
        "max": flag.max,
        "rich_help_panel": field.title,
        "show_default": shown or (not is_required and default is not None),
    }
    parser = flag.parser or (file_name if kind is Path else None)
    names = [] if flag.argument else _names(field)
    if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
        item = get_args(kind)[0]
        parser = flag.parser or (file_name if item is Path else None)
        if flag.separator:
            parser = partial(_split, flag.separator, parser or item)
            kind = str
            default = flag.separator.join(map(str, default)) if default else None
        else:
            kind, default = list[item], default if is_required else list(default)  # type: ignore[valid-type]
            settings["show_default"] = shown or bool(default)
    if field.name == "verbose":
        settings |= {"count": True, "show_default": False}
    if parser:
        settings["parser"] = _sentence(parser)
    if is_required:
        default = ...
    option = (typer.Argument if flag.argument else typer.Option)(default, *names, **settings)
    if default is None:
        kind = kind | None
    return Parameter(field.name, Parameter.KEYWORD_ONLY, annotation=kind, default=option)


def _metavar(kind: Any) -> str | None:
    """Return the word for a value (of a tuple, for an item) in the help: N, FILE, [chrf|bleu]."""
    if get_origin(kind) is Literal:
        return f"[{'|'.join(get_args(kind))}]"
    return _METAVARS.get(get_args(kind)[0] if get_origin(kind) is tuple else kind)


def _names(field: Field) -> list[str]:
    name, short = field.spelling, field.flag.short
    is_pair = field.kind is bool and field.default is not False
    return [f"{name}/--no-{name[2:]}" if is_pair else name, *([f"-{short}"] if short else [])]


def _split(separator: str, read: Callable[[str], Any], text: str) -> tuple[Any, ...]:
    try:
        return tuple(read(word.strip()) for word in text.split(separator) if word.strip())
    except ValueError:
        raise ValueError(f"{text} is not a list of values separated by {separator!r}") from None


def _sentence(parser: Callable[[str], Any]) -> Callable[[str], Any]:
    """Keep the message of a ValueError, which Typer would discard."""

    def read(text: Any) -> Any:
        try:
            return parser(text) if isinstance(text, str) else text
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read
