"""BPE-dropout with a seed: segment token ids again, with some merges left out.

SentencePiece's own sampler can be neither seeded nor resumed.
Source: Provilkov, Emelianenko and Voita (2020), BPE-Dropout, section 3, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, log, log1p
from random import Random
from typing import NamedTuple

_SPACE = "\u2581"
# Words seen first are mostly the frequent ones; the table takes about 1 KB for each.
_MAX_WORDS = 1 << 16
_FOREVER = 1 << 62


class SubwordDropout:
    """The merges of one SentencePiece BPE model, each left out with probability ``rate``.

    At every step all merges possible in a word are candidates, one for each place. Each is dropped
    with probability ``rate``, independently each time; of the others the one with the highest
    score, the leftmost of equals, is applied. The word is done when none is left.

    The draws are fewer than that, the distribution is the same. With the candidates in order, best
    first, the number of them dropped before the first kept one is geometric, so a step needs one
    number. Whether the best one is dropped has the same probability at all steps of all words, so
    the number of steps up to the next such drop is geometric too: one number leads to the next
    word that differs from its segmentation without dropout.
    """

    def __init__(
        self, pieces: Sequence[str], scores: Sequence[float], is_normal: Sequence[bool], rate: float
    ) -> None:
        """Tabulate the merges.

        Args:
            pieces: The vocabulary by id, a space written as U+2581.
            scores: By id; the merge with the highest is made first.
            is_normal: By id: False for bytes, unknown, control and user-defined pieces, which stay
                as they are.
            rate: Probability of dropping a merge, from 0 (as without dropout) to 1 (characters).

        Raises:
            ValueError: The lengths differ, or ``rate`` is no probability.
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate}, not between 0 and 1")
        normal = {
            piece: index
            for index, (piece, plain) in enumerate(zip(pieces, is_normal, strict=True))
            if plain
        }
        spelled = {piece: index for piece, index in normal.items() if normal.keys() >= set(piece)}
        self._rate = rate
        self._log_drop = log(rate) if rate else -inf
        self._log_keep = log1p(-rate) if rate < 1 else -inf
        # What has no merges begins a word too: with none of its own it changes no draw in it.
        self._begins = [piece.startswith(_SPACE) or piece not in spelled for piece in pieces]
        self._characters = [
            tuple(normal[character] for character in piece) if piece in spelled else (index,)
            for index, piece in enumerate(pieces)
        ]
        self._merged = dict(_merges(spelled))
        ranks = [-score for _, score in zip(pieces, scores, strict=True)]
        self._ranks = {pair: ranks[index] for pair, index in self._merged.items()}
        self._words: dict[tuple[int, ...], _Word] = {}

    def resegment(self, ids: Sequence[int], generator: Random) -> list[int]:
        """Return ids that spell the same text, merged with dropout.

        No merge crosses a piece that is not normal, one with a character that is no piece, or the
        beginning of one that starts with a space.

        Args:
            ids: A sentence without special ids. Plain integers.
            generator: Advanced by as many numbers as are needed.
        """
        if self._rate == 1:
            return [character for index in ids for character in self._characters[index]]
        left = _num_in_a_row(self._log_keep, generator) if self._rate else _FOREVER
        segmented: list[int] = []
        for pieces in self._split(tuple(ids)):
            word = self._words.get(pieces) or self._analyse(pieces)
            if word.num_merges <= left:
                left -= word.num_merges
                segmented += word.undropped
            else:
                symbols, left = self._drop(word, left, generator)
                segmented += symbols
        return segmented

    def _split(self, ids: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yield the words."""
        begins, begin = self._begins, 0
        for end, index in enumerate(ids):
            if begins[index] and end:
                yield ids[begin:end]
                begin = end
        if ids:
            yield ids[begin:]

    def _analyse(self, pieces: tuple[int, ...]) -> _Word:
        """Return what is the same each time these pieces are segmented, and remember it."""
        characters = tuple(part for index in pieces for part in self._characters[index])
        ranks = [*(self._ranks.get(pair, inf) for pair in pairwise(characters)), inf]
        symbols, changing = list(characters), list(ranks)
        while (best := min(changing)) < inf:
            self._merge(symbols, changing, changing.index(best))
        num_merges = len(characters) - len(symbols)
        word = _Word(characters, tuple(ranks), tuple(symbols), num_merges)
        if len(self._words) < _MAX_WORDS:
            self._words[pieces] = word
        return word

    def _drop(self, word: _Word, left: int, generator: Random) -> tuple[list[int], int]:
        """Segment a word whose best merge is dropped after ``left`` steps.

        Returns:
            The segmentation, and the number of steps from here to the next drop of a best merge.
        """
        symbols, ranks = list(word.characters), list(word.ranks)
        while (best := min(ranks)) < inf:
            if left:
                left -= 1
                place = ranks.index(best)
            else:
                num_dropped = 1 + _num_in_a_row(self._log_drop, generator)
                left = _num_in_a_row(self._log_keep, generator)
                candidates = [place for place, rank in enumerate(ranks) if rank < inf]
                if num_dropped >= len(candidates):
                    break
                candidates.sort(key=ranks.__getitem__)
                place = candidates[num_dropped]
            self._merge(symbols, ranks, place)
        return symbols, left

    def _merge(self, symbols: list[int], ranks: list[float], place: int) -> None:
        """Merge a symbol with the next one; ``ranks`` holds each symbol's rank with its next."""
        symbols[place] = merged = self._merged[symbols[place], symbols[place + 1]]
        del symbols[place + 1], ranks[place]
        if place:
            ranks[place - 1] = self._ranks.get((symbols[place - 1], merged), inf)
        if place + 1 < len(symbols):
            ranks[place] = self._ranks.get((merged, symbols[place + 1]), inf)


def _num_in_a_row(log_probability: float, generator: Random) -> int:
    """Draw how many merges in a row are kept, or dropped, each with this probability."""
    return int(min(log(1 - generator.random()) / log_probability, _FOREVER))


def sentence_generator(seed: int, epoch: int, row: int, side: int) -> Random:
    """Return the random numbers of one sentence, whatever was drawn for others before.

    Args:
        seed: The seed of the run, 0 or more.
        epoch: Below 2 ** 32.
        row: The sentence's row in the corpus, below 2 ** 63.
        side: 0 for the source, 1 for the target.
    """
    return Random(((seed << 32 | epoch) << 63 | row) << 1 | side)


class _Word(NamedTuple):
    characters: tuple[int, ...]
    ranks: tuple[float, ...]
    undropped: tuple[int, ...]
    num_merges: int


def _merges(spelled: dict[str, int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the pairs of pieces whose concatenation is a piece, as SentencePiece looks them up."""
    for piece, index in spelled.items():
        for cut in range(1, len(piece)):
            first, second = spelled.get(piece[:cut]), spelled.get(piece[cut:])
            if first is not None and second is not None:
                yield (first, second), index
