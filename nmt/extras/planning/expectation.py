"""What to expect from a corpus, by the scores that models of similar corpora have reached."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.installation import read_toml

_SIMILAR = 2  # Largest ratio of the sizes of two similar corpora.
FEW_PAIRS = 50_000  # With fewer pairs, a pretrained model is a better start.


@dataclass(frozen=True)
class Measured:
    """BLEU of a model that was trained with nmt on a number of pairs."""

    corpus: str
    pairs: int
    bleu: float

    def __str__(self) -> str:
        return f"{self.corpus}, {self.pairs:,} pairs: {self.bleu}"


_MEASURED = [Measured(**row) for row in read_toml(__file__, "expectation.toml")["measured"]]


def expected_quality(num_pairs: int) -> str:
    """Return the range of BLEU that was measured with about as many pairs, and with which corpora.

    >>> expected_quality(180_000)
    'about 44 BLEU (measured: Tatoeba en-de, 163,691 pairs: 44.1)'
    """
    similar = [
        row for row in _MEASURED if row.pairs <= num_pairs * _SIMILAR <= row.pairs * _SIMILAR**2
    ]
    prefix = "about"
    if not similar and num_pairs < _MEASURED[0].pairs:
        similar = [row for row in _MEASURED if row.pairs == _MEASURED[0].pairs]
        prefix = "less than"
    if not similar:
        largest = _MEASURED[-1]
        return f"not measured for so many pairs; the largest measured corpus is {largest}"
    similar.sort(key=lambda row: row.bleu)
    ends = dict.fromkeys((similar[0], similar[-1]))  # one of them if they are the same
    numbers = " to ".join(f"{row.bleu:.0f}" for row in ends)
    return f"{prefix} {numbers} BLEU (measured: {'; '.join(map(str, ends))})"
