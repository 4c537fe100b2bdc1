"""A page in a browser: only its own script runs; no message, no request, no sideways scrolling."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.extras.inspection.figure import Heatmap, Links
from tests.browser import REQUESTS, WIDER, ask
from tests.extras.inspection.test_page import FIGURES, VALUES, page

IMAGES = 'document.querySelectorAll("img").length'
VISIBLE_STEPS = 'document.querySelectorAll(".live .now").length'
CUT = """[...document.querySelectorAll("svg.drawing text")].filter(x => {
    const [own, whole] = [x, x.ownerSVGElement].map(y => y.getBoundingClientRect());
    return own.width && (own.left < whole.left || own.right > whole.right);
}).length"""


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(browser: str, width: int, tmp_path: Path) -> None:
    names = ["<0x76>", "\u2581Wimm"]  # a broad byte and broad letters
    drawn = Heatmap("", VALUES, names, names), Links("", names, names, {"head 1": VALUES})
    expressions = (WIDER, IMAGES, VISIBLE_STEPS, REQUESTS, CUT)
    found, logged = ask(browser, str(page(*FIGURES, *drawn)), tmp_path, width, *expressions)

    assert found == "0 0 2 0 0"
    assert "CONSOLE" not in logged
