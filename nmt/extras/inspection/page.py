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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import (
    cell_texts,
    figure_lines,
    number_format,
    number_text,
    numeric_columns,
)
from nmt.report.page import Point, module, render, visible

_EM = 13  # Font size.
# Widths of characters that are much narrower or wider than average. \u2581 is a word border.
_WIDTHS = dict.fromkeys(" !'(),.:;I[]fijlrt|", 5.5) | dict.fromkeys(
    "%&+<=>@MWmw~\u2192\u2581", 13.0
)
_WIDTHS |= dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 10.0)
_LEVELS = 24  # Shades of a heatmap.
# In our own words only, which are never text of a user: code spans and superscripts.
_CODE, _POWER = re.compile(r"`([^`]+)`"), re.compile(r"(?<=[WK\d])\^(?:\(([^)]+)\)|([OQKVT])\b)")


def render_page(
    title: str, facts: Mapping[str, str], parts: Sequence[fig.Part], offers: Mapping[str, str]
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
    spans = _CODE.sub(r"<code>\1</code>", str(escape(visible(text))))
    return Markup(_POWER.sub(lambda match: f"<sup>{match[1] or match[2]}</sup>", spans))


def figure_html(figure: fig.Figure, level: int | None) -> Markup:
    """Return a figure with its title and note. Text, tables and steps are HTML; the rest is SVG.

    Args:
        figure: The figure.
        level: Level of the heading; 0 for a title that is not a heading; None for no title, if the
            heading of the section is enough.
    """
    return render(
        "figure.html.j2", kind=type(figure).__name__.lower(), figure=figure, level=level, draw=draw,
        prose=prose, figure_html=figure_html, cell_texts=cell_texts,
        numeric_columns=numeric_columns,
    )  # fmt: skip


def document(figures: Sequence[fig.Figure]) -> Markup:
    """Return an SVG file of the drawings, one below the other.

    If no figure is a drawing, the file shows the texts and tables.
    """
    drawn = [each for each in figures if not isinstance(each, fig.Text | fig.Table)] or figures
    whole = _below([("", each) for each in drawn])
    return render("document.svg.j2", alone=True, title=drawn[0].title, drawing=whole)


def _below(figures: Sequence[tuple[str, fig.Figure]]) -> Any:
    """Return drawings one below the other, with their titles, for an SVG file."""
    drawings = []
    for before, figure in figures:
        title = ": ".join(filter(None, (before, figure.title)))
        colors = [*figure.weights] if isinstance(figure, fig.Links) else []
        drawings.append((title, colors if len(colors) > 1 else [], draw(figure)))
    return module("below.svg.j2", drawings=drawings, longest=longest)


def draw(figure: fig.Figure, *, is_upright: bool = False) -> Any:
    """Return a figure as a drawing, without title and note.

    Args:
        figure: The figure.
        is_upright: Draw the stacks of a diagram one above the other, for narrow screens.

    Returns:
        The inside of an SVG element, with the attributes ``width``, ``height`` and ``data``.
    """
    if isinstance(figure, fig.Steps):
        return _below([(step.title, x) for step in figure.steps for x in step.figures])
    if isinstance(figure, fig.Text | fig.Table):
        return module("lines.svg.j2", lines=figure_lines(figure))
    return module(
        f"{type(figure).__name__.lower()}.svg.j2", figure=figure, is_upright=is_upright,
        flat=_flat, json=_json, longest=longest, number_format=number_format,
        number_text=number_text, places=_places, shades=shades, wrap=wrap,
    )  # fmt: skip


def text_width(text: str) -> float:
    """Estimate the width of a label in pixels, for a wide font, so that no label is cut off.

    >>> text_width("ab"), text_width("<日>"), text_width("It")
    (16.6, 39.0, 11.0)
    """
    return sum(
        _WIDTHS.get(x) or (_EM if east_asian_width(x) in "WF" else 8.3 if x < "{" else 10.0)
        for x in visible(text)
    )


def longest(texts: Iterable[str]) -> float:
    """Return the width of the longest label."""
    return max([0.0, *map(text_width, texts)])


def _json(texts: Iterable[str]) -> str:
    return json.dumps(list(map(visible, texts)), ensure_ascii=False)


def _flat(values: fig.Matrix) -> list[float]:
    return [x for row in values for x in row if x is not None]


def shades(values: fig.Matrix, bounds: Point) -> Iterator[tuple[str, float, str]]:
    """Yield the CSS class, opacity and SVG path of the cells of each shade."""
    (low, high), paths = bounds, dict[float | None, str]()
    start = max(low, 0.0)
    for y, row in enumerate(values):
        x = 0
        shares = (None if v is None or math.isnan(v) else (v - start) / (high - start) for v in row)
        levels = (share if share is None else round(share * _LEVELS) / _LEVELS for share in shares)
        for level, run in groupby(levels):
            length = len(list(run))
            paths[level] = paths.get(level, "") + f"M{x},{y}h{length}v1h-{length}z"
            x += length
    for level, path in paths.items():
        if level is None:
            yield "none", 0, path
        elif level:
            yield "heat" if level > 0 else "cold", round(min(abs(level), 1), 2), path


def _places(tree: fig.Tree) -> list[tuple[float, float, float]]:
    """Return the left end, the top and the width of each node, in pixels."""
    (depths, rows), starts = layout(tree), [0.0]
    widths = [max(text_width(node.label), text_width(node.detail)) + 14 for node in tree.nodes]
    for depth in range(max(depths, default=-1) + 1):
        column = (size for size, own in zip(widths, depths, strict=True) if own == depth)
        starts.append(starts[-1] + 26 + max(column))
    return [
        (starts[depth], row * 44 + 1, width)
        for depth, row, width in zip(depths, rows, widths, strict=True)
    ]


def layout(tree: fig.Tree) -> tuple[list[int], list[float]]:
    """Return the column and the row of each node. A parent is centred on its children."""
    children: list[list[int]] = [[] for _ in tree.nodes]
    for index, node in enumerate(tree.nodes):
        if node.parent is not None:
            children[node.parent].append(index)
    # Depth first, so that the leaves below a node are neighbours.
    leaves = [path[-1] for path in sorted(tree.paths) if not children[path[-1]]]
    rows = [0.0] * len(tree.nodes)
    for index in reversed(range(len(rows))):  # children come after their parent
        below = [rows[child] for child in children[index]]
        rows[index] = sum(below) / len(below) if below else float(leaves.index(index))
    return [len(path) - 1 for path in tree.paths], rows
