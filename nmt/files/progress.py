"""Progress bars on standard error: only on a terminal, and not with ``-q``."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from os import get_terminal_size
from pathlib import Path
from typing import Any

from tqdm import tqdm
from typing_extensions import override

from nmt.files.lines import count_lines, is_standard

_REFRESH_SECONDS = 0.5
_LEAST_SECONDS = 0.1
"""Between two drawings, however often it moves."""
_USUAL_SIZE = 80, 24
_MOST_WRITTEN_OUT = 100_000
"""Larger counts have a prefix, as in 123k."""
_LARGEST_TO_COUNT = 1 << 30
"""Bytes of a file whose lines are counted beforehand: about a second."""


class ProgressBar(tqdm):  # type: ignore[type-arg] # its stub alone is generic
    """A bar that is drawn at least once a second, so that long batches do not look hung.

    Args:
        counter: Asked for the number to show, so that who counts need not know of the bar.
        options: Of `tqdm.tqdm`.
    """

    def __init__(self, counter: Callable[[], int] | None = None, **options: Any) -> None:
        self._closed, self._moving, self._counter = threading.Event(), threading.Lock(), counter
        super().__init__(**options)
        self._redrawing = threading.Thread(target=self._redraw, daemon=True)
        if not self.disable:
            self._redrawing.start()

    def reach(self, number: int) -> None:
        """Move to a number, counted from the beginning."""
        with self._moving:
            self.update(number - self.n)

    @override
    def close(self) -> None:
        self._closed.set()
        if self._redrawing.is_alive():  # or it may draw once more below the bar
            self._redrawing.join()
        self._count()
        super().close()

    @staticmethod
    @override
    def format_meter(*numbers: Any, **options: Any) -> str:
        """Return the bar's text: small counts are whole, and a unit has no blank before it."""
        options["unit_scale"] = options["n"] >= _MOST_WRITTEN_OUT
        text = tqdm.format_meter(*numbers, **options)
        return text.replace(f"s/{options['unit']}", f"s/{options['unit'].strip()}")

    def _redraw(self) -> None:
        while not self._closed.wait(_REFRESH_SECONDS):
            self._count()
            self.refresh()

    def _count(self) -> None:
        if self._counter is not None and not self.disable:
            self.reach(self._counter())


def progress_bar(
    description: str,
    *,
    unit: str | None = None,
    total: int | None = None,
    initial: int = 0,
    leave: bool = True,
    shown: bool = True,
    counter: Callable[[], int] | None = None,
) -> ProgressBar:
    """Return a bar, to be used as a context: ``bar.update(n)`` moves it.

    It is disabled where standard error is no terminal, where `nmt` logs warnings only, and where
    it is not to be ``shown``: it would mix with what is typed, say. Messages of the command line go
    through ``tqdm.write``, so that they do not tear it.

    ``description`` stands before it, ``unit`` says what is counted (without one, it shows only that
    time passes), and of ``total`` there were ``initial`` before. With ``leave`` it stays on the
    screen. ``counter`` is asked for the number.
    """
    has_size = True
    with suppress(OSError):  # what stands for a terminal has no descriptor, perhaps
        has_size = not _is_watched() or get_terminal_size(sys.stderr.fileno()).columns > 0
    return ProgressBar(
        counter,
        desc=description,
        unit=f" {unit}",
        bar_format=None if unit else "{desc}: {elapsed}",
        total=total,
        initial=initial,
        leave=leave,
        disable=not (shown and _is_watched()),
        file=sys.stderr,
        # Consoles of some machines and containers do not know their size.
        ncols=None if has_size else _USUAL_SIZE[0],
        nrows=None if has_size else _USUAL_SIZE[1],
        dynamic_ncols=has_size,
        mininterval=_LEAST_SECONDS,
        miniters=1,
    )


def _is_watched() -> bool:
    """Whether bars are drawn: on a terminal, where `nmt` logs more than warnings."""
    is_quiet = not logging.getLogger("nmt").isEnabledFor(logging.INFO)
    return not is_quiet and sys.stderr is not None and sys.stderr.isatty()


def file_bar(description: str, path: Path | None, *, unit: str, shown: bool = True) -> ProgressBar:
    """Return a bar for the lines of a file, with their number; none for standard input."""
    shown, total = shown and not is_standard(path), None
    if shown and _is_watched() and path is not None and path.is_file():
        total = count_lines(path) if path.stat().st_size <= _LARGEST_TO_COUNT else None
    return progress_bar(description, unit=unit, total=total, shown=shown)
