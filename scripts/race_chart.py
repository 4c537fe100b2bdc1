"""The chart of `race.py`: BLEU over minutes of training, as an SVG for light and dark pages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

WIDTH = 720
HEIGHT = 400
# The axes. Names of the lines are right of them.
LEFT = 46
TOP = 28
RIGHT = 525
BOTTOM = 350
STYLE = """svg{background:$page}.grid{stroke:$grid}text{fill:$soft;font-size:13px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}"""
SHAPES = """.name{font-size:14px}.bold.name{font-weight:600}.end{text-anchor:end}
.mid{text-anchor:middle}path{fill:none;stroke-linecap:round;stroke-linejoin:round}
.line{stroke-width:2}.bold.line{stroke-width:3}
.seeds{stroke-width:8;stroke-opacity:.3}.dots{stroke-width:7}.lead{stroke-opacity:.5}"""
# Page, text, grid and lines: light and dark, as in nmt/report/templates/style.css.
PAGE = ("#fff", "#17191c")
SOFT = ("#5d6671", "#9aa3ad")
GRID = ("#e4e2de", "#31363c")
COLORS = (
    ("#2566a0", "#74b2e6"), ("#ae5018", "#eba164"), ("#2b7a4b", "#77c796"), ("#8a4fb0", "#c79be4"),
    ("#86690f", "#d9bc5e"), ("#b03a5b", "#ec8fa8"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of the chart."""

    label: str
    color: int  # index of `COLORS`
    is_bold: bool
    scores: Mapping[float, Sequence[float]]  # minutes -> BLEU of each seed

    @property
    def means(self) -> list[tuple[float, float]]:
        """Minutes and the mean BLEU."""
        limits = sorted(self.scores)
        return [(limit, statistics.mean(self.scores[limit])) for limit in limits]

    @property
    def last(self) -> float:
        """The mean BLEU at the last limit."""
        _, mean = self.means[-1]
        return mean


def spread(heights: Sequence[float], gap: float, bottom: float) -> list[float]:
    """Move ascending heights so that they are ``gap`` apart and not below ``bottom``."""
    placed: list[float] = []
    for height in heights:
        if placed:
            height = max(height, placed[-1] + gap)
        placed.append(height)
    lowest = bottom
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], lowest)
        lowest = placed[index] - gap
    return placed


def draw(curves: Sequence[Curve]) -> str:
    """Return an SVG of the means. A bar shows the range of the seeds."""
    limits: set[float] = set()
    scores: list[float] = []
    for curve in curves:
        limits.update(curve.scores)
        for of_limit in curve.scores.values():
            scores += of_limit
    minutes = sorted(limits)
    top = 5 * math.ceil(max(*scores, 1) / 5)
    width = math.log(minutes[-1] / minutes[0]) or 1

    def across(limit: float) -> float:
        share = math.log(limit / minutes[0]) / width
        return LEFT + 24 + share * (RIGHT - LEFT - 24)

    def height(score: float) -> float:
        return BOTTOM - score / top * (BOTTOM - TOP)

    def place(limit: float, score: float) -> str:
        return f"{across(limit):.1f},{height(score):.1f}"

    def path(kind: str, data: str) -> str:
        return f'<path class="{kind}" d="{data}"/>'

    def text(kind: str, x: float, y: float, content: object) -> str:
        return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{content}</text>'

    parts = [text("end", LEFT - 8, TOP - 12, "BLEU")]
    step = 1
    if top > 10:
        step = 10
    for score in range(0, top + 1, step):
        parts.append(path("grid", f"M{LEFT},{height(score):.1f}H{RIGHT}"))
        parts.append(text("end", LEFT - 8, height(score) + 4.5, score))
    below = BOTTOM + 20
    parts += [text("mid", across(limit), below, f"{limit:g}") for limit in minutes]
    middle = (LEFT + RIGHT) / 2
    parts.append(text("mid", middle, BOTTOM + 42, "minutes of training"))
    order = sorted(curves, key=lambda curve: -curve.last)
    heights = [height(curve.last) for curve in order]
    names = spread(heights, 18, BOTTOM)
    for curve, name_height in zip(order, names, strict=True):
        kind = f"c{curve.color}"
        if curve.is_bold:
            kind += " bold"
        ranges = ""
        for limit, of_seeds in curve.scores.items():
            if len(of_seeds) > 1:
                ranges += f"M{place(limit, min(of_seeds))}L{place(limit, max(of_seeds))}"
        if ranges:
            parts.append(path(f"{kind} seeds", ranges))
        points = [place(*point) for point in curve.means]
        dots = "".join(f"M{point}h0" for point in points)
        lead = f"M{points[-1]}L{RIGHT + 14},{name_height:.1f}"
        name = f"{curve.label} {curve.last:.1f}"
        parts.append(path(f"{kind} line", "M" + "L".join(points)))
        parts.append(path(f"{kind} dots", dots))
        parts.append(path(f"{kind} lead", lead))
        parts.append(text(f"{kind} name", RIGHT + 19, name_height + 4.5, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img"><title>BLEU over minutes of training</title>'
        f"<style>{_style(0)}{SHAPES}@media(prefers-color-scheme:dark){{{_style(1)}}}</style>"
        f"{''.join(parts)}</svg>\n"
    )


def _style(dark: int) -> str:
    colors = ""
    for index, pair in enumerate(COLORS):
        color = pair[dark]
        colors += f"path.c{index}{{stroke:{color}}}text.c{index}{{fill:{color}}}"
    style = Template(STYLE)
    page = style.substitute(page=PAGE[dark], soft=SOFT[dark], grid=GRID[dark])
    return page + colors
