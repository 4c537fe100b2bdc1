"""HTML pages from the templates in ``templates/``, and charts as inline SVG.

All values are escaped, so that text of a corpus or model cannot become markup. Control characters
that would hide or reorder text are shown as escape sequences. Pages are well-formed XML and load no
other file.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# White space, and the two joiners, which Persian, Indic scripts and emoji need.
_SHOWN = frozenset("\t\n\r\u200c\u200d")
_ISOLATED = re.compile("\u2068[^\u2066-\u2069]*\u2069")
Point = tuple[float, float]  # Step and value. NaN is a gap in the curve.
NUM_AVERAGES = 100  # Points of the averaged line through a noisy curve.
LIMIT = 1e300  # Larger values count as infinite, because sums and quotients would overflow.


def visible(text: str) -> str:
    r"""Replace control, bidirectional and other invisible characters by escape sequences.

    A right-to-left override, for example, would otherwise show the words in a wrong order.

    >>> visible("a\u202eb\x07")
    'a\\u202eb\\x07'
    """
    if text.isprintable():
        return text
    # Isolates that are closed cannot reorder the text around them.
    is_closed = not set("\u2066\u2067\u2068\u2069") & {*_ISOLATED.sub("", text)}
    hidden = {
        each: each.encode("unicode_escape").decode("ascii")
        for each in {*text} - (_SHOWN | {"\u2068", "\u2069"} if is_closed else _SHOWN)
        # XML forbids the last two.
        if unicodedata.category(each) in _ESCAPED_CATEGORIES or each in "\ufffe\uffff"
    }
    return text.translate(str.maketrans(hidden))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - pages are rare

    def finalize(value: Any) -> Any:  # Markup is the output of a template, and safe
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("nmt.report"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["digest"] = _digest  # allows a script in a Content-Security-Policy
    environment.filters["zip"] = zip
    environment.filters["count"] = "{:,}".format
    return environment


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def render(template: str, **values: Any) -> Markup:
    """Render a template.

    Args:
        template: Name of a file in ``templates/``.
        values: Variables of the template.
    """
    return Markup(_environment().get_template(template).render(values))


def module(template: str, **values: Any) -> Any:
    """Render a template, and return it with the variables that it sets as attributes."""
    return _environment().get_template(template).make_module(values)


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high``."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the relative position of a value: 0 at ``low``, 1 at ``high``."""
        bend: Callable[[float], float] = math.log10 if self.log else float
        return (bend(value) - bend(self.low)) / (bend(self.high) - bend(self.low))


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart."""

    label: str  # Empty if the chart has only one curve.
    points: Sequence[Point]
    marked: bool = False  # Draw the points, if there are few.
    noisy: bool = False  # If there are many points, draw them pale, with a line of averages.


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves with common axes."""

    title: str
    unit: str  # Unit of the values.
    curves: Sequence[Curve]
    end: float = 1  # Right end of the horizontal axis.
    start: float = 0  # Left end of the horizontal axis.
    size: tuple[int, int] = (340, 200)  # Width and height, in SVG units.
    from_zero: bool = False  # Start the vertical axis at 0.
    # Smallest and largest possible value. The axis stays between them. Without a largest value, the
    # reader can choose a logarithmic axis.
    limits: tuple[float, float] = (0, math.inf)
    log_if_wide: bool = False  # Start with a logarithmic axis if the values vary by a large factor.
    x_name: str = "step"  # Name of the horizontal axis.
    marks: Sequence[float] = ()  # Steps at which training was resumed, drawn as vertical lines.


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return ticks that enclose a range, spaced by 1, 2 or 5 times a power of ten.

    Args:
        low: Lower end of the range.
        high: Upper end of the range.
        count: Approximate number of intervals.

    >>> round_ticks(1.9, 7.8)
    [0, 2, 4, 6, 8]
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)) + 1e-300:
        pad = abs(high) / 10 or 1.0
        low, high = (low - pad if low else 0.0), high + pad
    size = (high - low) / count
    exponent = math.floor(math.log10(size))
    factor = next(each for each in (1, 2, 5, 10) if each * 10.0**exponent >= size * (1 - 1e-9))
    spacing = factor * 10.0**exponent
    numbers = range(math.floor(low / spacing + 1e-9), math.ceil(high / spacing - 1e-9) + 1)
    if exponent >= 0:
        return [each * factor * 10**exponent for each in numbers]
    return [each * factor / 10**-exponent for each in numbers]  # 3 / 10, not 3 * 0.1


def log_ticks(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis that enclose a range.

    The ticks are powers of ten; for a range below two decades, also 2 and 5 times a power.

    >>> log_ticks(0.3, 20)
    [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    """
    start, end = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    factors = (1, 2, 5) if high < 100 * low else (1,)
    ticks = [float(f"{factor}e{power}") for power in range(start, end + 1) for factor in factors]
    first = max(index for index, tick in enumerate(ticks) if tick <= low)
    last = min(index for index, tick in enumerate(ticks) if tick >= high)
    return ticks[first : last + 1]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return labels for evenly spaced ticks, with the same number of decimals except for 0.

    >>> tick_labels([0, 5_000, 10_000]), tick_labels([0, 0.5, 1.0])
    (['0', '5k', '10k'], ['0', '0.5', '1.0'])
    """
    top, spacing = max(map(abs, ticks)), ticks[1] - ticks[0]
    if top >= 1e9 or spacing < 1e-6:
        return [f"{tick:.4g}" for tick in ticks]
    unit, suffix = (1e6, "M") if top >= 1e6 else (1e3, "k") if top >= 1e4 else (1, "")
    decimals = max(0, -math.floor(math.log10(spacing / unit) + 1e-9))
    return [f"{tick / unit:,.{decimals}f}{suffix}" if tick else "0" for tick in ticks]


def thin(points: Sequence[Point], limit: int = 400) -> Sequence[Point]:
    """Reduce a curve to at most ``limit`` finite points that draw almost the same line.

    Keeps the first and the last point, and the lowest, the highest and one NaN of each interval.
    """
    if len(points) <= limit:
        return points
    inner, num_stretches = range(1, len(points) - 1), limit // 2 - 1
    values = [value for _, value in points]
    kept = {0, len(points) - 1}
    for number in range(num_stretches):
        start, end = (len(inner) * each // num_stretches for each in (number, number + 1))
        stretch = inner[start:end]
        finite = [index for index in stretch if not math.isnan(values[index])]
        if finite:
            kept.add(min(finite, key=values.__getitem__))
            kept.add(max(finite, key=values.__getitem__))
        if len(finite) < len(stretch):
            kept.add(next(index for index in stretch if math.isnan(values[index])))
    return [points[index] for index in sorted(kept)]


def averages(points: Sequence[Point], count: int = NUM_AVERAGES) -> list[Point]:
    """Return the middle step and the mean value of each of ``count`` intervals.

    >>> averages([(1, 2.0), (2, 4.0), (3, 7.0), (4, math.nan)], 2)
    [(1.5, 3.0), (3.5, 7.0)]
    """
    found = []
    for number in range(count):
        start, end = (len(points) * each // count for each in (number, number + 1))
        values = [value for _, value in points[start:end] if not math.isnan(value)]
        middle = (points[start][0] + points[end - 1][0]) / 2
        found.append((middle, sum(values) / len(values) if values else math.nan))
    return found


def path_data(places: Iterable[Point]) -> str:
    """Return the ``d`` attribute of an SVG path through ``places``. A NaN interrupts the line.

    >>> path_data([(0, 1), (2, 3), (4, float("nan")), (5, 6)])
    'M0,1L2,3M5,6h0'
    """
    pieces: list[list[str]] = [[]]
    for x, y in places:
        if math.isnan(y):
            pieces.append([])
        else:
            pieces[-1].append(f"{x:.5g},{y:.5g}")
    return "".join("M" + "L".join(piece) + "h0" * (len(piece) == 1) for piece in pieces if piece)


def render_chart(chart: Chart) -> Markup:
    """Return an HTML figure: heading, legend with the latest values, and the chart as SVG.

    The chart is drawn once for each kind of vertical axis (linear, logarithmic); a check box on the
    page switches between them.
    """
    values = [value for curve in chart.curves for _, value in finite(curve.points)]
    width, height = chart.size
    left, right, top, bottom = 52, width - 14, 10, height - 40
    x_labels = _step_labels(chart)
    x = Scale(chart.start, chart.end, [*x_labels])

    def across(step: float) -> float:
        return left + x.share(step) * (right - left)

    def view(y: Scale) -> dict[str, Any]:
        def place(step: float, value: float) -> Point:
            value = math.nan if y.log and value < y.low else value
            return across(step), bottom - y.share(value) * (bottom - top)

        heights = [place(x.low, tick)[1] for tick in y.ticks]
        texts = zip(heights, _value_labels(y), strict=True)
        return {
            "kind": "log" if y.log else "linear",
            "grid": "".join(f"M{left},{each:.5g}H{right}" for each in heights),
            "rows": [_mark(left - 8, h + 4, text) for h, text in texts],
            "curves": [_draw(curve, place) for curve in chart.curves],
        }

    return render(
        "chart.html.j2",
        chart=chart,
        latest=[_latest(curve) if chart.x_name == "step" else "" for curve in chart.curves],
        views=[view(y) for y in _value_scales(chart, values)],
        is_log=chart.log_if_wide and _is_wide(values),
        axis=(left, right, chart.start, chart.end),
        columns=[_mark(across(n), bottom + 18, text) for n, text in x_labels.items()],
        marks=[_mark(across(n), top, f"resumed at step {n:,.0f}") for n in chart.marks],
        bottom=bottom,
    )


def _is_wide(values: Sequence[float]) -> bool:
    return max(values, default=0) > 50 * min(filter(_is_positive, values), default=math.inf)


def _is_positive(value: float) -> bool:
    return value > 1 / LIMIT


def _value_scales(chart: Chart, values: Sequence[float]) -> Iterator[Scale]:
    """Yield the linear axis, and a logarithmic axis if the measure has no upper limit."""
    if not values:
        return
    (low, high), (least, most) = (min(values), max(values)), chart.limits
    ticks = round_ticks(min(low, 0) if chart.from_zero else low, high)
    if least <= low and high <= most:
        ticks = [tick for tick in ticks if least <= tick <= most]
    yield Scale(ticks[0], ticks[-1], ticks)
    if math.isinf(most) and (positive := [*filter(_is_positive, values)]):
        ticks = log_ticks(min(positive), high)
        if len(ticks) > 1:
            yield Scale(ticks[0], ticks[-1], ticks, log=True)


def _value_labels(y: Scale) -> list[str]:
    if not y.log:
        return tick_labels(y.ticks)
    every, last = math.ceil(len(y.ticks) / 7), len(y.ticks) - 1
    return [short_number(n) if not (last - i) % every else "" for i, n in enumerate(y.ticks)]


def _step_labels(chart: Chart) -> dict[float, str]:
    """Return the ticks of the horizontal axis with their labels: start, round numbers, and end."""
    ticks = round_ticks(chart.start, chart.end, chart.size[0] // 75)
    labels = dict(zip(ticks, tick_labels(ticks), strict=True))
    # The labels of the ends must not touch their neighbours.
    space = 62 / chart.size[0] * (chart.end - chart.start)
    low, high = chart.start + space, chart.end - space
    start, end = (labels.get(n, short_number(n)) for n in (chart.start, chart.end))
    inner = {n: label for n, label in labels.items() if low <= n <= high and not n % 1}
    return {chart.start: start, **inner, chart.end: end}


def _mark(x: float, y: float, label: str) -> dict[str, str]:
    """Return the position and text of a label, as values of the template."""
    return {"x": f"{x:.5g}", "y": f"{y:.5g}", "label": label}


def _draw(curve: Curve, place: Callable[[float, float], Point]) -> dict[str, Any]:
    """Return the SVG paths of a curve, and the step and value of each point of the first path."""
    shown = [(*point, *place(*point)) for point in thin(curve.points)]
    known = [each for each in shown if not math.isnan(each[3])]
    lines = [path_data((x, y) for _, _, x, y in shown)] if known else []
    if curve.noisy and len(curve.points) > 2 * NUM_AVERAGES and lines:
        lines.append(path_data(place(*point) for point in averages(curve.points)))
    is_marked = len(known) <= (60 if curve.marked else 1)
    return {
        "label": curve.label,
        "lines": lines,
        "dots": "".join(f"M{x:.5g},{y:.5g}h0" for _, _, x, y in known) if is_marked else "",
        "points": ";".join(f"{step:.10g} {short_number(value)}" for step, value, _, _ in known),
    }


def _latest(curve: Curve) -> str:
    known = finite(curve.points)
    return short_number(known[-1][1]) if known else ""


def finite(points: Iterable[Point]) -> list[Point]:
    """Return the points whose value is not NaN."""
    return [point for point in points if not math.isnan(point[1])]


def short_number(value: float) -> str:
    """Format a value with about four digits."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
