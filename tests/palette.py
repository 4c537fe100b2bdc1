"""Contrast of colours in the palette of a page, by the formula of WCAG 2.1 (1.4.3)."""

from __future__ import annotations

import re

ENOUGH = 4.5
"""Required contrast of text of normal size."""


def luminance(color: str) -> float:
    """Relative luminance of a colour such as ``#2566a0``."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """From 1 (the same colour) to 21 (black on white)."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def mixed(color: str, under: str, opacity: float) -> str:
    """The colour that is seen where ``color`` is drawn over ``under``."""
    pairs = ((int(x[at : at + 2], 16) for x in (color, under)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(a * opacity + b * (1 - opacity)):02x}" for a, b in pairs)


def palettes(css: str) -> dict[str, dict[str, str]]:
    """The custom properties that are colours: of the light theme, and of the dark theme."""
    light, dark = (
        dict(re.findall(r"--([\w-]+):(#[0-9a-f]{6})\b", rules))
        for rules in re.findall(r":root\{([^}]*)\}", css)[:2]
    )
    return {"light": light, "dark": light | dark}
