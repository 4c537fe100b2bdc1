"""Word alignment: which source words the words of a translation attend to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from nmt.text.tokenizer import Tokenizer

_SPACE, _SPACE_BYTES = "\u2581", ("<0xE2>", "<0x96>", "<0x81>")
# A row for each target word, with a number for each source word.
Matrix = tuple[tuple[float, ...], ...]
Links = tuple[tuple[int, int], ...]  # (source word, target word), from 0, sorted by the target.


def as_pharaoh(links: Links) -> str:
    """Return an alignment in Pharaoh format, ``source-target`` pairs.

    >>> as_pharaoh(((1, 0), (0, 1)))
    '1-0 0-1'
    """
    return " ".join(f"{source}-{target}" for source, target in links)


def words_of(pieces: Sequence[str]) -> list[int]:
    """Return the word, between spaces, that each subword belongs to, from 0.

    >>> words_of(["\u2581ein", "\u2581Hund", "e", "\u2581schl", "\u00e4ft"])
    [0, 1, 1, 2, 2]
    """
    begins = (
        number > 0 and (piece.startswith(_SPACE) or (*pieces[number : number + 3],) == _SPACE_BYTES)
        for number, piece in enumerate(pieces)
    )
    return list(accumulate(map(int, begins)))


class AlignedSegment(NamedTuple):
    """The alignment of one segment, by words."""

    links: Links
    weights: Matrix
    source_words: int


def align_words(
    weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
) -> AlignedSegment:
    """Align a segment by attention.

    Each target subword is linked to the source subword of most attention. The weight of a target
    word is the mean over its subwords of the sum over those of the source word; a row sums to at
    most 1, as EOS of the source gets attention, too.

    Args:
        weights: Attention of each target subword to each source subword. (T, S).
        source: The source subwords, without EOS.
        target: The target subwords, without EOS.

    >>> align_words([[0.5, 0.25], [0.25, 0.25]], ["\u2581a", "b"], ["\u2581c", "d"])
    AlignedSegment(links=((0, 0),), weights=((0.625,),), source_words=1)
    """
    of_source, of_target = words_of(source), words_of(target)
    source_words, target_words = (max(words, default=-1) + 1 for words in (of_source, of_target))
    matrix = [[0.0] * source_words for _ in range(target_words)]
    links: set[tuple[int, int]] = set()
    for word, row in zip(of_target, weights, strict=True):
        size = of_target.count(word)
        for place, weight in zip(of_source, row, strict=True):
            matrix[word][place] += weight / size
        if source:
            links.add((of_source[max(range(len(source)), key=row.__getitem__)], word))
    ordered = sorted(links, key=lambda link: link[::-1])
    return AlignedSegment(tuple(ordered), tuple(map(tuple, matrix)), source_words)


def join_alignments(parts: Sequence[AlignedSegment]) -> tuple[Links, Matrix]:
    """Number the words of all segments of a line through; no segment attends to another.

    >>> one = AlignedSegment(((0, 0),), ((0.5, 0.25),), 2)
    >>> join_alignments([one, AlignedSegment(((0, 0),), ((1.0,),), 1)])
    (((0, 0), (2, 1)), ((0.5, 0.25, 0.0), (0.0, 0.0, 1.0)))
    """
    width = sum(part.source_words for part in parts)
    links: list[tuple[int, int]] = []
    rows: list[tuple[float, ...]] = []
    before = 0
    for part in parts:
        links += [(before + source, len(rows) + target) for source, target in part.links]
        after = width - before - part.source_words
        rows += [(0.0,) * before + row + (0.0,) * after for row in part.weights]
        before += part.source_words
    return tuple(links), tuple(rows)


def subwords(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each id."""
    return [piece for piece, _, _ in tokenizer.pieces()]
