"""How often words and pairs of words of some lines occur in the training data, from its token ids.

Nothing is stored for it: the ids of the prepared folder are read once, in chunks. A word is the
subwords between spaces and punctuation, identified by a 64-bit hash of their ids. Where a tokenizer
cuts a word in two ways, as "1" and "1.", its occurrences in the other way are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from nmt.data.store import ParallelStore
from nmt.text.tokenizer import Tokenizer

_Hashes = npt.NDArray[np.uint64]
_ROWS_AT_ONCE = 50_000
_LONGEST_WORD = 64  # subwords; those behind count alike
_FACTORS = np.random.default_rng(1).integers(1, 1 << 63, _LONGEST_WORD, np.uint64) | np.uint64(1)
_SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class LineCounts:
    """What the training data have of one line."""

    words: Sequence[int]  # Occurrences of each word.
    # Occurrences of each two words in a row, punctuation between them left out.
    pairs: Sequence[int]


def sum_counts(counts: Sequence[LineCounts]) -> LineCounts:
    """Add what several training data have of one line.

    >>> sum_counts([LineCounts([1, 0], [2]), LineCounts([3, 4], [0])])
    LineCounts(words=[4, 4], pairs=[2])
    """
    words, pairs = zip(*((each.words, each.pairs) for each in counts), strict=True)
    return LineCounts(*([sum(x) for x in zip(*each, strict=True)] for each in (words, pairs)))


def count_in_training(
    store: ParallelStore, tokenizer: Tokenizer, lines: Sequence[str]
) -> list[LineCounts]:
    """Count the words of ``lines`` in the source side of a store.

    Args:
        store: Of the training data.
        tokenizer: Of its source.
        lines: One sentence each.
    """
    split = _Splitter(tokenizer)
    encoded = tokenizer.encode_batch(lines)
    offsets = np.cumsum([0, *map(len, encoded)])
    ids = np.fromiter(chain.from_iterable(encoded), np.int64, int(offsets[-1]))
    hashes, line_of, pairs, first_of = split.words(ids, offsets)
    wanted, place = np.unique(np.concatenate([hashes, pairs]), return_inverse=True)
    counts = np.zeros(len(wanted) + 1, np.int64)  # the last one for all that is not wanted
    for start in range(0, len(store), _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(store)))
        words, _, couples, _ = split.words(*store.source_ids(rows))
        found = np.concatenate([words, couples])
        at = np.searchsorted(wanted, found).clip(max=max(len(wanted) - 1, 0))
        at = np.where(wanted[at] == found, at, len(wanted)) if len(wanted) else at
        counts += np.bincount(at, minlength=len(wanted) + 1)
    word_counts, pair_counts = np.split(counts[place], [len(hashes)])
    borders = np.arange(1, len(lines))
    by_line = np.split(word_counts, np.searchsorted(line_of, borders))
    pairs_by_line = np.split(pair_counts, np.searchsorted(first_of, borders))
    return [
        LineCounts(*map(np.ndarray.tolist, x)) for x in zip(by_line, pairs_by_line, strict=True)
    ]


class _Splitter:
    """Cuts token ids into words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        texts = [piece for piece, _, _ in tokenizer.pieces()]
        self._begins = np.array([text.startswith(_SPACE) for text in texts])
        self._is_word = np.array([any(map(str.isalnum, text)) for text in texts])

    def words(
        self, ids: npt.NDArray[np.integer], offsets: npt.NDArray[np.int64]
    ) -> tuple[_Hashes, npt.NDArray[np.intp], _Hashes, npt.NDArray[np.intp]]:
        """Return the hash and the line of each word, and of each two words in a row of a line."""
        is_word = self._is_word[ids]
        starts = self._begins[ids] | ~is_word
        starts[1:] |= ~is_word[:-1]
        starts[offsets[:-1][np.diff(offsets) > 0]] = True
        (first,) = np.nonzero(starts)
        if not len(first):
            return (*(np.empty(0, np.uint64), np.empty(0, np.intp)) * 2,)
        within = np.arange(len(ids)) - np.repeat(first, np.diff([*first, len(ids)]))
        mixed = (ids.astype(np.uint64) + np.uint64(1)) * _FACTORS[
            within.clip(max=_LONGEST_WORD - 1)
        ]
        first_is_word = is_word[first]
        hashes = np.add.reduceat(mixed ^ (mixed >> np.uint64(29)), first)[first_is_word]
        line_of = np.searchsorted(offsets, first[first_is_word], side="right") - 1
        is_same = line_of[1:] == line_of[:-1]
        pairs = (hashes[:-1] * _FACTORS[0] + hashes[1:] * _FACTORS[1])[is_same]
        return hashes, line_of, pairs, line_of[1:][is_same]
