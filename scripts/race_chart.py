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
    """Move labels so that they do not overlap. Return the y coordinate of each one.

    Args:
        heights: Wished y coordinates, which grow downwards, in ascending order.
        gap: Minimum distance of two labels.
        bottom: Maximum y coordinate.
    """
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
    distinct_limits: set[float] = set()
    scores: list[float] = []
    for curve in curves:
        distinct_limits.update(curve.scores)
        for seed_scores in curve.scores.values():
            scores += seed_scores
    limits = sorted(distinct_limits)  # minutes
    top = 5 * math.ceil(max(*scores, 1) / 5)  # The score at the top, a multiple of 5.
    # The horizontal axis is logarithmic. With a single limit it has no width; 1 avoids a division
    # by zero.
    width = math.log(limits[-1] / limits[0]) or 1

    # x and y of the chart, in pixels; y grows downwards. The first limit is 24 pixels right of the
    # vertical axis.
    def x_of(limit: float) -> float:
        share = math.log(limit / limits[0]) / width
        return LEFT + 24 + share * (RIGHT - LEFT - 24)

    def y_of(score: float) -> float:
        return BOTTOM - score / top * (BOTTOM - TOP)

    def point(limit: float, score: float) -> str:
        return f"{x_of(limit):.1f},{y_of(score):.1f}"

    def path(style: str, data: str) -> str:
        return f'<path class="{style}" d="{data}"/>'

    def text(style: str, x: float, y: float, content: object) -> str:
        return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{content}</text>'

    elements = [text("end", LEFT - 8, TOP - 12, "BLEU")]
    step = 1
    if top > 10:
        step = 10
    for score in range(0, top + 1, step):
        # 4.5 pixels below the line, so that the middle of the digits is beside it.
        elements.append(path("grid", f"M{LEFT},{y_of(score):.1f}H{RIGHT}"))
        elements.append(text("end", LEFT - 8, y_of(score) + 4.5, score))
    below = BOTTOM + 20
    elements += [text("mid", x_of(limit), below, f"{limit:g}") for limit in limits]
    middle = (LEFT + RIGHT) / 2
    elements.append(text("mid", middle, BOTTOM + 42, "minutes of training"))
    best_first = sorted(curves, key=lambda curve: -curve.last)
    curve_ends = [y_of(curve.last) for curve in best_first]
    name_heights = spread(curve_ends, 18, BOTTOM)
    for curve, name_height in zip(best_first, name_heights, strict=True):
        style = f"c{curve.color}"
        if curve.is_bold:
            style += " bold"
        bars = ""
        for limit, seed_scores in curve.scores.items():
            if len(seed_scores) > 1:
                bars += f"M{point(limit, min(seed_scores))}L{point(limit, max(seed_scores))}"
        if bars:
            elements.append(path(f"{style} seeds", bars))
        points = [point(limit, mean) for limit, mean in curve.means]
        dots = "".join(f"M{center}h0" for center in points)
        # A lead goes from the last point to the name of the curve.
        lead = f"M{points[-1]}L{RIGHT + 14},{name_height:.1f}"
        name = f"{curve.label} {curve.last:.1f}"
        elements.append(path(f"{style} line", "M" + "L".join(points)))
        elements.append(path(f"{style} dots", dots))
        elements.append(path(f"{style} lead", lead))
        elements.append(text(f"{style} name", RIGHT + 19, name_height + 4.5, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img"><title>BLEU over minutes of training</title>'
        f"<style>{_style(0)}{SHAPES}@media(prefers-color-scheme:dark){{{_style(1)}}}</style>"
        f"{''.join(elements)}</svg>\n"
    )


def _style(theme: int) -> str:
    """Return the style sheet of a theme: 0 is light, 1 is dark."""
    colors = ""
    for index, theme_colors in enumerate(COLORS):
        color = theme_colors[theme]
        colors += f"path.c{index}{{stroke:{color}}}text.c{index}{{fill:{color}}}"
    style = Template(STYLE)
    page = style.substitute(page=PAGE[theme], soft=SOFT[theme], grid=GRID[theme])
    return page + colors
