"""scripts/placeholders.py: where it puts placeholders, and which places count as right."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest

from nmt.inference.placeholders import placeholder_pattern
from nmt.inference.request import Result

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "placeholders.py"))
SINGLE = SCRIPT["SINGLE"]
LINE = "ein Hund läuft über die Wiese"


def test_of_six_kinds_of_lines_one_has_tags_and_one_has_two_placeholders() -> None:
    pattern = placeholder_pattern()
    kinds = Counter[str]()
    for number in range(6 * len(SINGLE)):
        text, position = SCRIPT["marked"](LINE, number)
        marks = pattern.findall(text)
        assert " ".join(pattern.sub("", text).split()) == LINE  # nothing else is changed
        words = text.replace("{first} ", "").split()
        if "</b>" in marks:
            assert words[position] == f"<b>{LINE.split()[position]}</b>"
            kinds["tags"] += 1
        else:
            assert words[position] == SINGLE[number % len(SINGLE)]
            kinds[f"{len(marks)} placeholders"] += 1
    assert kinds == {"1 placeholders": 24, "tags": 6, "2 placeholders": 6}


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("a dog {x} runs over the meadow .", True),  # before and after are both translations
        ("a dog runs {x} over the meadow .", True),  # after the translation of the word after it
        ("a dog runs over {x}, the meadow .", False),
        ("{x} a dog runs over the meadow .", False),
        ("a dog runs over the meadow .", False),
    ],
)
def test_a_placeholder_is_right_next_to_a_translation_of_a_neighbour(
    text: str, is_right: bool
) -> None:
    """In the source, it is between word 1 (Hund) and word 2 (läuft)."""
    links = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5))
    plain = Result(LINE, "a dog runs over the meadow .", 0.0, alignment=links)
    if "{x}" not in text:
        text += " {x}"
    assert SCRIPT["is_beside_translation"](text, "{x}", plain, 2) == is_right
