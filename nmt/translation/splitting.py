"""Cut a text that is longer than the model was trained for, at the best borders there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_BORDERS = (
    re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f\u061f])\s*"),  # sentences
    re.compile(r"(?<=[,;:])\s+|(?<=[\uff0c\u3001\uff1b\uff1a\u060c\u061b])\s*"),  # clauses
    re.compile(r"\s+"),  # words
)


class _Span(NamedTuple):
    """A part of the text."""

    start: int
    end: int
    size: int


def split_text(text: str, size_of: Callable[[str], int], limit: int) -> list[str]:
    """Return pieces of ``text`` of at most ``limit``, in order, as long as they can be.

    Borders are tried in the order sentences, clauses, words; a word that does not fit is cut in
    halves. Neighbours are joined by the sum of their sizes, so the time is linear in the text.

    Args:
        text: What to cut.
        size_of: Size of a text, for example its subwords. Any number above ``limit`` will do for
            a text that is too long.
        limit: Largest size of a piece. A single character is larger if it must.

    >>> split_text("One two. Three four, five. Six.", len, 12)
    ['One two.', 'Three four,', 'five. Six.']
    """
    merged: list[_Span] = []
    for span in _spans(text, 0, len(text), size_of, limit, 0):
        if merged and merged[-1].size + span.size <= limit:
            merged[-1] = _Span(merged[-1].start, span.end, merged[-1].size + span.size)
        else:
            merged.append(span)
    return [text[span.start : span.end] for span in merged]


def _spans(
    text: str, start: int, end: int, size_of: Callable[[str], int], limit: int, level: int
) -> Iterator[_Span]:
    """Yield parts that fit, without the white space at the borders between them."""
    piece = text[start:end].strip()
    if not piece:
        return
    start = text.index(piece[0], start)
    end = start + len(piece)
    size = size_of(piece)
    if size <= limit or len(piece) == 1:
        yield _Span(start, end, size)
        return
    cuts = [(len(piece) // 2, len(piece) // 2)]
    if level < len(_BORDERS):
        cuts = [border.span() for border in _BORDERS[level].finditer(piece)]
        level += 1
    begin = 0
    for cut_start, cut_end in (*cuts, (len(piece), len(piece))):
        yield from _spans(text, start + begin, start + cut_start, size_of, limit, level)
        begin = cut_end
