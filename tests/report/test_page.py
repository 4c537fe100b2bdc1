"""Pages hide and reorder no text; charts have round ticks and few points."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.report.page import log_ticks, path_data, render, round_ticks, thin, tick_labels, visible
from nmt.training.report import RunRecord
from tests.browser import ask
from tests.examples import FEW


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202egnp.exe", "a\\u202egnp.exe"),  # right-to-left override
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),  # isolates, right-to-left mark
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\x00\x1b\x85", "\\x00\\x1b\\x85"),
        ("\ud800\ufffe", "\\ud800\\ufffe"),
        ("tab\tline\nend\r", "tab\tline\nend\r"),
        ("\u2068closed\u2069", "\u2068closed\u2069"),
        ("\u2068closed\u2069 \u2068open", "\\u2068closed\\u2069 \\u2068open"),
        ("שלום 👩\u200d💻 x\u200cy", "שלום 👩\u200d💻 x\u200cy"),  # joiners stay
        ("narrow\u202fspace, \ue000 (private use)", "narrow\u202fspace, \ue000 (private use)"),
    ],
)
def test_characters_that_hide_or_reorder_text_are_shown_as_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


# Whether a folded or open part is open, shows its text, and has a word before its title.
PARTS = """[...document.querySelectorAll("details")].map(part => [
    part.open, part.querySelector("p, pre").checkVisibility(),
    getComputedStyle(part.querySelector("summary"), "::before").content !== "none",
].map(Number).join("")).join()"""
OPENED = 'document.querySelector("details").open = true'
PRINTED = 'dispatchEvent(new Event("beforeprint"))'


def test_paper_shows_open_parts_and_names_folded_parts(browser: str, tmp_path: Path) -> None:
    page = render(
        "run.html.j2", title="t", run=RunRecord.of([]), config_text="a: 1", pages=[], charts=[],
        label_of=str, fixed=lambda *_: "",
    )  # fmt: skip
    part = "<details><summary>More</summary><p>text</p></details>"
    paper = str(page).replace("@media print{", "@media all{").replace("</main>", f"{part}</main>")
    found, _ = ask(browser, paper, tmp_path, 800, OPENED, PRINTED, PARTS)
    assert found == "true true 110,001"


@given(text=st.text())
@FEW
def test_any_text_makes_a_well_formed_page_without_hidden_characters(text: str) -> None:
    validation = {"step": 1, "epoch": 1, "seconds": 1, "bleu": 1.0, "chrf": 1.0, "perplexity": 1.0,
                  "samples": [[text] * 3], "sample_chrf": [1.0]}  # fmt: skip
    run = RunRecord.of([{"kind": "validation", **validation}])
    page = render(
        "run.html.j2", title=text, run=run, config_text=text, pages=[text], charts=[],
        label_of=str, fixed=lambda *_: text,
    )  # fmt: skip
    root = ElementTree.fromstring(page)
    hidden = [c for c in "".join(root.itertext()) if unicodedata.category(c) in ("Cf", "Cs")]
    assert set(hidden) <= {"\u200c", "\u200d"}


NAN = math.nan


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, ["0", "2", "4", "6", "8", "10"]),
        (1.9, 7.8, ["0", "2", "4", "6", "8"]),  # 5.9 / 5 = 1.18 -> 2
        (0, 0.0015, ["0", "0.0005", "0.0010", "0.0015"]),  # 0.0003 -> 0.0005
        (2.07, 2.16, ["2.06", "2.08", "2.10", "2.12", "2.14", "2.16"]),  # 0.018 -> 0.02
        (-3, 4, ["-4", "-2", "0", "2", "4"]),
        (0, 2600, ["0", "1,000", "2,000", "3,000"]),  # 520 -> 1000
        (0, 100_000, ["0", "20k", "40k", "60k", "80k", "100k"]),
        (9_000, 12_500, ["9k", "10k", "11k", "12k", "13k"]),
        (10_000, 12_000, ["10.0k", "10.5k", "11.0k", "11.5k", "12.0k"]),  # 400 -> 500
        (0, 7e6, ["0", "2M", "4M", "6M", "8M"]),
        (5, 5, ["4.4", "4.6", "4.8", "5.0", "5.2", "5.4", "5.6"]),  # a single value
        (0, 0, ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 3e-8, ["0", "1e-08", "2e-08", "3e-08"]),
    ],
)
def test_ticks_are_round_around_the_values(low: float, high: float, expected: list[str]) -> None:
    assert tick_labels(round_ticks(low, high)) == expected


FLOATS = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(values=st.lists(FLOATS, min_size=1), count=st.integers(2, 10))
def test_ticks_of_any_range_are_few_and_enclose_it(values: list[float], count: int) -> None:
    low, high = min(values), max(values)
    ticks = round_ticks(low, high, count)
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] - slack <= low <= high <= ticks[-1] + slack
    assert 2 <= len(ticks) <= count + 3
    assert all(a < b for a, b in itertools.pairwise(ticks))


def test_round_ticks_are_as_exact_as_their_decimals() -> None:
    assert round_ticks(0, 0.9) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]  # 3 * 0.2 would be 0.6000000001


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.3, 20, [0.2, 0.5, 1, 2, 5, 10, 20]),
        (0.5, 50, [0.1, 1, 10, 100]),
        (0.01, 1000, [0.01, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_ticks_of_a_log_axis(low: float, high: float, expected: list[float]) -> None:
    assert log_ticks(low, high) == expected


@given(low=st.floats(1e-200, 1e200), factor=st.floats(50, 1e50))
def test_log_ticks_enclose_any_range(low: float, factor: float) -> None:
    first, *_, last = log_ticks(low, low * factor)
    assert first <= low <= low * factor <= last


@given(values=st.lists(FLOATS | st.just(NAN), max_size=600), limit=st.integers(10, 100))
def test_thinning_keeps_ends_extremes_gaps_and_order(values: list[float], limit: int) -> None:
    points = list(enumerate(values))
    kept = list(thin(points, limit))
    finite = [value for _, value in kept if not math.isnan(value)]
    assert set(kept) <= set(points)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert kept[:1] == points[:1]
    assert kept[-1:] == points[-1:]
    assert len(finite) <= limit
    known = [value for value in values if not math.isnan(value)]
    if known:
        assert (min(finite), max(finite)) == (min(known), max(known))
    assert any(map(math.isnan, values)) == (len(finite) < len(kept))
    assert kept == points or len(points) > limit


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], ""),
        ([(1, 2)], "M1,2h0"),  # a dot, for the line ends are round
        ([(1, 2), (3, NAN), (4, 5), (6, 7.125)], "M1,2h0M4,5L6,7.1"),
        ([(0, NAN), (1, NAN)], ""),
    ],
)
def test_nan_interrupts_a_path(places: Sequence[tuple[float, float]], expected: str) -> None:
    assert path_data(places) == expected
