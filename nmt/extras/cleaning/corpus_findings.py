"""What the whole training data says of single pairs: repetitions, low scores, misaligned ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nmt.data.findings import Finding
from nmt.extras.cleaning.ranges import Range
from nmt.extras.cleaning.repeats import Repeats
from nmt.extras.cleaning.scores import LineScores


@dataclass(slots=True)
class CorpusFindings:
    """Findings of pairs that the first pass has kept; asked for in the order of the corpora."""

    repeats: Repeats
    scores: Sequence[LineScores]
    ranges: Mapping[str, Sequence[Range]]
    """Per corpus; empty if pairs in them have no reason."""
    _seen: int = field(default=0, init=False)

    def of_block(
        self, corpus: str, start: int, is_kept: npt.NDArray[np.bool_]
    ) -> dict[int, list[Finding]]:
        """Return the findings of a block of a corpus, by the line's place in it.

        Args:
            corpus: Its name.
            start: Lines of the corpus before the block.
            is_kept: Whether the first pass has kept each line of the block.
        """
        rows, first, stop = np.flatnonzero(is_kept), self._seen, start + len(is_kept)
        self._seen += len(rows)
        repeated = self.repeats.between(first, self._seen)
        found = {int(rows[row - first]): list(each) for row, each in repeated.items()}
        for scores in self.scores:
            for place, finding in scores.low(corpus, start, stop).items():
                found.setdefault(place, []).append(finding)
        for each in self.ranges.get(corpus, ()):
            value = "unrelated" if each.offset is None else float(each.offset)
            for line in range(max(each.start - 1, start), min(each.end, stop)):
                found.setdefault(line - start, []).append(Finding("misaligned", value))
        return found
