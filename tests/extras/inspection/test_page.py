"""Figures of every kind as a page, as SVG and as text: complete, escaped and without network."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import Part, part_text
from nmt.extras.inspection.inspected import step_labels
from nmt.extras.inspection.page import _places, document, layout, render_page, text_width
from nmt.report.page import visible
from tests.browser import REQUESTS, WIDER, ask

ATTACK = "<img src=x onerror=alert(1)>\u202e&"
VALUES: fig.Matrix = [[0.25, None], [0.5, 1.0]]
HEATMAP = fig.Heatmap(ATTACK, VALUES, [ATTACK, "b"], [ATTACK, "d"], 0, 1, note=ATTACK)
STACK = fig.Stack("e", [fig.Box(ATTACK, ATTACK), fig.Box("add", residual=1)], repeated=(0, 1, 6))
OTHER = fig.Stack("d", [fig.Box("cross", kind="attention")])
DIAGRAM = fig.Diagram(ATTACK, [STACK, OTHER], [((0, 1), (1, 0), ATTACK)])
# One of each kind, with markup wherever text goes.
FIGURES: list[fig.Figure] = [
    fig.TextFigure(ATTACK, [ATTACK], note=ATTACK),
    fig.Table(ATTACK, [ATTACK, "n"], [[ATTACK, 1050624], [None, 0.5]], total=True, note=ATTACK),
    HEATMAP,
    fig.Links(ATTACK, [ATTACK, "b"], [ATTACK], {ATTACK: [[0.9], [0.1]], "2": [[0.5], [0.0]]}),
    fig.Bars(ATTACK, [ATTACK, "b"], {ATTACK: [0.5, 1.0], "2": [0.0, 0.25]}, 1.0, note=ATTACK),
    fig.Product(
        ATTACK,
        [fig.Block(ATTACK, [[1.0]], (2, 2), "=", [ATTACK]), fig.Block("W^Q", [[2.0]], (1, 1))],
    ),
    fig.Words(ATTACK, [ATTACK], {"embedding": [[1.0, -1.0]], ATTACK: [[0.0, 0.5]]}, note=ATTACK),
    fig.Tree(ATTACK, [fig.Node(ATTACK, ATTACK, None, "best"), fig.Node("b", "", 0, "dropped")]),
    DIAGRAM,
    fig.Grid(ATTACK, [ATTACK], [ATTACK], [[VALUES]]),
    fig.Steps(ATTACK, [fig.Step(ATTACK, [HEATMAP]), fig.Step("2", [fig.TextFigure("", [ATTACK])])]),
]


def page(*figures: fig.Figure) -> str:
    part = Part("all", ATTACK, ATTACK, figures)
    return render_page(ATTACK, {"Source": ATTACK}, [part, part], {f"nmt {ATTACK}": ATTACK})


def texts(document: str) -> Iterator[str]:
    for element in ElementTree.fromstring(document).iter():
        yield from (element.text or "", *element.attrib.values())


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: type(figure).__name__)
def test_markup_in_a_figure_stays_text(figure: fig.Figure) -> None:
    for made in (page(figure), document([figure])):
        assert "<img" not in made
        assert "\u202e" not in made
        assert any("<img src=x onerror=alert(1)>\\u202e&" in text for text in texts(made))


def test_a_calculation_on_a_page_is_text_with_powers() -> None:
    made = page(fig.TextFigure("Angles", ["W^O and 10^(2/4)"]))
    assert '<figure class="text">' in made
    assert "<pre>W<sup>O</sup> and 10<sup>2/4</sup></pre>" in made


def test_a_page_is_self_contained() -> None:
    made = page(*FIGURES)
    assert not re.search(r"(?:src|href)=(?!\"#)|url\(|@import", made.replace("src=x", ""))
    assert set(re.findall(r"https?://[^\"]+", made)) <= {"http://www.w3.org/1999/xhtml"}


def test_the_only_script_is_the_one_whose_hash_is_allowed() -> None:
    made = page(*FIGURES)
    (script,) = re.findall(r"<script>(.*?)</script>", made, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in made
    assert not set(script) & set("<&")  # as XML has it, and as HTML has it


def test_a_heatmap_has_the_darkest_colour_where_the_number_is_highest() -> None:
    drawn = document([fig.Heatmap("", [[0.0, 0.5, 1.0]], ["r"], ["a", "b", "c"], low=0, high=1)])
    cells = re.findall(r'class="heat" d="M(\d),0h1v1h-1z" fill-opacity="([\d.]+)"', drawn)
    assert cells[:2] == [("1", "0.5"), ("2", "1.0")]


def test_negative_numbers_have_another_hue_and_zero_has_none() -> None:
    """Both hues have the scale of the largest absolute value, 4: so -2 and 2 are equally strong."""
    heatmap = fig.Heatmap("", [[-2.0, 0.0, 2.0, 4.0]], ["r"], ["a", "b", "c", "d"])
    below = fig.Heatmap("", [[-4.0, 2.0]], ["r"], ["a", "b"])
    assert [*heatmap.bounds] == [*below.bounds] == [-4, 4]
    drawn = re.findall(
        r'class="(\w+)" d="M(\d),0h1v1h-1z" fill-opacity="([\d.]+)"', document([heatmap])
    )
    assert drawn[:3] == [("cold", "0", "0.5"), ("heat", "2", "0.5"), ("heat", "3", "1.0")]


def test_a_tree_as_text_is_indented_by_its_steps() -> None:
    """BOS -> a, b; then b -> EOS, a -> c: each branch is written whole before the next."""
    nodes = [
        fig.Node("BOS", "", None, "best"), fig.Node("a", "-1", 0, "kept"),
        fig.Node("b", "-2", 0, "best"), fig.Node("EOS", "-3", 2, "best"),
        fig.Node("c", "-4", 1, "dropped"),
    ]  # fmt: skip
    assert [line.rstrip() for line in fig.figure_lines(fig.Tree("", nodes))[:5]] == [
        "* BOS", "    a  -1", "x     c  -4", "*   b  -2", "*     EOS  -3",
    ]  # fmt: skip


def test_labels_fit_in_a_wide_font() -> None:
    # As a browser measures them in DejaVu Sans of 13 pixels.
    widths = {"<0x76>": 55.2, "\u2581sch\u00f6ne \u2192 \u2581wei\u00dfe": 123.8, "mWw": 36.4}
    assert all(width <= text_width(label) <= 1.2 * width for label, width in widths.items())


def test_neighbouring_cells_of_one_shade_are_one_shape() -> None:
    drawn = document([fig.Heatmap("", [[1.0] * 300] * 2, ["r", "s"], [""] * 300, low=0, high=1)])
    assert "M0,0h300v1h-300zM0,1h300v1h-300z" in drawn


@given(st.integers(1, 12), st.integers(1, 12), st.floats(-1000, 0))
@example(6, 6, -12.3)
@example(8, 8, -1.2)
def test_each_copy_of_cells_refers_to_cells_on_the_page(
    num_rows: int, num_columns: int, low: float
) -> None:
    """The drawing for phones is a copy: a reference to nothing would be blank."""
    rows = [f"row{index}" for index in range(num_rows)]
    columns = [f"column{index}" for index in range(num_columns)]
    values = [[low + row / 3 + column for column in range(num_columns)] for row in range(num_rows)]
    drawn = page(fig.Heatmap("", values, rows, columns))
    ids = re.findall(r' id="([^"]+)"', drawn)
    for reference in re.findall(r'<use href="#([^"]*)"', drawn):
        assert reference in ids


def test_the_best_hypothesis_of_a_tree_is_a_straight_line_and_the_others_are_below() -> None:
    """BOS -> a (best) and b; a -> c (best) and d; b -> e -> f; d ends, so g, after c, fits behind.

    The branch of b takes row 1 up to column 3, so d takes row 2, and so does g after d has ended.
    """
    nodes = [
        fig.Node("BOS", "", None, "best"), fig.Node("b", "", 0), fig.Node("a", "", 0, "best"),
        fig.Node("d", "", 2, "dropped"), fig.Node("c", "", 2, "best"), fig.Node("e", "", 1),
        fig.Node("f", "", 5), fig.Node("EOS", "", 4, "best"), fig.Node("g", "", 4, "dropped"),
    ]  # fmt: skip
    columns, rows = layout(fig.Tree("", nodes))
    assert columns == [0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert rows == [0, 1, 0, 2, 0, 1, 1, 0, 2]


@given(st.lists(st.integers(0, 10**6), max_size=30), st.data())
def test_no_two_nodes_of_a_tree_are_at_one_place(draws: list[int], data: st.DataObject) -> None:
    nodes = [fig.Node("0", "", None, "best")]
    for index, draw in enumerate(draws, 1):
        nodes.append(fig.Node(str(index), "", draw % index))
    path = [data.draw(st.integers(0, len(draws)))]
    while (parent := nodes[path[-1]].parent) is not None:
        path.append(parent)
    for index in path:
        nodes[index] = replace(nodes[index], kind="best")
    columns, rows = layout(fig.Tree("", nodes))
    assert len({*zip(columns, rows, strict=True)}) == len(nodes)
    assert {rows[index] for index in path} == {0}
    for index, node in enumerate(nodes[1:], 1):
        assert node.parent is not None
        assert columns[index] == columns[node.parent] + 1
        assert rows[index] >= rows[node.parent]


def test_a_column_of_a_tree_begins_behind_the_longest_label_before() -> None:
    nodes = [
        fig.Node("a", "", None), fig.Node("b", "", 0), fig.Node("long" * 9, "", 0),
        fig.Node("d", "x" * 30, 1), fig.Node("e", "", 3),
    ]  # fmt: skip
    places = _places(fig.Tree("", nodes))
    assert len({start for start, _, _ in places}) == 4
    ends = [start + width for start, _, width in places]
    assert places[0][0] < ends[0] < places[1][0] == places[2][0]
    assert max(ends[1:3]) < places[3][0] < ends[3] < places[4][0]


def test_columns_of_numbers_are_right_aligned_in_a_table_as_text() -> None:
    table = fig.Table("", ["name", "n"], [["a", 5], ["bcdef", 1234]])
    lines = fig.figure_lines(table)
    (small,) = [line for line in lines if line.startswith("a ")]
    (large,) = [line for line in lines if line.startswith("bcdef ")]
    assert small.rindex("5") == large.rindex("4")
    assert small.startswith("a  ")


def test_a_table_in_a_file_is_whole_although_the_terminal_is_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table = fig.Table("", ["x" * 50, "y" * 50, "z" * 50], [["a", 5, 6]])
    assert len(fig.figure_lines(table)) == 2


def test_text_shows_numbers_without_escape_sequences() -> None:
    part = Part("all", "All", "", FIGURES)
    assert "\x1b" not in part_text(part)
    text = part_text(replace(part, explanation="word " * 40), 60)
    assert max(map(len, text.split("\n")[1:4])) == 59  # 12 words of 4 letters with spaces
    assert "1,050,624" in part_text(part)


def test_all_steps_are_on_the_page_without_its_script() -> None:
    made = page(
        fig.Steps(
            "t", [fig.Step(f"moment {n}", [fig.TextFigure("", [f"line {n}"])]) for n in range(9)]
        )
    )
    assert [f"line {n}" in made for n in range(9)] == [True] * 9


def test_weak_arcs_are_left_out_and_the_opacity_of_the_others_is_their_weight() -> None:
    """Below 0.05 an arc cannot be seen. Of 2,500 arcs only the strongest are drawn."""
    links = fig.Links("", ["a"], ["b", "c", "d"], {"h": [[0.4, 0.2, 0.03]]})
    assert links.least == 0.05
    arcs = re.findall(r'stroke-opacity="([\d.]+)" data-arc="([^"]+)"', page(links))
    assert arcs == [("0.40", "0 0 0.4000"), ("0.20", "0 1 0.2000")] * 2  # page() has two parts
    many = fig.Links("", ["a"] * 50, ["b"] * 50, {"h": [[0.1] * 49 + [0.2]] * 50})
    assert many.least == 0.1
    assert fig.Links("", ["a"], [], {"link": [[]]}).least == 0.05  # an empty translation


def test_two_heads_with_other_maxima_have_the_same_colours() -> None:
    grid = fig.Grid("", ["layer 1"], ["head 1", "head 2"], [[[[0.5, 0.25]], [[1.0, 0.5]]]])
    assert re.findall(r'fill-opacity="([\d.]+)"', document([grid])) == ["0.5", "0.25", "1.0", "0.5"]


def test_a_cycle_has_one_colour_for_both_ends_and_others_between() -> None:
    """0 and 2 pi, then a quarter, half, and three quarters."""
    values = [[0.0, math.tau, math.tau / 4, math.pi, 3 * math.tau / 4, None]]
    angles = fig.Heatmap("", values, ["r"], list("abcdef"), 0, math.tau, cyclic=True)
    drawn = document([angles])
    hues = dict.fromkeys(range(5), "")
    for hue, path in re.findall(r'class="(hue\d+)" d="([^"]+)"', drawn)[:5]:
        for x, width in re.findall(r"M(\d),0h(\d)", path):
            hues |= dict.fromkeys(range(int(x), int(x) + int(width)), hue)
    assert hues == {0: "hue0", 1: "hue0", 2: "hue3", 3: "hue6", 4: "hue9"}


def test_the_numbers_of_a_figure_have_one_format_and_masks_are_0_and_1() -> None:
    mask = fig.Heatmap("", [[1.0, 0.0]], ["r"], ["a", "b"], 0, 1)
    assert re.findall(">([^<]*)</tspan>", page(mask)) == ["1", "0"] * 2
    cells = fig.Heatmap("", [[0.5, 12.25]], ["r"], ["a", "b"])
    assert re.findall(">([^<]*)</tspan>", page(cells)) == ["0.50", "12.25"] * 2
    assert 'data-values="0.5000;12.2500"' in page(cells)
    rows: list[list[fig.Cell]] = [["x", 0.5, 1e-9], ["y", 12.25, 0.0]]
    assert fig.cell_texts(rows) == [
        ["x", "0.5000", "1.0 \N{MULTIPLICATION SIGN} 10\u207b\u2079"], ["y", "12.2500", "0"],
    ]  # fmt: skip


def test_a_right_to_left_token_keeps_its_place_in_a_label() -> None:
    token, override = "\u2581\u05e9\u05dc\u05d5\u05dd", "\u05e9\u202e"
    assert step_labels([token], ["a"]) == [f"\u2068{token}\u2069 \N{RIGHTWARDS ARROW} a"]
    made = page(fig.Heatmap("", [[1.0]], step_labels([token], [override]), ["a"]))
    assert f">\u2068{token}\u2069 \N{RIGHTWARDS ARROW} \u2068\u05e9\\u202e\u2069</text>" in made
    # An isolate of the text itself that is not closed, or is closed too often, is shown.
    assert visible("a\u2069b") == "a\\u2069b"
    assert visible("\u2068a\u2067b\u2069") == "\\u2068a\\u2067b\\u2069"


IMAGES = 'document.querySelectorAll("img").length'
VISIBLE_STEPS = 'document.querySelectorAll(".live .now").length'
CUT = """[...document.querySelectorAll("svg.drawing text")].filter(x => {
    const [own, whole] = [x, x.ownerSVGElement].map(y => y.getBoundingClientRect());
    return own.width && (own.left < whole.left || own.right > whole.right);
}).length"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(browser: str, width: int, tmp_path: Path) -> None:
    names = ["<0x76>", "\u2581Wimm"]  # a broad byte and broad letters
    drawn = fig.Heatmap("", VALUES, names, names), fig.Links("", names, names, {"head 1": VALUES})
    expressions = (WIDER, IMAGES, VISIBLE_STEPS, REQUESTS, CUT)
    found, logged = ask(browser, str(page(*FIGURES, *drawn)), tmp_path, width, *expressions)
    assert found == "0 0 2 0 0"
    assert "CONSOLE" not in logged


# What a drawing says after events, and how many arcs it hides.
POINTED = """((svg, x, y) => { svg.dispatchEvent(new PointerEvent("pointermove", {clientX:
    svg.getBoundingClientRect().left + x, clientY: svg.getBoundingClientRect().top + y}));
    return document.querySelector(".readout").textContent.replace(/[\\u2066-\\u2069\\s]/g, "")
    + svg.querySelectorAll("path.off").length; })"""
CELL = POINTED + '(document.querySelector("[data-box]"), %d, %d)'
TOKEN = POINTED + '(document.querySelector("[data-middle]"), 4, 30)'
KEY = """(svg => { svg.focus(); svg.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown"}));
    return document.querySelector(".readout").textContent.replace(/[\\u2066-\\u2069\\s]/g, "");
})(document.querySelector("[data-box]"))"""
HEAD = """(button => { button.click(); return button.getAttribute("aria-pressed")
    + document.querySelectorAll(".link.off").length; })(document.querySelector(".key button"))"""
# Two steps: the button is at the end after one click, and keeps the focus.
LAST = """(button => { button.focus(); button.click(); button.click();
    return document.activeElement.textContent + document.querySelector(".bar output").value[0];
})(document.querySelector(".bar button:last-of-type"))"""
SMALL = """[...document.querySelectorAll("body *")].filter(x => x.textContent.trim()
    && x.getClientRects().length && 11 > parseFloat(getComputedStyle(x).fontSize)).length"""


def test_drawings_answer_to_pointer_and_keyboard(browser: str, tmp_path: Path) -> None:
    weights: dict[str, fig.Matrix] = {"h1": [[0.5, 0.0], [0.25, 1.0]], "h2": [[0.0, 0.0], [0.5, 0]]}
    figures = (
        fig.Heatmap("", [[0.25, 0.75], [0.5, None]], ["r", "s"], ["a", "b"]),
        fig.Links("", ["x", "y"], ["z", "w"], weights),
        fig.Steps(
            "s",
            [
                fig.Step("1", [fig.TextFigure("", ["1"])]),
                fig.Step("2", [fig.TextFigure("", ["2"])]),
            ],
        ),
    )
    made = str(render_page("t", {}, [Part("p", "P", "", figures)], {}))
    # The centre of the second cell, where its number is written; then a token; then keys.
    (box,) = re.findall(r'data-box="([^"]+)"', made)
    left, top, width, height = map(float, box.split())
    centre = CELL % (left + 1.5 * width, top + 0.5 * height)
    found, logged = ask(browser, made, tmp_path, 390, centre, TOKEN, KEY, HEAD, LAST, SMALL)
    assert found == "r,b:0.75000 yw1.0000,h1z0.5000,h2z0.2500,h11 s,b:masked false1 Next2 0"
    assert "CONSOLE" not in logged


# Drawings on the screen that scroll sideways; the name of a cell after ArrowDown.
SIDEWAYS = """[...document.querySelectorAll(".scroll")]
    .filter(x => x.scrollWidth > x.clientWidth).length"""
SECOND_LINE = """(svg => { svg.focus(); svg.dispatchEvent(new KeyboardEvent("keydown",
    {key: "ArrowDown"})); return document.querySelector(".readout").textContent
    .replace(/[\\u2066-\\u2069\\s]/g, ""); })(document.querySelector(".grid .upright svg"))"""


def test_matrices_and_heads_fit_a_phone(browser: str, tmp_path: Path) -> None:
    """A matrix of 20 long tokens; and 6 heads, 4 on a line, so that the next line begins with 5."""
    names = [f"\u2581playing{n}" for n in range(20)]
    values: fig.Matrix = [[n / 20] * 20 for n in range(20)]
    heads: list[fig.Matrix] = [[[n / 6] * 20] * 20 for n in range(6)]
    columns = [f"head{n + 1}" for n in range(6)]
    figures = (
        fig.Heatmap("", values, names, names, down="token that reads"),
        fig.Grid("", ["l1"], columns, [heads]),
        fig.Steps("", [fig.Step("l1", [fig.TextFigure("", [""])])]),
    )
    part = Part("p", "P", "", figures)
    made = str(render_page("t", {}, [part], {}))
    found, logged = ask(browser, made, tmp_path, 390, SIDEWAYS, SECOND_LINE)
    assert found == "0 l1,head5:largestweight0.6667"
    # Copies of cells have no drawing around them, so a selector with `.drawing` leaves them black.
    assert made.count("<use ") == 6 + 2
    assert re.findall(r"([^{}\n]*)\.(?:heat|cold)\{", made) == ["", ""]
    assert "CONSOLE" not in logged


BAR = """[...document.querySelectorAll(".step, .bar *")]
    .map(each => Number(each.checkVisibility())).join("")"""


def test_paper_shows_one_step_and_says_that_others_are_folded(browser: str, tmp_path: Path) -> None:
    """The bar has a button, a menu with two options, a button and the number of the step."""
    steps = [fig.Step(name, [fig.TextFigure("", [name])]) for name in ("1", "2")]
    paper = str(page(fig.Steps("s", steps))).replace("@media print{", "@media all{")
    other = 'getComputedStyle(document.querySelector(".bar output"), "::after").content'
    found, _ = ask(browser, paper, tmp_path, 800, BAR, other)
    assert found == '0000011000000110 ". Folded: the other steps."'


def test_the_figure_of_the_readme_has_the_numbers_of_the_tutorial() -> None:
    docs = Path(__file__).parents[3] / "nmt" / "docs"
    (table,) = re.findall(r"\n  I  .*?(?=```)", (docs / "tutorial.md").read_text("utf-8"), re.S)
    expected = [f"{float(number):.2f}" for number in re.findall(r"\d\.\d{4}", table)]
    drawn = (docs / "attention.svg").read_text(encoding="utf-8")
    assert len(expected) == 20
    assert re.findall(r">([\d.]+)</tspan>", drawn) == expected
    assert 'class="end ink token">verloren.<' in drawn
    # Its lines lead to the largest number of each row: no picture contradicts its neighbour.
    rows = [expected[start : start + 5] for start in range(0, 20, 5)]
    largest = [f"{row.index(max(row))} {place}" for place, row in enumerate(rows)]
    assert re.findall(r'data-arc="(\d \d) 1"', drawn) == sorted(largest)
