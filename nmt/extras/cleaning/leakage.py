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
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import regex

from nmt.data.pairs import SentencePair
from nmt.extras.cleaning.repeats import Hashes, normalized, word_hash
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
    kind: Literal["exact", "near"]


class _Unit(NamedTuple):
    """The words of a line, or of one sentence of a line with several sentences."""

    line: int
    words: list[str]
    is_whole: bool


def max_edits(num_words: int) -> int:
    """Return how many words of a near copy may differ. Short sentences must match exactly.

    >>> [max_edits(n) for n in (3, 4, 5, 6)]
    [0, 1, 1, 2]
    """
    return (num_words >= 4) + (num_words >= 6)


def are_near(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether the edit distance in words (Levenshtein 1966) is at most `max_edits`.

    The limit is that of the shorter text.
    """
    return _is_within(left, right, max_edits(min(len(left), len(right))))


def _is_within(left: Sequence[str], right: Sequence[str], edits: int) -> bool:
    if abs(len(left) - len(right)) > edits:
        return False
    shorter = min(len(left), len(right))
    same = next((n for n in range(shorter) if left[n] != right[n]), shorter)
    if edits == 0 or same == shorter:
        return max(len(left), len(right)) - same <= edits
    # At the first difference: replace the word, leave it out, or insert one.
    left, right = left[same:], right[same:]
    return any(_is_within(left[a:], right[b:], edits - 1) for a, b in ((1, 1), (1, 0), (0, 1)))


def words_of(text: str) -> list[str]:
    """Split normalized text into words; scripts without spaces are split into characters."""
    return _UNSPACED.sub(lambda run: " ".join(run[0]), normalized(text)).split()


def _units(lines: Sequence[str]) -> list[_Unit]:
    units = []
    for number, line in enumerate(lines):
        units.append(_Unit(number, words_of(line), is_whole=True))
        parts = _END_OF_SENTENCE.split(line.strip())
        if len(parts) > 1:
            found = (words_of(part) for part in parts)
            units += [_Unit(number, x, is_whole=False) for x in found if len(x) >= _MIN_JOINED]
    return units


class _Table:
    """A lookup table of hashes. A bit array rejects most hashes that are not in the table."""

    def __init__(self, hashes: Hashes, values: Ints) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._values = hashes[order], values[order]
        self._filter = np.zeros(1 << _FILTER_BITS, dtype=np.bool_)
        self._filter[self._bits(hashes)] = True

    @staticmethod
    def _bits(hashes: Hashes) -> Ints:
        return (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Return an index into ``hashes`` and a value for each match; a hash can match several."""
        asked = np.flatnonzero(self._filter[self._bits(hashes)])
        low = np.searchsorted(self._hashes, hashes[asked], "left")
        count = np.searchsorted(self._hashes, hashes[asked], "right") - low
        ends = np.cumsum(count)
        places = np.arange(count.sum()) + np.repeat(low - ends + count, count)
        return np.repeat(asked, count), self._values[places]


class LeakageIndex:
    """Finds held-out sentences in training lines.

    Args:
        lines: The held-out sentences.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._given = tuple(lines)
        self._lines = [" ".join(line.split()) for line in lines]
        self._units = [unit for unit in _units(lines) if unit.words]
        words = [unit.words for unit in self._units]
        hashes, owners = _rests(words)
        self._rests = _Table(hashes, owners)
        hashes, owners, places = _runs(words)
        chosen = np.array([self._is_seed(*each) for each in zip(owners, places, strict=True)], bool)
        self._seeds = _Table(hashes[chosen], np.stack([owners, places], 1)[chosen])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the sentences. The receiving process builds and caches the index."""
        return _index_of, (self._given,)

    def _is_seed(self, unit: int, place: int) -> bool:
        length = len(self._units[unit].words)
        third = length // 3
        return place in ((0, length - _RUN) if length < 3 * _RUN else (0, third, 2 * third))

    def find(self, lines: Sequence[str]) -> list[Leak]:
        """Return the exact and near matches with held-out sentences, sorted by training line."""
        units = [unit for unit in _units(lines) if unit.words]
        words = [unit.words for unit in units]
        found: dict[tuple[int, int], Literal["exact", "near"]] = {}
        for ours, theirs in self._candidates(words):
            mine, held_out = units[ours], self._units[theirs]
            place, is_whole = (mine.line, held_out.line), mine.is_whole and held_out.is_whole
            if is_whole and " ".join(lines[mine.line].split()) == self._lines[held_out.line]:
                found[place] = "exact"
            elif place not in found and _holds(mine, held_out):
                found[place] = "near"
        return [Leak(*place, kind) for place, kind in sorted(found.items())]

    def _candidates(self, words: Sequence[Sequence[str]]) -> Iterable[tuple[int, int]]:
        """Return the indices of training and held-out units that must be compared word by word."""
        hashes, owners = _rests(words)
        asked, theirs = self._rests.find(hashes)
        pairs = {*zip(owners[asked].tolist(), theirs.tolist(), strict=True)}
        hashes, owners, places = _runs(words)
        asked, seeds = self._seeds.find(hashes)
        if len(asked):
            ours, at = owners[asked], places[asked]
            theirs, there = seeds.T
            mine = np.array([len(each) for each in words])[ours]
            other = np.array([len(each.words) for each in self._units])[theirs]
            is_shifted_little = (abs(at - there) <= 2) & (abs(mine - other) <= 2)
            is_at_an_end = (at == there) | (mine - at == other - there)
            possible = is_shifted_little | (is_at_an_end & (mine > other))
            pairs |= {*zip(ours[possible].tolist(), theirs[possible].tolist(), strict=True)}
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
        self._places = [(name, pair.line) for name, pairs in sets.items() for pair in pairs]
        self.sources = [pair.source for pairs in sets.values() for pair in pairs]
        self.index = LeakageIndex(self.sources)
        self._kinds: dict[int, bool] = {}  # by held-out sentence: was an exact copy found?
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
            if self._directions.get(corpus) != self._directions.get(self._places[held_out][0]):
                continue
            is_first = bool(is_exact) > self._kinds.get(held_out, -1)
            self._kinds[held_out] = bool(is_exact) or self._kinds.get(held_out, False)
            self._num_listed[held_out] += 1
            if is_first or self._num_listed[held_out] <= _MAX_LISTED:
                (name, line), pair = self._places[held_out], pairs[row]
                texts = {"sentence": self.sources[held_out], "train_text": pair.source}
                self.found.append({
                    "set": name, "line": line, "corpus": corpus, "train_line": pair.line,
                    "kind": "exact" if is_exact else "near", **(texts if is_first else {}),
                })  # fmt: skip

    def num_near(self) -> dict[str, int]:
        """Return, by set, the number of sentences with a near copy but without an exact copy."""
        near = (self._places[row][0] for row, is_exact in self._kinds.items() if not is_exact)
        return dict(Counter(near))


@lru_cache(maxsize=2)
def _index_of(lines: tuple[str, ...]) -> LeakageIndex:
    return LeakageIndex(lines)


def _holds(mine: _Unit, held_out: _Unit) -> bool:
    """Whether a training text is a near copy of a held-out text, or starts or ends with one."""
    words, sought = mine.words, held_out.words
    count = len(sought)
    is_long = count >= _MIN_UNMARKED
    may_differ = is_long or (mine.is_whole and held_out.is_whole)
    if words == sought or (may_differ and are_near(words, sought)):
        return True
    return is_long and len(words) >= count + 3 and sought in (words[:count], words[-count:])


def _flat(words: Sequence[Sequence[str]]) -> tuple[Hashes, Ints, Ints]:
    """Return the hashes of all words, and the start and the length of each text."""
    flat = np.array([word_hash(word) for text in words for word in text], dtype=np.uint64)
    lengths = np.array([len(text) for text in words], dtype=np.int64)
    return flat, np.cumsum(lengths) - lengths, lengths


def _powers(count: int) -> Hashes:
    """Return the factor of each word in a polynomial hash, modulo 2^64."""
    return _BASE ** np.arange(1, count + 1, dtype=np.uint64)


def _rests(words: Sequence[Sequence[str]]) -> tuple[Hashes, Ints]:
    """Hash each text; also hash short texts with up to `max_edits` words left out.

    Returns:
        The hashes, and the index of the text of each hash.
    """
    flat, starts, lengths = _flat(words)
    hashes, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        found = flat[starts[rows, None] + np.arange(length)] @ _weights(length)
        hashes.append(found.ravel())
        owners.append(np.repeat(rows, found.shape[1]))
    return np.concatenate(hashes), np.concatenate(owners)


@lru_cache(maxsize=512)
def _weights(length: int) -> Hashes:
    """Return the hash factor of each word (row) for each choice of omitted words (column)."""
    most = max_edits(length) if length <= _MAX_DELETED_FROM else 0
    deleted = [gone for count in range(most + 1) for gone in combinations(range(length), count)]
    weights = np.zeros((length, len(deleted)), dtype=np.uint64)
    for column, gone in enumerate(deleted):
        left = [place for place in range(length) if place not in gone]
        weights[left, column] = _powers(len(left))
    return weights


def _runs(words: Sequence[Sequence[str]]) -> tuple[Hashes, Ints, Ints]:
    """Return the hash, the text and the position of each run of four words in long texts."""
    flat, starts, lengths = _flat(words)
    owners = np.repeat(np.arange(len(words)), lengths)
    places = np.arange(len(flat)) - starts[owners]
    is_inside = (places + _RUN <= lengths[owners]) & (lengths[owners] >= _MIN_RUNS_FROM)
    runs = flat[np.flatnonzero(is_inside)[:, None] + np.arange(_RUN)]
    return runs @ _powers(_RUN), owners[is_inside], places[is_inside]


def find_leakage(lines: Sequence[str], training: Iterable[Sequence[str]]) -> Iterator[Leak]:
    """Yield the training lines that contain sentences of a held-out set.

    Args:
        lines: The held-out sentences.
        training: Blocks of training lines in the same language. `Leak.row` counts lines across all
            blocks.
    """
    index, start = LeakageIndex(lines), 0
    for block in training:
        for leak in index.find(block):
            yield leak._replace(row=start + leak.row)
        start += len(block)
