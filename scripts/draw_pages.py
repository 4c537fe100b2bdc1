"""Draw the pictures of the README from real pages: the translator, curves and a corpus report.

Usage: python scripts/draw_pages.py MODEL RUN OTHER_RUN REPORT OUT

Serves MODEL, a German-English run, and translates a text with it. Compares RUN and OTHER_RUN by
their curves. Takes the picture of where pairs are misaligned from REPORT, a `report.html` of
`nmt prepare --report-only`. Needs Chromium with chromedriver; CHROMIUM names one that is not on the
path.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

SIZE = (1000, 870)  # CSS pixels of the window
SCALE = 1.5  # Pixels of a picture for each CSS pixel, so that text is sharp when it is enlarged.
# The margin is for pages of another colour; the width, for text that is legible on a phone.
STYLE = "padding: 16px; max-width: 560px"
SECONDS = 60.0  # until a page is ready
RATED = "#status:is(.good, .look, .bad)"  # All sentences are translated and rated.
TEXT = "Ein Hund läuft durch den Schnee. Zwei Kinder spielen am Strand mit einem roten Ball."


@contextmanager
def browser() -> Iterator[Chrome]:
    """A Chromium without a window."""
    options = ChromeOptions()
    options.binary_location = os.environ.get("CHROMIUM", "")
    width, height = SIZE
    for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(flag)
    options.add_argument(f"--window-size={width},{height}")
    options.add_argument(f"--force-device-scale-factor={SCALE}")
    chrome = Chrome(options=options)
    try:
        yield chrome
    finally:
        chrome.quit()


@contextmanager
def server(model: Path) -> Iterator[str]:
    """Serve a model, and return the address of the page."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["nmt", "serve", str(model), "--port", str(port), "--no-auth"]
    with subprocess.Popen(command) as process:
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def opened(chrome: Chrome, address: str) -> bool:
    """Open a page; return whether its server answers."""
    chrome.get(address)
    return bool(chrome.find_elements(By.ID, "source"))


def draw_translator(chrome: Chrome, model: Path, path: Path) -> None:
    """Translate a text on the page of `nmt serve`."""
    with server(model) as address:
        wait = WebDriverWait(chrome, SECONDS, ignored_exceptions=(Exception,))
        wait.until(lambda _: opened(chrome, address))
        source = chrome.find_element(By.ID, "source")
        source.send_keys(TEXT)
        wait.until(lambda _: chrome.find_element(By.CSS_SELECTOR, RATED))
        chrome.save_screenshot(str(path))


def draw_element(chrome: Chrome, page: Path, selector: str, path: Path) -> None:
    """Draw one element of a page."""
    chrome.get(page.resolve().as_uri())
    element = chrome.find_element(By.CSS_SELECTOR, selector)
    code = "arguments[0].style = arguments[1]; arguments[0].scrollIntoView()"
    chrome.execute_script(code, element, STYLE)
    element.screenshot(str(path))


def main(model: Path, run: Path, other: Path, report: Path, out: Path) -> None:
    """Draw the three pictures."""
    with browser() as chrome, tempfile.TemporaryDirectory() as folder:
        draw_translator(chrome, model, out / "translator.png")
        page = Path(folder) / "curves.html"
        subprocess.run(["nmt", "report", run, other, "-o", page], check=True)
        draw_element(chrome, page, "figure.wide", out / "curves.png")
        draw_element(chrome, report, "figure:has(.band)", out / "misaligned.png")


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*map(Path, sys.argv[1:]))
