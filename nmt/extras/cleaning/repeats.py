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
_PAIR, _NORMALIZED, _SOURCE, _TARGET = range(4)
_NUM_KEYS = 4
_SKETCH_WORDS = 8  # 64-bit words of a MinHash sketch: bands of 8 values each.
ROW_WORDS = _NUM_KEYS + _SKETCH_WORDS
_NUM_VALUES = 8 * _SKETCH_WORDS
_MIN_SKETCHED = 16
_HELD_AT_ONCE = 1 << 20
_NOT_WORDS = re.compile(r"[\W_]+")
_NOT_MARKS = re.compile(r"[^\w\s\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u0dff\u0e00-\u109f]")
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
    """
    hashes = list[int]()
    starts = []
    lengths = []
    for source, target in texts:
        target_words = (f"\0{word}" for word in target.split())
        words = [*source.split(), *target_words]
        starts.append(len(hashes))
        lengths.append(len(words))
        hashes += map(word_hash, words)
        if not words:
            hashes.append(0)  # `reduceat` needs a value
    values = np.array(hashes, np.uint64)
    shape = len(texts), _NUM_VALUES
    sketch = np.empty(shape, np.uint8)
    for column in range(_NUM_VALUES):
        permuted = values * _FACTORS[column]
        permuted += _SHIFTS[column]
        permuted >>= np.uint64(16)
        # The low bits of a minimum are nearly uniform.
        least = np.minimum.reduceat(permuted, starts)
        sketch[:, column] = least.astype(np.uint8)
    bands = sketch.view(np.uint64)
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
        found = {}
        for name in _REASONS:
            if name in actions:
                path = self._folder / f"{name}.bin"
                found[name] = Column(path, np.float32, self.count)
        for name, column in {"duplicate": _PAIR, "normalized_duplicate": _NORMALIZED}.items():
            if name in found:
                for later, _ in self._later(column):
                    ones = np.ones_like(later)
                    found[name].raise_to(later, ones)
        if "near_duplicate" in found:
            limit = filters.near_duplicate.bound
            for column in range(_NUM_KEYS, ROW_WORDS):
                for rows, leaders in self._later(column):
                    near = self._near(rows, leaders, limit)
                    found["near_duplicate"].raise_to(*near)
        if "boilerplate" in found:
            limit = filters.boilerplate.bound
            for rows, counts in self._boilerplate(limit):
                found["boilerplate"].raise_to(rows, counts)
        return Repeats(found, filters)

    def _blocks(self, column: int) -> Iterator[tuple[int, Hashes]]:
        """Yield the hashes of a column in blocks, each after the row of its first hash."""
        path = self._path(column)
        for start in range(0, self.count, self._held_at_once):
            yield start, np.fromfile(path, np.uint64, self._held_at_once, offset=8 * start)

    def _hashes(self, column: int, rows: Rows) -> Hashes:
        """Read the hashes of ``rows``, which are in rising order, in a column. (rows,)."""
        hashes = np.empty(len(rows), np.uint64)
        for start, block in self._blocks(column):
            low, high = np.searchsorted(rows, (start, start + len(block)))
            hashes[low:high] = block[rows[low:high] - start]
        return hashes

    def _parts(self, *columns: int) -> Iterator[tuple[Rows, list[Hashes]]]:
        """Yield rows and their hashes in the given columns, in parts that fit into memory.

        Rows with an equal hash in the first column are in the same part. Rows with a 0 there have
        no sketch and are left out.
        """
        num_parts = math.ceil(self.count / self._held_at_once)
        for part in range(num_parts):
            parts = []
            for start, block in self._blocks(columns[0]):
                is_here = block % np.uint64(num_parts) == part
                is_here &= block != 0
                parts.append(np.flatnonzero(is_here) + start)
            rows = np.concatenate(parts)
            yield rows, [self._hashes(column, rows) for column in columns]

    def _later(self, column: int) -> Iterator[tuple[Rows, Rows]]:
        """Yield the rows whose hash occurs in an earlier row, and the first row with that hash."""
        for places, (hashes,) in self._parts(column):
            _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
            leaders = places[first][inverse]
            is_later = leaders < places
            yield places[is_later], leaders[is_later]

    def _near(self, rows: Rows, leaders: Rows, least: float) -> tuple[Rows, npt.NDArray[Any]]:
        """Return the ``rows`` similar to their ``leaders``, and the Jaccard similarities."""
        distinct, places = np.unique(leaders, return_inverse=True)
        num_same = np.zeros(len(rows))
        for column in range(_NUM_KEYS, ROW_WORDS):  # one word of all sketches at once
            values = self._hashes(column, rows).view(np.uint8)
            of_leaders = self._hashes(column, distinct)[places].view(np.uint8)
            is_same = values == of_leaders
            num_same += is_same.reshape(-1, 8).sum(1)
        same = num_same / _NUM_VALUES
        jaccard = (same - 1 / 256) / (1 - 1 / 256)  # 8 random bits are equal once in 256
        is_near = jaccard >= least
        return rows[is_near], jaccard[is_near]

    def _boilerplate(self, least: float) -> Iterator[tuple[Rows, Rows]]:
        """Yield rows whose target has ``least`` or more sources, and the number of sources."""
        for rows, (targets, sources) in self._parts(_TARGET, _SOURCE):
            _, target_of = np.unique(targets, return_inverse=True)
            _, source_of = np.unique(sources, return_inverse=True)
            width = max(len(rows), 1)
            distinct = np.unique(target_of * width + source_of)
            num_sources = np.bincount(distinct // width)
            counts = num_sources[target_of]
            is_frequent = counts >= least
            yield rows[is_frequent], counts[is_frequent]


@dataclass(frozen=True)
class Repeats:
    """The repetitions that `RepeatFinder` has found, by reason."""

    found: Mapping[str, Column]
    filters: FilterConfig

    def between(self, start: int, end: int) -> dict[int, list[PairProblem]]:
        """Return the findings of the rows from ``start`` to ``end`` (exclusive), by row.

        Of the kinds of duplicates, only the first that applies to a pair is returned.
        """
        problems = defaultdict[int, list[PairProblem]](list)
        is_duplicate = np.zeros(max(end - start, 0), np.bool_)
        for name, column in self.found.items():
            limit = self.filters.rule(name).limit
            values = column[start:end]
            if name != "boilerplate":
                values[is_duplicate[: len(values)]] = 0
                is_duplicate[: len(values)] |= values > 0
            for row in np.flatnonzero(values).tolist():
                problem = PairProblem(name)
                if limit is not None:
                    value = float(values[row])
                    problem = PairProblem(name, value, limit)
                problems[start + row].append(problem)
        return problems
