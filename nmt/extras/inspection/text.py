"""Figures as lines for a terminal, with or without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from itertools import zip_longest
from math import ceil
from textwrap import fill
from unicodedata import east_asian_width

from nmt.extras.inspection.figure import (
    Bars,
    Cell,
    Diagram,
    Figure,
    Grid,
    Heatmap,
    Lines,
    Links,
    Part,
    Steps,
    Table,
    Text,
    Tree,
)
from nmt.report.page import short_number, thin, visible

_SHADES = " .:-=+*#%@"
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_WIDTH = 100
"""Of paragraphs, and of heatmaps without numbers."""
_MAX_NUMBERED = 12
"""Columns of a heatmap that are written as numbers; more become shades."""
_MOST_LINKED = 3
"""Links shown of a token."""


def part_text(part: Part, *, colour: bool = False) -> str:
    """Return a part for a terminal.

    Args:
        part: What is shown.
        colour: Whether the terminal has colours.
    """
    lines = [_styled(part.title, _BOLD, colour), fill(visible(part.explanation), _WIDTH), ""]
    for figure in part.figures:
        lines += _with_title(figure, colour)
    return "\n".join(lines)


def plain_lines(figure: Figure) -> list[str]:
    """Return a figure as lines without colour, title and note."""
    return list(_lines(figure, False))


def _with_title(figure: Figure, colour: bool) -> list[str]:
    head = [_styled(visible(figure.title), _BOLD, colour)] if figure.title else []
    note = [_styled(fill(visible(figure.note), _WIDTH), _DIM, colour)] if figure.note else []
    return [*head, *(f"  {line}" for line in _lines(figure, colour)), *note, ""]


def _styled(text: str, style: str, colour: bool) -> str:
    return f"{style}{text}{_PLAIN}" if colour and text else text


def cell_text(cell: Cell) -> str:
    """Return what a cell says.

    >>> cell_text(1050624), cell_text(0.88079), cell_text(None)
    ('1,050,624', '0.8808', '')
    """
    if cell is None:
        return ""
    if isinstance(cell, str):
        return visible(cell)
    return f"{cell:,}" if isinstance(cell, int) else short_number(cell)


def _width(text: str) -> int:
    return sum(1 + (east_asian_width(each) in "WF") for each in text)


def _pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * max(0, width - _width(text))
    return space + text if right else text + space


def _longest(texts: Iterable[str]) -> int:
    return max([0, *map(_width, map(visible, texts))])


def columns_of(rows: Sequence[Sequence[Cell]]) -> list[bool]:
    """Return which columns hold numbers only: they are aligned to the right."""
    return [all(not isinstance(cell, str) for cell in column) for column in zip_longest(*rows)]


@singledispatch
def _lines(figure: Figure, colour: bool) -> Iterator[str]:  # noqa: ARG001
    """Yield the lines of a figure."""
    raise TypeError(type(figure))


@_lines.register
def _(figure: Text, colour: bool) -> Iterator[str]:  # noqa: ARG001
    yield from map(visible, figure.lines)


@_lines.register
def _(figure: Table, colour: bool) -> Iterator[str]:  # noqa: ARG001
    written = [[cell_text(cell) for cell in row] for row in figure.rows]
    columns = list(zip_longest(map(visible, figure.head), *written, fillvalue=""))
    widths = [max(map(_width, column)) for column in columns]
    numeric = [*columns_of(figure.rows), *[False] * len(widths)]
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = [_pad(c, w, right=r) for c, w, r in zip(row, widths, numeric, strict=False)]
        yield "  ".join(cells).rstrip()
        if not number or (figure.total and number == len(written) - 1):
            yield "  ".join("-" * width for width in widths)


@_lines.register
def _(figure: Heatmap, colour: bool) -> Iterator[str]:
    space = _longest(figure.rows)
    numbered = len(figure.columns) <= _MAX_NUMBERED
    every = 1 if numbered else ceil(len(figure.columns) / _WIDTH)
    heads = [visible(each) for each in figure.columns[::every]]
    widths = [max(_width(each), 5) if numbered else 1 for each in heads]
    gap, bounds = " " if numbered else "", figure.bounds
    if numbered:
        cells = [_pad(head, width, right=True) for head, width in zip(heads, widths, strict=True)]
        yield " ".join([" " * space, *cells])
    for name, row in zip(figure.rows, figure.values, strict=True):
        cells = []
        for value, width in zip(row[::every], widths, strict=False):
            number = "-" if value is None else f"{value:.2f}"
            text = _pad(number, width, right=True) if numbered else _mark(value, bounds)
            cells.append(_shaded(text, _shade(value, bounds)) if colour and value else text)
        yield f"{_pad(visible(name), space)} {gap.join(cells)}".rstrip()
    if not numbered:
        low, high = map(short_number, bounds)
        thinned = f", one of {every} columns" if every > 1 else ""
        yield f"{' ' * space} {low} '{_SHADES}' {high}{thinned}"


def _shade(value: float | None, bounds: tuple[float, float]) -> float:
    """Return where a value lies between the palest (0) and the strongest colour (1)."""
    low, high = bounds
    return 0.0 if value is None else max(0.0, min(1.0, (value - low) / (high - low)))


def _mark(value: float | None, bounds: tuple[float, float]) -> str:
    return _SHADES[round(_shade(value, bounds) * (len(_SHADES) - 1))]


def _shaded(text: str, shade: float) -> str:
    """Return text on a shade of blue, from none to strong (256 colours)."""
    return f"\x1b[48;5;{(231, 195, 153, 117, 75, 33)[round(shade * 5)]};38;5;16m{text}{_PLAIN}"


@_lines.register
def _(figure: Grid, colour: bool) -> Iterator[str]:  # noqa: ARG001
    for name, row in zip(figure.rows, figure.figures, strict=True):
        yield name
        blocks = []
        for head, each in zip(figure.columns, row, strict=False):
            bounds = each.bounds
            bare = ["".join(_mark(value, bounds) for value in values) for values in each.values]
            width = max([_width(head), *map(len, bare)])
            blocks.append([_pad(line, width) for line in (head, *bare)])
        for line in zip_longest(*blocks, fillvalue=""):
            yield "  " + " | ".join(line)


@_lines.register
def _(figure: Links, colour: bool) -> Iterator[str]:  # noqa: ARG001
    space = _longest(figure.left)
    for name, weights in figure.weights.items():
        if len(figure.weights) > 1:
            yield name
        for label, row in zip(figure.left, weights, strict=True):
            best = sorted(enumerate(row), key=lambda pair: -(pair[1] or 0))[:_MOST_LINKED]
            named = [f"{visible(figure.right[j])} {x:.2f}" for j, x in best if x]
            yield f"{_pad(visible(label), space)}  {', '.join(named)}"


@_lines.register
def _(figure: Bars, colour: bool) -> Iterator[str]:  # noqa: ARG001
    most = max([1e-30, *(abs(x) for series in figure.series.values() for x in series)])
    space, names = _longest(figure.labels), _longest(figure.series)
    for row, label in enumerate(figure.labels):
        for number, (name, series) in enumerate(figure.series.items()):
            head = _pad("" if number else visible(label), space)
            bar = "#" * round(abs(series[row]) / most * 30)
            yield f"{head}  {_pad(visible(name), names)} {bar} {short_number(series[row])}"


@_lines.register
def _(figure: Lines, colour: bool) -> Iterator[str]:  # noqa: ARG001
    for name, curve in figure.curves.items():
        points = thin(curve, 12)
        yield f"{name} ({figure.across}: {figure.unit})"
        yield "  " + ", ".join(f"{short_number(x)}: {short_number(y)}" for x, y in points)


@_lines.register
def _(figure: Tree, colour: bool) -> Iterator[str]:
    marks = {"best": "*", "finished": "+", "dropped": "x", "kept": " "}
    children: dict[int | None, list[int]] = {}
    for index, node in enumerate(figure.nodes):
        children.setdefault(node.parent, []).append(index)
    stack = [(index, 0) for index in reversed(children.get(None, []))]
    while stack:
        index, depth = stack.pop()
        node = figure.nodes[index]
        line = f"{marks[node.kind]} {'  ' * depth}{visible(node.label)}  {visible(node.detail)}"
        style = {"best": _BOLD, "dropped": _DIM}.get(node.kind)
        yield _styled(line, style, colour) if style else line
        stack += [(each, depth + 1) for each in reversed(children.get(index, []))]
    yield "* returned, + finished, x dead end"


@_lines.register
def _(figure: Diagram, colour: bool) -> Iterator[str]:  # noqa: ARG001
    for stack in figure.stacks:
        yield f"{stack.title} (from top to bottom: output to input)"
        first, last, count = stack.repeated or (-1, -2, 1)
        for row in reversed(range(len(stack.boxes))):
            box = stack.boxes[row]
            inside = first <= row <= last
            around = f"  <- residual around {box.residual}" if box.residual else ""
            times = f"  x {count}" if row == last else ""
            detail = f"  ({visible(box.detail)})" if box.detail else ""
            yield f"{' | ' if inside else '   '}[{visible(box.label)}]{detail}{around}{times}"
    for (start, row), (end, to), name in figure.arrows:
        ends = figure.stacks[start].boxes[row].label, figure.stacks[end].boxes[to].label
        yield f"{name}: {ends[0]} -> {ends[1]}"


@_lines.register
def _(figure: Steps, colour: bool) -> Iterator[str]:
    for step in figure.steps:
        yield _styled(visible(step.title), _BOLD, colour)
        for each in step.figures:
            yield from (f"  {line}" for line in _with_title(each, colour))
