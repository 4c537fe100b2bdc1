"""Rows of cells -> a table for a terminal. Loads rich: import this module where text is printed."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDEST = 100_000


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as aligned columns, with two spaces between and none at the end of a line.

    Cells may hold any script: a wide character counts as two. Nothing is cut or wrapped, whatever
    the terminal's width, so that output can be searched and compared.
    """
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    stream = StringIO()
    Console(file=stream, width=_WIDEST, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())
