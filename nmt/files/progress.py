"""Progress bars on standard error, drawn only on a terminal and never in quiet mode."""

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

logger = logging.getLogger(__name__)

_LOG_SECONDS = 30  # time between two lines of a bar that is logged
_LEAST_SECONDS = 0.1  # minimum time between two drawings
_FOLLOW_SECONDS = 0.5  # time between two updates of `follow`


class _LogStream:
    """Logs the lines that a bar draws."""

    def write(self, text: str) -> None:
        if line := text.strip():
            logger.info(line)

    def flush(self) -> None: ...


def progress_bar(
    description: str,
    *,
    unit: str | None = None,
    shown: bool = True,
    logged: bool = False,
    **options: Any,
) -> tqdm[Any]:
    """Return a progress bar, to be used as a context. ``bar.update(n)`` advances it.

    The bar is disabled if standard error is not a terminal, or if `nmt` logs warnings only. The
    command line prints its messages with ``tqdm.write``, so that they do not break the bar.

    Args:
        description: Text in front of the bar.
        unit: Unit of the counter. Without a unit, the bar shows only the elapsed time.
        shown: False disables the bar, for example while a user types.
        logged: Log the progress where no bar is drawn. Needs ``unit`` and ``total``.
        options: Passed to `tqdm.tqdm`, such as ``total``, ``initial`` and ``leave``.
    """
    size: dict[str, Any] = {"dynamic_ncols": True}
    with suppress(OSError):  # a replaced stderr may have no file descriptor
        # Some consoles and containers report a width of 0.
        if _is_watched() and get_terminal_size(sys.stderr.fileno()).columns == 0:
            size = {"ncols": 80, "nrows": 24}
    bar_format = None  # the default format of tqdm
    if not unit:
        bar_format = "{desc}: {elapsed}"
    file: Any = sys.stderr
    seconds: float = _LEAST_SECONDS
    is_drawn = _is_watched()
    if logged and not is_drawn and logger.isEnabledFor(logging.INFO):
        file = _LogStream()
        seconds = _LOG_SECONDS
        bar_format = "{desc}: {n_fmt} of {total_fmt}{unit}, {remaining} left"
        options["delay"] = _LOG_SECONDS
        is_drawn = True
    bar: tqdm[Any] = tqdm(
        desc=description,
        unit=f" {unit}",
        bar_format=bar_format,
        disable=not (shown and is_drawn),
        file=file,
        mininterval=seconds,
        miniters=1,
        **size,
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
                bar.refresh()

    Thread(target=update_until_closed, daemon=True).start()


def _is_watched() -> bool:
    """Whether standard error is a terminal and `nmt` logs more than warnings."""
    is_quiet = not logging.getLogger("nmt").isEnabledFor(logging.INFO)
    return not is_quiet and sys.stderr is not None and sys.stderr.isatty()


def file_bar(description: str, path: Path | None, *, unit: str) -> tqdm[Any]:
    """Return a bar that counts the lines of a file; disabled for standard input."""
    if path is None or is_standard(path):
        return progress_bar(description, unit=unit, shown=False)
    total = None  # the bar shows no end
    # Counting the lines of a gigabyte takes about a second, so larger files are not counted.
    if _is_watched() and path.is_file() and path.stat().st_size <= 1 << 30:
        total = count_lines(path)
    return progress_bar(description, unit=unit, total=total)
