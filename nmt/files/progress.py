"""Progress bars on standard error: only on a terminal, and not with ``-q``."""

from __future__ import annotations

import logging
import sys
from typing import Any

from tqdm import tqdm


def progress_bar(
    description: str,
    *,
    unit: str,
    total: int | None = None,
    initial: int = 0,
    leave: bool = True,
    shown: bool = True,
) -> tqdm[Any]:
    """Return a bar, to be used as a context: ``bar.update(n)`` moves it.

    It is disabled where standard error is no terminal, where `nmt` logs warnings only, and where
    it is not to be ``shown``: it would mix with what is typed, say. Messages of the command line go
    through ``tqdm.write``, so that they do not tear it.

    ``description`` stands before it, ``unit`` says what is counted, and of ``total`` there were
    ``initial`` before. With ``leave`` it stays on the screen.
    """
    is_quiet = not logging.getLogger("nmt").isEnabledFor(logging.INFO)
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return tqdm(
        desc=description,
        unit=f" {unit}",
        unit_scale=total is None or total > 100_000,
        total=total,
        initial=initial,
        leave=leave,
        disable=is_quiet or not is_terminal or not shown,
        file=sys.stderr,
        dynamic_ncols=True,
    )
