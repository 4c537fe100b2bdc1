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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# White space, and the two joiners, which Persian, Indic scripts and emoji need.
_SHOWN = frozenset("\t\n\r\u200c\u200d")
_NOT_IN_XML = frozenset("\ufffe\uffff")
_BIDIRECTIONAL = frozenset("\u2066\u2067\u2068\u2069")
_ISOLATED = re.compile("\u2068[^\u2066-\u2069]*\u2069")
Point = tuple[float, float]  # Step and value. NaN is a gap in the curve.
NUM_AVERAGES = 100  # Points of the averaged line through a noisy curve.
_ROUND = (1, 2, 5, 10)  # Ticks are spaced by one of these times a power of ten.
_TOP = 10  # Coordinate of the upper end of the vertical axis.
LIMIT = 1e300  # Larger values count as infinite, because sums and quotients would overflow.


def visible(text: str) -> str:
    r"""Replace control, bidirectional and other invisible characters by escape sequences.

    A right-to-left override, for example, would otherwise show the words in a wrong order.

    >>> visible("a\u202eb\x07")
    'a\\u202eb\\x07'
    """
    if text.isprintable():
        return text
    unescaped = set(_SHOWN)
    # Isolates that are closed cannot reorder the text around them.
    if not _BIDIRECTIONAL & set(_ISOLATED.sub("", text)):
        unescaped |= {"\u2068", "\u2069"}
    escapes = dict[str, str | int | None]()
    for character in set(text) - unescaped:
        is_hidden = unicodedata.category(character) in _ESCAPED_CATEGORIES
        if is_hidden or character in _NOT_IN_XML:
            escapes[character] = character.encode("unicode_escape").decode("ascii")
    return text.translate(str.maketrans(escapes))


def _squeezed(script: str) -> Markup:
    """Return a script without comments at the beginning of lines, and without indentation."""
    return Markup(re.sub(r"\n\s*(//.*)?", "\n", script))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - pages are rare

    def finalize(value: Any) -> Any:
        """Make a value of a template visible; called before it is escaped."""
        if isinstance(value, Markup) or not isinstance(value, str):
            return value  # Markup is the output of a template, and safe
        return visible(value)

    environment = Environment(
        loader=PackageLoader("nmt.report"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["digest"] = digest  # allows a script in a Content-Security-Policy
    environment.filters["zip"] = zip
    environment.filters["squeezed"] = _squeezed
    environment.filters["count"] = "{:,}".format
    return environment


def digest(script: str) -> str:
    """Return the SHA-256 hash of a script in Base64, as a Content-Security-Policy needs it."""
    sha256 = hashlib.sha256(script.encode())
    return base64.b64encode(sha256.digest()).decode()


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


@dataclass(frozen=True)
class Axis:
    """An axis of a chart, from its first to its last tick."""

    labels: Mapping[float, str]  # Ticks in ascending order, with their labels.
    start: float  # Coordinate of the first tick, in SVG units.
    end: float  # Coordinate of the last tick.
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return the coordinate of a value; NaN below the first tick of a logarithmic axis."""
        low, *_, high = self.labels  # the first and the last tick
        if self.is_log and value < low:
            return math.nan
        if self.is_log:
            low = math.log10(low)
            high = math.log10(high)
            value = math.log10(value)
        share = (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Curve:
    """A line of a chart."""

    label: str  # Empty if the chart has only one curve.
    points: Sequence[Point]
    marked: bool = False  # Draw the points, if there are few.
    noisy: bool = False  # If there are many points, draw them pale, with a line of averages.

    @property
    def latest(self) -> str:
        """The last value; empty if there is none."""
        points = finite(self.points)
        if not points:
            return ""
        _, value = points[-1]
        return short_number(value)


@dataclass(frozen=True)
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
    x_name: str = "updates"  # Name of the horizontal axis.
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
    largest = max(abs(low), abs(high))
    # Widen a range that is a single value, except for rounding errors.
    if high - low <= 1e-9 * largest + 1e-300:
        pad = abs(high) / 10 or 1.0
        if low:  # 0 stays the lower end
            low -= pad
        high += pad
    ideal_spacing = (high - low) / count
    exponent = math.floor(math.log10(ideal_spacing))
    power = 10.0**exponent
    # In this function, 1e-9 allows for rounding errors.
    smallest_spacing = ideal_spacing * (1 - 1e-9)
    factor = next(factor for factor in _ROUND if factor * power >= smallest_spacing)
    spacing = factor * power
    first = math.floor(low / spacing + 1e-9)
    last = math.ceil(high / spacing - 1e-9)
    multiples = range(first, last + 1)
    if exponent >= 0:
        return [multiple * factor * 10**exponent for multiple in multiples]
    return [multiple * factor / 10**-exponent for multiple in multiples]  # 3 / 10, not 3 * 0.1


def log_ticks(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis that enclose a range.

    The ticks are powers of ten; for a range below two decades, also 2 and 5 times a power.

    >>> log_ticks(0.3, 20)
    [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    """
    start = math.floor(math.log10(low) - 1e-9)
    end = math.ceil(math.log10(high) + 1e-9)
    factors = [1]
    if high < 100 * low:
        factors += [2, 5]
    ticks = list[float]()
    for power in range(start, end + 1):
        ticks += [float(f"{factor}e{power}") for factor in factors]
    first = bisect_right(ticks, low) - 1  # the last tick that is not above the range
    last = bisect_left(ticks, high)  # the first tick that is not below it
    return ticks[first : last + 1]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return labels for evenly spaced ticks, with the same number of decimals except for 0.

    >>> tick_labels([0, 5_000, 10_000]), tick_labels([0, 0.5, 1.0])
    (['0', '5k', '10k'], ['0', '0.5', '1.0'])
    """
    largest = max(map(abs, ticks))
    spacing = ticks[1] - ticks[0]
    if largest >= 1e9 or spacing < 1e-6:
        return [f"{tick:.4g}" for tick in ticks]
    unit = 1.0
    suffix = ""
    if largest >= 1e6:
        unit = 1e6
        suffix = "M"
    elif largest >= 1e4:
        unit = 1e3
        suffix = "k"
    # A spacing of 0.02 needs two decimals; 1e-9 allows for rounding errors.
    exponent = math.floor(math.log10(spacing / unit) + 1e-9)
    decimals = max(0, -exponent)
    return [f"{tick / unit:,.{decimals}f}{suffix}" if tick else "0" for tick in ticks]


def thin(points: Sequence[Point], limit: int = 400) -> Sequence[Point]:
    """Reduce a curve to at most ``limit`` finite points that draw almost the same line.

    Keeps the first and the last point, and the lowest, the highest and one NaN of each interval.
    """
    if len(points) <= limit:
        return points
    last = len(points) - 1
    kept_indices = {0, last}
    # Two points are kept of each interval, so with the first and the last point there are `limit`.
    for interval in _intervals(1, last, limit // 2 - 1):
        values = dict[int, float]()  # by index
        gaps = []  # indices of NaN
        for index in interval:
            _, value = points[index]
            if math.isnan(value):
                gaps.append(index)
            else:
                values[index] = value
        kept_indices.update(gaps[:1])
        if values:
            lowest = min(values, key=values.__getitem__)
            highest = max(values, key=values.__getitem__)
            kept_indices |= {lowest, highest}
    return [points[index] for index in sorted(kept_indices)]


def averages(points: Sequence[Point], count: int = NUM_AVERAGES) -> list[Point]:
    """Return the middle step and the mean value of each of ``count`` intervals.

    >>> averages([(1, 2.0), (2, 4.0), (3, 7.0), (4, math.nan)], 2)
    [(1.5, 3.0), (3.5, 7.0)]
    """
    means = []
    for interval in _intervals(0, len(points), count):
        interval_points = points[interval.start : interval.stop]
        first_step, _ = interval_points[0]
        last_step, _ = interval_points[-1]
        values = [value for _, value in finite(interval_points)]
        mean = math.nan  # a gap
        if values:
            mean = sum(values) / len(values)
        means.append(((first_step + last_step) / 2, mean))
    return means


def _intervals(start: int, stop: int, count: int) -> list[range]:
    """Divide a range into ``count`` ranges of almost the same length."""
    length = stop - start
    borders = [start + length * index // count for index in range(count + 1)]
    return [range(*borders_of_interval) for borders_of_interval in pairwise(borders)]


def path_data(places: Iterable[Point]) -> str:
    """Return the ``d`` attribute of an SVG path through coordinates. A NaN interrupts the line.

    >>> path_data([(0, 1), (2, 3), (4, float("nan")), (5, 6)])
    'M0,1L2,3M5,6h0'
    """
    path = ""
    for is_gap, consecutive_places in groupby(places, key=_is_gap):
        if not is_gap:
            corners = [f"{round(x, 1):g},{round(y, 1):g}" for x, y in consecutive_places]
            path += "M" + "L".join(corners)  # move to the first, then draw lines
            if len(corners) == 1:
                path += "h0"  # a line of length 0 is a dot
    return path


def _is_gap(point: Point) -> bool:
    return math.isnan(point[1])


def render_chart(chart: Chart) -> Markup:
    """Return an HTML figure: heading, legend with the latest values, and the chart as SVG.

    The chart is drawn once for each kind of vertical axis (linear, logarithmic); a check box on the
    page switches between them.
    """
    values = list[float]()
    for curve in chart.curves:
        values += [value for _, value in finite(curve.points)]
    width, height = chart.size
    smallest = min(_positive(values), default=math.inf)
    is_wide = max(values, default=0) > 50 * smallest
    # The labels of the vertical axis need 52 units at the left. 14 units at the right are for the
    # last label of the horizontal axis; 40 units at the bottom are for its labels and its name.
    return render(
        "chart.html.j2",
        chart=chart,
        x=Axis(_step_labels(chart), 52, width - 14),
        axes=list(_value_axes(chart, values, height - 40)),
        is_log=chart.log_if_wide and is_wide,
        paths=_paths,
    )


def _positive(values: Iterable[float]) -> list[float]:
    """Return the values that a logarithmic axis can show."""
    return [value for value in values if value > 1 / LIMIT]


def _value_axes(chart: Chart, values: Sequence[float], bottom: float) -> Iterator[Axis]:
    """Yield the linear axis, and a logarithmic axis if the measure has no upper limit."""
    if not values:
        return
    low = min(values)
    high = max(values)
    minimum, maximum = chart.limits
    start = low
    if chart.from_zero:
        start = min(low, 0)
    ticks = round_ticks(start, high)
    if minimum <= low and high <= maximum:
        # Round numbers beyond the limits would show values that are not possible.
        ticks = [tick for tick in ticks if minimum <= tick <= maximum]
    yield Axis(_labelled(ticks), bottom, _TOP)
    positive_values = _positive(values)
    if positive_values and math.isinf(maximum):
        ticks = log_ticks(min(positive_values), high)
        labels = dict.fromkeys(ticks, "")
        # There is room for seven labels. Label every n-th tick, from the highest down.
        interval = math.ceil(len(ticks) / 7)
        for tick in ticks[::-interval]:
            labels[tick] = short_number(tick)
        if len(ticks) > 1:
            yield Axis(labels, bottom, _TOP, is_log=True)


def _step_labels(chart: Chart) -> dict[float, str]:
    """Return the ticks of the horizontal axis with their labels: start, round numbers, and end."""
    width, _ = chart.size
    labels = _labelled(round_ticks(chart.start, chart.end, width // 75))  # 75 units apart
    # The labels of the ends must not touch their neighbours: leave 62 units, converted to steps.
    space = 62 / width * (chart.end - chart.start)
    low = chart.start + space
    high = chart.end - space
    start = labels.get(chart.start, short_number(chart.start))
    end = labels.get(chart.end, short_number(chart.end))
    for tick in list(labels):
        is_inside = low <= tick <= high
        if not is_inside or tick % 1:  # steps are whole numbers
            del labels[tick]
    return {chart.start: start, **labels, chart.end: end}


def _labelled(ticks: Sequence[float]) -> dict[float, str]:
    return dict(zip(ticks, tick_labels(ticks), strict=True))


def _paths(curve: Curve, x: Axis, y: Axis) -> dict[str, Any]:
    """Return the SVG paths of a curve, and the step and value of each point of the first path.

    Returns:
        ``lines``: the curve, then its averages; ``dots``: one path; ``points``: for the script of
        the page, "step value" of each point, separated by semicolons.
    """

    def places(points: Iterable[Point]) -> list[Point]:
        """Return the coordinates of points."""
        return [(x.place(step), y.place(value)) for step, value in points]

    thinned = thin(curve.points)
    # Values below a logarithmic axis have no coordinate.
    visible_points = [(step, value) for step, value in thinned if not math.isnan(y.place(value))]
    lines = []
    if visible_points:
        lines.append(path_data(places(thinned)))
        if curve.noisy and len(curve.points) > 2 * NUM_AVERAGES:
            lines.append(path_data(places(averages(curve.points))))
    dots = ""
    max_dots = 60 if curve.marked else 1  # a single point has no line
    if len(visible_points) <= max_dots:
        dots = "".join(path_data([place]) for place in places(visible_points))
    points = [f"{step:.10g} {short_number(value)}" for step, value in visible_points]
    return {"lines": lines, "dots": dots, "points": ";".join(points)}


def finite(points: Iterable[Point]) -> list[Point]:
    """Return the points whose value is not NaN."""
    return [point for point in points if not _is_gap(point)]


def short_number(value: float) -> str:
    """Format a value with about four digits."""
    if 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"
