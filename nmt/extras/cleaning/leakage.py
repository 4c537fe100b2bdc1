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

from nmt.config.data import Direction
from nmt.data.checks import SentenceKey, held_out_keys, sentence_keys
from nmt.data.filters import PairProblem
from nmt.data.formats.pair import SentencePair, place_of
from nmt.extras.cleaning.repeats import Hashes, normalized, word_hash
from nmt.text.flat import FlatIds
from nmt.text.languages import UNSPACED, script_class

Ints = npt.NDArray[np.int64]
_RUN = 4  # Words of a run.
_MAX_DELETED_FROM = 13  # Maximum words of a passage that is hashed without one or two words.
_MIN_RUNS_FROM = 8  # Minimum words of a passage whose runs are hashed.
_MIN_JOINED = 5  # Minimum words of a sentence of a line with several sentences.
# Minimum words of a sentence that is found inside a longer line without punctuation around it.
_MIN_UNMARKED = 12
_FILTER_BITS = 22
_MAX_LISTED = 100  # maximum training lines that are listed per held-out sentence
_BASE = np.uint64(0x9E3779B97F4A7C15)  # Of the polynomial hash of several words.
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

    line_index: int
    words: list[str]
    is_whole: bool  # Whether the passage is the whole line.


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


def _is_within(left: Sequence[str], right: Sequence[str], max_distance: int) -> bool:
    """Whether the edit distance of two word sequences is at most ``max_distance``."""
    shorter, longer = sorted((len(left), len(right)))
    if longer - shorter > max_distance:
        return False
    num_same = 0  # Words that are equal at the start of both sequences.
    while num_same < shorter and left[num_same] == right[num_same]:
        num_same += 1
    if max_distance == 0 or num_same == shorter:
        # If one sequence starts the other one, the remaining words are the distance.
        return longer - num_same <= max_distance
    # At the first difference: replace the word, leave it out, or insert one.
    left_after = left[num_same + 1 :]
    right_after = right[num_same + 1 :]
    max_distance -= 1
    if _is_within(left_after, right_after, max_distance):
        return True
    if _is_within(left_after, right[num_same:], max_distance):
        return True
    return _is_within(left[num_same:], right_after, max_distance)


def words_of(text: str) -> list[str]:
    """Split normalized text into words; scripts without spaces are split into characters."""
    plain = normalized(text)
    if not plain.isascii():
        plain = _UNSPACED.sub(lambda match: " ".join(match[0]), plain)
    return plain.split()


def _passages(lines: Sequence[str]) -> list[_Passage]:
    """Return each line that has words, followed by its sentences if it has several of them."""
    passages = []
    for line_index, line in enumerate(lines):
        words = words_of(line)
        if words:
            passages.append(_Passage(line_index, words, is_whole=True))
        sentences = _END_OF_SENTENCE.split(line.strip())
        if len(sentences) > 1:
            word_lists = map(words_of, sentences)
            long_lists = [words for words in word_lists if len(words) >= _MIN_JOINED]
            passages += (_Passage(line_index, words, is_whole=False) for words in long_lists)
    return passages


class _HashTable:
    """A lookup table of hashes. A bit array rejects most hashes that are not in the table.

    Args:
        hashes: Keys of the table; a hash may occur several times. (n,).
        values: The value of each hash: a number, or a row of numbers. (n,) or (n, m).
    """

    def __init__(self, hashes: Hashes, values: Ints) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]  # In rising order.
        self._values = values[order]
        # For all values of the first 22 bits of a hash: whether a hash of the table has these bits.
        self._filter = np.zeros(1 << _FILTER_BITS, bool)
        self._filter[self._first_bits(hashes)] = True

    @staticmethod
    def _first_bits(hashes: Hashes) -> Ints:
        first_bits = hashes >> np.uint64(64 - _FILTER_BITS)
        return first_bits.astype(np.int64)

    def find(self, hashes: Hashes) -> tuple[Ints, Ints]:
        """Return an index into ``hashes`` and a value for each match; a hash can match several."""
        is_possible = self._filter[self._first_bits(hashes)]
        possible = np.flatnonzero(is_possible)
        sought = hashes[possible]
        # The matches of sought hash k are the entries first[k] to end[k] - 1 of the table.
        first = np.searchsorted(self._hashes, sought, "left")
        end = np.searchsorted(self._hashes, sought, "right")
        counts = end - first
        # The result has the matches one after another, those of hash k before position
        # cumsum(counts)[k]. So an entry is the position of the match plus end[k] minus that number.
        shifts = end - np.cumsum(counts)
        entries = np.repeat(shifts, counts)
        entries += np.arange(len(entries))
        return np.repeat(possible, counts), self._values[entries]


class LeakageIndex:
    """Finds held-out sentences in training lines.

    Args:
        lines: The held-out sentences.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._held_out_lines = tuple(lines)
        words_of_lines = map(str.split, lines)
        # To recognize exact copies: the lines with single spaces.
        self._spaced_lines = list(map(" ".join, words_of_lines))
        self._passages = _passages(lines)
        words = _hash_words(self._passages)
        self._lengths = words.lengths  # Words of each passage.
        hashes, passage_indices = _deletion_hashes(words)
        # By the hash of a passage without some words (or none): the index of the passage.
        self._deletions = _HashTable(hashes, passage_indices)
        runs = _runs(words)
        positions = runs.positions
        # Index the runs at the start, after a third and after two thirds of a passage. In a passage
        # of fewer than 12 words these would overlap, so index its first and its last run.
        lengths = words.lengths[runs.passage_indices]
        thirds = lengths // 3
        is_third = positions == thirds
        is_third |= positions == 2 * thirds
        is_last = positions == lengths - _RUN
        is_short = lengths < 3 * _RUN
        is_seed = np.where(is_short, is_last, is_third)
        is_seed |= positions == 0
        seeds = np.stack([runs.passage_indices, positions], 1)
        # By the hash of an indexed run: the index of its passage, and its position in the passage.
        self._seeds = _HashTable(runs.hashes[is_seed], seeds[is_seed])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the sentences. The receiving process builds and caches the index."""
        return _index_of, (self._held_out_lines,)

    def find(self, lines: Sequence[str]) -> list[Leak]:
        """Return the exact and near matches with held-out sentences, sorted by training line."""
        passages = _passages(lines)
        # By the index of the training line and of the held-out line. Pairs that do not match are
        # missing.
        is_exact = dict[tuple[int, int], bool]()
        words = _hash_words(passages)
        for passage_index, held_out_index in self._candidates(words):
            passage = passages[passage_index]
            sought = self._passages[held_out_index]
            line_pair = passage.line_index, sought.line_index
            are_whole = passage.is_whole and sought.is_whole
            spaced_line = " ".join(lines[passage.line_index].split())
            is_same = spaced_line == self._spaced_lines[sought.line_index]
            if are_whole and is_same:
                is_exact[line_pair] = True
            elif line_pair not in is_exact and _holds(passage, sought):
                is_exact[line_pair] = False
        return [Leak(*line_pair, exact) for line_pair, exact in sorted(is_exact.items())]

    def _candidates(self, words: FlatIds) -> Iterable[tuple[int, int]]:
        """Return the indices of the passages that must be compared word by word.

        Args:
            words: Hashes of the words of each training passage.

        Returns:
            Pairs of a training passage and a held-out passage, sorted.
        """
        # The indices in these arrays belong together: of a training and of a held-out passage.
        hashes, training_indices = _deletion_hashes(words)
        matched, held_out_indices = self._deletions.find(hashes)
        training_indices = training_indices[matched]
        pairs = set(zip(training_indices.tolist(), held_out_indices.tolist(), strict=True))
        # Compare each run with all indexed runs ("seeds") that have the same words.
        runs = _runs(words)
        matched, seeds = self._seeds.find(runs.hashes)
        training_indices = runs.passage_indices[matched]
        positions = runs.positions[matched]
        held_out_indices, seed_positions = seeds.T
        lengths = words.lengths[training_indices]
        held_out_lengths = self._lengths[held_out_indices]
        # A near copy has at most two more or fewer words, in all and before the run.
        is_near = abs(positions - seed_positions) <= 2
        is_near &= abs(lengths - held_out_lengths) <= 2
        # A longer passage can start or end with the held-out sentence.
        is_at_start = positions == seed_positions
        is_at_end = lengths - positions == held_out_lengths - seed_positions
        is_longer = lengths > held_out_lengths
        is_possible = is_near | (is_longer & (is_at_start | is_at_end))
        training_indices = training_indices[is_possible]
        held_out_indices = held_out_indices[is_possible]
        pairs.update(zip(training_indices.tolist(), held_out_indices.tolist(), strict=True))
        return sorted(pairs)


class HeldOutSet(NamedTuple):
    """A validation or test set."""

    name: str
    direction: Direction
    pairs: tuple[SentencePair, ...]
    is_configured: bool  # Whether copies are a problem of the training pair, or only counted.


class CopySearch:
    """Finds the training pairs that share a sentence with a held-out pair.

    Args:
        sets: The held-out sets.
        directions: Names and languages of the training corpora.
        is_dropping: Whether the problems that the search finds drop the pairs.
    """

    def __init__(
        self,
        sets: tuple[HeldOutSet, ...],
        directions: tuple[tuple[str, Direction], ...],
        *,
        is_dropping: bool = False,
    ) -> None:
        self.sets = sets
        self.is_dropping = is_dropping
        self._directions = dict(directions)
        # Of each held-out sentence: its set, and its place for the lists.
        self._places = list[tuple[HeldOutSet, str]]()
        self._exact = dict[SentenceKey, str]()  # Places of the sentences of configured sets.
        sources = []
        for held_out in sets:
            for pair in held_out.pairs:
                place = place_of(pair, held_out.name)
                self._places.append((held_out, place))
                sources.append(pair.source)
                if held_out.is_configured:
                    source_keys, reference_keys, _ = held_out_keys(held_out.direction, pair)
                    for key in (*source_keys, *reference_keys):
                        self._exact.setdefault(key, place)
        self._index = LeakageIndex(sources)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the sentences. The receiving process builds and caches the search."""
        return _search_of, (self.sets, tuple(self._directions.items()), self.is_dropping)

    def find(
        self, corpus: str, pairs: Sequence[SentencePair]
    ) -> tuple[list[Leak], dict[int, PairProblem]]:
        """Return the copies of held-out sources, and the problems of the pairs by index.

        A pair has a problem if either side is the same as in a configured set, in any direction, or
        if its source is a near copy of a source of the same direction.
        """
        direction = self._directions[corpus]
        places = {}
        for row, pair in enumerate(pairs):
            source_key, target_key, _ = sentence_keys(direction, *pair[:2])
            place = self._exact.get(source_key) or self._exact.get(target_key)
            if place:
                places[row] = place
        leaks = self._index.find([pair.source for pair in pairs])
        for leak in leaks:
            held_out, place = self._places[leak.held_out]
            if held_out.is_configured and held_out.direction == direction:
                places.setdefault(leak.row, f"{place} (near)")
        return leaks, {row: PairProblem("held_out", place) for row, place in places.items()}


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
        # Each held-out sentence with the name of its set.
        self._held_out = [(name, pair) for name, pairs in sets.items() for pair in pairs]
        # By the index of a held-out sentence that has a copy: whether it has an exact copy.
        self._has_exact = dict[int, bool]()
        self._num_copies = Counter[int]()  # by the index of the held-out sentence
        # JSON objects for the report, in the order of the training text.
        self.entries = list[dict[str, Any]]()

    def update(self, corpus: str, pairs: Sequence[SentencePair], leaks: Ints) -> None:
        """Add the leaks of the next training pairs.

        Args:
            corpus: Name of the corpus.
            pairs: The training pairs.
            leaks: For each leak: index in ``pairs``, index of the held-out sentence, and 1 for an
                exact copy. (leaks, 3).
        """
        for row, held_out, is_exact in leaks.tolist():
            set_name, held_out_pair = self._held_out[held_out]
            direction = self._directions.get(corpus)
            if direction != self._directions.get(set_name):
                continue
            # The first copy and the first exact copy of a sentence are always listed, with texts.
            is_first = held_out not in self._has_exact
            had_exact = self._has_exact.setdefault(held_out, False)
            if is_exact and not had_exact:
                is_first = True
                self._has_exact[held_out] = True
            self._num_copies[held_out] += 1
            num_copies = self._num_copies[held_out]
            if num_copies > _MAX_LISTED and not is_first:
                continue
            pair = pairs[row]
            kind = "exact" if is_exact else "near"
            entry = {"set": held_out_pair.file or set_name, "line": held_out_pair.line}
            entry |= {"corpus": pair.file or corpus, "train_line": pair.line, "kind": kind}
            if is_first:
                entry |= {"sentence": held_out_pair.source, "train_text": pair.source}
            self.entries.append(entry)

    def num_near(self) -> dict[str, int]:
        """Return, by set, the number of sentences with a near copy but without an exact copy."""
        num_near = Counter[str]()
        for held_out, has_exact in self._has_exact.items():
            if not has_exact:
                set_name, _ = self._held_out[held_out]
                num_near[set_name] += 1
        return dict(num_near)


@lru_cache(maxsize=2)
def _index_of(lines: tuple[str, ...]) -> LeakageIndex:
    return LeakageIndex(lines)


@lru_cache(maxsize=2)
def _search_of(
    sets: tuple[HeldOutSet, ...],
    directions: tuple[tuple[str, Direction], ...],
    is_dropping: bool,
) -> CopySearch:
    return CopySearch(sets, directions, is_dropping=is_dropping)


def _holds(passage: _Passage, sought: _Passage) -> bool:
    """Whether a training text is a near copy of a held-out text, or starts or ends with it.

    Args:
        passage: The training text.
        sought: The held-out text.
    """
    words = passage.words
    sought_words = sought.words
    num_sought = len(sought_words)
    if words == sought_words:
        return True
    # A short sentence inside of a line may be there by chance, so it must be equal.
    is_long = num_sought >= _MIN_UNMARKED
    are_whole = passage.is_whole and sought.is_whole
    if (is_long or are_whole) and are_near(words, sought_words):
        return True
    # With one or two additional words, `are_near` has compared the texts already.
    if not is_long or len(words) < num_sought + 3:
        return False
    start = words[:num_sought]
    end = words[-num_sought:]
    return sought_words in (start, end)


def _hash_words(passages: Sequence[_Passage]) -> FlatIds:
    """Return the hashes of the words of each passage."""
    words = chain.from_iterable(passage.words for passage in passages)
    hashes = np.fromiter(map(word_hash, words), np.uint64)
    num_words = [len(passage.words) for passage in passages]
    lengths = np.array(num_words, np.int64)
    return FlatIds(hashes, lengths)


def _powers(count: int) -> Hashes:
    """Return the factors of ``count`` words in a polynomial hash, modulo 2^64. (count,)."""
    exponents = np.arange(1, count + 1, dtype=np.uint64)
    return _BASE**exponents


def _deletion_hashes(words: FlatIds) -> tuple[Hashes, Ints]:
    """Hash each passage; also hash short passages with up to `max_edits` words left out.

    Args:
        words: Hashes of the words of each passage.

    Returns:
        The hashes, and the index of the passage of each hash.
    """
    word_hashes = np.asarray(words.ids, np.uint64)
    # Arrays for each length. The empty ones are needed if there is no passage.
    hashes = [np.zeros(0, np.uint64)]
    passage_indices = [np.zeros(0, np.int64)]
    for length in np.unique(words.lengths).tolist():
        indices = np.flatnonzero(words.lengths == length)  # Of the passages of this length.
        starts = words.offsets[indices]
        word_indices = starts[:, None] + np.arange(length)  # (passages, length)
        # Multiply (passages, length) by (length, choices of omitted words).
        choice_hashes = word_hashes[word_indices] @ _weights(length)
        _, num_choices = choice_hashes.shape
        hashes.append(choice_hashes.ravel())
        passage_indices.append(np.repeat(indices, num_choices))
    return np.concatenate(hashes), np.concatenate(passage_indices)


@lru_cache(maxsize=512)
def _weights(length: int) -> Hashes:
    """Return the hash factor of each word (row) for each choice of omitted words (column).

    Omitted words have the factor 0. The factor of any other word depends only on how many words
    remain before it. So two passages that differ only in omitted words get the same hash.
    """
    max_omitted = 0
    if length <= _MAX_DELETED_FROM:
        max_omitted = max_edits(length)
    choices = list[tuple[int, ...]]()  # Positions of the omitted words.
    for num_omitted in range(max_omitted + 1):
        choices += combinations(range(length), num_omitted)
    shape = length, len(choices)
    weights = np.zeros(shape, np.uint64)
    for column, omitted in enumerate(choices):
        remaining = [position for position in range(length) if position not in omitted]
        num_remaining = len(remaining)
        weights[remaining, column] = _powers(num_remaining)
    return weights


class _Runs(NamedTuple):
    """The runs of four words in long passages. (runs,)."""

    hashes: Hashes
    passage_indices: Ints
    positions: Ints  # Number of words of the passage before the run.


def _runs(words: FlatIds) -> _Runs:
    """Hash all runs.

    Args:
        words: Hashes of the words of each passage.
    """
    # Of each word: its passage, its position there, and the length of the passage.
    passage_indices = words.sentences
    positions = np.arange(len(passage_indices)) - words.offsets[passage_indices]
    lengths = words.lengths[passage_indices]
    # A run starts at each word that has enough words after it.
    is_start = positions + _RUN <= lengths
    is_start &= lengths >= _MIN_RUNS_FROM
    starts = np.flatnonzero(is_start)
    word_indices = starts[:, None] + np.arange(_RUN)  # (runs, 4)
    run_words = words.ids[word_indices]
    hashes = run_words @ _powers(_RUN)
    return _Runs(hashes, passage_indices[is_start], positions[is_start])


def find_leakage(lines: Sequence[str], training: Iterable[Sequence[str]]) -> Iterator[Leak]:
    """Yield the training lines that contain sentences of a held-out set.

    Args:
        lines: The held-out sentences.
        training: Blocks of training lines in the same language. `Leak.row` counts lines across all
            blocks.
    """
    index = LeakageIndex(lines)
    num_before = 0  # Lines of all blocks before this one.
    for block in training:
        for leak in index.find(block):
            row = num_before + leak.row
            yield leak._replace(row=row)
        num_before += len(block)
