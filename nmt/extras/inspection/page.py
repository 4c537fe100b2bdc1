"""Render figures as an HTML page or as an SVG file.

The page works without its script (``templates/inspect.js``), which shows one step at a time, the
number of a cell, and the arcs of a token. Shapes have CSS classes instead of colours
(``templates/drawing.css.j2``), so the same drawing works on light and dark pages and in print.
Coordinates are pixels from the upper left corner.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from nmt.extras.inspection.figure import (
    Bars,
    Figure,
    Links,
    Matrix,
    Part,
    Steps,
    Table,
    TextFigure,
    Tree,
    cell_texts,
    figure_lines,
    flat,
    kind_of,
    number_format,
    number_text,
    numeric_columns,
)
from nmt.report.page import Point, module, render, visible

_EM = 13  # Font size in pixels.
# Widths in pixels of characters that are much narrower or wider than average. \u2581 is a word
# border.
_WIDTHS = dict.fromkeys(" !'(),.:;I[]fijlrt|", 5.5) | dict.fromkeys(
    "%&+<=>@MWmw~\u2192\u2581", 13.0
)
_WIDTHS |= dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 10.0)
_LEVELS = 24  # Shades of one hue.
_HUES = 12  # Colours of a cycle.
# In our own words only, which are never text of a user: code spans and superscripts.
_CODE = re.compile(r"`([^`]+)`")
_POWER = re.compile(r"(?<=[WK\d])\^(?:\(([^)]+)\)|([OQKVT])\b)")


def render_page(
    title: str, facts: Mapping[str, str], parts: Sequence[Part], offers: Mapping[str, str]
) -> Markup:
    """Return a self-contained HTML page.

    Args:
        title: Title of the page.
        facts: Name -> value, shown at the top.
        parts: The sections.
        offers: Commands for views that are not on the page -> their summaries.
    """
    return render(
        "inspect.html.j2", title=title, facts=facts, parts=parts, figure_html=figure_html,
        offers=offers, alone=False, prose=prose,
    )  # fmt: skip


def prose(text: str) -> Markup:
    """Convert `code` and exponents in a text of nmt to HTML; escape the rest.

    >>> prose("`a < b`: W^O and 10^(2/4)")
    Markup('<code>a &lt; b</code>: W<sup>O</sup> and 10<sup>2/4</sup>')
    """
    escaped = str(escape(visible(text)))
    spans = _CODE.sub(r"<code>\1</code>", escaped)
    return Markup(_POWER.sub(lambda match: f"<sup>{match[1] or match[2]}</sup>", spans))


def figure_html(figure: Figure, level: int | None) -> Markup:
    """Return a figure with its title and note. Text, tables and steps are HTML; the rest is SVG.

    Args:
        figure: The figure.
        level: Level of the heading; 0 for a title that is not a heading; None for no title, if the
            heading of the section is enough.
    """
    return render(
        "figure.html.j2", kind=kind_of(figure), figure=figure, level=level, draw=draw,
        prose=prose, figure_html=figure_html, cell_texts=cell_texts,
        numeric_columns=numeric_columns,
    )  # fmt: skip


def document(figures: Sequence[Figure]) -> Markup:
    """Return an SVG file of the drawings, one below the other.

    If no figure is a drawing, the file shows the texts and tables.
    """
    drawings = [figure for figure in figures if not isinstance(figure, TextFigure | Table)]
    titled = [(figure.title, figure) for figure in drawings or figures]
    title, _ = titled[0]
    return render("document.svg.j2", alone=True, title=title, drawing=_below(titled))


def _below(titled: Iterable[tuple[str, Figure]]) -> Any:
    """Return drawings one below the other, with their titles, for an SVG file."""
    drawings = []
    for title, figure in titled:
        legend = list[str]()  # labels with a colour each
        if isinstance(figure, Links) and len(figure.weights) > 1:
            legend += figure.weights
        elif isinstance(figure, Bars) and len(figure.values) > 1:
            legend += figure.values
        drawing = draw(figure)
        drawings.append((title, legend, drawing))
    return module("below.svg.j2", drawings=drawings, longest=longest)


def draw(figure: Figure, *, is_upright: bool = False) -> Any:
    """Return a figure as a drawing, without title and note.

    Args:
        figure: The figure.
        is_upright: Draw the stacks of a diagram one above the other, for narrow screens.

    Returns:
        The inside of an SVG element, with the attributes ``width``, ``height`` and ``data``.
    """
    if isinstance(figure, Steps):
        titled = []
        for step in figure.steps:
            for step_figure in step.figures:
                titles = [step.title, step_figure.title]
                title = ": ".join(filter(None, titles))
                titled.append((title, step_figure))
        return _below(titled)
    if isinstance(figure, TextFigure | Table):
        return module("lines.svg.j2", lines=figure_lines(figure))
    return module(
        f"{kind_of(figure)}.svg.j2",
        figure=figure,
        is_upright=is_upright,
        flat=flat,
        json=_json,
        longest=longest,
        number_format=number_format,
        number_text=number_text,
        places=_places,
        shades=shades,
        wrap=wrap,
    )


def text_width(text: str) -> float:
    """Estimate the width of a label in pixels, for a wide font, so that no label is cut off.

    >>> text_width("ab"), text_width("<日>"), text_width("It")
    (16.6, 39.0, 11.0)
    """
    return sum(map(_character_width, visible(text)))


def _character_width(character: str) -> float:
    """Estimate the width of a character in pixels."""
    if character in _WIDTHS:
        return _WIDTHS[character]
    if east_asian_width(character) in "WF":  # wide or fullwidth
        return _EM
    if character < "{":  # the remaining small letters, digits and signs of ASCII
        return 8.3
    return 10.0


def longest(texts: Iterable[str]) -> float:
    """Return the width of the longest label."""
    return max(map(text_width, texts), default=0.0)


def _json(texts: Iterable[str]) -> str:
    """Return labels as JSON, for the script of the page."""
    visible_texts = list(map(visible, texts))
    return json.dumps(visible_texts, ensure_ascii=False)


def shades(
    values: Matrix, bounds: Point, *, cyclic: bool = False
) -> Iterator[tuple[str, float, str]]:
    """Yield the CSS class, opacity and SVG path of the cells of each shade.

    Args:
        values: The matrix.
        bounds: Values of the palest and the strongest colour, as in `Heatmap.bounds`.
        cyclic: Use a cycle of hues, in which the two bounds have the same colour.
    """
    low, high = bounds
    palest = max(low, 0.0)  # with two hues, ``low`` is negative, and 0 is the palest
    # Level of a shade, from -1 to 1, or None for empty cells -> SVG path of its cells.
    paths: dict[float | None, str] = defaultdict(str)

    def level_of(value: float | None) -> float | None:
        if value is None or math.isnan(value):
            return None
        level = (value - palest) / (high - palest)
        return round(level * _LEVELS) / _LEVELS

    # In the coordinates of a path, a cell is 1 wide and 1 high. Neighbours of the same shade in a
    # row are one rectangle, which makes the page much smaller.
    for y, row in enumerate(values):
        x = 0
        for level, run in groupby(map(level_of, row)):
            length = len(list(run))
            paths[level] += f"M{x},{y}h{length}v1h-{length}z"
            x += length
    for level, path in paths.items():
        if level is None:
            yield "none", 0, path
        elif cyclic:
            yield f"hue{int(level * _HUES + 0.5) % _HUES}", 1, path
        elif level:  # cells of level 0 are not drawn
            hue = "heat"
            if level < 0:
                hue = "cold"
            opacity = min(abs(level), 1)  # a value may be outside of chosen bounds
            yield hue, round(opacity, 2), path


def _places(tree: Tree) -> list[tuple[float, float, float]]:
    """Return the left end, the top and the width of each node, in pixels."""
    depths, rows = layout(tree)
    widths = [longest([node.label, node.detail]) + 14 for node in tree.nodes]  # 7 on each side
    # A column has the width of its widest node, and 26 pixels for the branches to the next column.
    column_widths = [0.0] * (max(depths, default=-1) + 1)
    for depth, width in zip(depths, widths, strict=True):
        column_widths[depth] = max(column_widths[depth], width)
    column_starts = [0.0]
    for width in column_widths:
        column_starts.append(column_starts[-1] + 26 + width)
    lefts = [column_starts[depth] for depth in depths]
    tops = [row * 44 + 1 for row in rows]  # a node is 36 high, 8 are between rows
    return list(zip(lefts, tops, widths, strict=True))


def layout(tree: Tree) -> tuple[list[int], list[int]]:
    """Return the column and the row of each node, from 0.

    The best hypothesis is a straight line in row 0. The other branches are below: each is a
    straight line in the first row below its parent that is free.
    """
    nodes = tree.nodes
    columns = [len(path) - 1 for path in tree.paths]
    ends = list(columns)  # last column of the line that a node is on
    # A node with children -> the child on the same line: the best one, or that with the longest
    # line. Each child is its rank, with the index at the end.
    next_on_line = dict[int, tuple[bool, int, int]]()
    for index in reversed(range(len(nodes))):  # children come after their parent
        parent = nodes[index].parent
        if parent is not None:
            rank = (nodes[index].kind == "best", ends[index], -index)
            next_on_line[parent] = max(rank, next_on_line.get(parent, rank))
            _, ends[parent], _ = next_on_line[parent]
    rows = [0] * len(nodes)
    last_columns = defaultdict[int, int](lambda: -1)  # row -> last column that a line takes
    for index, node in enumerate(nodes):
        parent = node.parent
        if parent is not None:
            rows[index] = rows[parent]
            *_, same_line = next_on_line[parent]
            if index == -same_line:
                continue
        while last_columns[rows[index]] >= columns[index]:
            rows[index] += 1
        last_columns[rows[index]] = ends[index]
    return columns, rows
