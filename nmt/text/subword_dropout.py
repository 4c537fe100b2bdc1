"""BPE-dropout with a seed: segments sentences again, with some merges randomly left out.

SentencePiece has a sampler too, but it cannot be seeded per sentence or resumed.
Source: Provilkov, Emelianenko and Voita (2020), BPE-Dropout, section 3, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress, pairwise
from math import inf, log, log1p
from random import Random
from typing import NamedTuple, TypeAlias

_Ids: TypeAlias = tuple[int, ...]
_SPACE = "\u2581"
# Size of the cache of words, about 1 KB each. The first words of a corpus are mostly frequent ones.
_MAX_WORDS = 1 << 16
_FOREVER = 1 << 62


class SubwordDropout:
    """Applies the merges of one SentencePiece BPE model, each dropped with probability ``rate``.

    At every step, all possible merges of a word are candidates. Each candidate is dropped
    independently with probability ``rate``. Of the remaining candidates, the merge with the highest
    score is applied (the leftmost of equal scores). The word is finished when no candidate remains.

    The implementation draws fewer random numbers, with the same distribution. If the candidates are
    sorted by score, the number dropped before the first kept candidate is geometric: one random
    number per step. The best candidate is dropped with the same probability at every step of every
    word, so the number of steps until the next such drop is geometric too. One random number
    therefore leads directly to the next word that differs from its segmentation without dropout.
    """

    def __init__(
        self, pieces: Sequence[str], scores: Sequence[float], is_normal: Sequence[bool], rate: float
    ) -> None:
        """Build the table of merges.

        Args:
            pieces: Text of each subword, by id; a space is written as U+2581.
            scores: Score of each subword, by id. Merges with a higher score come first.
            is_normal: By id: False for byte, unknown, control and user-defined subwords, which are
                never split or merged.
            rate: Probability of dropping a merge, from 0 (no dropout) to 1 (single characters).

        Raises:
            ValueError: The lengths differ, or ``rate`` is not between 0 and 1.
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"rate is {rate}, not between 0 and 1")
        if not len(pieces) == len(scores) == len(is_normal):
            raise ValueError("the lists have different lengths")
        ids = {}
        for index in compress(range(len(pieces)), is_normal):
            ids[pieces[index]] = index
        spelled = {piece: ids[piece] for piece in ids if ids.keys() >= set(piece)}
        self._rate = rate
        self._log_drop = -inf
        if rate > 0:
            self._log_drop = log(rate)
        self._log_keep = -inf
        if rate < 1:
            self._log_keep = log1p(-rate)
        # Subwords without merges begin a word too; this changes neither result nor random numbers.
        self._begins = [piece.startswith(_SPACE) or piece not in spelled for piece in pieces]
        self._characters: list[_Ids] = []
        for index, piece in enumerate(pieces):
            characters: _Ids = (index,)
            if piece in spelled:
                characters = tuple(map(ids.__getitem__, piece))
            self._characters.append(characters)
        self._merged = dict(_merges(spelled))
        self._ranks = {pair: -scores[index] for pair, index in self._merged.items()}
        self._words: dict[_Ids, _Word] = {}

    def resegment(self, ids: Sequence[int], generator: Random) -> list[int]:
        """Return ids that spell the same text, segmented with dropout.

        Merges never cross a word boundary, a subword that is not normal, or a subword with a
        character that the vocabulary lacks.

        Args:
            ids: A sentence without special ids, as Python integers.
            generator: Source of random numbers.
        """
        if self._rate == 1:
            return list(self._spell(ids))
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

    def _spell(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the characters of subwords."""
        return chain.from_iterable(map(self._characters.__getitem__, ids))

    def _split(self, ids: _Ids) -> Iterator[_Ids]:
        """Yield the ids of each word."""
        begin = 0
        for end, index in enumerate(ids):
            if end and self._begins[index]:
                yield ids[begin:end]
                begin = end
        if ids:
            yield ids[begin:]

    def _analyse(self, pieces: _Ids) -> _Word:
        """Return the deterministic data of a word, from a cache of at most `_MAX_WORDS` words."""
        characters = tuple(self._spell(pieces))
        ranks = [self._ranks.get(pair, inf) for pair in pairwise(characters)]
        ranks.append(inf)
        symbols = list(characters)
        remaining = list(ranks)
        while (best := min(remaining)) < inf:
            self._merge(symbols, remaining, remaining.index(best))
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
        symbols = list(word.characters)
        ranks = list(word.ranks)
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
        """Merge a symbol with the next symbol; ``ranks`` has the rank of each such merge."""
        merged = self._merged[symbols[place], symbols[place + 1]]
        symbols[place] = merged
        del symbols[place + 1]
        del ranks[place]
        if place:
            pair = symbols[place - 1], merged
            ranks[place - 1] = self._ranks.get(pair, inf)
        if place + 1 < len(symbols):
            pair = merged, symbols[place + 1]
            ranks[place] = self._ranks.get(pair, inf)


def _num_in_a_row(log_probability: float, generator: Random) -> int:
    """Draw the number of successes before the first failure (geometric distribution)."""
    number = log(1 - generator.random()) / log_probability
    return int(min(number, _FOREVER))


def sentence_generator(seed: int, epoch: int, row: int, side: int) -> Random:
    """Return a random generator for one sentence, independent of the order of sentences.

    Args:
        seed: Seed of the run, 0 or more.
        epoch: Below 2 ** 32.
        row: Row of the sentence in the corpus, below 2 ** 63.
        side: 0 for the source, 1 for the target.
    """
    number = seed << 32 | epoch
    number = number << 63 | row
    return Random(number << 1 | side)


class _Word(NamedTuple):
    characters: _Ids
    ranks: tuple[float, ...]
    undropped: _Ids
    num_merges: int


def _merges(spelled: dict[str, int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield each pair of subwords whose concatenation is a subword, and the id of that subword."""
    for piece, index in spelled.items():
        for cut in range(1, len(piece)):
            first = spelled.get(piece[:cut])
            second = spelled.get(piece[cut:])
            if first is not None and second is not None:
                yield (first, second), index
