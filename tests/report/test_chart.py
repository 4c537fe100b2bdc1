"""Charts: what they draw lies where their axes say, and the figures beside them are right."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from nmt.report.page import Chart, Curve, Point, averages, render_chart, short_number

LOSSES = [(0, 8.0), (25, 4.0), (50, 1.0), (75, 0.5), (100, 0.125)]
CHART = Chart("Loss", "nats", [Curve("", LOSSES)], end=100)


class Axes(NamedTuple):
    """Labelled numbers of a drawing with their places, from left to right and upwards."""

    steps: Sequence[float]
    across: Sequence[float]
    values: Sequence[float]
    heights: Sequence[float]


def figure_of(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(render_chart(chart))


def axes_of(drawing: ElementTree.Element) -> Axes:
    """Read the axes. The numbers of the horizontal axis are 18 below its line."""
    texts = [each for each in drawing.iter("text") if each.text]
    numbers = {each: float(str(each.text).replace(",", "")) for each in texts[:-1]}
    lowest = max(float(each.attrib["y"]) for each in numbers)
    columns = [each for each in numbers if float(each.attrib["y"]) == lowest]
    rows = [each for each in numbers if float(each.attrib["y"]) < lowest]
    return Axes(
        [numbers[each] for each in columns],
        [float(each.attrib["x"]) for each in columns],
        [numbers[each] for each in rows],
        [float(each.attrib["y"]) - 4 for each in rows],  # the middle of a digit
    )


def drawn(path: ElementTree.Element) -> list[Point]:
    places = re.findall(r"([\d.]+),([\d.]+)", path.attrib["d"])
    return [(float(x), float(y)) for x, y in places]


@pytest.mark.parametrize("kind", ["linear", "log"])
def test_the_points_of_a_curve_lie_where_the_axes_say(kind: str) -> None:
    """Interpolated between the labelled numbers, on a logarithmic axis between their logarithms."""
    chart = replace(CHART, curves=[Curve("train", LOSSES, marked=True)], marks=[40])
    drawings = {each.attrib["class"]: each for each in figure_of(chart).iter("svg")}
    drawing = drawings[f"chart {kind}"]
    steps, across, values, heights = axes_of(drawing)
    assert sorted(steps) == steps
    assert sorted(across) == across
    assert sorted(values) == values
    assert sorted(heights, reverse=True) == heights  # larger numbers are higher on the page
    bend = np.log2 if kind == "log" else np.asarray
    expected = [
        (np.interp(step, steps, across), np.interp(bend(value), bend(values), heights))
        for step, value in LOSSES
    ]
    curve, halo, dots = drawing.findall("g/path")
    for path in (curve, halo, dots):
        assert np.allclose(drawn(path), expected, atol=0.1)
    left, right, start, end = map(float, drawing.attrib["data-axis"].split())
    assert (start, end) == (steps[0], steps[-1]) == (0, 100)
    assert (left, right) == (across[0], across[-1])
    # The values are written once: both drawings have the same points.
    written = {"linear": "0 8;25 4;50 1;75 0.5;100 0.125"}
    assert curve.get("data-points") == written.get(kind)
    (mark,) = drawing.findall("path[@class='mark']")
    assert drawn(mark)[0][0] == pytest.approx(np.interp(40, steps, across), abs=0.1)
    assert mark.findtext("title") == "resumed at step 40"


def test_the_legend_has_the_latest_value_that_is_a_number() -> None:
    curves = [Curve("train", [*LOSSES, (110, math.nan)]), Curve("valid", [(0, 2.0), (50, 1234.5)])]
    figure = figure_of(replace(CHART, curves=curves, end=110))
    assert [each.text for each in figure.iter("b")] == ["0.125", "1,234"]  # half to even
    by_length = figure_of(replace(CHART, x_name="length"))  # nothing is the latest there
    assert [each.text for each in by_length.iter("b")] == []
    empty = figure_of(replace(CHART, curves=[Curve("train", [(0, math.nan)])]))
    assert [*empty.iter("svg")] == []
    assert "No values" in "".join(empty.itertext())


def test_an_axis_stays_within_the_possible_values() -> None:
    for value, limits in ((100.0, (0, 100)), (0.0, (0, 1)), (1.0, (0, 1))):
        chart = replace(CHART, curves=[Curve("", [(0, value), (100, value)])], limits=limits)
        (drawing,) = figure_of(chart).iter("svg")  # so there is no logarithmic axis
        values = axes_of(drawing).values
        assert limits[0] <= min(values) <= value <= max(values) <= limits[1]
    high = replace(CHART, curves=[Curve("", [(0, 80.0), (100, 90.0)])], limits=(0, 100))
    for from_zero, lowest in ((False, 80), (True, 0)):
        (drawing,) = figure_of(replace(high, from_zero=from_zero)).iter("svg")
        assert axes_of(drawing).values[0] == lowest


def test_values_beyond_the_possible_ones_are_on_the_axis() -> None:
    """On either side; they are wrong, but must not be drawn outside."""
    for low, high in ((-0.5, 0.5), (0.5, 1.5), (-0.5, 1.5)):
        chart = replace(CHART, curves=[Curve("", [(0, low), (100, high)])], limits=(0, 1))
        (drawing,) = figure_of(chart).iter("svg")
        values = axes_of(drawing).values
        assert values[0] <= low < high <= values[-1]


@pytest.mark.parametrize(
    ("num_decades", "expected"),
    [(6, range(7)), (7, (1, 3, 5, 7)), (9, (1, 3, 5, 7, 9)), (14, (2, 5, 8, 11, 14))],
)
def test_a_long_logarithmic_axis_has_few_labels_and_one_at_the_top(
    num_decades: int, expected: Sequence[int]
) -> None:
    points = [(0, 0.001), (100, 10.0 ** (num_decades - 3))]
    drawings = [*figure_of(replace(CHART, curves=[Curve("", points)])).iter("svg")]
    (drawing,) = (each for each in drawings if each.attrib["class"] == "chart log")
    assert axes_of(drawing).values == pytest.approx([10.0 ** (each - 3) for each in expected])


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 1000, [0, 500, 1000]),
        (130, 970, [130, 500, 970]),
        (0, 1040, [0, 500, 1040]),  # 1000 is too near to the end
        (460, 1500, [460, 1000, 1500]),  # and 500 to the start
        (0, 2, [0, 1, 2]),  # there is no half step
    ],
)
def test_the_ends_of_the_steps_have_labels_and_round_steps_between_them(
    start: float, end: float, expected: list[float]
) -> None:
    curve = Curve("", [(start, 1.0), (end, 2.0)])
    (drawing, *_) = figure_of(replace(CHART, curves=[curve], start=start, end=end)).iter("svg")
    assert axes_of(drawing).steps == expected


def test_a_chart_starts_with_a_logarithmic_axis_only_for_a_wide_range_if_asked() -> None:
    narrow, wide = [(0, 1.0), (100, 50.0)], [(0, 1.0), (100, 51.0)]
    for points, is_asked, expected in (
        (narrow, True, [None]), (wide, True, ["checked"]), (wide, False, [None]),
        ([(0, 1.0), (100, 1.0)], False, []),  # no second axis to choose
    ):  # fmt: skip
        chart = replace(CHART, curves=[Curve("", points)], log_if_wide=is_asked)
        boxes = [each.get("checked") for each in figure_of(chart).iter("input")]
        assert boxes == expected, (points, is_asked)


def test_a_noisy_curve_has_a_line_of_means() -> None:
    values = np.random.default_rng(1).normal(size=600).round(3)
    values[6:12] = math.nan
    values[13] = math.nan
    points = list(enumerate(values.tolist()))
    found = averages(points)
    assert len(found) == 100  # of 6 points each
    assert [step for step, _ in found] == [6 * number + 2.5 for number in range(100)]
    expected = np.ma.masked_invalid(values.reshape(100, 6)).mean(axis=1).filled(math.nan)
    assert [value for _, value in found] == pytest.approx(expected.tolist(), nan_ok=True)
    chart = replace(CHART, curves=[Curve("", points, noisy=True)], limits=(-math.inf, math.inf))
    (drawing, *_) = figure_of(replace(chart, end=600)).iter("svg")
    pale, line = drawing.findall("g/path")
    assert (pale.get("class"), line.get("class")) == ("pale", None)
    assert len(drawn(line)) == 99


def test_numbers_have_about_four_digits() -> None:
    for value, text in (
        (0.0, "0"), (0.0012346, "0.001235"), (12.346, "12.35"), (-999.94, "-999.9"),
        (1000.4, "1,000"), (-2500.6, "-2,501"), (123_456_789, "123,456,789"), (1.5e9, "1.5e+09"),
    ):  # fmt: skip
        assert short_number(value) == text
