"""A page in a browser: only its own script runs; no message, no request, no sideways scrolling."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import REQUESTS, WIDER, ask
from tests.extras.inspection.test_page import FIGURES, page

IMAGES = 'document.querySelectorAll("img").length'
VISIBLE_STEPS = 'document.querySelectorAll(".live .now").length'


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(browser: str, width: int, tmp_path: Path) -> None:
    expressions = (WIDER, IMAGES, VISIBLE_STEPS, REQUESTS)
    found, logged = ask(browser, str(page(*FIGURES)), tmp_path, width, *expressions)

    assert found == "0 0 2 0"
    assert "CONSOLE" not in logged
