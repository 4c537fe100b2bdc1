"""What becomes of the pairs, as it is counted and listed in both passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import compress
from pathlib import Path
from typing import Any, Self

from nmt.data.filters import FilterChain
from nmt.data.findings import DROPPED, REPORTED, Found, ReasonCounts, open_table
from nmt.data.prepared import KEPT, READ, TRAIN
from nmt.errors import DataError

_COLUMNS = "corpus", "line", "reason", "value", "limit"


class Records:
    """Counts of each corpus, findings of the training pairs, and both lists of findings.

    Args:
        folder: Where to write the lists.
        filters: Of the pairs of each part.
    """

    def __init__(self, folder: Path, filters: dict[str, FilterChain]) -> None:
        self._actions = {part: each.actions for part, each in filters.items()}
        self._files = ExitStack()
        self._dropped, self._reported = (
            self._files.enter_context(open_table(folder / name, *_COLUMNS))
            for name in (DROPPED, REPORTED)
        )
        self._reasons = ReasonCounts()
        self._counts: dict[str, Counter[str]] = {}

    def of(self, corpus: str) -> Counter[str]:
        """Return the counts of a corpus: pairs read, kept, and dropped for each reason."""
        return self._counts.setdefault(corpus, Counter({READ: 0, KEPT: 0}))

    def add(self, part: str, found: Sequence[Found]) -> None:
        """Count findings and write them to the lists."""
        actions = self._actions[part]
        drops = [actions.get(each.finding.reason, "drop") == "drop" for each in found]
        rows = [each.row() for each in found]
        self._dropped.write(b"".join(compress(rows, drops)))
        if part == TRAIN:
            self._reasons.update(found)
            self._reported.write(b"".join(compress(rows, (not each for each in drops))))

    def check_kept(self, part: str, corpora: Iterable[str]) -> None:
        """Check that some pair of some corpora is left.

        Raises:
            DataError: None is; says why.
        """
        reasons = sum(map(self.of, corpora), Counter[str]())
        if reasons[KEPT]:
            return
        counted = ", ".join(f"{what} {n:,}" for what, n in reasons.most_common() if what != READ)
        raise DataError(
            f"No {'training' if part == TRAIN else 'validation'} pair is left after the filters. "
            f"Dropped: {counted or 'nothing'}.",
            fix="Check the files, or relax the filters section.",
        )

    def report(self, corpora: Iterable[str]) -> dict[str, Any]:
        """Return ``counts``, ``findings`` and ``reasons`` of a `PrepareReport`.

        Args:
            corpora: Names of the training corpora.
        """
        return {
            "counts": {
                name: {what: n for what, n in counts.items() if n or what in (READ, KEPT)}
                for name, counts in self._counts.items()
            },
            "findings": self._reasons.reported(corpora, self._actions[TRAIN]),
            "reasons": self._reasons.report(self._actions[TRAIN]),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()
