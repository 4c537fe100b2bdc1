"""Figures of every kind as a page, as SVG and as text: complete, escaped and without network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nmt.extras.inspection import figure as fig
from nmt.extras.inspection.figure import Part, part_text
from nmt.extras.inspection.page import document, layout, render_page, text_width
from tests.browser import REQUESTS, WIDER, ask

ATTACK = "<img src=x onerror=alert(1)>\u202e&"
VALUES: fig.Matrix = [[0.25, None], [0.5, 1.0]]
HEATMAP = fig.Heatmap(ATTACK, VALUES, [ATTACK, "b"], [ATTACK, "d"], 0, 1, note=ATTACK)
# One of each kind, with markup wherever text goes.
FIGURES: list[fig.Figure] = [
    fig.Text(ATTACK, [ATTACK], note=ATTACK),
    fig.Table(ATTACK, [ATTACK, "n"], [[ATTACK, 1050624], [None, 0.5]], total=True, note=ATTACK),
    HEATMAP,
    fig.Links(ATTACK, [ATTACK, "b"], [ATTACK], {ATTACK: [[0.9], [0.1]], "2": [[0.5], [0.0]]}),
    fig.Tree(ATTACK, [fig.Node(ATTACK, ATTACK, None, "best"), fig.Node("b", "", 0, "dropped")]),
    fig.Diagram(
        ATTACK,
        [
            fig.Stack(
                ATTACK, [fig.Box(ATTACK, ATTACK), fig.Box("add", residual=1)], repeated=(0, 1, 6)
            ),
            fig.Stack("d", [fig.Box("cross", kind="attention")]),
        ],
        [((0, 1), (1, 0), ATTACK)],
    ),
    fig.Grid(ATTACK, [ATTACK], [ATTACK], [[VALUES]]),
    fig.Steps(ATTACK, [fig.Step(ATTACK, [HEATMAP]), fig.Step("2", [fig.Text("", [ATTACK])])]),
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


def test_a_page_is_self_contained() -> None:
    made = page(*FIGURES)
    assert not re.search(r"(?:src|href)=(?!\"#)|url\(|@import", made.replace("src=x onerror", ""))
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
    assert cells[:2] == [("1", "0.5"), ("2", "1")]


def test_labels_fit_in_a_wide_font() -> None:
    # As a browser measures them in DejaVu Sans of 13 pixels.
    widths = {"<0x76>": 55.2, "\u2581sch\u00f6ne \u2192 \u2581wei\u00dfe": 123.8, "mWw": 36.4}
    assert all(width <= text_width(label) <= 1.2 * width for label, width in widths.items())


def test_neighbouring_cells_of_one_shade_are_one_shape() -> None:
    drawn = document([fig.Heatmap("", [[1.0] * 300] * 2, ["r", "s"], [""] * 300, low=0, high=1)])
    assert "M0,0h300v1h-300zM0,1h300v1h-300z" in drawn


def test_parents_of_a_tree_are_centred_on_their_children() -> None:
    parents = {"a": None, "b": 0, "c": 0, "d": 1}
    nodes = [fig.Node(name, "", parent) for name, parent in parents.items()]
    assert layout(fig.Tree("", nodes)) == ([0, 1, 1, 2], [0.5, 0, 1, 0])


def test_text_shows_numbers_without_escape_sequences() -> None:
    part = Part("all", "All", "", FIGURES)
    assert "\x1b" not in part_text(part)
    assert "1,050,624" in part_text(part)


def test_all_steps_are_on_the_page_without_its_script() -> None:
    made = page(
        fig.Steps("t", [fig.Step(f"moment {n}", [fig.Text("", [f"line {n}"])]) for n in range(9)])
    )
    assert [f"line {n}" in made for n in range(9)] == [True] * 9


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
