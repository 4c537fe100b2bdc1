"""Finds held-out sentences in training text: exact, with one or two words changed, or embedded.

Only the held-out sentences are indexed, and the training text is streamed, so memory does not grow
with the training text. Candidates come from two indexes, and are then compared word by word:

- A short held-out sentence is indexed by all versions of it without one or two words. Two sentences
  that differ in at most two words share such a version.
- A longer sentence is indexed by three runs of four words. Two changed words
  leave at least one run unchanged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from nmt.data.pairs import SentencePair
from nmt.extras.cleaning.repeats import Hashes, normalized, word_hash
from nmt.text.flat import FlatIds
from nmt.text.languages import UNSPACED, script_class

Ints = npt.NDArray[np.int64]
_RUN = 4
_MAX_DELETED_FROM = 13
_MIN_RUNS_FROM = 8
_MIN_JOINED = 5
# Minimum words of a sentence that is found inside a longer line without punctuation around it.
_MIN_UNMARKED = 12
_FILTER_BITS = 22
_MAX_LISTED = 100  # maximum places that are listed per held-out sentence
_BASE = np.uint64(0x9E3779B97F4A7C15)
_END_OF_SENTENCE = re.compile(
    r"(?<=[.!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964])[\"'\u201c\u201d\u00ab\u00bb)]*\s+"
)
_UNSPACED = regex.compile(script_class(*sorted(UNSPACED)) + "{9,}")


class Leak(NamedTuple):
    """A training line that contains a held-out sentence."""

    row: int  # Index of the training line.
    held_out: int  # Index of the held-out sentence.
    is_exact: bool  # Whether the line is the sentence, not only near to it.


class _Passage(NamedTuple):
    """The words of a line, or of one sentence of a line with several sentences."""

    line: int
    words: list[str]
    is_whole: bool


def max_edits(num_words: int) -> int:
    """Return how many words of a near copy may differ. Short sentences must match exactly.

    >>> [max_edits(n) for n in (3, 4, 5, 6)]
    [0, 1, 1, 2]
    """
    if num_words < 4:
        return 0
    return 1 if num_words < 6 else 2


def are_near(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether the edit distance in words (Levenshtein 1966) is at most `max_edits`.

    The limit is that of the shorter text.
    """
    edits = max_edits(min(len(left), len(right)))
    return _is_within(left, right, edits)


def _is_within(left: Sequence[str], right: Sequence[str], edits: int) -> bool:
    shorter, longer = sorted((len(left), len(right)))
    if longer - shorter > edits:
        return False
    same = 0
    while same < shorter and left[same] == right[same]:
        same += 1
    if edits == 0 or same == shorter:
        return longer - same <= edits
    # At the first difference: replace the word, leave it out, or insert one.
    left_rest = left[same + 1 :]
    right_rest = right[same + 1 :]
    edits -= 1
    if _is_within(left_rest, right_rest, edits):
        return True
    if _is_within(left_rest, right[same:], edits):
        return True
    return _is_within(left[same:], right_rest, edits)


def words_of(text: str) -> list[str]:
    """Split normalized text into words; scripts without spaces are split into characters."""
    spaced = _UNSPACED.sub(lambda run: " ".join(run[0]), normalized(text))
    return spaced.split()


def _passages(lines: Sequence[str]) -> list[_Passage]:
    passages = []
    for number, line in enumerate(lines):
        words = words_of(line)
        if words:
            passages.append(_Passage(number, words, is_whole=True))
        sentences = _END_OF_SENTENCE.split(line.strip())
        if len(sentences) > 1:
            split = [words for words in map(words_of, sentences) if len(words) >= _MIN_JOINED]
            passages += (_Passage(number, words, is_whole=False) for words in split)
    return passages


class _HashTable:
    """A lookup table of hashes. A bit array rejects most hashes that are not in the table."""

    def __init__(self, hashes: Hashes, values: Ints) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._values = values[order]
        self._filter = np.zeros(1 << _FILTER_BITS, bool)
        self._filter[self._bits(hashes)] = True

    @staticmethod
    def _bits(hashes: Hashes) -> Ints:
        high_bits = hashes >> np.uint64(64 - _FILTER_BITS)
        return high_bits.astype(np.int64)

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Return an index into ``hashes`` and a value for each match; a hash can match several."""
        is_possible = self._filter[self._bits(hashes)]
        asked = np.flatnonzero(is_possible)
        sought = hashes[asked]
        low = np.searchsorted(self._hashes, sought, "left")
        high = np.searchsorted(self._hashes, sought, "right")
        counts = high - low
        # Place of each match in the table minus its place in the result.
        shifts = high - np.cumsum(counts)
        places = np.repeat(shifts, counts)
        places += np.arange(len(places))
        return np.repeat(asked, counts), self._values[places]


class LeakageIndex:
    """Finds held-out sentences in training lines.

    Args:
        lines: The held-out sentences.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._given = tuple(lines)
        words_of_lines = map(str.split, lines)
        self._lines = list(map(" ".join, words_of_lines))
        self._passages = _passages(lines)
        words = _hash_words(self._passages)
        self._lengths = words.lengths
        hashes, owners = _rests(words)
        self._rests = _HashTable(hashes, owners)
        runs = _runs(words)
        places = runs.places
        lengths = words.lengths[runs.passages]
        thirds = lengths // 3
        is_third = places == thirds
        is_third |= places == 2 * thirds
        is_last = places == lengths - _RUN
        is_short = lengths < 3 * _RUN
        is_seed = np.where(is_short, is_last, is_third)
        is_seed |= places == 0
        hashes = runs.hashes[is_seed]
        seeds = np.stack([runs.passages, places], 1)
        self._seeds = _HashTable(hashes, seeds[is_seed])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the sentences. The receiving process builds and caches the index."""
        return _index_of, (self._given,)

    def find(self, lines: Sequence[str]) -> list[Leak]:
        """Return the exact and near matches with held-out sentences, sorted by training line."""
        passages = _passages(lines)
        is_exact = dict[tuple[int, int], bool]()
        hashed = _hash_words(passages)
        for number, held_out_number in self._candidates(hashed):
            passage = passages[number]
            held_out = self._passages[held_out_number]
            place = passage.line, held_out.line
            are_whole = passage.is_whole and held_out.is_whole
            line = " ".join(lines[passage.line].split())
            is_same = line == self._lines[held_out.line]
            if are_whole and is_same:
                is_exact[place] = True
            elif place not in is_exact and _holds(passage, held_out):
                is_exact[place] = False
        return [Leak(*place, exact) for place, exact in sorted(is_exact.items())]

    def _candidates(self, words: FlatIds) -> Iterable[tuple[int, int]]:
        """Return the indices of the passages that must be compared word by word.

        Args:
            words: Hashes of the words of each training passage.

        Returns:
            Pairs of a training passage and a held-out passage.
        """
        hashes, owners = _rests(words)
        asked, held_out = self._rests.find(hashes)
        owners = owners[asked]
        pairs = set(zip(owners.tolist(), held_out.tolist(), strict=True))
        runs = _runs(words)
        asked, seeds = self._seeds.find(runs.hashes)
        passages = runs.passages[asked]
        places = runs.places[asked]
        held_out, seed_places = seeds.T
        lengths = words.lengths[passages]
        seed_lengths = self._lengths[held_out]
        is_like = abs(places - seed_places) <= 2
        is_like &= abs(lengths - seed_lengths) <= 2
        is_start = places == seed_places
        is_end = lengths - places == seed_lengths - seed_places
        is_longer = lengths > seed_lengths
        is_possible = is_like | (is_longer & (is_start | is_end))
        passages = passages[is_possible]
        held_out = held_out[is_possible]
        pairs.update(zip(passages.tolist(), held_out.tolist(), strict=True))
        return sorted(pairs)


class Leaks:
    """Collects the held-out sentences that occur in the training text.

    Args:
        sets: Sentence pairs by name of the held-out set.
        directions: Languages of each corpus and set. Only those in the same languages are compared.
    """

    def __init__(
        self,
        sets: Mapping[str, Sequence[SentencePair]],
        directions: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        self._directions = directions
        self._places: list[tuple[str, int]] = []
        self.sources: list[str] = []
        for name, pairs in sets.items():
            self._places += ((name, pair.line) for pair in pairs)
            self.sources += (pair.source for pair in pairs)
        self.index = LeakageIndex(self.sources)
        self._has_exact: dict[int, bool] = {}  # by held-out sentence with a copy
        self._num_listed = Counter[int]()
        self.found: list[dict[str, Any]] = []  # in the order of the training text

    def update(self, corpus: str, pairs: Sequence[SentencePair], leaks: Ints) -> None:
        """Add the leaks of the next training pairs.

        Args:
            corpus: Name of the corpus.
            pairs: The training pairs.
            leaks: For each leak: index in ``pairs``, index of the held-out sentence, and 1 for an
                exact copy. (leaks, 3).
        """
        for row, held_out, is_exact in leaks.tolist():
            name, line = self._places[held_out]
            direction = self._directions.get(corpus)
            if direction != self._directions.get(name):
                continue
            is_first = held_out not in self._has_exact
            had_exact = self._has_exact.setdefault(held_out, False)
            if is_exact and not had_exact:
                is_first = True
                self._has_exact[held_out] = True
            self._num_listed[held_out] += 1
            num_listed = self._num_listed[held_out]
            if num_listed > _MAX_LISTED and not is_first:
                continue
            pair = pairs[row]
            kind = "exact" if is_exact else "near"
            leak = {"set": name, "line": line, "corpus": corpus}
            leak |= {"train_line": pair.line, "kind": kind}
            if is_first:
                leak |= {"sentence": self.sources[held_out], "train_text": pair.source}
            self.found.append(leak)

    def num_near(self) -> dict[str, int]:
        """Return, by set, the number of sentences with a near copy but without an exact copy."""
        near = Counter[str]()
        for held_out, has_exact in self._has_exact.items():
            if not has_exact:
                name, _ = self._places[held_out]
                near[name] += 1
        return dict(near)


@lru_cache(maxsize=2)
def _index_of(lines: tuple[str, ...]) -> LeakageIndex:
    return LeakageIndex(lines)


def _holds(passage: _Passage, held_out: _Passage) -> bool:
    """Whether a training text is a near copy of a held-out text, or starts or ends with one."""
    words = passage.words
    sought = held_out.words
    count = len(sought)
    if words == sought:
        return True
    is_long = count >= _MIN_UNMARKED
    are_whole = passage.is_whole and held_out.is_whole
    if (is_long or are_whole) and are_near(words, sought):
        return True
    if not is_long or len(words) < count + 3:
        return False
    start = words[:count]
    end = words[-count:]
    return sought in (start, end)


def _hash_words(passages: Sequence[_Passage]) -> FlatIds:
    """Return the hashes of the words of each passage."""
    words = chain.from_iterable(passage.words for passage in passages)
    hashes = np.fromiter(map(word_hash, words), np.uint64)
    num_words = [len(passage.words) for passage in passages]
    lengths = np.array(num_words, np.int64)
    return FlatIds(hashes, lengths)


def _powers(count: int) -> Hashes:
    """Return the factor of each word in a polynomial hash, modulo 2^64."""
    exponents = np.arange(1, count + 1, dtype=np.uint64)
    return _BASE**exponents


def _rests(words: FlatIds) -> tuple[Hashes, Ints]:
    """Hash each passage; also hash short passages with up to `max_edits` words left out.

    Returns:
        The hashes, and the index of the passage of each hash.
    """
    word_hashes = np.asarray(words.ids, np.uint64)
    hashes = [np.zeros(0, np.uint64)]
    owners = [np.zeros(0, np.int64)]
    for length in np.unique(words.lengths).tolist():
        passages = np.flatnonzero(words.lengths == length)
        starts = words.offsets[passages]
        places = starts[:, None] + np.arange(length)
        rests = word_hashes[places] @ _weights(length)
        _, num_rests = rests.shape
        of_length = rests.ravel()
        hashes.append(of_length)
        owners.append(np.repeat(passages, num_rests))
    return np.concatenate(hashes), np.concatenate(owners)


@lru_cache(maxsize=512)
def _weights(length: int) -> Hashes:
    """Return the hash factor of each word (row) for each choice of omitted words (column)."""
    most = 0
    if length <= _MAX_DELETED_FROM:
        most = max_edits(length)
    deleted: list[tuple[int, ...]] = []
    for count in range(most + 1):
        deleted += combinations(range(length), count)
    shape = length, len(deleted)
    weights = np.zeros(shape, np.uint64)
    for column, gone in enumerate(deleted):
        left = [place for place in range(length) if place not in gone]
        num_left = len(left)
        weights[left, column] = _powers(num_left)
    return weights


class _Runs(NamedTuple):
    """The runs of four words in long passages."""

    hashes: Hashes
    passages: Ints  # Index of the passage of each run.
    places: Ints  # Words of the passage before the run.


def _runs(words: FlatIds) -> _Runs:
    passages = words.sentences
    first = words.offsets[passages]
    places = np.arange(len(passages)) - first
    lengths = words.lengths[passages]
    is_inside = places + _RUN <= lengths
    is_inside &= lengths >= _MIN_RUNS_FROM
    starts = np.flatnonzero(is_inside)
    run_places = starts[:, None] + np.arange(_RUN)
    runs = words.ids[run_places]
    hashes = runs @ _powers(_RUN)
    return _Runs(hashes, passages[is_inside], places[is_inside])


def find_leakage(lines: Sequence[str], training: Iterable[Sequence[str]]) -> Iterator[Leak]:
    """Yield the training lines that contain sentences of a held-out set.

    Args:
        lines: The held-out sentences.
        training: Blocks of training lines in the same language. `Leak.row` counts lines across all
            blocks.
    """
    index = LeakageIndex(lines)
    start = 0
    for block in training:
        for leak in index.find(block):
            row = start + leak.row
            yield leak._replace(row=row)
        start += len(block)
