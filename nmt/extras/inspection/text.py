"""Parts as text: tables, traces and small matrices. Drawings need HTML or SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from textwrap import fill

from rich import box
from rich.console import Console
from rich.table import Table as Printed

from nmt.extras.inspection.figure import Cell, Figure, Heatmap, Part, Steps, Table, Text, Tree
from nmt.report.page import short_number, visible

_WIDTH = 100  # Of paragraphs. Tables are as wide as their cells.
_MAX_COLUMNS = 12  # Of a matrix that is written as numbers.
_MARKS = {"best": "*", "finished": "+", "dropped": "x", "kept": " "}


def part_text(part: Part) -> str:
    """Return a part as lines: title, explanation, figures."""
    lines = [part.title, fill(visible(part.explanation), _WIDTH), ""]
    return "\n".join([*lines, *(line for figure in part.figures for line in _titled(figure))])


def _titled(figure: Figure) -> list[str]:
    head = [visible(figure.title)] if figure.title else []
    note = [fill(visible(figure.note), _WIDTH)] if figure.note else []
    return [*head, *(f"  {line}" for line in figure_lines(figure)), *note, ""]


def figure_lines(figure: Figure) -> list[str]:
    """Return a figure as lines without title and note."""
    match figure:
        case Text():
            return [visible(line) for line in figure.lines]
        case Table():
            return _table(figure)
        case Heatmap() if len(figure.columns) <= _MAX_COLUMNS:
            rows = [[name, *row] for name, row in zip(figure.rows, figure.values, strict=True)]
            return _table(Table("", ["", *figure.columns], rows))
        case Tree():
            return _tree(figure)
        case Steps():
            inner = ([step.title, *_titled(each)] for step in figure.steps for each in step.figures)
            return [line for lines in inner for line in lines]
        case _:
            return ["(a drawing: choose the format html or svg)"]


def cell_text(cell: Cell) -> str:
    """Return what a cell says.

    >>> cell_text(1050624), cell_text(0.88079), cell_text(None)
    ('1,050,624', '0.8808', '')
    """
    if cell is None or isinstance(cell, str):
        return visible(cell or "")
    return f"{cell:,}" if isinstance(cell, int) else short_number(cell)


def numeric_columns(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """Return which columns hold numbers only: they are aligned to the right."""
    return [all(not isinstance(cell, str) for cell in column) for column in zip_longest(*rows)]


def _table(figure: Table) -> list[str]:
    printed = Printed(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, is_numeric in zip_longest(figure.head, numeric_columns(figure.rows), fillvalue=""):
        printed.add_column(visible(str(name)), justify="right" if is_numeric else "left")
    for number, row in enumerate(figure.rows, 1):
        if figure.total and number == len(figure.rows):
            printed.add_section()
        printed.add_row(*map(cell_text, row))
    console = Console(width=10_000, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as written:
        console.print(printed)
    return [line.rstrip() for line in written.get().splitlines()]


def _tree(figure: Tree) -> list[str]:
    """Return a line for each node, below its parent and further right."""
    lines = []
    for path in sorted(figure.paths):
        node, indent = figure.nodes[path[-1]], "  " * (len(path) - 1)
        lines.append(f"{_MARKS[node.kind]} {indent}{visible(node.label)}  {visible(node.detail)}")
    return [*lines, "* returned, + finished, x dead end"]
