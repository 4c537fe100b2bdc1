"""What is done with each block of a corpus, as pure functions for any process.

Their results, taken in the order of the blocks, do not depend on who made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import compress
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from nmt.data.corpus import BadPair, Block, SentencePair
from nmt.data.filters import FilterChain
from nmt.data.findings import Examined, Finding, Found, examine
from nmt.data.leakage import Leak, LeakageIndex
from nmt.data.prepared import KEPT
from nmt.data.repeats import Hashes, pair_hashes
from nmt.data.store import FlatIds
from nmt.text.tokenizer import Tokenizers

NUM_LENGTHS = 400
"""Pairs whose lengths the report shows."""


class Parts(NamedTuple):
    """A result as a file can hold it."""

    arrays: Mapping[str, npt.NDArray[Any]]
    values: Any
    """The rest, as JSON has it."""


class Task(NamedTuple):
    """A block, and for the second pass what the first one and the whole corpus said of it."""

    block: Block
    is_kept: npt.NDArray[np.uint8] | None = None
    """Whether the first pass kept each line, as packed bits; None if there was none."""
    found: Mapping[int, Sequence[Finding]] = {}
    """Findings that the whole training data gives, by the kept pair's place in the block."""

    @property
    def content(self) -> str:
        """All of it, as text that is the same only for the same."""
        bits = self.is_kept.tobytes() if self.is_kept is not None else None
        return repr((self.block.content, bits, self.found))


class LookedAt(NamedTuple):
    """What the first pass learns of a block by itself."""

    examined: Examined
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

    def __call__(self, task: Task) -> LookedAt:
        """Parse and examine a block.

        Raises:
            DataError: A line cannot be read.
        """
        pairs = task.block.pairs()
        examined = examine(pairs, self.filters, self.corpus)
        lengths = [(0, 0) if isinstance(x, BadPair) else (len(x[0]), len(x[1])) for x in pairs]
        hashes = pair_hashes([pair[:2] for pair in examined.kept], sketches=self.sketches)
        sources = [pair.source for pair in examined.kept]
        leaks = self.held_out.find(sources) if self.held_out else []
        return LookedAt(examined, hashes, np.array(lengths, dtype=np.int64).T, leaks)

    def parts(self, result: LookedAt) -> Parts:
        """Return what `restored` needs."""
        _, is_kept, found, counts = result.examined
        arrays = {"is_kept": is_kept, "hashes": result.hashes, "lengths": result.lengths}
        return Parts(arrays, [found, counts, result.leaks])

    def restored(self, task: Task, parts: Parts) -> LookedAt:
        """Return the result of a task again."""
        arrays, (found, counts, leaks) = parts
        kept = _kept(task.block.pairs(), arrays["is_kept"])
        examined = Examined(kept, arrays["is_kept"], _found(found), Counter(counts))
        leaks = [Leak(*each) for each in leaks]
        return LookedAt(examined, arrays["hashes"], arrays["lengths"], leaks)


class Encoded(NamedTuple):
    """The second pass over a block."""

    num_lines: int
    """Pairs read."""
    ids: tuple[FlatIds, FlatIds]
    """Subwords of source and target of the pairs that are kept."""
    lines: npt.NDArray[np.int64]
    """Their line numbers."""
    texts: list[tuple[str, str]]
    """Their texts, if asked for."""
    lengths: list[tuple[int, tuple[int, int]]]
    """Subwords of some pairs: those whose hashes, beside them, are the least."""
    found: list[Found]
    counts: Counter[str]
    """Pairs kept, and dropped under their first reason that drops."""


@dataclass(frozen=True, slots=True)
class Encode:
    """The second pass over a block: texts become ids, of which some are too many."""

    filters: FilterChain
    corpus: str
    tokenizers: Tokenizers
    threads: int
    """For subwords."""
    tag: str | None
    """What each source begins with, such as ``de`` for ``<2de>``; None for nothing."""
    texts: bool
    """Whether the texts are wanted too."""

    def __call__(self, task: Task) -> Encoded:
        """Encode the pairs of a block, and drop repetitions and those of unfit length.

        Raises:
            DataError: A line cannot be read.
        """
        read, found, counts = task.block.pairs(), [], Counter[str]()
        if task.is_kept is None:
            examined = examine(read, self.filters, self.corpus)
            pairs, found, counts = examined.kept, examined.found, examined.counts
        else:
            pairs = _kept(read, np.unpackbits(task.is_kept, count=len(read)))
        source, target = self.tokenizers
        sides = (
            source.encode_batch([pair.source for pair in pairs], self.threads),
            target.encode_batch([pair.target for pair in pairs], self.threads),
        )
        if self.tag is not None:
            tag_id = source.tag_id(self.tag)
            sides = ([[tag_id, *ids] for ids in sides[0]], sides[1])
        kept = []
        for row, (pair, left, right) in enumerate(zip(pairs, *sides, strict=True)):
            findings = self.filters.length_findings(len(left), len(right))
            if row in task.found:
                findings = [*task.found[row], *findings]
            reason = self.filters.dropping(findings) if findings else None
            found += [Found(self.corpus, pair.line, each, *pair[:2]) for each in findings]
            counts[reason or KEPT] += 1
            if reason is None:
                kept.append(row)
        ids = [FlatIds.of([side[row] for row in kept]) for side in sides]
        lines = np.array([pairs[row].line for row in kept], dtype=np.int64)
        texts = [pairs[row][:2] for row in kept] if self.texts else []
        lengths = _sample_lengths([pairs[row] for row in kept], *ids)
        return Encoded(len(read), (ids[0], ids[1]), lines, texts, lengths, found, counts)

    def parts(self, result: Encoded) -> Parts:
        """Return what `restored` needs."""
        arrays: dict[str, npt.NDArray[Any]] = {"lines": result.lines}
        for side, flat in enumerate(result.ids):
            arrays |= {f"ids_{side}": flat.ids, f"lengths_{side}": flat.lengths}
        values = [result.num_lines, result.texts, result.lengths, result.found, result.counts]
        return Parts(arrays, values)

    def restored(self, _: Task, parts: Parts) -> Encoded:
        """Return the result of a task again."""
        arrays, (num_lines, texts, lengths, found, counts) = parts
        source, target = (FlatIds(arrays[f"ids_{i}"], arrays[f"lengths_{i}"]) for i in range(2))
        return Encoded(
            num_lines,
            (source, target),
            arrays["lines"],
            [(left, right) for left, right in texts],
            [(key, (left, right)) for key, (left, right) in lengths],
            _found(found),
            Counter(counts),
        )


def _kept(
    pairs: Sequence[SentencePair | BadPair], is_kept: npt.NDArray[np.integer | np.bool_]
) -> list[SentencePair]:
    return [pair for pair in compress(pairs, is_kept) if isinstance(pair, SentencePair)]


def _found(rows: Sequence[Any]) -> list[Found]:
    """Return findings that JSON has made lists of."""
    return [
        Found(corpus, line, Finding(*finding), *texts) for corpus, line, finding, *texts in rows
    ]


def _sample_lengths(
    pairs: Sequence[SentencePair], source: FlatIds, target: FlatIds
) -> list[tuple[int, tuple[int, int]]]:
    """Return a sample of the lengths of pairs that does not depend on how they come in blocks."""
    keys = (crc32(f"{pair.line} {pair.source}".encode()) for pair in pairs)
    lengths = zip(source.lengths.tolist(), target.lengths.tolist(), strict=True)
    return nsmallest(NUM_LENGTHS, zip(keys, lengths, strict=True))
