"""Parts as one page: contents, explanations, figures, and buttons where time matters.

The page is complete without its script, which shows the steps of a `Steps` one at a time.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from nmt.extras.inspection.figure import Figure, Part, Steps, Table, Text
from nmt.extras.inspection.svg import draw
from nmt.extras.inspection.text import cell_text, numeric_columns
from nmt.report.page import render


def render_page(
    title: str, facts: Mapping[str, str], parts: Sequence[Part], offers: Mapping[str, str]
) -> Markup:
    """Return a page that needs nothing else.

    Args:
        title: Name of the model.
        facts: Name -> value, shown at the top.
        parts: Sections in their order.
        offers: Commands for what is not on the page -> what they show.
    """
    script = Markup((files("nmt.report") / "templates" / "steps.js").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(
        "inspect.html.j2", title=title, facts=facts, parts=parts, figure_html=figure_html,
        offers=offers, alone=False, script=script, digest=digest,
    )  # fmt: skip


def figure_html(figure: Figure) -> Markup:
    """Return a figure with its title and note: a drawing where its class has no template."""
    kind, content = type(figure).__name__.lower(), dict[str, Any]()
    if isinstance(figure, Table):
        rows = [[cell_text(cell) for cell in row] for row in figure.rows]
        numeric = [*numeric_columns(figure.rows), *[False] * len(figure.head)]
        content = {"rows": rows, "numeric": numeric}
    elif not isinstance(figure, Text | Steps):
        content = {"drawing": draw(figure).as_svg(figure.title)}
    return render("figure.html.j2", kind=kind, figure=figure, figure_html=figure_html, **content)
