"""What figures are drawn with: an SVG element that grows, labels and their width, colours.

Coordinates are pixels; the origin is the upper left corner.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unicodedata import east_asian_width

from markupsafe import Markup, escape

from nmt.report.page import Point, visible

EM = 13  # Size of letters, and with some air the least height of a row.
ROW = 20
_BROAD = "\u2581\u2192"  # Word border and arrow: wider than letters, as capitals are.
COLORS = 8  # Of series, in turn.


class Drawing:
    """A part of an SVG document; it grows with what is drawn on it."""

    def __init__(self) -> None:
        self.width = self.height = 1.0
        self.body = Markup()

    def grow(self, right: float, bottom: float) -> None:
        """Make room up to a point."""
        self.width, self.height = max(self.width, right), max(self.height, bottom)

    def text(self, label: str, x: float, y: float, kind: str = "start", **more: Any) -> None:
        """Write a label; room is made for one that starts at the point."""
        self.body += tag("text", label, x=x, y=y, class_=kind, **more)
        self.grow(x + (text_width(label) if "start" in kind else 0), y + 4)

    def path(self, d: str, kind: str, **more: Any) -> None:
        """Draw a line; no room is made for it."""
        self.body += tag("path", class_=kind, d=d, **more)

    def rect(self, place: Point, size: Point, kind: str, *inside: Any, **more: Any) -> None:
        """Draw a rectangle from its upper left corner."""
        (x, y), (width, height) = place, size
        box = {"x": x, "y": y, "width": width, "height": height}
        self.body += tag("rect", *inside, class_=kind, **box, **more)
        self.grow(x + width, y + height)

    def put(self, inner: Drawing, x: float, y: float) -> None:
        """Place another drawing on this one."""
        move = f"translate({short(x)} {short(y)})"
        self.body += tag("g", inner.body, transform=move)
        self.grow(x + inner.width, y + inner.height)

    def legend(self, names: Iterable[str]) -> float:
        """Write the names of several colours in a row; return the height it takes."""
        named, x = list(names), 0.0
        for color, name in enumerate(named if len(named) > 1 else ()):
            self.text(name, x, 13, f"start c{color % COLORS}")
            x += text_width(name) + 14
        return ROW if x else 0

    def as_svg(self, title: str, *, style: Markup | None = None) -> Markup:
        """Return an element for a page, or with a style a document of its own."""
        width, height = short(self.width), short(self.height)
        at_least = f"width:{width}px;max-width:max(100%,{short(self.width * 0.7)}px)"
        place = {"style": at_least}
        if style:
            place = {"width": width, "height": height, "xmlns": "http://www.w3.org/2000/svg"}
        return tag(
            "svg", style or Markup(), self.body, class_="drawing",
            viewBox=f"0 0 {width} {height}", role="img", aria_label=title, **place,
        )  # fmt: skip


def tag(name: str, *inside: Any, **attributes: Any) -> Markup:
    """Return an element; of attribute names, ``_`` becomes ``-`` and a last ``_`` goes.

    >>> tag("text", "a < b", x=3, class_="y", text_anchor="end")
    Markup('<text x="3" class="y" text-anchor="end">a &lt; b</text>')
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(visible(str(short(value))))}"'
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
    return (len(visible(text)) - wide) * 7.0 + wide * EM + broad * 3


def longest(texts: Iterable[str]) -> float:
    """Return the width of the widest label; 0 without labels."""
    return max([0.0, *map(text_width, texts)])


def wider(label: str, detail: str) -> float:
    """Return the width of a label with a smaller line below it."""
    return max(text_width(label), text_width(detail) * 0.85)


def short(value: Any) -> Any:
    """Return a number with a decimal, if it needs one, and all else as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def level_curve(start: Point, end: Point) -> str:
    """Return the path of a line that leaves and arrives level."""
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    return f"M{x1:.0f},{y1:.0f}C{middle:.0f},{y1:.0f} {middle:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
