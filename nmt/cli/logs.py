"""Log messages of a command on standard error, beside progress bars.

Results go to standard output at every level. What the levels show: ``-q`` warnings only; by
default notes, too; ``-v`` also what is for debugging nmt; ``-vv`` whatever any library logs.
"""

from __future__ import annotations

import logging
import sys

from typing_extensions import override

_NMT = logging.getLogger("nmt")
_ROOT = logging.getLogger()


class _Formatter(logging.Formatter):
    """``nmt: message``, and ``nmt: warning: message`` at any other level than INFO.

    >>> _Formatter().format(logging.LogRecord("nmt.x", 30, "", 0, "%d lines", (3,), None))
    'nmt: warning: 3 lines'
    """

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        source = "nmt" if record.name.split(".")[0] == "nmt" else record.name
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{source}: {level}{record.message}"


class _Handler(logging.Handler):
    """Writes lines to standard error, above progress bars if there are any."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if tqdm := sys.modules.get("tqdm"):  # without it there is no bar to tear
                tqdm.tqdm.write(line, file=sys.stderr)
            else:
                print(line, file=sys.stderr)  # noqa: T201
        except Exception:
            self.handleError(record)


_HANDLER = _Handler()


def configure_logging(*, quiet: bool = False, verbosity: int = 0) -> None:
    """Write log messages to standard error.

    Args:
        quiet: Warnings only.
        verbosity: 0 for notes and warnings; 1 for all messages of nmt; 2 for those of all
            libraries.
    """
    remove_logging()
    _HANDLER.setFormatter(_Formatter())
    if verbosity > 1:
        _ROOT.addHandler(_HANDLER)
        _ROOT.setLevel(logging.DEBUG)
    else:  # as the root has no handler, libraries report as they do without us
        _NMT.addHandler(_HANDLER)
    _NMT.setLevel(logging.DEBUG if verbosity else logging.WARNING if quiet else logging.INFO)


def remove_logging() -> None:
    """Undo `configure_logging`, so that commands can be called in one process after another."""
    if _HANDLER in _ROOT.handlers:
        _ROOT.removeHandler(_HANDLER)
        _ROOT.setLevel(logging.WARNING)
    _NMT.removeHandler(_HANDLER)
    _NMT.setLevel(logging.NOTSET)
