"""What is done with each block of a corpus, as pure functions for any process.

Their results, taken in the order of the blocks, do not depend on who made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import compress
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import Block
from nmt.data.filters import FilterChain
from nmt.data.findings import Examined, Finding, Found, examine
from nmt.data.pairs import BadPair, SentencePair
from nmt.data.prepared import KEPT
from nmt.data.shards import Parts
from nmt.extras.cleaning.leakage import Leak, LeakageIndex
from nmt.extras.cleaning.repeats import Hashes, pair_hashes

Ints = npt.NDArray[np.int64]
NUM_LENGTHS = 400
"""Pairs whose lengths the report shows."""


class LookedAt(NamedTuple):
    """What the first pass learns of a block by itself."""

    examined: Examined
    kept: list[SentencePair]
    hashes: Hashes
    """Of the kept pairs."""
    lengths: npt.NDArray[np.int64]
    """Characters of source and target of every line, 0 for what could not be read. (2, lines)."""

    leaks: list[Leak]
    """Held-out sentences in the sources of the kept pairs."""

    @property
    def num_lines(self) -> int:
        """Pairs read."""
        return self.lengths.shape[1]


@dataclass(frozen=True, slots=True)
class Look:
    """The first pass over a block of a training corpus: what its texts say."""

    filters: FilterChain
    corpus: str
    """Its name."""
    sketches: bool
    """Whether near-duplicates will be looked for."""
    held_out: LeakageIndex | None = None
    """Held-out sentences to look for."""

    def __call__(self, block: Block) -> LookedAt:
        """Parse and examine a block.

        Raises:
            DataError: A line cannot be read.
        """
        pairs = block.pairs()
        examined = examine(pairs, self.filters, self.corpus)
        lengths = [(0, 0) if isinstance(x, BadPair) else (len(x[0]), len(x[1])) for x in pairs]
        kept = _kept(pairs, examined.is_kept)
        hashes = pair_hashes([pair[:2] for pair in kept], sketches=self.sketches)
        leaks = self.held_out.find([pair.source for pair in kept]) if self.held_out else []
        return LookedAt(examined, kept, hashes, np.array(lengths, dtype=np.int64).T, leaks)

    def parts(self, result: LookedAt) -> Parts:
        """Return what `restored` needs."""
        is_kept, found, counts = result.examined
        arrays = {"is_kept": is_kept, "hashes": result.hashes, "lengths": result.lengths}
        return Parts(arrays, [found, counts, result.leaks])

    def restored(self, block: Block, parts: Parts) -> LookedAt:
        """Return the result of a block again."""
        arrays, (found, counts, leaks) = parts
        found = [Found(name, line, Finding(*each), *texts) for name, line, each, *texts in found]
        examined = Examined(arrays["is_kept"], found, Counter(counts))
        kept, leaks = _kept(block.pairs(), examined.is_kept), [Leak(*each) for each in leaks]
        return LookedAt(examined, kept, arrays["hashes"], arrays["lengths"], leaks)


class Task(NamedTuple):
    """A block, and all that is known of it."""

    block: Block
    lengths: tuple[Ints, Ints]
    """Subwords of source and target of every line, its tag included."""
    is_kept: npt.NDArray[np.bool_] | None = None
    """Whether the first pass kept each line; None if there was none."""
    found: Mapping[int, Sequence[Finding]] = {}
    """Findings that the whole training data gives, by the line's place in the block."""


class Decided(NamedTuple):
    """The second pass over a block."""

    is_kept: npt.NDArray[np.bool_]
    """Of each line of the block."""
    texts: list[tuple[str, str]]
    """Texts of the kept pairs, if asked for."""
    lengths: list[tuple[int, tuple[int, int]]]
    """Subwords of some pairs: those whose hashes, beside them, are the least."""
    found: list[Found]
    counts: Counter[str]
    """Pairs kept, and dropped under their first reason that drops."""

    @property
    def num_lines(self) -> int:
        """Pairs read."""
        return len(self.is_kept)


@dataclass(frozen=True, slots=True)
class Decide:
    """The second pass over a block: which pairs are kept, now that their lengths are known."""

    filters: FilterChain
    corpus: str
    texts: bool
    """Whether the texts are wanted too."""

    def __call__(self, task: Task) -> Decided:
        """Drop repetitions, pairs of unfit length, and those with a low score.

        Raises:
            DataError: A line cannot be read.
        """
        pairs, counts = task.block.pairs(), Counter[str]()
        found: list[Found] = []
        is_kept = task.is_kept
        if is_kept is None:
            is_kept, found, counts = examine(pairs, self.filters, self.corpus)
        is_kept, texts = is_kept.astype(np.bool_), []
        sample: list[tuple[int, tuple[int, int]]] = []
        lengths = [each.tolist() for each in task.lengths]
        for row in np.flatnonzero(is_kept).tolist():
            pair, own = pairs[row], (lengths[0][row], lengths[1][row])
            assert isinstance(pair, SentencePair)
            findings = [*task.found.get(row, ()), *self.filters.length_findings(*own)]
            reason = self.filters.dropping(findings) if findings else None
            found += [Found(self.corpus, pair.line, each, *pair[:2]) for each in findings]
            counts[reason or KEPT] += 1
            if reason is not None:
                is_kept[row] = False
                continue
            if self.texts:
                texts.append(pair[:2])
            sample.append((crc32(f"{pair.line} {pair.source}".encode()), own))
        return Decided(is_kept, texts, nsmallest(NUM_LENGTHS, sample), found, counts)


def _kept(
    pairs: Sequence[SentencePair | BadPair], is_kept: npt.NDArray[np.integer | np.bool_]
) -> list[SentencePair]:
    return [pair for pair in compress(pairs, is_kept) if isinstance(pair, SentencePair)]
