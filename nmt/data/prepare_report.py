"""What `nmt prepare` has to say: the report, and the statistics in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from nmt.text.tokenizer import SentencePieceTokenizer, Tokenizer

READ, KEPT = "read", "kept"
"""Keys of a corpus's counts that are no reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReport:
    """The training text of one language, in subwords."""

    language: str
    vocab_size: int
    """Entries of its vocabulary."""
    tokens: int
    """Subwords in all."""
    mean_length: float
    """Subwords in a sentence."""
    median_length: int
    p99_length: int
    """99 of 100 sentences are no longer."""
    longest: int
    spelt_share: float
    """Share of the subwords that are single bytes, or unknown."""


class SideStatistics:
    """Adds up what a `SideReport` tells, block by block."""

    def __init__(self, language: str, tokenizer: Tokenizer, max_length: int) -> None:
        self._language = language
        self._lengths = np.zeros(max_length + 1, dtype=np.int64)
        self._uses = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._is_spelt = np.zeros(tokenizer.vocab_size, dtype=np.bool_)
        if isinstance(tokenizer, SentencePieceTokenizer):
            self._is_spelt[:] = [tokenizer.is_fallback(i) for i in range(tokenizer.vocab_size)]

    def see(self, rows: Sequence[Sequence[int]]) -> None:
        """Count the ids of kept sentences."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
        self._lengths += np.bincount(lengths, minlength=len(self._lengths))
        self._uses += np.bincount(ids, minlength=len(self._uses))

    def report(self) -> SideReport:
        """Return the figures; at least one sentence must have been seen."""
        upto = np.cumsum(self._lengths)
        tokens, sentences = int(self._uses.sum()), int(upto[-1])
        return SideReport(
            language=self._language,
            vocab_size=len(self._uses),
            tokens=tokens,
            mean_length=tokens / sentences,
            median_length=int(np.searchsorted(upto, 0.5 * sentences)),
            p99_length=int(np.searchsorted(upto, 0.99 * sentences)),
            longest=int(np.flatnonzero(self._lengths)[-1]),
            spelt_share=int(self._uses[self._is_spelt].sum()) / tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """What was read, what was dropped and why, and what came out."""

    folder: str
    up_to_date: bool
    """Whether nothing had to be done."""
    written: bool = False
    """Whether the folder was made; not where only a report was asked for."""
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per corpus: pairs read, kept, and dropped for each reason."""
    findings: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per training corpus: pairs that look odd but were not dropped for it."""
    overlap: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Per held-out set: its pairs, and how many sources and whole pairs the training has too."""
    unchecked: tuple[str, ...] = ()
    """Held-out sets that were not looked for, as they might have to be downloaded."""
    sides: tuple[SideReport, ...] = ()
    """Source and target of the training data."""
    joint: bool = True
    """Whether both sides share one vocabulary."""
    warnings: tuple[str, ...] = ()
    """What a person should look at."""
    seconds: float = 0.0
    """Time taken."""

    @property
    def num_read(self) -> int:
        """Pairs read, of all corpora."""
        return sum(counts[READ] for counts in self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {
            "sides": [asdict(side) for side in self.sides],
            "unchecked": list(self.unchecked),
            "warnings": list(self.warnings),
            "seconds": round(self.seconds, 3),
        }

    def as_text(self) -> str:
        """Return a report to read."""
        if self.up_to_date:
            return f"{self.folder} is up to date: configuration and corpora have not changed."
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, counts in self.counts.items():
            yield f"{name}: {counts[READ]:,} pairs read, {counts[KEPT]:,} kept"
            reasons = {what: n for what, n in counts.items() if what not in (READ, KEPT)}
            for word, numbers in (("dropped", reasons), ("seen", self.findings.get(name, {}))):
                for what, number in sorted(numbers.items(), key=lambda item: -item[1]):
                    yield f"  {word} {number:,}: {what}"
        yield f"{'subwords':10}{'mean':>8}{'median':>8}{'99%':>6}{'longest':>9}   bytes or unknown"
        for side in self.sides:
            yield (
                f"  {side.language:8}{side.mean_length:8.1f}{side.median_length:8}"
                f"{side.p99_length:6}{side.longest:9}   {side.spelt_share:.2%}"
            )
        sizes = [f"{side.vocab_size:,}" for side in self.sides]
        yield (
            f"vocabulary: {sizes[0]} entries, joint"
            if self.joint
            else (f"vocabularies: {sizes[0]} and {sizes[1]} entries")
        )
        for name, overlap in self.overlap.items():
            if overlap["sources_in_train"]:
                yield (
                    f"overlap: {overlap['sources_in_train']:,} of {overlap['pairs']:,} source "
                    f"sentences of {name} are in the training data, {overlap['pairs_in_train']:,} "
                    "with the same translation"
                )
        yield from self._without_overlap()
        yield from (f"warning: {text}" for text in self.warnings)
        rate = self.num_read / max(self.seconds, 1e-3)
        what = self.folder if self.written else "report only, nothing written"
        yield f"{what}: {self.seconds:.1f} s, {rate:,.0f} pairs a second"

    def _without_overlap(self) -> Iterator[str]:
        """Say of what the training data has nothing, so that silence is not taken for it."""
        clean = [
            f"{name} ({overlap['pairs']:,} pairs)"
            for name, overlap in self.overlap.items()
            if not overlap["sources_in_train"]
        ]
        if clean:
            yield f"overlap: no source sentence of {', '.join(clean)} is in the training data"
        if self.unchecked:
            names = ", ".join(self.unchecked)
            yield f"overlap: not compared with {names}, which might have to be downloaded"
