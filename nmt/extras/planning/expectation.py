"""What to expect from a corpus, by the scores that models of similar corpora have reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.installation import read_toml

_SIMILAR = 2  # Largest ratio of the sizes of two similar corpora.
FEW_PAIRS = 50_000  # With fewer pairs, a pretrained model is a better start.


@dataclass(frozen=True)
class Measured:
    """Scores of models that were trained with nmt on a number of pairs, on one machine."""

    corpus: str
    pairs: int
    bleu: Sequence[float]  # One for each of ``minutes``.
    minutes: Sequence[float]  # Times of training, ascending. Empty if nobody wrote them down.
    machine: str  # A result of `nmt.device.precision.kind_of_machine`.
    threads: int

    def __str__(self) -> str:
        return f"{self.corpus}, {self.pairs:,} pairs: {self.best}"

    @property
    def best(self) -> float:
        """The highest score."""
        return max(self.bleu)

    def ratio(self, num_pairs: int) -> float:
        """Return the ratio of the larger number of pairs to the smaller one."""
        smaller, larger = sorted((self.pairs, num_pairs))
        return larger / max(smaller, 1)

    def times(self) -> str:
        """Return the scores after minutes, in words."""
        steps = zip(self.bleu, self.minutes, strict=True)
        scores = ", ".join(f"{bleu} BLEU after {minutes:g} minutes" for bleu, minutes in steps)
        cores = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{scores} ({self.corpus}, {self.pairs:,} pairs, {cores})"


_MEASURED = [Measured(**row) for row in read_toml(__file__, "expectation.toml")["measured"]]


def expected_quality(num_pairs: int) -> str:
    """Return the range of BLEU that was measured with about as many pairs, and with which corpora.

    >>> expected_quality(180_000)
    'about 44 BLEU (measured: Tatoeba en-de, 163,691 pairs: 44.1)'
    """
    similar = [row for row in _MEASURED if row.ratio(num_pairs) <= _SIMILAR]
    prefix = "about"
    if not similar and num_pairs < _MEASURED[0].pairs:
        similar = [row for row in _MEASURED if row.pairs == _MEASURED[0].pairs]
        prefix = "less than"
    if not similar:
        largest = _MEASURED[-1]
        return f"not measured for so many pairs; the largest measured corpus is {largest}"
    similar.sort(key=lambda row: row.best)
    ends = similar[:1]
    if len(similar) > 1:
        ends.append(similar[-1])
    numbers = " to ".join(f"{row.best:.0f}" for row in ends)
    return f"{prefix} {numbers} BLEU (measured: {'; '.join(map(str, ends))})"


def expected_time(num_pairs: int, machine: str) -> str:
    """Return what was measured on this kind of machine with about as many pairs.

    >>> expected_time(180_000, "CPU with bfloat16")
    '44.1 BLEU after 68 minutes (Tatoeba en-de, 163,691 pairs, 1 thread)'
    >>> expected_time(180_000, "abacus")
    'not measured here with about as many pairs'
    """
    rows = [row for row in _MEASURED if row.machine == machine]
    similar = [row for row in rows if row.ratio(num_pairs) <= _SIMILAR]
    if not similar:
        return "not measured here with about as many pairs"
    smallest = min(row.ratio(num_pairs) for row in similar)
    nearest = [row.times() for row in similar if row.ratio(num_pairs) == smallest]
    return "; ".join(nearest)
