"""Writes log records and errors to standard error, with the flags of the running command.

Messages in other modules contain the field name of an option in backticks, because the option may
also be an argument of a Python function. Here `beam_size` becomes --beam-size.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Mapping

import typer
from typing_extensions import override

from nmt.errors import NmtError
from nmt.files.terminal import columns_of, fitted

_FIELD = re.compile(r"`([a-z][a-z0-9_]*)`")
# Characters that change a terminal or the order of text, which a stranger's file may contain.
_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NMT = logging.getLogger("nmt")
_ROOT = logging.getLogger()


def spelled(text: str, spellings: Mapping[str, str]) -> str:
    """Replace field names in backticks with their flags.

    >>> spelled("`n_best` is 6; see `nmt train`, `else`", {"n_best": "--n-best"})
    '--n-best is 6; see `nmt train`, `else`'
    """
    # match[1] is the field; match[0] has its backticks.
    return _FIELD.sub(lambda match: spellings.get(match[1], match[0]), text)


def _shown(text: str) -> str:
    """Return a message as the terminal gets it."""
    text = spelled(text, _HANDLER.spellings)
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class _Handler(logging.Handler):
    """Writes to standard error, above progress bars: ``nmt: note``, ``nmt: warning: note``."""

    spellings: Mapping[str, str] = {}  # Field -> flag of the running command.

    @override
    def format(self, record: logging.LogRecord) -> str:
        text = _shown(super().format(record))
        if record.levelno != logging.INFO:
            text = f"{record.levelname.lower()}: {text}"
        if record.name.split(".")[0] == "nmt":
            return f"nmt: {text}"
        return f"{record.name}: {text}"

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = fitted(self.format(record), columns_of(sys.stderr))
            tqdm = sys.modules.get("tqdm")
            if tqdm:  # a progress bar may be visible
                tqdm.tqdm.write(line, file=sys.stderr)
            else:
                print(line, file=sys.stderr)  # noqa: T201
        except Exception:
            self.handleError(record)


_HANDLER = _Handler()


def report(error: NmtError) -> None:
    """Print an error and, with ``--verbose``, the traceback."""
    if _NMT.isEnabledFor(logging.DEBUG):
        traceback.print_exc()
    text = f"error: {_shown(str(error))}"
    typer.echo(fitted(text, columns_of(sys.stderr)), err=True)


def use_spellings(spellings: Mapping[str, str]) -> None:
    """Set the flags that replace field names in messages."""
    _HANDLER.spellings = spellings


def configure_logging(*, quiet: bool = False, verbosity: int = 0) -> None:
    """Write log messages to standard error.

    Args:
        quiet: Show only warnings and errors.
        verbosity: 0 shows notes and warnings, 1 all messages of nmt, 2 messages of all libraries.
    """
    _unhook()
    if verbosity > 1:
        _ROOT.addHandler(_HANDLER)
        _ROOT.setLevel(logging.DEBUG)
    else:  # without a handler at the root, libraries log as usual
        _NMT.addHandler(_HANDLER)
    _NMT.setLevel(logging.INFO)
    if quiet:
        _NMT.setLevel(logging.WARNING)
    if verbosity:
        _NMT.setLevel(logging.DEBUG)


def remove_logging() -> None:
    """Undo `configure_logging`, so that one process can run several commands."""
    use_spellings({})
    _unhook()


def _unhook() -> None:
    """Remove the handler, and restore the default levels."""
    if _HANDLER in _ROOT.handlers:
        _ROOT.removeHandler(_HANDLER)
        _ROOT.setLevel(logging.WARNING)
    _NMT.removeHandler(_HANDLER)
    _NMT.setLevel(logging.NOTSET)
