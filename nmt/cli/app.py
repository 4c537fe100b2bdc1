"""The root of the command line: lists the commands; turns errors into messages and exit codes."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typing_extensions import override

from nmt.cli import average, config, evaluate, export, prepare, score, train, translate
from nmt.cli.logs import configure_logging, remove_logging
from nmt.cli.options import command
from nmt.errors import NmtError
from nmt.version import __version__

EPILOG = """\b
Exit codes:
  0         done
  1         unexpected: a bug, or a broken promise found by --selfcheck
  2         usage or configuration
  3         bad input data
  4         bad model or checkpoint
  5         training diverged
  6         a quality gate (--fail-under) was not met
  75        another process of this training was lost; the same command resumes
  130, 143  stopped by SIGINT, SIGTERM; training saves first
  141       the reader of standard output went away
"""
BROKEN_PIPE = 141
"""What a shell reports for a program stopped by SIGPIPE."""
_STDERR = 2
"""The descriptor of standard error."""


class _Stderr(io.FileIO):
    """Standard error that drops failed writes instead of raising."""

    @override
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)  # nothing written: full, and not waited for
        except OSError:
            return len(data)


class _Commands(TyperGroup):
    """The root command; one place knows how failures end the process."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # closed by whoever started the process
                    sys.stdout.flush()  # here, so that a closed pipe is noticed in time to tell
        except NmtError as error:
            if logging.getLogger("nmt").isEnabledFor(logging.DEBUG):
                traceback.print_exc()
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # The interpreter flushes once more at exit, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    name="nmt",
    cls=_Commands,
    help="Train, run and measure translators. One configuration file, one run folder.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
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
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Train, run and measure translators. One configuration file, one run folder."""
    configure_logging()  # options of the command may change the level
    ctx.call_on_close(remove_logging)


for module in (prepare, train, average, export, translate, score, evaluate):
    name = module.__name__.rpartition(".")[2]
    command(app, module.EPILOG)(getattr(module, name))
app.add_typer(config.app, name="config")


def _open_stderr() -> TextIO:
    """Return a standard error that never fails: a lost message must not cost data or a status."""
    if sys.stderr is None:  # closed by whoever started the process
        # No file may get its descriptor, which libraries write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
    raw = _Stderr(_STDERR, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), line_buffering=True)


def main() -> None:
    """Run the command line."""
    if sys.stderr is sys.__stderr__:  # nobody has put another one there
        sys.stderr = _open_stderr()
    # A C locale would make them ASCII; text here is UTF-8, and lines end in LF, on every machine.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", newline="\n")
    app()
