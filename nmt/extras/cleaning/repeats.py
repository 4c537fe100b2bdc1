"""Finds repeated pairs and repeated targets in all of the training data.

Each pair becomes a row of hashes, computed in any process. The rows are compared in the order of
the corpora, so the findings do not depend on how the work was divided.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.data import Action, FilterConfig
from nmt.data.filters import PairProblem
from nmt.extras.cleaning.scores import Column

Hashes = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]
# Columns of a row of hashes: of the pair, of the normalized pair, and of each normalized side. The
# columns of the MinHash sketch follow.
_PAIR, _NORMALIZED, _SOURCE, _TARGET = range(4)
_NUM_KEYS = 4
# A sketch has 64 values of 8 bits. A column is a 64-bit integer, which is a band of 8 values.
_SKETCH_WORDS = 8
ROW_WORDS = _NUM_KEYS + _SKETCH_WORDS
_NUM_VALUES = 8 * _SKETCH_WORDS
_CHANCE = 1 / 256  # Probability that 8 random bits are equal to 8 other ones.
_MIN_SKETCHED = 16  # Minimum words of a pair that gets a sketch.
_HELD_AT_ONCE = 1 << 20
_NOT_WORDS = re.compile(r"[\W_]+")
_NOT_MARKS = re.compile(r"[^\w\s\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u0dff\u0e00-\u109f]")
# Each value of a sketch comes from a different permutation of the hashes: multiply by an odd factor
# and add a number, modulo 2^64.
_rng = np.random.default_rng(22)
_factors = _rng.integers(1, 1 << 63, _NUM_VALUES, np.uint64)
_FACTORS = _factors | np.uint64(1)
_SHIFTS = _rng.integers(0, 1 << 63, _NUM_VALUES, np.uint64)


def normalized(text: str) -> str:
    r"""Normalize case and Unicode form, and remove punctuation and repeated spaces.

    >>> normalized("\u201eNein!\u201c,  sagte  er.")
    'nein sagte er'
    """
    if text.isascii():
        words = _NOT_WORDS.sub(" ", text.lower())
        return words.strip()
    folded = unicodedata.normalize("NFKC", text).casefold()
    without_marks = _NOT_MARKS.sub(" ", folded)
    return " ".join(without_marks.split())


def stable_hash(text: str) -> int:
    """Return a 64-bit hash that is the same in every process, unlike `hash`."""
    content = text.encode("utf-8", "replace")
    digest = blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little")


word_hash = lru_cache(maxsize=1 << 18)(stable_hash)  # Cached, because most words occur often.


def pair_hashes(pairs: Sequence[tuple[str, str]], *, sketches: bool) -> Hashes:
    """Return a row of hashes for each pair. (pairs, ROW_WORDS), uint64.

    Args:
        pairs: Source and target of each pair.
        sketches: Whether to compute MinHash sketches for near duplicates. If not, sketches are 0.
    """
    shape = len(pairs), ROW_WORDS
    rows = np.zeros(shape, np.uint64)
    texts = []
    for row, (source, target) in zip(rows, pairs, strict=True):
        plain_source = normalized(source)
        plain_target = normalized(target)
        texts.append((plain_source, plain_target))
        row[_PAIR] = stable_hash(f"{source}\0{target}")
        row[_NORMALIZED] = stable_hash(f"{plain_source}\0{plain_target}")
        row[_SOURCE] = stable_hash(plain_source)
        row[_TARGET] = stable_hash(plain_target)
    if sketches and texts:
        rows[:, _NUM_KEYS:] = _sketches(texts)
    return rows


def _sketches(texts: Sequence[tuple[str, str]]) -> Hashes:
    """Return MinHash sketches (Broder 1997) of the words of both sides, with 8 bits per value.

    A pair of few words gets 0, which matches no other pair.

    Args:
        texts: Normalized source and target of each pair, at least one pair.

    Returns:
        Sketches, of which each column holds 8 values. (pairs, _SKETCH_WORDS), uint64.
    """
    hashes = list[int]()  # Of the words of all pairs.
    starts = []  # Index of the first hash of each pair.
    lengths = []  # Number of words of each pair.
    for source, target in texts:
        # The mark keeps a target word apart from the same word in the source.
        target_words = (f"\0{word}" for word in target.split())
        words = [*source.split(), *target_words]
        starts.append(len(hashes))
        lengths.append(len(words))
        hashes += map(word_hash, words)
        if not words:
            hashes.append(0)  # `reduceat` needs a value
    word_hashes = np.array(hashes, np.uint64)
    shape = len(texts), _NUM_VALUES
    values = np.empty(shape, np.uint8)
    for column in range(_NUM_VALUES):
        permuted = word_hashes * _FACTORS[column]
        permuted += _SHIFTS[column]
        permuted >>= np.uint64(16)
        minima = np.minimum.reduceat(permuted, starts)  # One for each pair.
        # Keep only the low 8 bits, which are nearly uniform in a minimum.
        values[:, column] = minima.astype(np.uint8)
    bands = values.view(np.uint64)
    num_words = np.array(lengths)
    is_short = num_words < _MIN_SKETCHED
    bands[is_short] = 0
    return bands


_REASONS = ("duplicate", "normalized_duplicate", "near_duplicate", "boilerplate")


class RepeatFinder:
    """Finds repeated pairs and targets among rows of `pair_hashes`, in bounded memory.

    Args:
        folder: Folder for files of 96 bytes per pair, and 4 bytes per pair and reason. The caller
            removes the folder.
        held_at_once: Approximate maximum of hashes sorted at once. More pairs need more passes over
            the files.
    """

    def __init__(self, folder: Path, *, held_at_once: int = _HELD_AT_ONCE) -> None:
        self._folder = folder
        self._held_at_once = held_at_once
        for column in range(ROW_WORDS):
            self._path(column).write_bytes(b"")
        self.count = 0

    def _path(self, column: int) -> Path:
        return self._folder / f"hashes-{column}.bin"

    def add(self, rows: Hashes) -> None:
        """Append the hashes of further pairs. Rows are numbered from 0 in the order of calls."""
        for column in range(ROW_WORDS):
            path = self._path(column)
            with path.open("ab") as file:
                file.write(rows[:, column].tobytes())
        self.count += len(rows)

    def findings(self, actions: Mapping[str, Action], filters: FilterConfig) -> Repeats:
        """Return the repeated pairs for each filter in ``actions``.

        Any process with access to the folder can call this method.
        """
        # For each reason, a value of each row: 0 if the row is not repeated, else 1 for exact and
        # normalized duplicates, the similarity for near duplicates, and the number of sources for
        # boilerplate.
        values = {}
        for reason in _REASONS:
            if reason in actions:
                path = self._folder / f"{reason}.bin"
                values[reason] = Column(path, np.float32, self.count)
        for reason, column in {"duplicate": _PAIR, "normalized_duplicate": _NORMALIZED}.items():
            if reason in values:
                for rows, _ in self._repeated(column):
                    ones = np.ones_like(rows)
                    values[reason].raise_to(rows, ones)
        if "near_duplicate" in values:
            limit = filters.near_duplicate.bound
            for band in range(_NUM_KEYS, ROW_WORDS):
                for rows, first_rows in self._repeated(band):
                    near_rows, similarities = self._similar(rows, first_rows, limit)
                    values["near_duplicate"].raise_to(near_rows, similarities)
        if "boilerplate" in values:
            limit = filters.boilerplate.bound
            for rows, num_sources in self._boilerplate(limit):
                values["boilerplate"].raise_to(rows, num_sources)
        return Repeats(values, filters)

    def _blocks(self, column: int) -> Iterator[tuple[int, Hashes]]:
        """Yield the hashes of a column in blocks, each after the row of its first hash."""
        path = self._path(column)
        for start in range(0, self.count, self._held_at_once):
            yield start, np.fromfile(path, np.uint64, self._held_at_once, offset=8 * start)

    def _hashes(self, column: int, rows: Rows) -> Hashes:
        """Read the hashes of ``rows``, which are in rising order, in a column. (rows,)."""
        hashes = np.empty(len(rows), np.uint64)
        for start, block in self._blocks(column):
            # The rows of this block are rows[first:end].
            first, end = np.searchsorted(rows, (start, start + len(block)))
            hashes[first:end] = block[rows[first:end] - start]
        return hashes

    def _parts(self, *columns: int) -> Iterator[tuple[Rows, list[Hashes]]]:
        """Yield rows, and the hashes of the rows in each column, in parts that fit into memory.

        Rows with an equal hash in the first column are in the same part. Rows with a 0 there have
        no sketch and are left out.
        """
        num_parts = math.ceil(self.count / self._held_at_once)
        for part in range(num_parts):
            block_rows = []
            for start, block in self._blocks(columns[0]):
                is_in_part = block % np.uint64(num_parts) == part
                is_in_part &= block != 0
                block_rows.append(np.flatnonzero(is_in_part) + start)
            rows = np.concatenate(block_rows)
            yield rows, [self._hashes(column, rows) for column in columns]

    def _repeated(self, column: int) -> Iterator[tuple[Rows, Rows]]:
        """Yield the rows whose hash occurs in an earlier row, and the first row with that hash."""
        for rows, (hashes,) in self._parts(column):
            _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
            first_rows = rows[first][inverse]
            is_later = first_rows < rows
            yield rows[is_later], first_rows[is_later]

    def _similar(
        self, rows: Rows, first_rows: Rows, min_similarity: float
    ) -> tuple[Rows, npt.NDArray[Any]]:
        """Compare the sketch of each row with that of an earlier row.

        Args:
            rows: Rows in rising order.
            first_rows: The row to compare with, for each of ``rows``; often the same.
            min_similarity: Minimum Jaccard similarity of the words.

        Returns:
            Those ``rows`` that are similar enough, and their Jaccard similarities.
        """
        distinct_rows, inverse = np.unique(first_rows, return_inverse=True)
        num_equal = np.zeros(len(rows))
        for band in range(_NUM_KEYS, ROW_WORDS):  # one band of all sketches at once
            values = self._hashes(band, rows).view(np.uint8)
            first_values = self._hashes(band, distinct_rows)[inverse].view(np.uint8)
            is_equal = values == first_values
            num_equal += is_equal.reshape(-1, 8).sum(1)
        # The share of equal values estimates the similarity, but some are equal by chance.
        share_equal = num_equal / _NUM_VALUES
        jaccard = (share_equal - _CHANCE) / (1 - _CHANCE)
        is_similar = jaccard >= min_similarity
        return rows[is_similar], jaccard[is_similar]

    def _boilerplate(self, limit: float) -> Iterator[tuple[Rows, Rows]]:
        """Yield rows whose target has ``limit`` or more sources, and the number of sources."""
        for rows, (targets, sources) in self._parts(_TARGET, _SOURCE):
            # Small numbers for the hashes, so that a target and a source fit into one integer.
            _, target_ids = np.unique(targets, return_inverse=True)
            _, source_ids = np.unique(sources, return_inverse=True)
            max_ids = max(len(rows), 1)
            distinct_pairs = np.unique(target_ids * max_ids + source_ids)
            num_sources = np.bincount(distinct_pairs // max_ids)  # Of each target id.
            row_counts = num_sources[target_ids]
            is_frequent = row_counts >= limit
            yield rows[is_frequent], row_counts[is_frequent]


@dataclass(frozen=True)
class Repeats:
    """The repetitions that `RepeatFinder` has found."""

    values: Mapping[str, Column]  # By reason: a value of each row, 0 if it is not repeated.
    filters: FilterConfig

    def between(self, start: int, end: int) -> dict[int, list[PairProblem]]:
        """Return the findings of the rows from ``start`` to ``end`` (exclusive), by row.

        Of the kinds of duplicates, only the first that applies to a pair is returned.
        """
        problems = defaultdict[int, list[PairProblem]](list)
        is_duplicate = np.zeros(max(end - start, 0), np.bool_)
        for reason, all_values in self.values.items():
            limit = self.filters.rule(reason).limit
            values = all_values[start:end]
            if reason != "boilerplate":
                # There are fewer than `end - start` values if the last row is before `end`.
                values[is_duplicate[: len(values)]] = 0
                is_duplicate[: len(values)] |= values > 0
            for index in np.flatnonzero(values).tolist():
                problem = PairProblem(reason)
                if limit is not None:
                    value = float(values[index])
                    problem = PairProblem(reason, value, limit)
                problems[start + index].append(problem)
        return problems
