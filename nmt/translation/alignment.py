"""Attention between subwords -> alignments between words. Pure.

Shapes: S source and T target subwords, without BOS and EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

_SPACE = "\u2581"

Links = tuple[tuple[int, int], ...]
"""(source word, target word), from 0, sorted by the target."""


def words_of(pieces: Sequence[str]) -> list[int]:
    """Return the word, between spaces, that each subword belongs to, from 0.

    >>> words_of(["\u2581ein", "\u2581Hund", "e", "\u2581schl", "\u00e4ft"])
    [0, 1, 1, 2, 2]
    """
    begins = (number > 0 and piece.startswith(_SPACE) for number, piece in enumerate(pieces))
    return list(accumulate(map(int, begins)))


def links(
    weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
) -> Links:
    """Align each target subword with the source subword most seen for it, and count by words.

    Args:
        weights: How much of each source subword is seen for each target subword. (T, S).
        source: The source subwords.
        target: The target subwords.

    >>> links([[0.1, 0.8, 0.1], [0.6, 0.3, 0.1]], ["\u2581a", "\u2581b"], ["\u2581c", "\u2581d"])
    ((1, 0), (0, 1))
    """
    if not source:
        return ()
    of_source, of_target = words_of(source), words_of(target)
    found: dict[tuple[int, int], None] = {}
    for place, row in enumerate(weights):
        best = max(range(len(source)), key=lambda i: row[i])
        found[of_source[best], of_target[place]] = None
    return tuple(sorted(found, key=lambda link: (link[1], link[0])))


class Part(NamedTuple):
    """A part of a line that was translated by itself."""

    links: Links
    source_words: int
    target_words: int

    @classmethod
    def of(
        cls, weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
    ) -> Part:
        """Align one part; see `links`."""
        counts = (words_of(pieces)[-1] + 1 if pieces else 0 for pieces in (source, target))
        return cls(links(weights, source, target), *counts)


def joined(parts: Sequence[Part]) -> Links:
    """Return the links of all parts of a line: later parts count on.

    >>> joined([Part(((0, 0),), 2, 1), Part(((1, 0),), 2, 2)])
    ((0, 0), (3, 1))
    """
    found: list[tuple[int, int]] = []
    source_words = target_words = 0
    for part in parts:
        found += [(source_words + s, target_words + t) for s, t in part.links]
        source_words += part.source_words
        target_words += part.target_words
    return tuple(found)


def as_pharaoh(found: Links) -> str:
    """Return the usual text form, ``source-target`` pairs.

    >>> as_pharaoh(((1, 0), (0, 1)))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in found)
