"""Alignments, attention and token scores of finished translations, computed when asked for.

Shapes: S source and T target subwords, without BOS and EOS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple, TypeVar

from nmt.runtime.engine import Engine
from nmt.text.tokenizer import Tokenizer, Tokenizers
from nmt.translation.result import Links, Matrix, TranslationResult, score_tokens
from nmt.translation.segment import Segment, group_by_line

_SPACE = "\u2581"
_Value = TypeVar("_Value")
_Ids = Sequence[Sequence[int]]


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
    """Align each target subword with the source subword of most attention, and count by words.

    Args:
        weights: Attention of each target subword to each source subword. (T, S).
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
    """Return the attention of each target word to each source word.

    That is the mean over the subwords of the target word of the sum over those of the source word.
    A row sums to at most 1, as EOS of the source gets attention, too.

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
    """Return the number of words of a text."""
    return words_of(pieces)[-1] + 1 if pieces else 0


class AlignedSegment(NamedTuple):
    """The alignment of one segment, by words."""

    links: Links
    source_words: int
    target_words: int
    weights: Matrix = ()

    @classmethod
    def of(
        cls, weights: Sequence[Sequence[float]], source: Sequence[str], target: Sequence[str]
    ) -> AlignedSegment:
        """Align one segment; see `links` and `word_weights`."""
        given = (weights, source, target)
        return cls(links(*given), _count(source), _count(target), word_weights(*given))


def join_links(parts: Sequence[AlignedSegment]) -> Links:
    """Return the links of all segments of a line, numbered through the line.

    >>> join_links([AlignedSegment(((0, 0),), 2, 1), AlignedSegment(((1, 0),), 2, 2)])
    ((0, 0), (3, 1))
    """
    found: list[tuple[int, int]] = []
    source_words = target_words = 0
    for part in parts:
        found += [(source_words + s, target_words + t) for s, t in part.links]
        source_words += part.source_words
        target_words += part.target_words
    return tuple(found)


def join_weights(parts: Sequence[AlignedSegment]) -> Matrix:
    """Return the block-diagonal matrix of a line: no segment attends to another.

    >>> one, two = AlignedSegment((), 2, 1, ((0.5, 0.25),)), AlignedSegment((), 1, 1, ((1.0,),))
    >>> join_weights([one, two])
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


@dataclass(frozen=True, slots=True)
class Details:
    """What is asked for."""

    alignments: bool = False
    """Word alignments."""
    attention: bool = False
    """Attention of each target word to each source word."""
    token_scores: bool = False
    """The log probability of each token."""


@dataclass(frozen=True, slots=True)
class BestOutputs:
    """The best output of each segment."""

    segments: Sequence[Segment]
    """What was translated."""
    ids: _Ids
    """Target ids of each segment, without BOS and EOS."""
    batches: Sequence[Sequence[int]]
    """Segments that an engine reads at once; each is in one batch."""

    def map(self, read: Callable[[_Ids, _Ids], Sequence[_Value]]) -> list[_Value]:
        """Return what ``read`` returns for the source and target ids of each segment."""
        found: dict[int, _Value] = {}
        for rows in self.batches:
            sources = [self.segments[row].ids for row in rows]
            found.update(zip(rows, read(sources, [self.ids[row] for row in rows]), strict=True))
        return [found[row] for row in range(len(self.segments))]


def add_details(
    results: Sequence[TranslationResult],
    wanted: Details,
    outputs: BestOutputs,
    engine: Engine,
    tokenizers: Tokenizers,
) -> list[TranslationResult]:
    """Return the results of all lines with what is wanted.

    Raises:
        ConfigError: The engine cannot compute that.
    """
    detailed = list(results)
    if wanted.alignments or wanted.attention:
        for line, parts in enumerate(_align(len(results), outputs, engine, tokenizers)):
            if wanted.alignments:
                detailed[line] = replace(detailed[line], alignment=join_links(parts))
            if wanted.attention:
                detailed[line] = replace(detailed[line], attention=join_weights(parts))
    if wanted.token_scores:
        pieces = subwords(tokenizers.target)
        tokens = [
            score_tokens(pieces, ids, log_probs)
            for ids, log_probs in zip(outputs.ids, outputs.map(engine.token_log_probs), strict=True)
        ]
        for line, own in enumerate(group_by_line(outputs.segments, tokens, len(results))):
            scored = tuple(token for segment in own for token in segment)
            detailed[line] = replace(detailed[line], tokens=scored)
    return detailed


def _align(
    num_lines: int, outputs: BestOutputs, engine: Engine, tokenizers: Tokenizers
) -> list[list[AlignedSegment]]:
    """Align the segments of each line by attention."""
    of_source, of_target = subwords(tokenizers.source), subwords(tokenizers.target)
    aligned = [
        AlignedSegment.of(weights, [of_source[i] for i in segment.ids], [of_target[i] for i in ids])
        for weights, segment, ids in zip(
            outputs.map(engine.attention), outputs.segments, outputs.ids, strict=True
        )
    ]
    return group_by_line(outputs.segments, aligned, num_lines)


def subwords(tokenizer: Tokenizer) -> list[str]:
    """Return the text of each id."""
    return [piece for piece, _, _ in tokenizer.pieces()]
