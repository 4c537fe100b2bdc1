"""Every text of the page can be read, in the light and in the dark theme."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nmt.extras import serving
from tests.palette import ENOUGH, contrast, mixed, palettes

CSS = (Path(serving.__file__).parent / "page.html").read_text(encoding="utf-8")
PALETTES = palettes(CSS)


@pytest.mark.parametrize("theme", PALETTES)
def test_every_colour_of_text_is_readable_on_the_page_and_on_its_cards(theme: str) -> None:
    colors = PALETTES[theme]
    for under in ("page", "card"):
        for name in ("ink", "soft", "blue", "warm", "good", "bad"):
            assert contrast(colors[name], colors[under]) >= ENOUGH, (name, under)
    shades = [int(share) for share in re.findall(r"var\(--warm\) (\d+)%,transparent", CSS)]
    for share in shades:  # doubtful words
        shaded = mixed(colors["warm"], colors["card"], share / 100)
        for name in ("ink", "blue"):  # blue: words that a user chose
            assert contrast(colors[name], shaded) >= ENOUGH, name
    assert shades


@pytest.mark.parametrize("theme", PALETTES)
def test_pale_text_is_readable(theme: str) -> None:
    """Only a control that is switched off or not seen may have less contrast."""
    colors, card = PALETTES[theme], PALETTES[theme]["card"]
    for selector, rule, opacity in re.findall(r"([^{}\n]+)\{([^{}]*\bopacity:([\d.]+)[^{}]*)", CSS):
        if "disabled" not in selector and "type=file" not in selector:
            color = colors["soft" if "--soft" in rule else "ink"]
            assert contrast(mixed(color, card, float(opacity)), card) >= ENOUGH, selector
