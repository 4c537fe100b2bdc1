"""Progress bars on standard error: only on a terminal, and not where `nmt` is quiet."""

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

_LEAST_SECONDS = 0.1  # between two drawings, however often a bar moves
_FOLLOW_SECONDS = 0.5


def progress_bar(
    description: str, *, unit: str | None = None, shown: bool = True, **options: Any
) -> tqdm[Any]:
    """Return a bar, to be used as a context: ``bar.update(n)`` moves it.

    It is disabled where standard error is not a terminal and where `nmt` logs warnings only.
    Messages of the command line go through ``tqdm.write``, so that they do not tear it.

    Args:
        description: Stands before it.
        unit: What is counted; without one only time passes.
        shown: False where a bar would mix with what is typed, say.
        options: Of `tqdm.tqdm`, such as ``total``, ``initial`` and ``leave``.
    """
    has_size = True
    with suppress(OSError):  # what stands for a terminal may have no descriptor
        has_size = not _is_watched() or get_terminal_size(sys.stderr.fileno()).columns > 0
    # Consoles of some machines and containers do not know their size.
    size = {"dynamic_ncols": True} if has_size else {"ncols": 80, "nrows": 24}
    bar: tqdm[Any] = tqdm(
        desc=description,
        unit=f" {unit}",
        bar_format=None if unit else "{desc}: {elapsed}",
        disable=not (shown and _is_watched()),
        file=sys.stderr,
        mininterval=_LEAST_SECONDS,
        miniters=1,
        **size,
        **options,
    )
    if not unit:
        follow(bar, lambda: int(bar.n))
    return bar


def follow(bar: tqdm[Any], counter: Callable[[], int]) -> None:
    """Draw a bar again and again, from a thread, at the number that ``counter`` returns.

    Until it is closed.
    """

    def run() -> None:
        while not bar.disable:  # as a closed one is, too
            time.sleep(_FOLLOW_SECONDS)
            with bar.get_lock():  # type: ignore[no-untyped-call]
                bar.update(counter() - bar.n)
                bar.refresh()

    Thread(target=run, daemon=True).start()


def _is_watched() -> bool:
    """Whether bars are drawn: on a terminal, where `nmt` logs more than warnings."""
    is_quiet = not logging.getLogger("nmt").isEnabledFor(logging.INFO)
    return not is_quiet and sys.stderr is not None and sys.stderr.isatty()


def file_bar(description: str, path: Path | None, *, unit: str, shown: bool = True) -> tqdm[Any]:
    """Return a bar for the lines of a file, with their number; none for standard input."""
    shown, total = shown and not is_standard(path), None
    if shown and _is_watched() and path is not None and path.is_file():
        # Counting the lines of a gigabyte takes about a second.
        total = count_lines(path) if path.stat().st_size <= 1 << 30 else None
    return progress_bar(description, unit=unit, total=total, shown=shown)
