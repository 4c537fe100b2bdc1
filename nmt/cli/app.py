"""The root command ``nmt``: lists the commands, formats help, turns errors into exit codes.

Results go to standard output; messages and progress bars go to standard error. Log levels: ``-q``
shows warnings, the default adds notes, ``-v`` adds debug messages of nmt, and ``-vv`` adds log
messages of all libraries.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import re
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from nmt.cli.builder import (
    COMMANDS,
    FOREIGN_COMMANDS,
    GROUPS,
    PARENTS,
    make_command,
    parameter_name,
)
from nmt.cli.messages import configure_logging, remove_logging, report, use_spellings
from nmt.config.flag import OF_THE_MODEL, option_name
from nmt.device import is_first
from nmt.errors import ConfigError, NmtError, nearest_word
from nmt.files.terminal import columns_of, fitted
from nmt.registry import load_attribute
from nmt.version import __version__

TAGLINE = "Train, evaluate and serve machine translation models."
_TEXT = Path(__file__).with_name("epilog.txt").read_text(encoding="utf-8")
EPILOG = "\b\n" + _TEXT.replace("\n\n", "\n\n\b\n")  # \b: keep the lines of a paragraph
BROKEN_PIPE = 141  # Exit code in shells of a program stopped by SIGPIPE.
_GENERAL = ("set_", "json", "quiet", "verbose", "help")  # The last options of every help.
_STDERR = 2  # The descriptor of standard error.
# How Typer writes a default that is a description, and the range of a number at the end.
_DESCRIBED_DEFAULT = re.compile(r"\[default: \(([^()]*)\)")
_RANGE = re.compile(r"(  \[|; )[-\d.<=]*x[<>]=?[-\d.]+\]$")

# Base class of the errors that Typer raises; Typer exports only this subclass.
_USAGE_ERROR: Any = typer.BadParameter.__base__


class _Stderr(io.FileIO):
    """Standard error that ignores failed writes."""

    @override
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)  # None if a non-blocking stream is full
        except OSError:
            return len(data)


class _Commands(TyperGroup):
    """The root command or a group of commands; maps failures to exit codes.

    A command is built when the user types its name.
    """

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        prefix = _prefix(ctx)
        names: list[str] = []
        if not prefix:  # the commands of the root are sorted by their headings
            names += chain.from_iterable(GROUPS.values())
        for command in COMMANDS:
            if command.startswith(prefix):
                names.append(command.removeprefix(prefix).split()[0])
        return list(dict.fromkeys(names))

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = _prefix(ctx) + cmd_name
        if name in PARENTS:
            group = typer.Typer(add_completion=False, rich_markup_mode=None)
            group.callback(cls=_Commands, help=PARENTS[name], no_args_is_help=True)(lambda: None)
            return typer.main.get_command(group)
        if name not in COMMANDS:
            return None
        return make_command(name, COMMANDS[name], Command)

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        # Flag and help of each option; None for an option that is hidden.
        records = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section("General"):
            formatter.write_dl(list(filter(None, records)))

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}  # heading -> names and help of its commands
        names = self.list_commands(ctx)
        width = max(map(len, names))
        for name in names:
            command = _prefix(ctx) + name
            text = PARENTS.get(command) or COMMANDS[command].text
            summary = text.splitlines()[0]
            heading = "Commands"
            for title, group in GROUPS.items():
                if command in group:
                    heading = title
            rows.setdefault(heading, []).append((name.ljust(width), summary))
        for heading, commands in rows.items():
            with formatter.section(heading):
                formatter.write_dl(commands)

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except _USAGE_ERROR as error:
            if not args:  # the error shows the help
                raise
            fix = f"Put options after the command: {ctx.command_path} COMMAND [OPTIONS]"
            report(ConfigError(error.format_message(), fix=fix))
            raise typer.Exit(ConfigError.exit_code) from None

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        names = self.list_commands(ctx)
        if name in names or ctx.resilient_parsing:  # shell completion
            return super().resolve_command(ctx, args)
        path = ctx.command_path
        prefix = _prefix(ctx)
        similar = nearest_word(name, names)  # may be empty
        rest = args[1:]
        # The ending of a file, which the command reads; a word; or two, as in ``joeynmt train``.
        for size, typed in enumerate((Path(name).suffix, name, " ".join(args[:2]))):
            foreign = prefix + typed.replace("_", "-")
            if foreign in FOREIGN_COMMANDS:
                similar = FOREIGN_COMMANDS[foreign]
                rest = args[size:]
        problem = f"{path}: unknown command {name}."
        if not similar:
            raise ConfigError(problem, fix=f"Run `{path} --help` for a list of commands.")
        words = [*prefix.split(), *similar.split()]
        if "CONFIG" not in words:  # else the command is complete
            words += rest
        for size in (2, 1):
            command = " ".join(words[:size])
            if command in COMMANDS:
                # Its own parser answers about flags; also prints its help.
                parser = make_command(command, COMMANDS[command], Command)
                parser.make_context(f"{path.split()[0]} {command}", words[size:], obj=problem)
                proposal = load_attribute("nmt.cli.mistakes:proposal")
                raise proposal(problem, command, words[size:])
        raise ConfigError(problem, fix=f"Type: {path} {similar}")

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # closed by the parent process
                    sys.stdout.flush()  # raises here if the pipe is closed
        except NmtError as error:
            report(error)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # The interpreter flushes standard output again at exit, which must not fail.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            if is_first():
                typer.echo("nmt: stopped by Ctrl-C", err=True)
            raise typer.Exit(130) from None


def _prefix(ctx: Any) -> str:
    """Return the prefix of all commands in this group, such as ``config ``; empty for the root."""
    return "" if ctx.parent is None else f"{ctx.info_name} "


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


class Command(TyperCommand):
    """A command that recognizes flags of other tools and lists options in groups."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        use_spellings({option_name(option.name): parameter_name(option) for option in self.params})
        try:
            return self.read(ctx, args)
        except _USAGE_ERROR as error:
            explain = load_attribute("nmt.cli.mistakes:explain")  # slow import: reads all keys
            raise explain(self, ctx.command_path, args, error, ctx.obj) from None

    def read(self, ctx: Any, args: Sequence[str]) -> list[str]:
        """Parse the words after the command; raises Typer's errors."""
        return super().parse_args(ctx, self._spread(args))

    def _spread(self, words: Sequence[str]) -> list[str]:
        """Repeat options with several values, such as FILE..., before each of their values."""
        repeated_options: set[str] = set()
        for parameter in self.params:
            if parameter.metavar is not None and parameter.metavar.endswith("..."):
                repeated_options.update(parameter.opts)
        spread_words: list[str] = []
        option = ""  # the option whose values follow; empty if it has no several values
        for word in words:
            if word.startswith("-"):
                option = word if word in repeated_options else ""
            elif option and spread_words[-1] != option:  # not its first value
                spread_words.append(option)
            spread_words.append(word)
        return spread_words

    @override
    def get_help(self, ctx: Any) -> str:
        return fitted(super().get_help(ctx), columns_of(sys.stdout))  # also the examples

    @override
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for argument in filter(_is_argument, self.params):
            name = parameter_name(argument)
            if argument.nargs < 0:  # any number of values
                name += "..."
            pieces.append(name if argument.required else f"[{name}]")
        return pieces

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        # Heading -> rows of flags and help. Arguments come first, then options without a heading.
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            # None for an argument without help.
            names, text = parameter.get_help_record(ctx) or ("", "")
            text = text.replace(f"({OF_THE_MODEL})", _model_default(parameter.name))
            text = _without_range(text)
            if _is_argument(parameter):
                title = "Arguments"
                names = parameter_name(parameter)
            elif parameter.name in _GENERAL:
                title = "General"
            else:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
            sections.setdefault(title, []).append((names, text))
        sections["General"] = sections.pop("General")  # moves it to the end
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _without_range(text: str) -> str:
    """Remove the parentheses around a default in words, and the range of a number.

    >>> _without_range("Size.  [default: (the vocabulary); 0<=x<1]")
    'Size.  [default: the vocabulary]'
    >>> _without_range("Rate.  [0<=x<=1]")
    'Rate.'
    """
    text = _DESCRIBED_DEFAULT.sub(r"[default: \1", text)
    text = _RANGE.sub(r"\1]", text)
    # What is left of the brackets may be empty, or end in a separator.
    return text.removesuffix("  []").replace("; ]", "]")


def _model_default(name: str) -> str:
    """Describe the default of a flag that overrides the model's decoding section."""
    decoding = load_attribute("nmt.config.model:DecodingConfig").model_fields
    if name not in decoding:
        return OF_THE_MODEL
    default = decoding[name].default
    if isinstance(default, bool):
        default = "yes" if default else "no"
    return f"{OF_THE_MODEL}, usually {default}"


app = typer.Typer(
    name="nmt",
    cls=_Commands,
    help=TAGLINE,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nmt {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Set up logging."""
    configure_logging()  # a command may change the level
    ctx.call_on_close(remove_logging)


def _open_stderr() -> TextIO:
    """Return a stream to standard error whose writes never fail, even if it is closed."""
    if sys.stderr is None:  # closed by the parent process
        # Libraries write to this descriptor, so no other file may use it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
    raw = _Stderr(_STDERR, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True)


def main() -> None:
    """Run the command line with UTF-8 streams, and exit without a garbage collection."""
    # Skip the garbage collection at exit, which takes half a second of CPU for torch's objects, and
    # several seconds on a busy machine.
    atexit.register(gc.freeze)
    # Keep a stream that a test has put there, and the console of Windows: its own class writes
    # Unicode.
    is_console = os.name == "nt" and sys.stderr is not None and sys.stderr.isatty()
    if sys.stderr is sys.__stderr__ and not is_console:
        sys.stderr = _open_stderr()
    # Use UTF-8 and LF on every machine, even in the C locale.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    app(prog_name="nmt")
