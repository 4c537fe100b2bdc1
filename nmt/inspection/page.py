"""Parts as one page: contents, explanations, figures, and buttons where time matters.

The page is complete without its script, which shows the steps of a `Steps` one at a time.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, singledispatch
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from nmt.inspection.figure import Figure, Part, Steps, Table, Text
from nmt.inspection.svg import draw
from nmt.inspection.text import cell_text, columns_of
from nmt.report.page import render


def render_page(
    title: str,
    facts: Mapping[str, str],
    parts: Sequence[Part],
    offers: Mapping[str, str] | None = None,
) -> Markup:
    """Return a page that needs nothing else.

    Args:
        title: Name of the model.
        facts: Name -> value, shown at the top.
        parts: Sections in their order.
        offers: Commands for what is not on the page -> what they show.
    """
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(
        "inspect.html.j2",
        title=title,
        facts=facts,
        parts=[
            {
                "name": part.name,
                "title": part.title,
                "explanation": part.explanation,
                "figures": [figure_html(each) for each in part.figures],
            }
            for part in parts
        ],
        offers=offers or {},
        alone=False,
        script=script,
        digest=digest,
    )


@cache
def _script() -> Markup:
    path = files("nmt.report") / "templates" / "steps.js"
    return Markup(path.read_text(encoding="utf-8"))


def figure_html(figure: Figure) -> Markup:
    """Return a figure with its title and note."""
    kind = type(figure).__name__.lower()
    return render("figure.html.j2", kind=kind, figure=figure, **_content(figure))


@singledispatch
def _content(figure: Figure) -> Mapping[str, Any]:
    """Return what the template of a figure's class shows: a drawing where it has none."""
    return {"drawing": draw(figure).as_svg(figure.title)}


@_content.register
def _(figure: Text) -> Mapping[str, Any]:
    return {"text": "\n".join(figure.lines)}


@_content.register
def _(figure: Table) -> Mapping[str, Any]:
    rows = [[cell_text(cell) for cell in row] for row in figure.rows]
    return {"rows": rows, "numeric": [*columns_of(figure.rows), *[False] * len(figure.head)]}


@_content.register
def _(figure: Steps) -> Mapping[str, Any]:
    return {
        "steps": [
            {"title": each.title, "figures": [figure_html(inner) for inner in each.figures]}
            for each in figure.steps
        ]
    }
