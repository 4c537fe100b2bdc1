"""Every text of a page can be read: a contrast of 4.5:1 in the light and in the dark theme."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.palette import ENOUGH, contrast, mixed, palettes

TEMPLATES = Path(__file__).parents[2] / "nmt" / "report" / "templates"
STYLE = (TEMPLATES / "style.css").read_text(encoding="utf-8")
SHEETS = [*TEMPLATES.glob("*.css"), *TEMPLATES.glob("*.j2")]
PALETTES = palettes(STYLE)
BACKGROUNDS = ("page", "wash")
NOT_TEXT = ("line", *BACKGROUNDS)


def test_the_formula_gives_the_values_of_its_definition() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)  # the lightest grey
    assert mixed("#000000", "#ffffff", 0.25) == "#bfbfbf"


@pytest.mark.parametrize("theme", PALETTES)
def test_every_colour_of_text_is_readable_on_every_background(theme: str) -> None:
    colors = PALETTES[theme]
    found = {
        (name, under): contrast(color, colors[under])
        for name, color in colors.items() if name not in NOT_TEXT
        for under in BACKGROUNDS
    }  # fmt: skip
    assert len(found) >= 2 * 12
    assert {names: value for names, value in found.items() if value < ENOUGH} == {}


def test_the_themes_define_the_same_colours_and_pages_use_no_other_colour() -> None:
    assert [*PALETTES["light"]] == [*PALETTES["dark"]]
    used = {name for path in SHEETS for name in re.findall(r"var\(--([\w-]+)", path.read_text())}
    assert used <= set(PALETTES["light"])
    for path in SHEETS:
        literal = set(re.findall(r"#[0-9a-f]{6}\b", path.read_text(encoding="utf-8")))
        # A drawing without a page has the colours of the light theme, on white.
        allowed = {*PALETTES["light"].values(), "#ffffff"} if "drawing" in path.name else set()
        assert literal <= (allowed if path.name != "style.css" else literal), path.name


@pytest.mark.parametrize("theme", PALETTES)
def test_numbers_are_readable_in_cells_of_every_shade(theme: str) -> None:
    """`nmt inspect` writes numbers in ink, on shades that have half of their opacity."""
    css = (TEMPLATES / "drawing.css.j2").read_text(encoding="utf-8")
    (opacity,) = re.findall(r"\.written\{opacity:([.\d]+)\}", css)
    heatmap = (TEMPLATES / "heatmap.svg.j2").read_text(encoding="utf-8")
    assert re.search(r"written\(row, .*\"ink\"\)", heatmap)
    colors = PALETTES[theme]
    for hue in ("c0", "c1", "line"):
        for level in range(25):
            cell = mixed(colors[hue], colors["page"], float(opacity) * level / 24)
            assert contrast(colors["ink"], cell) >= ENOUGH, (hue, level)


def test_only_lines_marks_and_switched_off_buttons_are_pale() -> None:
    """Opacity would lower the contrast that the palette promises."""
    rules = (
        re.findall(r"([^{}]+)\{[^{}]*(?<!-)opacity:", path.read_text(encoding="utf-8"))
        for path in SHEETS
    )
    text = re.compile(r"\b(?:text|td|th|dd|dt|p|small|mark|span)\b")
    assert [rule for found in rules for rule in found if text.search(rule)] == []
