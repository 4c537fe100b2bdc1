"""Progress of long work on standard error: a bar on a terminal, elsewhere a line a minute.

Nothing in quiet mode.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from os import get_terminal_size
from pathlib import Path
from threading import Thread
from typing import Any

from tqdm import tqdm

from nmt.files.lines import count_lines, is_standard
from nmt.files.terminal import USUAL_COLUMNS, columns_of

logger = logging.getLogger(__name__)

_LOG_SECONDS = 60  # minimum time between two lines of the log
_LEAST_SECONDS = 0.1  # minimum time between two drawings
_FOLLOW_SECONDS = 0.5  # time between two updates of `follow`
_ROWS = 24  # of a terminal that does not know its size
_MOST_CHARACTERS = 30  # of a description in front of a bar
_LOG_FORMATS = {  # by whether the end is known
    True: "{desc}: {n_fmt} of {total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left{postfix}",
    False: "{desc}: {n_fmt}{unit}, {rate_noinv_fmt}, {elapsed}{postfix}",
}


class _LogStream:
    """Logs the lines that a bar draws."""

    def write(self, text: str) -> None:
        if line := " ".join(text.split()):
            logger.info(line)

    def flush(self) -> None: ...


def progress_bar(
    description: str,
    *,
    unit: str | None = None,
    shown: bool = True,
    bar_format: str | None = None,
    **options: Any,
) -> tqdm[Any]:
    """Return a progress bar, to be used as a context. ``bar.update(n)`` advances it.

    If standard error is not a terminal, the bar logs a line a minute: count, rate and time left. It
    is disabled if `nmt` logs warnings only. The command line prints its messages with
    ``tqdm.write``, so that they do not break the bar.

    Args:
        description: Text in front of the bar.
        unit: Unit of the counter. Without a unit, only the elapsed time is shown.
        shown: False disables the bar, for example while a user types.
        bar_format: Format of the bar on a terminal; see `tqdm.tqdm`.
        options: Passed to `tqdm.tqdm`, such as ``total``, ``initial`` and ``leave``.
    """
    if columns_of(sys.stderr) is None:
        bar_format = _LOG_FORMATS[options.get("total") is not None]
        options |= {"file": _LogStream(), "mininterval": _LOG_SECONDS, "delay": _LOG_SECONDS}
        options["position"] = 0  # lines have no place on a screen
    else:
        options |= {"file": sys.stderr, "mininterval": _LEAST_SECONDS, "dynamic_ncols": True}
        with suppress(OSError):  # a replaced stderr may have no file descriptor
            if get_terminal_size(sys.stderr.fileno()).columns == 0:  # it does not know its width
                options |= {"ncols": USUAL_COLUMNS, "nrows": _ROWS, "dynamic_ncols": False}
        if len(description) > _MOST_CHARACTERS:  # a path
            description = f"{description[:10]}…{description[11 - _MOST_CHARACTERS :]}"
    if not unit:
        bar_format = "{desc}: {elapsed}"
    bar: tqdm[Any] = tqdm(
        desc=description,
        unit=f" {unit}",
        bar_format=bar_format,
        disable=not (shown and _is_wanted()),
        miniters=0,
        **options,
    )
    if not unit:
        follow(bar, lambda: int(bar.n))
    return bar


def follow(bar: tqdm[Any], counter: Callable[[], int]) -> None:
    """Set a bar to the value of ``counter`` every half second, from a thread, until it closes."""

    def update_until_closed() -> None:
        while not bar.disable:  # closing a bar disables it
            time.sleep(_FOLLOW_SECONDS)
            with bar.get_lock():  # type: ignore[no-untyped-call]
                bar.update(counter() - bar.n)

    Thread(target=update_until_closed, daemon=True).start()


def _is_wanted() -> bool:
    """Whether `nmt` logs more than warnings."""
    return sys.stderr is not None and logger.isEnabledFor(logging.INFO)


def file_bar(description: str, path: Path | None, *, unit: str) -> tqdm[Any]:
    """Return a bar that counts the lines of a file or of standard input."""
    if path is None or is_standard(path):
        # A bar would disturb a user who types the input, or reads the output.
        has_reader = columns_of(sys.stdin) or columns_of(sys.stdout)
        return progress_bar(description, unit=unit, shown=not has_reader)
    total = None  # the end is not known
    # Counting the lines of a gigabyte takes about a second, so larger files are not counted.
    if _is_wanted() and path.is_file() and path.stat().st_size <= 1 << 30:
        total = count_lines(path)
    return progress_bar(description, unit=unit, total=total)
