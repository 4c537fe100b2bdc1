"""Figures as SVG: inside a page they take its colours, and alone they bring their own.

Shapes carry classes and no colours (``templates/drawing.css.j2``), so one drawing serves light and
dark pages and paper. Coordinates are pixels; the origin is the upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import groupby
from typing import Any
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from nmt.inspection.figure import (
    Bars,
    Box,
    Diagram,
    Figure,
    Grid,
    Heatmap,
    Lines,
    Links,
    Matrix,
    Node,
    Stack,
    Steps,
    Table,
    Text,
    Tree,
)
from nmt.inspection.text import plain_lines
from nmt.report.page import (
    Point,
    Scale,
    path_data,
    render,
    round_ticks,
    short_number,
    tick_labels,
    visible,
)

_NO_STYLE = Markup()
_EM = 13
"""Size of letters, and with some air the least height of a row."""
_ROW = 20
_LEVELS = 24
"""Shades of a heatmap."""
_MAX_TITLES = 150
"""Cells of a heatmap that say their number under the pointer; more would make pages heavy."""
_MAX_NUMBERS = 80
"""Cells that have their number written in them."""
_WIDE = 640
"""Width in which a heatmap of many columns should fit."""
_BROAD = "\u2581\u2192"
"""Word border and arrow: wider than letters, as capitals are."""
_COLORS = 8
_FAINT = 0.02
"""Weight below which a link is not drawn."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A part of an SVG document."""

    width: float
    height: float
    body: Markup

    def as_svg(self, title: str, *, style: Markup = _NO_STYLE) -> Markup:
        """Return an element for a page, or with a style a document of its own."""
        size = {"width": _short(self.width), "height": _short(self.height)}
        at_least = f"width:{size['width']}px;max-width:max(100%,{_short(self.width * 0.7)}px)"
        place = size | {"xmlns": "http://www.w3.org/2000/svg"} if style else {"style": at_least}
        box = f"0 0 {size['width']} {size['height']}"
        return tag(
            "svg", style, self.body, class_="drawing", viewBox=box, role="img", aria_label=title,
            **place,
        )  # fmt: skip


def document(figures: Sequence[Figure]) -> Markup:
    """Return an SVG file: the drawings among the figures below one another, else all of them."""
    drawn: Sequence[Figure] = [
        each for each in figures if not isinstance(each, Text | Table)
    ] or figures
    whole = _below([_titled(each) for each in drawn])
    style = tag("style", render("drawing.css.j2", alone=True))
    return whole.as_svg(drawn[0].title, style=style) + Markup("\n")


def tag(name: str, *inside: Any, **attributes: Any) -> Markup:
    """Return an element; of attribute names, ``_`` becomes ``-`` and a last ``_`` goes.

    >>> tag("text", "a < b", x=3, class_="y", text_anchor="end")
    Markup('<text x="3" class="y" text-anchor="end">a &lt; b</text>')
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(str(_short(value))))}"'
        for key, value in attributes.items()
    )
    content = "".join(escape(visible(x) if not isinstance(x, Markup) else x) for x in inside)
    return Markup(f"<{name}{named}>{content}</{name}>" if content else f"<{name}{named}/>")


def text_width(text: str) -> float:
    """Return about how wide a label is in pixels.

    >>> text_width("ab"), text_width("日")
    (14.0, 13.0)
    """
    wide = sum(east_asian_width(each) in "WF" for each in visible(text))
    broad = sum(each.isupper() or each in _BROAD for each in text)
    return (len(visible(text)) - wide) * 7.0 + wide * _EM + broad * 3


@singledispatch
def draw(figure: Figure) -> Drawing:
    """Return a figure as a drawing, without its title and note."""
    lines = plain_lines(figure)
    rows = [
        tag("text", line, x=0, y=(row + 1) * _ROW - 5, class_="code", xml__space="preserve")
        for row, line in enumerate(lines)
    ]
    width = max([1.0, *(text_width(line) * 1.15 for line in lines)])
    return Drawing(width, len(lines) * _ROW, Markup().join(rows))


@draw.register
def _(figure: Heatmap) -> Drawing:
    rows, columns = len(figure.values), max(map(len, figure.values), default=0)
    written = rows * columns <= _MAX_NUMBERS
    wide = 42.0 if written else min(_ROW, max(1.0, _WIDE / max(columns, 1)))
    high = _ROW if written else min(_ROW, max(wide, 3.0))
    left = 8 + max([0.0, *map(text_width, figure.rows)])
    slope = 0.0 if written and max(map(text_width, figure.columns), default=0) < 40 else 55.0
    reach = max([0.0, *map(text_width, figure.columns)])
    top = 22 + reach * math.sin(math.radians(slope))
    parts = [_cells(figure, (left, top), (wide, high), written=written)]
    for row in _every(rows, high):
        y = top + (row + 0.5) * high + 4
        parts.append(tag("text", figure.rows[row], x=left - 6, y=y, class_="end"))
    for column in _every(columns, wide):
        x, y = left + (column + 0.5) * wide + (4 if slope else 0), top - 6
        turn = {"transform": f"rotate({-slope:.0f} {_short(x)} {_short(y)})"} if slope else {}
        anchor = {"class_": "start" if slope else "mid"}
        parts.append(tag("text", figure.columns[column], x=x, y=y, **turn, **anchor))
    bottom = top + rows * high
    parts.append(_key(figure, left, bottom + 10))
    names = " / ".join(
        f"{side}: {name}"
        for side, name in (("down", figure.down), ("across", figure.across))
        if name
    )
    parts.append(tag("text", names, x=left, y=bottom + 42, class_="soft") if names else Markup())
    lean = reach * math.cos(math.radians(slope)) if slope else 20
    width = max(left + columns * wide + lean, left + 190, left + text_width(names))
    return Drawing(width, bottom + (48 if names else 30), Markup().join(parts))


def _every(count: int, size: float) -> range:
    """Return which of many labels have room: all, or every second, tenth and so on."""
    return range(0, count, max(1, math.ceil(_EM / size)))


def _level(value: float | None, low: float, high: float) -> int | None:
    """Return the shade of a value: 0 for none, negative for the other hue."""
    if value is None or math.isnan(value):
        return None
    start = 0.0 if low < 0 else low
    share = (value - start) / (high - start)
    return round(max(-1.0 if low < 0 else 0.0, min(1.0, share)) * _LEVELS)


def _shades(values: Matrix, low: float, high: float) -> Markup:
    """Return cells of size 1 as one path for each shade; neighbours of one shade are one shape."""
    paths: dict[int | None, list[str]] = {}
    for y, row in enumerate(values):
        x = 0
        for level, run in groupby(_level(value, low, high) for value in row):
            length = len(list(run))
            paths.setdefault(level, []).append(f"M{x},{y}h{length}v1h-{length}z")
            x += length
    found = []
    for level, shapes in paths.items():
        look = {} if level is None else {"fill_opacity": round(abs(level) / _LEVELS, 2)}
        kind = "none" if level is None else "cold" if level < 0 else "heat"
        if level != 0:
            found.append(tag("path", class_=kind, d="".join(shapes), **look))
    return Markup().join(found)


def _cells(
    figure: Heatmap, place: tuple[float, float], size: tuple[float, float], *, written: bool
) -> Markup:
    """Return the coloured cells of a heatmap, its frame and its numbers."""
    (left, top), (wide, high), (low, up) = place, size, figure.bounds
    rows, columns = len(figure.values), max(map(len, figure.values), default=0)
    move = f"translate({_short(left)} {_short(top)}) scale({wide:.5g} {high:.5g})"
    parts = [tag("g", _shades(figure.values, low, up), transform=move, class_="cells")]
    parts.append(
        tag("rect", x=left, y=top, width=columns * wide, height=rows * high, class_="frame")
    )
    titled = rows * columns <= _MAX_TITLES
    for y, row in enumerate(figure.values if titled else ()):
        for x, value in enumerate(row):
            number = "" if value is None else short_number(value)
            name = f"{figure.rows[y]}, {figure.columns[x]}: {number or 'masked'}"
            corner = {"x": left + x * wide, "y": top + y * high, "width": wide, "height": high}
            parts.append(tag("rect", tag("title", name), class_="hit", **corner))
            if written and number:
                strong = abs(_level(value, low, up) or 0) > _LEVELS * 0.55
                at = {"x": corner["x"] + wide / 2, "y": corner["y"] + high / 2 + 4}
                shown = f"{value:.2f}" if abs(value or 0) < 100 else number
                parts.append(tag("text", shown, class_="mid inner" if strong else "mid ink", **at))
    return Markup().join(parts)


def _key(figure: Heatmap, x: float, y: float) -> Markup:
    """Return the scale of a heatmap's colours."""
    low, high = figure.bounds
    steps = 12
    ramp = [[low + (high - low) * (each + 0.5) / steps for each in range(steps)]]
    move = f"translate({_short(x + 38)} {_short(y)}) scale(7 10)"
    return (
        tag("text", short_number(low), x=x + 34, y=y + 10, class_="end soft")
        + tag("g", _shades(ramp, low, high), transform=move, class_="cells")
        + tag("text", short_number(high), x=x + 126, y=y + 10, class_="start soft")
    )


@draw.register
def _(figure: Grid) -> Drawing:
    head = 8 + max([0.0, *map(text_width, figure.rows)])
    columns = max(max(map(len, each.values), default=0) for row in figure.figures for each in row)
    rows = max(len(each.values) for row in figure.figures for each in row)
    cell = max(1.5, min(8.0, 110 / max(columns, rows, 1)))
    wide = max(cell * columns, *map(text_width, figure.columns)) + 10
    high = cell * rows + 10
    parts = [
        tag("text", name, x=head + n * wide, y=14, class_="start")
        for n, name in enumerate(figure.columns)
    ]
    for y, row in enumerate(figure.figures):
        top = 22 + y * high
        parts.append(tag("text", figure.rows[y], x=head - 8, y=top + 12, class_="end"))
        for x, each in enumerate(row):
            inside = _cells(each, (head + x * wide, top), (cell, cell), written=False)
            parts.append(tag("g", tag("title", each.title), inside))
    width = head + len(figure.columns) * wide
    return Drawing(width, 22 + len(figure.rows) * high, Markup().join(parts))


@draw.register
def _(figure: Links) -> Drawing:
    gap, left = 120, 8 + max([0.0, *map(text_width, figure.left)])
    top = _ROW if len(figure.weights) > 1 else 0
    parts, x = [], 0.0
    for color, name in enumerate(figure.weights if top else ()):
        parts.append(tag("text", name, x=x, y=13, class_=f"start c{color % _COLORS}"))
        x += text_width(name) + 14
    for color, weights in enumerate(figure.weights.values()):
        for i, row in enumerate(weights):
            for j, weight in enumerate(row):
                if weight is None or not weight >= _FAINT:
                    continue
                y1, y2 = (top + (each + 0.5) * _ROW for each in (i, j))
                line = _curve((left, y1), (left + gap, y2))
                look = {"class_": f"link c{color % _COLORS}", "stroke_opacity": f"{weight:.2f}"}
                parts.append(tag("path", d=line, **look))
    sides = ((left - 6, figure.left, "end ink"), (left + gap + 6, figure.right, "start ink"))
    for place, labels, kind in sides:
        for number, label in enumerate(labels):
            y = top + (number + 0.5) * _ROW + 4
            parts.append(tag("text", label, x=place, y=y, class_=kind))
    width = max(x, left + gap + 8 + max([0.0, *map(text_width, figure.right)]))
    height = top + max(len(figure.left), len(figure.right)) * _ROW
    return Drawing(width, height, Markup().join(parts))


@draw.register
def _(figure: Bars) -> Drawing:
    left = 8 + max([0.0, *map(text_width, figure.labels)])
    top = _ROW if len(figure.series) > 1 else 0
    thick = 12
    values = [value for series in figure.series.values() for value in series]
    scale = 260 / max([1e-30, *(abs(value) for value in values if math.isfinite(value))])
    parts, x = [], left
    for color, name in enumerate(figure.series if top else ()):
        parts.append(tag("text", name, x=x, y=13, class_=f"start c{color % _COLORS}"))
        x += text_width(name) + 14
    high = thick * len(figure.series) + 8
    for row, label in enumerate(figure.labels):
        start = top + row * high
        parts.append(tag("text", label, x=left - 6, y=start + high / 2 + 1, class_="end ink"))
        for color, series in enumerate(figure.series.values()):
            y, value = start + color * thick, series[row]
            size = abs(value) * scale if math.isfinite(value) else 0
            kind = f"bar c{color % _COLORS}" + (" below" if value < 0 else "")
            parts.append(tag("rect", x=left, y=y, width=size, height=thick - 2, class_=kind))
            end = left + size + 5
            parts.append(tag("text", short_number(value), x=end, y=y + 10, class_="start small"))
    height = top + len(figure.labels) * high
    if figure.unit:
        parts.append(tag("text", figure.unit, x=left, y=height + 12, class_="start soft"))
    return Drawing(max(left + 330, x), height + (18 if figure.unit else 0), Markup().join(parts))


@draw.register
def _(figure: Lines) -> Drawing:
    points = [point for curve in figure.curves.values() for point in curve]
    finite = [(x, y) for x, y in points if math.isfinite(y)] or [(0.0, 0.0)]
    (xs, ys), (left, right, top, bottom) = zip(*finite, strict=True), (60, 500, 10, 220)
    across, up = (round_ticks(min(each), max(each)) for each in (xs, ys))
    x, y = Scale(across[0], across[-1], across), Scale(up[0], up[-1], up)
    parts = []
    for tick, name in zip(up, tick_labels(up), strict=True):
        h = bottom - y.share(tick) * (bottom - top)
        parts.append(tag("path", d=f"M{left},{h:.1f}H{right}", class_="rule"))
        parts.append(tag("text", name, x=left - 8, y=h + 4, class_="end"))
    for tick, name in zip(across, tick_labels(across), strict=True):
        w = left + x.share(tick) * (right - left)
        parts.append(tag("text", name, x=w, y=bottom + 18, class_="mid"))
    parts.append(tag("text", figure.across, x=(left + right) / 2, y=bottom + 36, class_="mid soft"))
    for color, (label, curve) in enumerate(figure.curves.items()):
        places = [
            (left + x.share(a) * (right - left), bottom - y.share(b) * (bottom - top))
            for a, b in curve
        ]
        parts.append(tag("path", d=path_data(places), class_=f"curve c{color % _COLORS}"))
        at = {"x": right + 12, "y": top + 10 + color * _ROW}
        parts.append(tag("text", label, class_=f"start c{color % _COLORS}", **at))
    parts.append(tag("text", figure.unit, x=left, y=bottom + 56, class_="start soft"))
    key = max([0.0, *map(text_width, figure.curves)])
    height = max(bottom + 62, top + len(figure.curves) * _ROW)
    return Drawing(right + 20 + key, height, Markup().join(parts))


@draw.register
def _(figure: Tree) -> Drawing:
    depths, rows = _layout(figure.nodes)
    sizes = [max(text_width(n.label), text_width(n.detail) * 0.85) + 14 for n in figure.nodes]
    starts, x = [], 0.0
    for depth in range(max(depths, default=-1) + 1):
        starts.append(x)
        x += 26 + max(s for s, d in zip(sizes, depths, strict=True) if d == depth)
    high = 40
    parts = []
    for node, depth, row, size in zip(figure.nodes, depths, rows, sizes, strict=True):
        left, top = starts[depth], row * high + 2
        if node.parent is not None:
            x1 = starts[depths[node.parent]] + sizes[node.parent]
            y1, y2 = rows[node.parent] * high + 19, top + 17
            line = _curve((x1, y1), (left, y2))
            parts.append(tag("path", d=line, class_=f"branch {node.kind}"))
        box = {"x": left, "y": top, "width": size, "height": high - 6, "rx": 5}
        parts.append(tag("rect", class_=f"node {node.kind}", **box))
        middle = left + size / 2
        parts.append(tag("text", node.label, x=middle, y=top + 14, class_=f"mid {node.kind}"))
        parts.append(tag("text", node.detail, x=middle, y=top + 28, class_="mid small"))
    return Drawing(max(x - 26, 1), (max(rows, default=0) + 1) * high, Markup().join(parts))


def _curve(start: Point, end: Point) -> str:
    """Return the path of a line that leaves and arrives level."""
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return f"M{x1:.0f},{y1:.0f}C{middle:.0f},{y1:.0f} {middle:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"


def _layout(nodes: Sequence[Node]) -> tuple[list[int], list[float]]:
    """Return the column and the row of each node: leaves in rows, parents amid their children."""
    depths: list[int] = []
    for node in nodes:
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
    children: dict[int | None, list[int]] = {}
    for index, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(index)
    rows, leaves = [0.0] * len(nodes), 0
    stack = list(reversed(children.get(None, [])))
    order = []
    while stack:  # depth first, so that the leaves of a node stand together
        order.append(stack.pop())
        stack += reversed(children.get(order[-1], []))
    for index in order:
        if index not in children:
            rows[index], leaves = leaves, leaves + 1
    for index in reversed(order):
        if below := children.get(index):
            rows[index] = sum(rows[each] for each in below) / len(below)
    return depths, rows


@draw.register
def _(figure: Diagram) -> Drawing:
    parts, places, x = list[Markup](), dict[tuple[int, int], _Place](), 0.0
    lanes = dict[int, tuple[float, float]]()
    tall = max((len(each.boxes) for each in figure.stacks), default=0) * _PITCH + 26
    for number, stack in enumerate(figure.stacks):
        arrows = [(i, start[0], name) for i, (start, (to, _), name) in enumerate(figure.arrows)
                  if to == number]  # fmt: skip
        x = _lay_lanes([(i, name) for i, origin, name in arrows if origin != number], x, lanes)
        left, wide = (
            x + 34,
            24
            + max(
                [
                    110.0,
                    *(max(text_width(b.label), text_width(b.detail) * 0.85) for b in stack.boxes),
                ]
            ),
        )
        parts.append(tag("text", stack.title, x=left + wide / 2, y=tall + 14, class_="mid ink"))
        for row, box in enumerate(stack.boxes):
            places[number, row] = (left, tall - (row + 1) * _PITCH, wide)
            parts.append(_box(box, *places[number, row]))
        parts += _sides(stack, number, places, left, wide)
        x = left + wide + (56 if stack.repeated else 4)
        x = _lay_lanes([(i, name) for i, origin, name in arrows if origin == number], x, lanes)
    for index, (start, end, name) in enumerate(figure.arrows):
        (x1, y1, wide), (x2, y2, _), (lane, beside) = places[start], places[end], lanes[index]
        x1, y1, y2 = x1 + wide, y1 + 17, y2 + 17
        to, tip = (x1, 7) if start[0] == end[0] else (x2, -7)
        line = f"M{x1:.0f},{y1:.0f}H{lane:.0f}V{y2:.0f}H{to:.0f}"
        parts.append(tag("path", d=line, class_="arrow"))
        parts.append(tag("path", d=f"M{to:.0f},{y2:.0f}l{tip},-4v8z", class_="tip"))
        parts.append(tag("text", name, x=beside, y=y2 - 6, class_="start soft"))
    return Drawing(max(x, 1), tall + 22, Markup().join(parts))


def _lay_lanes(
    arrows: Sequence[tuple[int, str]], x: float, lanes: dict[int, tuple[float, float]]
) -> float:
    """Give each arrow (its number and name) a lane, and a place for its name; return the end."""
    after = x + 14 * len(arrows) + 4
    for number, (index, _) in enumerate(arrows):
        lanes[index] = (x + 8 + 14 * number, after)
    return after + max(text_width(name) for _, name in arrows) if arrows else x


_Place = tuple[float, float, float]
"""Left edge, upper edge and width of a box."""
_PITCH = 50
"""From a box of a stack to the next one."""


def _box(box: Box, x: float, y: float, wide: float) -> Markup:
    middle, rise = x + wide / 2, 14 if box.detail else 21
    return (
        tag("path", d=f"M{middle:.0f},{y + 34:.0f}v{_PITCH - 34}", class_="arrow")
        + tag("rect", x=x, y=y, width=wide, height=34, rx=6, class_=f"box {box.kind}")
        + tag("text", box.label, x=middle, y=y + rise, class_="mid ink")
        + (tag("text", box.detail, x=middle, y=y + 28, class_="mid small") if box.detail else "")
    )


def _sides(
    stack: Stack,
    number: int,
    places: Mapping[tuple[int, int], _Place],
    x: float,
    wide: float,
) -> Iterable[Markup]:
    """Yield residual connections on the left of a stack, and its number of layers on the right."""
    for row, box in enumerate(stack.boxes):
        if box.residual:
            y = places[number, row][1] + 17
            low = places[number, row - box.residual][1] + 42
            line = f"M{x + wide / 2:.0f},{low:.0f}H{x - 14:.0f}V{y:.0f}H{x:.0f}"
            yield tag("path", d=line, class_="residual")
            yield tag("path", d=f"M{x:.0f},{y:.0f}l-7,-4v8z", class_="tip")
    if stack.repeated:
        first, last, count = stack.repeated
        low, high = places[number, first][1] + 38, places[number, last][1] - 4
        edge = x + wide + 8
        line = f"M{edge:.0f},{low:.0f}h7V{high:.0f}h-7"
        yield tag("path", d=line, class_="brace")
        name = f"\N{MULTIPLICATION SIGN} {count}"
        yield tag("text", name, x=edge + 12, y=(low + high) / 2 + 4, class_="start ink")


@draw.register
def _(figure: Steps) -> Drawing:
    shown = [_titled(each, step.title) for step in figure.steps for each in step.figures]
    return _below(shown)


def _titled(figure: Figure, before: str = "") -> Drawing:
    """Return a drawing under its title, for a file that has no page around it."""
    inner = draw(figure)
    title = ": ".join(each for each in (before, figure.title) if each)
    head = tag("text", title, x=0, y=14, class_="start ink title")
    body = head + tag("g", inner.body, transform="translate(0 26)")
    return Drawing(max(inner.width, text_width(title) * 1.1), inner.height + 26, body)


def _below(drawings: Sequence[Drawing]) -> Drawing:
    y, parts = 8.0, []
    for each in drawings:
        parts.append(tag("g", each.body, transform=f"translate(8 {_short(y)})"))
        y += each.height + 24
    return Drawing(16 + max(each.width for each in drawings), y, Markup().join(parts))


def _short(value: Any) -> Any:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
