"""The chart of `race.py`: BLEU over minutes of training, as an SVG for light and dark pages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

WIDTH, HEIGHT = 720, 400
LEFT, TOP, RIGHT, BOTTOM = 46, 28, 525, 350  # the axes; names of the lines are right of them
STYLE = """svg{background:$page}.grid{stroke:$grid}text{fill:$soft;font-size:13px;
font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}"""
SHAPES = """.name{font-size:14px}.bold.name{font-weight:600}.end{text-anchor:end}
.mid{text-anchor:middle}path{fill:none;stroke-linecap:round;stroke-linejoin:round}
.line{stroke-width:2}.bold.line{stroke-width:3}
.seeds{stroke-width:8;stroke-opacity:.3}.dots{stroke-width:7}.lead{stroke-opacity:.5}"""
# Page, text, grid and lines: light and dark, as in nmt/report/templates/style.css.
PAGE, SOFT, GRID = ("#fff", "#17191c"), ("#5d6671", "#9aa3ad"), ("#e4e2de", "#31363c")
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
        return [(limit, statistics.mean(self.scores[limit])) for limit in sorted(self.scores)]


def spread(heights: Sequence[float], gap: float, bottom: float) -> list[float]:
    """Move ascending heights so that they are ``gap`` apart and not below ``bottom``."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    lowest = bottom
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], lowest)
        lowest = placed[index] - gap
    return placed


def draw(curves: Sequence[Curve]) -> str:
    """Return an SVG of the means. A bar shows the range of the seeds."""
    minutes = sorted({limit for curve in curves for limit in curve.scores})
    most = max(score for curve in curves for scores in curve.scores.values() for score in scores)
    top, width = 5 * math.ceil(max(most, 1) / 5), math.log(minutes[-1] / minutes[0]) or 1

    def across(limit: float) -> float:
        return LEFT + 24 + math.log(limit / minutes[0]) / width * (RIGHT - LEFT - 24)

    def height(score: float) -> float:
        return BOTTOM - score / top * (BOTTOM - TOP)

    def place(limit: float, score: float) -> str:
        return f"{across(limit):.1f},{height(score):.1f}"

    def path(kind: str, data: str) -> str:
        return f'<path class="{kind}" d="{data}"/>'

    def text(kind: str, x: float, y: float, content: object) -> str:
        return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{content}</text>'

    parts = [text("end", LEFT - 8, TOP - 12, "BLEU")]
    for score in range(0, top + 1, 10 if top > 10 else 1):
        parts.append(path("grid", f"M{LEFT},{height(score):.1f}H{RIGHT}"))
        parts.append(text("end", LEFT - 8, height(score) + 4.5, score))
    parts += [text("mid", across(limit), BOTTOM + 20, f"{limit:g}") for limit in minutes]
    parts.append(text("mid", (LEFT + RIGHT) / 2, BOTTOM + 42, "minutes of training"))
    order = sorted(curves, key=lambda curve: -curve.means[-1][1])
    names = spread([height(curve.means[-1][1]) for curve in order], 18, BOTTOM)
    for curve, name_height in zip(order, names, strict=True):
        kind = f"c{curve.color}" + " bold" * curve.is_bold
        points = [place(*point) for point in curve.means]
        ranges = "".join(
            f"M{place(limit, min(scores))}L{place(limit, max(scores))}"
            for limit, scores in curve.scores.items()
            if len(scores) > 1
        )
        name = f"{curve.label} {curve.means[-1][1]:.1f}"
        parts += [
            path(f"{kind} seeds", ranges) if ranges else "",
            path(f"{kind} line", "M" + "L".join(points)),
            path(f"{kind} dots", "".join(f"M{point}h0" for point in points)),
            path(f"{kind} lead", f"M{points[-1]}L{RIGHT + 14},{name_height:.1f}"),
            text(f"{kind} name", RIGHT + 19, name_height + 4.5, name),
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img"><title>BLEU over minutes of training</title>'
        f"<style>{_style(0)}{SHAPES}@media(prefers-color-scheme:dark){{{_style(1)}}}</style>"
        f"{''.join(parts)}</svg>\n"
    )


def _style(dark: int) -> str:
    colors = "".join(
        f"path.c{index}{{stroke:{pair[dark]}}}text.c{index}{{fill:{pair[dark]}}}"
        for index, pair in enumerate(COLORS)
    )
    return Template(STYLE).substitute(page=PAGE[dark], soft=SOFT[dark], grid=GRID[dark]) + colors
