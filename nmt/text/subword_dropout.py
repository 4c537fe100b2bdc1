"""BPE-dropout with a seed: segments sentences again, with some merges randomly left out.

SentencePiece has a sampler too, but it cannot be seeded per sentence or resumed.
Source: Provilkov, Emelianenko and Voita (2020), BPE-Dropout, section 3, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import inf, log, log1p
from random import Random
from typing import NamedTuple

_Ids = tuple[int, ...]
_SPACE = "\u2581"
# Size of the cache of words, about 1 KB each. The first words of a corpus are mostly frequent ones.
_MAX_WORDS = 1 << 16
_NEVER = 1 << 62  # A number of steps that no training reaches.


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
        # Ids of the normal subwords, by text.
        ids = {piece: index for index, piece in enumerate(pieces) if is_normal[index]}
        # Subwords that merges can build: each of their characters is a subword, too.
        spelled = {piece: ids[piece] for piece in ids if ids.keys() >= set(piece)}
        self._rate = rate
        # Natural log probabilities that a merge is dropped, and that it is not.
        self._log_drop = log(rate) if rate > 0 else -inf
        self._log_keep = log1p(-rate) if rate < 1 else -inf
        # By id: whether the subword begins a word. Subwords without merges do, too; this changes
        # neither result nor random numbers.
        self._begins = [piece.startswith(_SPACE) or piece not in spelled for piece in pieces]
        # By id: the ids of the characters of the subword; only its own id if it is never split.
        self._characters = list[_Ids]()
        for index, piece in enumerate(pieces):
            characters: _Ids = (index,)
            if piece in spelled:
                characters = tuple(map(ids.__getitem__, piece))
            self._characters.append(characters)
        # Pair of neighbouring ids -> id of the merged subword.
        self._merged = dict(_merges(spelled))
        # Pair of neighbouring ids -> rank of their merge. The lowest rank is merged first.
        self._ranks = {pair: -scores[index] for pair, index in self._merged.items()}
        # Cache of `_analyse`, by the ids of the word without dropout.
        self._words = dict[_Ids, _Word]()

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
        # Best merges to apply until one is dropped. Each merge of a word is a step.
        num_until_drop = _NEVER
        if self._rate:
            num_until_drop = _num_in_a_row(self._log_keep, generator)
        segmented = list[int]()
        for word_ids in self._split(tuple(ids)):
            word = self._words.get(word_ids) or self._analyse(word_ids)
            if word.num_merges <= num_until_drop:
                num_until_drop -= word.num_merges
                segmented += word.undropped
            else:
                symbols, num_until_drop = self._drop(word, num_until_drop, generator)
                segmented += symbols
        return segmented

    def _spell(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the characters of subwords."""
        return chain.from_iterable(map(self._characters.__getitem__, ids))

    def _split(self, ids: _Ids) -> Iterator[_Ids]:
        """Yield the ids of each word."""
        start = 0
        for index, subword_id in enumerate(ids):
            if index and self._begins[subword_id]:
                yield ids[start:index]
                start = index
        if ids:
            yield ids[start:]

    def _analyse(self, word_ids: _Ids) -> _Word:
        """Segment a word without dropout; store it in the cache, up to `_MAX_WORDS` words."""
        characters = tuple(self._spell(word_ids))
        ranks = [self._ranks.get(pair, inf) for pair in pairwise(characters)]
        ranks.append(inf)  # the last character has no next character
        symbols = list(characters)
        remaining_ranks = list(ranks)
        while (best := min(remaining_ranks)) < inf:
            self._merge(symbols, remaining_ranks, remaining_ranks.index(best))
        num_merges = len(characters) - len(symbols)
        word = _Word(characters, tuple(ranks), tuple(symbols), num_merges)
        if len(self._words) < _MAX_WORDS:
            self._words[word_ids] = word
        return word

    def _drop(self, word: _Word, num_until_drop: int, generator: Random) -> tuple[list[int], int]:
        """Segment a word whose best merge is dropped after ``num_until_drop`` steps.

        Returns:
            The segmentation, and the number of steps from here to the next drop of a best merge.
        """
        symbols = list(word.characters)
        ranks = list(word.ranks)
        while (best := min(ranks)) < inf:
            if num_until_drop:
                num_until_drop -= 1
                index = ranks.index(best)
            else:
                # The best candidate is dropped, and maybe the next ones. The step applies the
                # first candidate that is not dropped.
                num_dropped = 1 + _num_in_a_row(self._log_drop, generator)
                num_until_drop = _num_in_a_row(self._log_keep, generator)
                candidates = [index for index, rank in enumerate(ranks) if rank < inf]
                if num_dropped >= len(candidates):
                    break
                candidates.sort(key=ranks.__getitem__)
                index = candidates[num_dropped]
            self._merge(symbols, ranks, index)
        return symbols, num_until_drop

    def _merge(self, symbols: list[int], ranks: list[float], index: int) -> None:
        """Merge the symbol at an index with the next symbol, in place.

        Args:
            symbols: Ids of the subwords of a word so far.
            ranks: Rank of the merge of each symbol with the next one; infinity if there is none.
            index: Index of the symbol.
        """
        merged = self._merged[symbols[index], symbols[index + 1]]
        symbols[index] = merged
        del symbols[index + 1]
        del ranks[index]
        # The new symbol has other merges with its neighbours.
        if index:
            pair = symbols[index - 1], merged
            ranks[index - 1] = self._ranks.get(pair, inf)
        if index + 1 < len(symbols):
            pair = merged, symbols[index + 1]
            ranks[index] = self._ranks.get(pair, inf)


def _num_in_a_row(log_probability: float, generator: Random) -> int:
    """Draw the number of successes before the first failure (geometric distribution).

    Args:
        log_probability: Natural log of the probability of a success; below 0.
        generator: Source of random numbers.
    """
    # The inverse of the distribution function, of a number above 0.
    num_successes = log(1 - generator.random()) / log_probability
    return int(min(num_successes, _NEVER))


def sentence_generator(seed: int, epoch: int, row: int, side: int) -> Random:
    """Return a random generator for one sentence, independent of the order of sentences.

    Args:
        seed: Seed of the run, 0 or more.
        epoch: Below 2 ** 32.
        row: Row of the sentence in the corpus, below 2 ** 63.
        side: 0 for the source, 1 for the target.
    """
    # The bits of all four numbers side by side, so that no two sentences have the same seed.
    unique = seed << 32 | epoch
    unique = unique << 63 | row
    return Random(unique << 1 | side)


class _Word(NamedTuple):
    """What does not depend on random numbers in the segmentation of a word."""

    characters: _Ids  # Ids of its characters.
    # Rank of the merge of each character with the next one; infinity if there is none.
    ranks: tuple[float, ...]
    undropped: _Ids  # Its subwords without dropout.
    num_merges: int  # Merges from the characters to these subwords.


def _merges(spelled: dict[str, int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield each pair of subwords whose concatenation is a subword, and the id of that subword."""
    for piece, index in spelled.items():
        for cut in range(1, len(piece)):
            first = spelled.get(piece[:cut])
            second = spelled.get(piece[cut:])
            if first is not None and second is not None:
                yield (first, second), index
