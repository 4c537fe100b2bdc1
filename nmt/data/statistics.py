"""Figures of one side of the training data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nmt.data.prepared import SideReport
from nmt.data.store import FlatIds
from nmt.text.tokenizer import Tokenizer


class SideStatistics:
    """Adds up the figures of a `SideReport`, block by block."""

    def __init__(self, language: str, tokenizer: Tokenizer, max_length: int) -> None:
        self._language = language
        self._lengths = np.zeros(max_length + 1, dtype=np.int64)
        self._uses = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        self._is_fallback = np.array([*map(tokenizer.is_fallback, range(tokenizer.vocab_size))])

    def update(self, rows: FlatIds) -> None:
        """Count the ids of kept sentences."""
        self._lengths += np.bincount(rows.lengths, minlength=len(self._lengths))
        self._uses += np.bincount(rows.ids, minlength=len(self._uses))

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
            max_length=int(np.flatnonzero(self._lengths)[-1]),
            fallback_rate=int(self._uses[self._is_fallback].sum()) / tokens,
            num_used=int((self._uses > 0).sum()),
            num_for_most=_entries_for(self._uses, 0.99),
            lengths=self._lengths[: int(np.searchsorted(upto, 0.999 * sentences)) + 1].tolist(),
        )


def _entries_for(uses: npt.NDArray[np.int64], share: float) -> int:
    """Return how many of the most frequent entries make up a share of all subwords."""
    upto = np.cumsum(np.sort(uses)[::-1])
    return int(np.searchsorted(upto, share * upto[-1])) + 1
