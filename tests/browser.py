"""A page in a headless browser, asked for values by a script of the test's own."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
from pathlib import Path

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
"""How much wider than the window the page is."""
REQUESTS = 'performance.getEntriesByType("resource").length'
"""Other files that it asked for."""


def ask(
    browser: str, page: str, folder: Path, width: int, *expressions: str, wait: int = 0
) -> tuple[str, str]:
    """Return the values of expressions in a page, with spaces between, and what was logged.

    The page may change its title during the milliseconds that the browser waits.
    """
    probe = f"document.title = [{', '.join(expressions)}].join(' ');"
    digest = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'"
    made = (
        page.replace("script-src ", f"{allowed} ")
        if "script-src " in page
        else page.replace("style-src 'unsafe-inline'", f"style-src 'unsafe-inline'; {allowed}")
    )
    path = folder / "page.html"
    path.write_text(made.replace("</body>", f"<script>{probe}</script></body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
               "--enable-logging=stderr", f"--window-size={width},900", path.as_uri()]  # fmt: skip
    if wait:
        command.insert(1, f"--virtual-time-budget={wait}")
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    title = re.search(r"<title>(.*?)</title>", result.stdout)
    return (title[1] if title else "", result.stderr)
