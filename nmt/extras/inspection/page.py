"""Render figures as an HTML page or as an SVG file.

The page works without its script; the script only shows the steps of a `Steps` one at a time.
Shapes have CSS classes instead of colours (``templates/drawing.css.j2``), so the same drawing works
on light and dark pages and in print. Coordinates are pixels from the upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import groupby
from typing import Any
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import cell_text, figure_lines, numeric_columns
from nmt.report.page import Point, render, short_number, visible

_EM, _ROW = 13, 20  # Font size, and minimum height of a row.
# Widths of characters that are much narrower or wider than average. \u2581 is a word border.
_WIDTHS = dict.fromkeys(" !'(),.:;I[]fijlrt|", 5.5) | dict.fromkeys(
    "%&+<=>@MWmw~\u2192\u2581", 13.0
)
_WIDTHS |= dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 10.0)
_COLORS = 8  # Colours of links, used in turn.
_LEVELS = 24  # Shades of a heatmap.
# Largest heatmap with tooltips on its cells; more tooltips would make pages large.
_MAX_TITLES = 150
_MAX_NUMBERS = 80  # Largest heatmap with numbers written in its cells.
_WIDE = 640  # Target width of a heatmap with many columns.
_FAINT = 0.02  # Weight below which a link is not drawn.
_PITCH = 50  # Distance between the boxes of a stack.


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
        offers=offers, alone=False,
    )  # fmt: skip


def figure_html(figure: fig.Figure) -> Markup:
    """Return a figure with its title and note. Text, tables and steps are HTML; the rest is SVG."""
    kind, content = type(figure).__name__.lower(), dict[str, Any]()
    if isinstance(figure, fig.Table):
        rows = [[cell_text(cell) for cell in row] for row in figure.rows]
        numeric = [*numeric_columns(figure.rows), *[False] * len(figure.head)]
        content = {"rows": rows, "numeric": numeric}
    elif not isinstance(figure, fig.Text | fig.Steps):
        content = {"drawing": draw(figure).as_svg(figure.title)}
    return render("figure.html.j2", kind=kind, figure=figure, figure_html=figure_html, **content)


class Drawing:
    """A part of an SVG document. Its size grows with its contents."""

    def __init__(self) -> None:
        self.width = self.height = 1.0
        self.body = Markup()

    def grow(self, right: float, bottom: float) -> None:
        """Extend the drawing to include a point."""
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def text(self, label: str, x: float, y: float, kind: str = "start", **more: Any) -> None:
        """Write a label. Only a left-aligned label widens the drawing."""
        self.body += tag("text", label, x=x, y=y, class_=kind, **more)
        self.grow(x + (text_width(label) if "start" in kind else 0), y + 4)

    def path(self, d: str, kind: str, **more: Any) -> None:
        """Draw a line without extending the drawing."""
        self.body += tag("path", class_=kind, d=d, **more)

    def rect(self, place: Point, size: Point, kind: str, *inside: Any, **more: Any) -> None:
        """Draw a rectangle from its upper left corner."""
        (x, y), (width, height) = place, size
        more |= {"x": x, "y": y, "width": width, "height": height}
        self.body += tag("rect", *inside, class_=kind, **more)
        self.grow(x + width, y + height)

    def put(self, inner: Drawing, x: float, y: float) -> None:
        """Place another drawing on this one."""
        self.body += tag("g", inner.body, transform=f"translate({_short(x)} {_short(y)})")
        self.grow(x + inner.width, y + inner.height)

    def as_svg(self, title: str, *, style: Markup | None = None) -> Markup:
        """Return an element for a page; with ``style``, a complete SVG document."""
        width, height = _short(self.width), _short(self.height)
        at_least = f"width:{width}px;max-width:max(100%,{_short(self.width * 0.7)}px)"
        place = {"style": at_least}
        if style:
            # A dark page would swallow dark text without a background.
            place = {"width": width, "height": height, "style": "background:#fff"}
            place["xmlns"] = "http://www.w3.org/2000/svg"
        return tag(
            "svg", style or Markup(), self.body, class_="drawing",
            viewBox=f"0 0 {width} {height}", role="img", aria_label=title, **place,
        )  # fmt: skip


def tag(name: str, *inside: Any, **attributes: Any) -> Markup:
    """Return an element. In attribute names, ``_`` becomes ``-``, and a final ``_`` is removed.

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
    """Return the approximate width of a label in pixels. Uses a wide font, so no label is cut off.

    >>> text_width("ab"), text_width("<日>"), text_width("It")
    (16.6, 39.0, 11.0)
    """
    return sum(
        _WIDTHS.get(x) or (_EM if east_asian_width(x) in "WF" else 8.3 if x < "{" else 10.0)
        for x in visible(text)
    )


def _longest(texts: Iterable[str]) -> float:
    return max([0.0, *map(text_width, texts)])


def _box_width(box: fig.Box | fig.Node) -> float:
    return max(text_width(box.label), text_width(box.detail) * 0.85)


def _short(value: Any) -> Any:
    """Round a float to at most one decimal; return other values unchanged."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def _level_curve(start: Point, end: Point) -> str:
    """Return the path of a curve that is horizontal at both ends."""
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return f"M{x1:.0f},{y1:.0f}C{middle:.0f},{y1:.0f} {middle:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"


def document(figures: Sequence[fig.Figure]) -> Markup:
    """Return an SVG file of the drawings, one below the other.

    If no figure is a drawing, the file shows the texts and tables.
    """
    drawn = [each for each in figures if not isinstance(each, fig.Text | fig.Table)] or figures
    style = tag("style", render("drawing.css.j2", alone=True))
    whole = _below([("", each) for each in drawn])
    return whole.as_svg(drawn[0].title, style=style) + Markup("\n")


def _below(figures: Sequence[tuple[str, fig.Figure]]) -> Drawing:
    """Return drawings one below the other, with their titles, for a file of their own."""
    on, y = Drawing(), 8.0
    for before, figure in figures:
        title, inner = ": ".join(filter(None, (before, figure.title))), draw(figure)
        on.text(title, 8, y + 14, "start ink title")
        on.put(inner, 8, y + 26)
        on.grow(24 + text_width(title) * 1.1, 0)
        y += inner.height + 50
        on.grow(inner.width + 16, y)
    return on


@singledispatch
def draw(figure: fig.Figure) -> Drawing:
    """Return a figure as a drawing, without title and note."""
    on = Drawing()
    for row, line in enumerate(figure_lines(figure), 1):
        on.text(line, 0, row * _ROW - 5, "code", xml__space="preserve")
        on.grow(len(line) * 8.0, row * _ROW)
    return on


@draw.register
def _(figure: fig.Steps) -> Drawing:
    return _below([(step.title, each) for step in figure.steps for each in step.figures])


@draw.register
def _(figure: fig.Heatmap) -> Drawing:
    on, (low, high) = Drawing(), figure.bounds
    num_rows, num_columns = len(figure.rows), len(figure.columns)
    is_written = num_rows * num_columns <= _MAX_NUMBERS
    width = 42.0 if is_written else min(_ROW, max(1.0, _WIDE / max(num_columns, 1)))
    height = _ROW if is_written else min(_ROW, max(width, 3.0))
    left, reach = 8 + _longest(figure.rows), _longest(figure.columns)
    slope = 0.0 if is_written and reach < 40 else 55.0
    top = 22 + reach * math.sin(math.radians(slope))
    _shades(figure.values, on, (low, high), (left, top), (width, height))
    on.rect((left, top), (num_columns * width, num_rows * height), "frame")
    for y, row in enumerate(figure.values if num_rows * num_columns <= _MAX_TITLES else ()):
        for x, value in enumerate(row):
            number = "masked" if value is None else short_number(value)
            name = tag("title", f"{figure.rows[y]}, {figure.columns[x]}: {number}")
            across, down = left + x * width, top + y * height
            on.rect((across, down), (width, height), "hit", name)
            if is_written and value is not None:
                is_strong = abs(_level(value, low, high) or 0) > _LEVELS * 0.55
                shown = f"{value:.2f}" if abs(value) < 100 else number
                kind = "mid inner" if is_strong else "mid ink"
                on.text(shown, across + width / 2, down + height / 2 + 4, kind)
    for place in _every(num_rows, height):
        on.text(figure.rows[place], left - 6, top + (place + 0.5) * height + 4, "end")
    for place in _every(num_columns, width * (0.75 if slope else 1)):  # slanted labels need less
        across, down = left + (place + 0.5) * width + (4 if slope else 0), top - 6
        turn = {"transform": f"rotate(-55 {_short(across)} {_short(down)})"} if slope else {}
        on.text(figure.columns[place], across, down, "first" if slope else "mid", **turn)
    bottom = top + num_rows * height
    on.text(short_number(low), left + 34, bottom + 20, "end soft")
    ramp = [[low + (high - low) * (each + 0.5) / 12 for each in range(12)]]
    _shades(ramp, on, (low, high), (left + 38, bottom + 10), (7, 10))
    on.text(short_number(high), left + 126, bottom + 20, "start soft")
    sides = ("down", figure.down), ("across", figure.across)
    if names := " / ".join(f"{side}: {name}" for side, name in sides if name):
        on.text(names, left, bottom + 42, "start soft")
    lean = reach * math.cos(math.radians(slope)) if slope else 20
    on.grow(max(left + num_columns * width + lean, left + 190), bottom + 30)
    return on


def _every(count: int, size: float) -> range:
    """Return the indices of labels that fit: all, every second, every tenth and so on."""
    return range(0, count, max(1, math.ceil(_EM / size)))


def _level(value: float | None, low: float, high: float) -> int | None:
    """Return the shade of a value: 0 is transparent, and negative shades have the second hue."""
    if value is None or math.isnan(value):
        return None
    start = max(low, 0.0)
    share = (value - start) / (high - start)
    return round(max(-1.0 if low < 0 else 0.0, min(1.0, share)) * _LEVELS)


def _shades(values: fig.Matrix, on: Drawing, bounds: Point, place: Point, size: Point) -> None:
    """Draw cells with one path per shade. Neighbouring cells of the same shade form one shape."""
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
    move = f"translate({_short(place[0])} {_short(place[1])}) scale({size[0]:.5g} {size[1]:.5g})"
    on.body += tag("g", inner.body, transform=move, class_="cells")


@draw.register
def _(figure: fig.Grid) -> Drawing:
    on, num_rows, num_columns = Drawing(), len(figure.values[0][0]), len(figure.values[0][0][0])
    cell = max(1.5, min(8.0, 110 / max(num_rows, num_columns)))
    left, pitch = 8 + _longest(figure.rows), max(cell * num_columns, _longest(figure.columns)) + 10
    for number, name in enumerate(figure.columns):
        on.text(name, left + number * pitch, 14)
    for y, row in enumerate(figure.values):
        top = 22 + y * (cell * num_rows + 10)
        on.text(figure.rows[y], left - 8, top + 12, "end")
        for x, values in enumerate(row):
            place, name = (left + x * pitch, top), f"{figure.rows[y]}, {figure.columns[x]}"
            _shades(values, on, (0.0, 1.0), place, (cell, cell))
            on.rect(place, (cell * num_columns, cell * num_rows), "frame hit", tag("title", name))
    return on


@draw.register
def _(figure: fig.Links) -> Drawing:
    on, left, legend = Drawing(), 8 + _longest(figure.left), 0.0
    top = _ROW if len(figure.weights) > 1 else 0
    for color, (name, weights) in enumerate(figure.weights.items()):
        kind = f"c{color % _COLORS}"
        if top:
            on.text(name, legend, 13, f"start {kind}")
            legend += text_width(name) + 14
        for i, row in enumerate(weights):
            for j, weight in enumerate(row):
                if weight is not None and weight >= _FAINT:
                    y1, y2 = (top + (each + 0.5) * _ROW for each in (i, j))
                    line, opacity = _level_curve((left, y1), (left + 120, y2)), f"{weight:.2f}"
                    on.path(line, f"link {kind}", stroke_opacity=opacity)
    for x, kind, names in ((left - 6, "end", figure.left), (left + 126, "start", figure.right)):
        for place, name in enumerate(names):
            on.text(name, x, top + (place + 0.5) * _ROW + 4, f"{kind} ink")
    return on


@draw.register
def _(figure: fig.Tree) -> Drawing:
    on, (depths, rows) = Drawing(), layout(figure)
    widths = [_box_width(node) + 14 for node in figure.nodes]
    starts, height = [0.0], 40
    for depth in range(max(depths, default=-1) + 1):
        column = (size for size, own in zip(widths, depths, strict=True) if own == depth)
        starts.append(starts[-1] + 26 + max(column))
    for node, depth, row, width in zip(figure.nodes, depths, rows, widths, strict=True):
        left, top = starts[depth], row * height + 2
        if node.parent is not None:
            start = starts[depth - 1] + widths[node.parent], rows[node.parent] * height + 19
            on.path(_level_curve(start, (left, top + 17)), f"branch {node.kind}")
        on.rect((left, top), (width, height - 6), f"node {node.kind}", rx=5)
        on.text(node.label, left + width / 2, top + 14, f"mid {node.kind}")
        on.text(node.detail, left + width / 2, top + 28, "mid small")
    return on


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


@draw.register
def _(figure: fig.Diagram) -> Drawing:
    on, bottom = Drawing(), max(len(stack.boxes) for stack in figure.stacks) * _PITCH - 24
    sides, lanes, left = list[Point](), list[float](), 34.0
    for number, stack in enumerate(figure.stacks):
        width = 24 + max([110.0, *map(_box_width, stack.boxes)])
        _stack(stack, on, left, width, bottom)
        names = [name for start, _, name in figure.arrows if start[0] == number]
        sides.append((left, left + width))
        lanes.append(left + width + (56 if stack.repeated else 4))
        left = lanes[-1] + 14 * len(names) + _longest(names) + 38
    for number, lane in enumerate(lanes):
        arrows = [each for each in figure.arrows if each[0][0] == number]
        for x, (start, end, name) in enumerate(arrows):
            y1, y2 = (bottom - row * _PITCH + 17 for row in (start[1], end[1]))
            to, tip = (sides[number][1], 7) if end[0] == number else (sides[end[0]][0], -7)
            line = f"M{sides[number][1]:.0f},{y1}H{lane + 8 + 14 * x:.0f}V{y2}H{to:.0f}"
            on.path(line, "arrow")
            on.path(f"M{to:.0f},{y2}l{tip},-4v8z", "tip")
            on.text(name, lane + 14 * len(arrows) + 4, y2 - 6, "start soft")
    return on


def _stack(stack: fig.Stack, on: Drawing, left: float, width: float, bottom: int) -> None:
    """Draw boxes, with residual connections on the left and the number of layers on the right."""
    middle, edge = left + width / 2, left + width + 8
    on.text(stack.title, middle, bottom + 64, "mid ink")
    on.grow(edge, bottom + 72)
    for row, box in enumerate(stack.boxes):
        y = bottom - row * _PITCH
        on.path(f"M{middle:.0f},{y + 34}v{_PITCH - 34}", "arrow")
        on.rect((left, y), (width, 34), f"box {box.kind}", rx=6)
        on.text(box.label, middle, y + (14 if box.detail else 21), "mid ink")
        on.text(box.detail, middle, y + 28, "mid small")
        if box.residual:
            low = y + box.residual * _PITCH + 42
            on.path(f"M{middle:.0f},{low}H{left - 14:.0f}V{y + 17}H{left:.0f}", "residual")
            on.path(f"M{left:.0f},{y + 17}l-7,-4v8z", "tip")
    if stack.repeated:
        low, high = (bottom - row * _PITCH for row in stack.repeated[:2])
        on.path(f"M{edge:.0f},{low + 38}h7V{high - 4}h-7", "brace")
        name = f"\N{MULTIPLICATION SIGN} {stack.repeated[2]}"
        on.text(name, edge + 12, (low + high) / 2 + 21, "start ink")
