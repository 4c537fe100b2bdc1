"""Attention between subwords -> alignments between words. Pure.

Shapes: S source and T target subwords, without BOS and EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

_SPACE = "\u2581"

Matrix = tuple[tuple[float, ...], ...]
"""A row for each target word, with a number for each source word."""
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


def word_weights(
    weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
) -> Matrix:
    """Return how much of each source word is seen for each target word.

    That is the mean over the subwords of the target word of what is seen of all subwords of the
    source word. A row sums to at most 1: EOS of the source is seen, too.

    Args:
        weights: Of subwords; with the others as in `links`.
        source: The source subwords.
        target: The target subwords.

    >>> word_weights([[0.5, 0.25], [0.25, 0.25]], ["\u2581a", "b"], ["\u2581c", "d"])
    ((0.625,),)
    """
    of_source, of_target = words_of(source), words_of(target)
    found = [[0.0] * _count(source) for _ in range(_count(target))]
    for word, row in zip(of_target, weights, strict=True):
        for place, weight in zip(of_source, row, strict=True):
            found[word][place] += weight / of_target.count(word)
    return tuple(map(tuple, found))


def _count(pieces: Sequence[str]) -> int:
    """Words of a text."""
    return words_of(pieces)[-1] + 1 if pieces else 0


class Part(NamedTuple):
    """A part of a line that was translated by itself."""

    links: Links
    source_words: int
    target_words: int
    weights: Matrix = ()

    @classmethod
    def of(
        cls, weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
    ) -> Part:
        """Align one part; see `links` and `word_weights`."""
        given = (weights, source, target)
        return cls(links(*given), _count(source), _count(target), word_weights(*given))


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


def joined_weights(parts: Sequence[Part]) -> Matrix:
    """Return the matrix of a line: no part saw anything of another.

    >>> joined_weights([Part((), 2, 1, ((0.5, 0.25),)), Part((), 1, 1, ((1.0,),))])
    ((0.5, 0.25, 0.0), (0.0, 0.0, 1.0))
    """
    width = sum(part.source_words for part in parts)
    rows: list[tuple[float, ...]] = []
    before = 0
    for part in parts:
        after = width - before - part.source_words
        rows += [(0.0,) * before + row + (0.0,) * after for row in part.weights]
        before += part.source_words
    return tuple(rows)


def as_pharaoh(found: Links) -> str:
    """Return the usual text form, ``source-target`` pairs.

    >>> as_pharaoh(((1, 0), (0, 1)))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in found)
