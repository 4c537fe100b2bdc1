"""A page in a browser: only its own script runs; no message, no request, no sideways scrolling."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.inspection.test_page import FIGURES, page

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
PROBE = """
document.title = [
  document.documentElement.scrollWidth - document.documentElement.clientWidth,
  document.querySelectorAll("img").length,
  document.querySelectorAll(".live .now").length,
  performance.getEntriesByType("resource").length,
].join(" ");
"""
"""How much wider than the window it is, images, visible steps, and other files asked for."""


@pytest.fixture(scope="module")
def browser() -> str:
    """A Chromium on the path, or named by CHROMIUM."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium is installed; set CHROMIUM to one to see pages in a browser")
    return found


@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page(browser: str, width: int, tmp_path: Path) -> None:
    digest = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    made = str(page(*FIGURES)).replace("script-src ", f"script-src 'sha256-{digest}' ")
    path = tmp_path / "page.html"
    path.write_text(made.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
               "--enable-logging=stderr", f"--window-size={width},900", path.as_uri()]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    title = re.search(r"<title>(.*?)</title>", result.stdout)

    assert title is not None
    assert title[1] == "0 0 2 0"
    assert "CONSOLE" not in result.stderr
