"""Figures as SVG: inside a page they take its colours, and alone they bring their own.

Shapes carry classes and no colours (``templates/drawing.css.j2``), so one drawing serves light and
dark pages and paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch
from itertools import groupby

from markupsafe import Markup

from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.drawing import (
    COLORS,
    EM,
    ROW,
    Drawing,
    level_curve,
    longest,
    short,
    tag,
    text_width,
    wider,
)
from nmt.extras.inspection.text import figure_lines
from nmt.report.page import Point, render, short_number

_LEVELS = 24  # Shades of a heatmap.
# Cells of a heatmap that say their number under the pointer; more would make pages heavy.
_MAX_TITLES = 150
_MAX_NUMBERS = 80  # Cells that have their number written in them.
_WIDE = 640  # Width in which a heatmap of many columns should fit.
_FAINT = 0.02  # Weight below which a link is not drawn.
_PITCH = 50  # From a box of a stack to the next one.


def document(figures: Sequence[fig.Figure]) -> Markup:
    """Return an SVG file: the drawings among the figures below one another, else all of them."""
    drawn = [each for each in figures if not isinstance(each, fig.Text | fig.Table)] or figures
    whole = _below([("", each) for each in drawn])
    style = tag("style", render("drawing.css.j2", alone=True))
    return whole.as_svg(drawn[0].title, style=style) + Markup("\n")


def draw(figure: fig.Figure) -> Drawing:
    """Return a figure as a drawing, without its title and note."""
    on = Drawing()
    _draw(figure, on)
    return on


@singledispatch
def _draw(figure: fig.Figure, on: Drawing) -> None:
    for row, line in enumerate(figure_lines(figure), 1):
        on.text(line, 0, row * ROW - 5, "code", xml__space="preserve")
        on.grow(text_width(line) * 1.15, row * ROW)


@_draw.register
def _(figure: fig.Heatmap, on: Drawing) -> None:
    rows, columns = len(figure.values), max(map(len, figure.values), default=0)
    written = rows * columns <= _MAX_NUMBERS
    wide = 42.0 if written else min(ROW, max(1.0, _WIDE / max(columns, 1)))
    high = ROW if written else min(ROW, max(wide, 3.0))
    left, reach = 8 + longest(figure.rows), longest(figure.columns)
    slope = 0.0 if written and reach < 40 else 55.0
    top = 22 + reach * math.sin(math.radians(slope))
    _cells(figure, on, (left, top), (wide, high), written=written)
    for row in _every(rows, high):
        on.text(figure.rows[row], left - 6, top + (row + 0.5) * high + 4, "end")
    for column in _every(columns, wide * (0.75 if slope else 1)):  # slanted lines lie closer
        x, y = left + (column + 0.5) * wide + (4 if slope else 0), top - 6
        turn = {"transform": f"rotate({-slope:.0f} {short(x)} {short(y)})"} if slope else {}
        on.text(figure.columns[column], x, y, "first" if slope else "mid", **turn)
    bottom, (low, up) = top + rows * high, figure.bounds
    on.text(short_number(low), left + 34, bottom + 20, "end soft")
    ramp = [[low + (up - low) * (each + 0.5) / 12 for each in range(12)]]
    _shades(ramp, on, (low, up), (left + 38, bottom + 10), (7, 10))
    on.text(short_number(up), left + 126, bottom + 20, "start soft")
    sides = {"down": figure.down, "across": figure.across}
    if names := " / ".join(f"{side}: {name}" for side, name in sides.items() if name):
        on.text(names, left, bottom + 42, "start soft")
    lean = reach * math.cos(math.radians(slope)) if slope else 20
    on.grow(max(left + columns * wide + lean, left + 190), bottom + 30)


def _every(count: int, size: float) -> range:
    """Return which of many labels have room: all, or every second, tenth and so on."""
    return range(0, count, max(1, math.ceil(EM / size)))


def _level(value: float | None, low: float, high: float) -> int | None:
    """Return the shade of a value: 0 for none, negative for the other hue."""
    if value is None or math.isnan(value):
        return None
    start = max(low, 0.0)
    share = (value - start) / (high - start)
    return round(max(-1.0 if low < 0 else 0.0, min(1.0, share)) * _LEVELS)


def _shades(values: fig.Matrix, on: Drawing, bounds: Point, place: Point, size: Point) -> None:
    """Draw cells as one path for each shade; neighbours of one shade are one shape."""
    paths: dict[int | None, str] = {}
    for y, row in enumerate(values):
        x = 0
        for level, run in groupby(_level(value, *bounds) for value in row):
            length = len(list(run))
            paths[level] = paths.get(level, "") + f"M{x},{y}h{length}v1h-{length}z"
            x += length
    inner = Drawing()
    for level, shapes in paths.items():
        if level is None:
            inner.path(shapes, "none")
        elif level:
            kind = "cold" if level < 0 else "heat"
            inner.path(shapes, kind, fill_opacity=round(abs(level) / _LEVELS, 2))
    move = f"translate({short(place[0])} {short(place[1])}) scale({size[0]:.5g} {size[1]:.5g})"
    on.body += tag("g", inner.body, transform=move, class_="cells")


def _cells(figure: fig.Heatmap, on: Drawing, place: Point, size: Point, *, written: bool) -> None:
    """Draw the coloured cells of a heatmap, its frame and its numbers."""
    (left, top), (wide, high), bounds = place, size, figure.bounds
    rows, columns = len(figure.values), max(map(len, figure.values), default=0)
    _shades(figure.values, on, bounds, place, size)
    on.rect(place, (columns * wide, rows * high), "frame")
    titled = rows * columns <= _MAX_TITLES
    for y, row in enumerate(figure.values if titled else ()):
        for x, value in enumerate(row):
            number = "" if value is None else short_number(value)
            name = f"{figure.rows[y]}, {figure.columns[x]}: {number or 'masked'}"
            corner = left + x * wide, top + y * high
            on.rect(corner, size, "hit", tag("title", name))
            if written and value is not None:
                strong = abs(_level(value, *bounds) or 0) > _LEVELS * 0.55
                shown = f"{value:.2f}" if abs(value) < 100 else number
                kind = "mid inner" if strong else "mid ink"
                on.text(shown, corner[0] + wide / 2, corner[1] + high / 2 + 4, kind)


@_draw.register
def _(figure: fig.Grid, on: Drawing) -> None:
    inside = [each.values for row in figure.figures for each in row]
    columns = max(max(map(len, values), default=0) for values in inside)
    rows = max(map(len, inside))
    cell = max(1.5, min(8.0, 110 / max(columns, rows, 1)))
    head, wide = 8 + longest(figure.rows), max(cell * columns, longest(figure.columns)) + 10
    for number, name in enumerate(figure.columns):
        on.text(name, head + number * wide, 14)
    for y, row in enumerate(figure.figures):
        top = 22 + y * (cell * rows + 10)
        on.text(figure.rows[y], head - 8, top + 12, "end")
        for x, each in enumerate(row):
            small = Drawing()
            small.body += tag("title", each.title)
            _cells(each, small, (0, 0), (cell, cell), written=False)
            on.put(small, head + x * wide, top)


@_draw.register
def _(figure: fig.Links, on: Drawing) -> None:
    top, left, gap = on.legend(figure.weights), 8 + longest(figure.left), 120
    for color, weights in enumerate(figure.weights.values()):
        for i, row in enumerate(weights):
            for j, weight in enumerate(row):
                if weight is not None and weight >= _FAINT:
                    y1, y2 = (top + (each + 0.5) * ROW for each in (i, j))
                    line, opacity = level_curve((left, y1), (left + gap, y2)), f"{weight:.2f}"
                    on.path(line, f"link c{color % COLORS}", stroke_opacity=opacity)
    sides = ((left - 6, figure.left, "end ink"), (left + gap + 6, figure.right, "start ink"))
    for x, labels, kind in sides:
        for number, label in enumerate(labels):
            on.text(label, x, top + (number + 0.5) * ROW + 4, kind)


@_draw.register
def _(figure: fig.Bars, on: Drawing) -> None:
    top, left, thick = on.legend(figure.series), 8 + longest(figure.labels), 12
    values = [value for series in figure.series.values() for value in series]
    scale = 260 / max([1e-30, *(abs(value) for value in values if math.isfinite(value))])
    high = thick * len(figure.series) + 8
    for row, label in enumerate(figure.labels):
        start = top + row * high
        on.text(label, left - 6, start + high / 2 + 1, "end ink")
        for color, series in enumerate(figure.series.values()):
            y, value = start + color * thick, series[row]
            size = abs(value) * scale if math.isfinite(value) else 0
            kind = f"bar c{color % COLORS}" + (" below" if value < 0 else "")
            on.rect((left, y), (size, thick - 2), kind)
            on.text(short_number(value), left + size + 5, y + 10, "start small")
    on.text(figure.unit, left, top + len(figure.labels) * high + 12, "start soft")


@_draw.register
def _(figure: fig.Tree, on: Drawing) -> None:
    depths, rows = _layout(figure.nodes)
    sizes = [wider(node.label, node.detail) + 14 for node in figure.nodes]
    starts, high = [0.0], 40
    for depth in range(max(depths, default=-1) + 1):
        column = (size for size, own in zip(sizes, depths, strict=True) if own == depth)
        starts.append(starts[-1] + 26 + max(column))
    for node, depth, row, size in zip(figure.nodes, depths, rows, sizes, strict=True):
        left, top = starts[depth], row * high + 2
        if node.parent is not None:
            start = starts[depth - 1] + sizes[node.parent], rows[node.parent] * high + 19
            on.path(level_curve(start, (left, top + 17)), f"branch {node.kind}")
        on.rect((left, top), (size, high - 6), f"node {node.kind}", rx=5)
        on.text(node.label, left + size / 2, top + 14, f"mid {node.kind}")
        on.text(node.detail, left + size / 2, top + 28, "mid small")


def _layout(nodes: Sequence[fig.Node]) -> tuple[list[int], list[float]]:
    """Return the column and the row of each node: leaves in rows, parents amid their children."""
    paths: list[tuple[int, ...]] = []
    for index, node in enumerate(nodes):
        paths.append((*(() if node.parent is None else paths[node.parent]), index))
    below: dict[int | None, list[float]] = {node.parent: [] for node in nodes}
    order = sorted(paths)  # depth first, so that the leaves of a node stand together
    leaves = {path[-1]: float(row) for row, path in
              enumerate(path for path in order if path[-1] not in below)}  # fmt: skip
    rows = [0.0] * len(nodes)
    for index in reversed(range(len(nodes))):
        own = below.get(index)
        rows[index] = sum(own) / len(own) if own else leaves[index]
        below[nodes[index].parent].append(rows[index])
    return [len(path) - 1 for path in paths], rows


@_draw.register
def _(figure: fig.Diagram, on: Drawing) -> None:
    tops = max((len(each.boxes) for each in figure.stacks), default=0) * _PITCH - 24
    sides, lanes, left = list[Point](), list[float](), 34.0
    for number, stack in enumerate(figure.stacks):
        wide = 24 + max([110.0, *(wider(box.label, box.detail) for box in stack.boxes)])
        _stack(stack, on, left, wide, tops)
        sides.append((left, left + wide))
        names = [name for start, _, name in figure.arrows if start[0] == number]
        lanes.append(left + wide + (56 if stack.repeated else 4))
        left = lanes[-1] + 14 * len(names) + longest(names) + 38
    for number, lane in enumerate(lanes):
        arrows = [each for each in figure.arrows if each[0][0] == number]
        for x, (start, end, name) in enumerate(arrows):
            y1, y2 = (tops - row * _PITCH + 17 for row in (start[1], end[1]))
            to, tip = (sides[number][1], 7) if end[0] == number else (sides[end[0]][0], -7)
            line = f"M{sides[number][1]:.0f},{y1}H{lane + 8 + 14 * x:.0f}V{y2}H{to:.0f}"
            on.path(line, "arrow")
            on.path(f"M{to:.0f},{y2}l{tip},-4v8z", "tip")
            on.text(name, lane + 14 * len(arrows) + 4, y2 - 6, "start soft")


def _stack(stack: fig.Stack, on: Drawing, left: float, wide: float, tops: int) -> None:
    """Draw boxes, residual connections on their left, and the number of layers on their right."""
    middle, edge = left + wide / 2, left + wide + 8
    on.text(stack.title, middle, tops + 64, "mid ink")
    on.grow(edge, tops + 72)
    for row, box in enumerate(stack.boxes):
        y = tops - row * _PITCH
        on.path(f"M{middle:.0f},{y + 34}v{_PITCH - 34}", "arrow")
        on.rect((left, y), (wide, 34), f"box {box.kind}", rx=6)
        on.text(box.label, middle, y + (14 if box.detail else 21), "mid ink")
        on.text(box.detail, middle, y + 28, "mid small")
        if box.residual:
            low = y + box.residual * _PITCH + 42
            line = f"M{middle:.0f},{low}H{left - 14:.0f}V{y + 17}H{left:.0f}"
            on.path(line, "residual")
            on.path(f"M{left:.0f},{y + 17}l-7,-4v8z", "tip")
    if stack.repeated:
        low, high = (tops - row * _PITCH for row in stack.repeated[:2])
        on.path(f"M{edge:.0f},{low + 38}h7V{high - 4}h-7", "brace")
        name = f"\N{MULTIPLICATION SIGN} {stack.repeated[2]}"
        on.text(name, edge + 12, (low + high) / 2 + 21, "start ink")


@_draw.register
def _(figure: fig.Steps, on: Drawing) -> None:
    on.put(_below([(step.title, each) for step in figure.steps for each in step.figures]), 0, 0)


def _below(figures: Sequence[tuple[str, fig.Figure]]) -> Drawing:
    """Return drawings under their titles, for a file that has no page around them."""
    on, y = Drawing(), 8.0
    for before, figure in figures:
        title, inner = ": ".join(filter(None, (before, figure.title))), draw(figure)
        on.text(title, 8, y + 14, "start ink title")
        on.put(inner, 8, y + 26)
        on.grow(24 + text_width(title) * 1.1, 0)
        y += inner.height + 50
        on.grow(inner.width + 16, y)
    return on
