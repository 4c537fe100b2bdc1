"""The page of an evaluation in a browser: no message, no request, no sideways scrolling."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import REQUESTS, WIDER, ask
from tests.extras.analysis.test_page import full_page

RIGHT_TO_LEFT = (
    '[...document.querySelectorAll("dd")].filter(x => x.matches(":dir(rtl)")).length > 0'
)
RUBIES_SPLIT = (  # none may be broken over two lines
    '[...document.querySelectorAll("rt")].filter(x => x.getClientRects().length > 1).length'
)


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(browser: str, width: int, tmp_path: Path) -> None:
    expressions = (WIDER, REQUESTS, RUBIES_SPLIT, RIGHT_TO_LEFT)
    found, logged = ask(browser, full_page(), tmp_path, width, *expressions)
    assert found == "0 0 0 true"
    assert "CONSOLE" not in logged
