"""Cheap signs that a corpus is not what it should be. They warn, and never drop a pair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nmt.data.languages import common_words, letters_of, script_of

_IDENTICAL_SHARE = 0.1
_FEWEST_LINES = 100
_LOW_CORRELATION = 0.3
_LANGUAGE_PAIRS = 5000


def _mark(language: str) -> re.Pattern[str] | None:
    """Return what is frequent in a language and rare in others; None for unknown languages."""
    if words := common_words(language):
        return re.compile(rf"\b(?:{'|'.join(sorted(words))})\b", re.IGNORECASE)
    script = script_of(language)
    return letters_of(script) if script not in (None, "Latn") else None


class CorpusCheck:
    """Looks at the pairs of one corpus as they pass, block by block.

    Args:
        source_language: Code of the language that the source should be in.
        target_language: The same of the target.
    """

    def __init__(self, source_language: str, target_language: str) -> None:
        self._identical = 0
        self._num_pairs = 0
        self._languages = (source_language, target_language)
        self._marks = tuple(map(_mark, self._languages))
        self._marked = np.zeros((2, 2))  # characters of the marks of a language, on a side
        self._characters = np.zeros(2)  # of the first pairs, on each side
        self._alignment = _Alignment()

    def update(self, pairs: Sequence[tuple[str, str]], lengths: npt.NDArray[np.int64]) -> None:
        """Look at a block.

        Args:
            pairs: The pairs that can be used.
            lengths: Characters of source and target of every line of the block, 0 for what could
                not be read. (2, lines).
        """
        first = pairs[: max(_LANGUAGE_PAIRS - self._num_pairs, 0)]
        for side in range(2) if first else ():
            text = "\n".join(pair[side] for pair in first)
            self._characters[side] += len(text)
            for language, mark in enumerate(self._marks):
                if mark is not None:
                    self._marked[language, side] += sum(map(len, mark.findall(text)))
        self._num_pairs += len(pairs)
        self._alignment.update(lengths)
        self._identical += sum(source == target for source, target in pairs)

    def warnings(self) -> Iterator[str]:
        """Yield what a person should look at, as sentences."""
        if self._identical > _IDENTICAL_SHARE * self._num_pairs:
            share = self._identical / self._num_pairs
            yield f"{share:.0%} of the pairs have identical sides: is one file given twice?"
        shares = self._marked / np.maximum(self._characters, 1)
        known = [i for i in range(2) if self._marks[i] is not None]
        if known and all(shares[i, 1 - i] > 3 * shares[i, i] + 0.02 for i in known):
            source, target = self._languages
            yield (
                f"the source looks like {target} and the target like {source}: "
                "are the sides swapped?"
            )
        yield from self._alignment.warnings()


class _Alignment:
    """Compares the lengths of both sides: lines that translate each other are of like length."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, 3))  # of products of (1, source, target), over all lines

    def update(self, lengths: npt.NDArray[np.int64]) -> None:
        values = np.vstack((np.ones(lengths.shape[1]), np.log1p(lengths)))
        self._sums += values @ values.T

    def warnings(self) -> Iterator[str]:
        mean = self._sums / max(self._sums[0, 0], 1)
        covariance = mean[1:, 1:] - np.outer(mean[0, 1:], mean[0, 1:])
        spread = np.sqrt(np.diag(covariance).clip(0).prod())
        correlation = covariance[0, 1] / spread if spread > 1e-9 else 1.0
        if self._sums[0, 0] >= _FEWEST_LINES and correlation < _LOW_CORRELATION:
            yield (
                f"the lengths of the sides hardly agree (correlation {correlation:.2f}): do they "
                "translate each other?"
            )
