"""Cut a text that is longer than the model was trained for, at the best borders there are."""

from __future__ import annotations

import re
from collections.abc import Callable

_BORDERS = (
    re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u061f])\s*"),  # sentences
    re.compile(r"(?<=[,;:])\s+|(?<=[\uff0c\u3001\uff1b\uff1a\u060c\u061b])\s*"),  # clauses
    re.compile(r"\s+"),  # words
)
_SHORTEST_CUT = 8


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Return pieces of ``text`` that fit, in order, as long as they can be.

    Borders are tried in the order sentences, clauses, words; a word that does not fit is cut in
    halves.

    >>> split_text("One two. Three four, five. Six.", lambda piece: len(piece) <= 12)
    ['One two.', 'Three four,', 'five. Six.']
    """
    return _merge([piece for piece in _pieces(text.strip(), fits, 0) if piece], fits)


def _pieces(text: str, fits: Callable[[str], bool], level: int) -> list[str]:
    if len(text) <= _SHORTEST_CUT or fits(text):
        return [text]
    if level == len(_BORDERS):
        middle = len(text) // 2
        halves = (text[:middle], text[middle:])
        return [piece for half in halves for piece in _pieces(half, fits, level)]
    parts = _BORDERS[level].split(text)
    return [piece for part in parts for piece in _pieces(part, fits, level + 1)]


def _merge(pieces: list[str], fits: Callable[[str], bool]) -> list[str]:
    """Join neighbours while the whole fits."""
    merged: list[str] = []
    for piece in pieces:
        if merged and fits(f"{merged[-1]} {piece}"):
            merged[-1] = f"{merged[-1]} {piece}"
        else:
            merged.append(piece)
    return merged
