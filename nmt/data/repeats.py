"""Reasons that only the whole training data gives: repeated pairs and repeated targets.

Every pair becomes a row of hashes, in any process; rows in the order of the corpora give the same
findings however the work was cut.
"""

from __future__ import annotations

import re
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, Self

import numpy as np
import numpy.typing as npt

from nmt.config.data import FilterLimits
from nmt.data.findings import Action, Finding

Hashes = npt.NDArray[np.uint64]
_PAIR, _NORMALIZED, _SOURCE, _TARGET = range(4)
_NUM_KEYS = 4
_SKETCH_WORDS = 8
"""64-bit words of a MinHash sketch: bands of 8 values each."""
ROW_WORDS = _NUM_KEYS + _SKETCH_WORDS
_NUM_VALUES = 8 * _SKETCH_WORDS
_MIN_SKETCHED = 16
_HELD_AT_ONCE = 1 << 20
_COMPARED_AT_ONCE = 1 << 16
_NOT_WORDS = re.compile(r"[\W_]+")
_NOT_MARKS = re.compile(r"[^\w\s\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u0dff\u0e00-\u109f]")
_rng = np.random.default_rng(22)
_FACTORS = _rng.integers(1, 1 << 63, _NUM_VALUES, dtype=np.uint64) | np.uint64(1)
_SHIFTS = _rng.integers(0, 1 << 63, _NUM_VALUES, dtype=np.uint64)


def normalized(text: str) -> str:
    r"""Return a text in one case and Unicode form, without punctuation and repeated spaces.

    >>> normalized("\u201eNein!\u201c,  sagte  er.")
    'nein sagte er'
    """
    if text.isascii():
        return _NOT_WORDS.sub(" ", text.lower()).strip()
    text = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_NOT_MARKS.sub(" ", text).split())


def stable_hash(text: str) -> int:
    """Return 64 bits that are the same in every process."""
    return int.from_bytes(
        blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little"
    )


word_hash = lru_cache(maxsize=1 << 18)(stable_hash)
"""`stable_hash` of words, most of which come again."""


def pair_hashes(pairs: Sequence[tuple[str, str]], *, sketches: bool) -> Hashes:
    """Return a row for each pair. (pairs, ROW_WORDS), uint64.

    Args:
        pairs: Source and target of each.
        sketches: Whether near-duplicates will be looked for; else that part is 0.
    """
    rows = np.zeros((len(pairs), ROW_WORDS), dtype=np.uint64)
    texts = [(normalized(source), normalized(target)) for source, target in pairs]
    for row, (pair, (source, target)) in enumerate(zip(pairs, texts, strict=True)):
        rows[row, :_NUM_KEYS] = (
            stable_hash("\0".join(pair)), stable_hash(f"{source}\0{target}"),
            stable_hash(source), stable_hash(target),
        )  # fmt: skip
    if sketches and len(texts):
        rows[:, _NUM_KEYS:] = _sketches(texts)
    return rows


def _sketches(texts: Sequence[tuple[str, str]]) -> Hashes:
    """Return MinHash sketches (Broder 1997), of which 8 bits of each value are kept.

    The set holds the words of both sides. A pair of few words gets 0, which is near to nothing.
    """
    lengths = np.zeros(len(texts), dtype=np.int64)
    hashes: list[int] = []
    for row, (source, target) in enumerate(texts):
        words = [*source.split(), *(f"\0{word}" for word in target.split())]
        lengths[row] = len(words)
        hashes += map(word_hash, words) if words else [0]
    values = np.array(hashes, dtype=np.uint64)
    starts = np.concatenate(([0], np.cumsum(np.maximum(lengths, 1))[:-1]))
    sketch = np.empty((len(texts), _NUM_VALUES), dtype=np.uint8)
    for column, (factor, shift) in enumerate(zip(_FACTORS, _SHIFTS, strict=True)):
        # The low bits of the minimum are hardly biased by its being one.
        least = np.minimum.reduceat((values * factor + shift) >> np.uint64(16), starts)
        sketch[:, column] = least.astype(np.uint8)
    bands = sketch.view(np.uint64)
    bands[lengths < _MIN_SKETCHED] = 0
    return bands


Sparse = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Rising rows, and a value at each."""


def _scratch(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


class RepeatFinder:
    """Finds repeated pairs and targets among rows of `pair_hashes`, in bounded memory.

    Args:
        folder: For temporary files; 96 bytes a pair.
        held_at_once: Most hashes sorted at once, about; more pairs take more passes of the files.
    """

    def __init__(self, folder: Path, *, held_at_once: int = _HELD_AT_ONCE) -> None:
        self._stack = ExitStack()
        self._files = [self._stack.enter_context(_scratch(folder)) for _ in range(ROW_WORDS)]
        self._held_at_once = held_at_once
        self.count = 0

    def add(self, rows: Hashes) -> None:
        """Add pairs, in order."""
        for file, column in zip(self._files, rows.T, strict=True):
            file.write(column.tobytes())
        self.count += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def findings(self, actions: Mapping[str, Action], limits: FilterLimits) -> Repeats:
        """Return what is repeated, but for reasons that are off.

        A pair has at most one of the three kinds of duplicates, the first that fits.
        """
        found: dict[str, Sparse] = {}
        known = np.zeros(0, dtype=np.int64)
        for name, column in (("duplicate", _PAIR), ("normalized_duplicate", _NORMALIZED)):
            if name in actions:
                later, _ = self._later(column)
                rows = np.setdiff1d(later, known, assume_unique=True)
                found[name] = rows, np.ones(len(rows), dtype=np.float32)
                known = np.union1d(known, later)
        if "near_duplicate" in actions:
            rows, values = self._near(limits.near_duplicate)
            is_new = ~np.isin(rows, known, assume_unique=True)
            found["near_duplicate"] = rows[is_new], values[is_new]
        if "boilerplate" in actions:
            found["boilerplate"] = self._boilerplate(limits.boilerplate)
        return Repeats(found, limits, self.count)

    def _parts(self, column: int, *others: int) -> Iterator[tuple[npt.NDArray[np.int64], Hashes]]:
        """Yield rows and their hashes in some columns; equal ones of the first in the same part."""
        num_parts = np.uint64(max(-(-self.count // self._held_at_once), 1))
        for part in range(int(num_parts)):
            places, hashes, start = (
                [np.zeros(0, np.int64)],
                [np.zeros((1 + len(others), 0), np.uint64)],
                0,
            )
            files = [self._files[each] for each in (column, *others)]
            for file in files:
                file.seek(0)
            while block := files[0].read(8 * self._held_at_once):
                values = np.frombuffer(block, dtype=np.uint64)
                beside = [np.frombuffer(each.read(len(block)), np.uint64) for each in files[1:]]
                where = np.flatnonzero(values % num_parts == np.uint64(part))
                places.append(where + start)
                hashes.append(np.array([each[where] for each in (values, *beside)]))
                start += len(values)
            yield np.concatenate(places), np.concatenate(hashes, axis=1)

    def _later(self, column: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the rows that repeat a hash, rising, and the first row that has it."""
        found = []
        for places, (hashes,) in self._parts(column):
            _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
            leaders = places[first][inverse]
            is_later = leaders < places
            found.append(np.array([places[is_later], leaders[is_later]]))
        rows, leaders = np.concatenate(found, axis=1)
        order = np.argsort(rows)
        return rows[order], leaders[order]

    def _near(self, least: float) -> Sparse:
        """Return the pairs like an earlier one that shares a band of the sketch, and how like."""
        best: dict[int, float] = {}
        if not self.count:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        bands = []
        for file in self._files[_NUM_KEYS:]:
            file.flush()
            bands.append(np.memmap(file, np.uint64, "r"))
        for column in range(_NUM_KEYS, ROW_WORDS):
            later, first = self._later(column)
            for start in range(0, len(later), _COMPARED_AT_ONCE):
                rows, leaders = (x[start : start + _COMPARED_AT_ONCE] for x in (later, first))
                mine = np.stack([band[rows] for band in bands], axis=1)
                other = np.stack([band[leaders] for band in bands], axis=1)
                same = (mine.view(np.uint8) == other.view(np.uint8)).mean(1)
                jaccard = (same - 1 / 256) / (1 - 1 / 256)  # values of 8 bits agree by chance, too
                is_near = (jaccard >= least) & mine.any(1)
                for row, value in zip(
                    rows[is_near].tolist(), jaccard[is_near].tolist(), strict=True
                ):
                    best[row] = max(best.get(row, 0.0), value)
        rows = np.array(sorted(best), dtype=np.int64)
        return rows, np.array([best[row] for row in rows.tolist()], dtype=np.float32)

    def _boilerplate(self, least: int) -> Sparse:
        """Return the pairs whose target has many different sources, and how many."""
        found = []
        for places, (targets, sources) in self._parts(_TARGET, _SOURCE):
            order = np.lexsort((sources, targets))
            ours, theirs = targets[order], sources[order]
            is_new_target = np.ones(len(ours), dtype=np.bool_)
            is_new_target[1:] = ours[1:] != ours[:-1]
            is_new = is_new_target.copy()
            is_new[1:] |= theirs[1:] != theirs[:-1]
            group = np.cumsum(is_new_target) - 1
            counts = np.bincount(group, weights=is_new)[group]
            found.append(np.array([places[order], counts])[:, counts >= least])
        rows, counts = np.concatenate(found, axis=1)
        order = np.argsort(rows)
        return rows[order].astype(np.int64), counts[order].astype(np.float32)


@dataclass(frozen=True, slots=True)
class Repeats:
    """What `RepeatFinder` found, by reason."""

    found: Mapping[str, Sparse]
    limits: FilterLimits
    count: int
    """Pairs that were compared."""

    def between(self, start: int, end: int) -> dict[int, list[Finding]]:
        """Return the findings of the pairs from ``start`` to before ``end``, by their rows."""
        findings: dict[int, list[Finding]] = {}
        for name, (rows, values) in self.found.items():
            limit = getattr(self.limits, name, "")
            low, high = np.searchsorted(rows, (start, end))
            for row, value in zip(rows[low:high].tolist(), values[low:high].tolist(), strict=True):
                finding = Finding(name, value if limit != "" else "", limit)
                findings.setdefault(row, []).append(finding)
        return findings
