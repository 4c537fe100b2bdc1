"""How much of a source its translation speaks of. Loads no torch.

A source token is covered if one of the target tokens that most often translate it, by the short
lists of the training data, stands in the output. Tokens that stand in nearly every output, such as
articles and full stops, cover nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from nmt.runtime.shortlist_file import ShortlistFile

_LIKELIEST = 10  # translations of a token that count
_TOO_COMMON = 50  # most frequent target tokens that do not


class SourceCoverage:
    """Compares sources with outputs.

    Args:
        common: Target ids, the most frequent first.
        candidates: Target ids for each source token, the likeliest first; -1 where there are fewer.
    """

    def __init__(self, common: Sequence[int], candidates: Sequence[Sequence[int]]) -> None:
        self._nothing = {-1, *common[:_TOO_COMMON]}
        self._candidates = candidates
        self._known: dict[int, frozenset[int]] = {}  # of the tokens that came so far

    @classmethod
    def load(cls, file: ShortlistFile) -> Self | None:
        """Return one by the short lists of a file; None if there is none.

        Raises:
            CheckpointError: It is damaged.
        """
        parts: Any = file.parts  # its rows are as good as sequences
        return parts and cls(parts.common.tolist(), parts.candidates)

    def share(self, source: Sequence[int], output: Sequence[int]) -> float:
        """Return the part of the source tokens that the output covers, smoothed; 1 at most.

        Tokens without translations do not count.

        >>> of = SourceCoverage([], [[], [4], [5, 6], [7]])
        >>> of.share([1, 2, 3, 0], [4, 6]), of.share([0, 0], [9])
        (0.75, 1.0)
        """
        known = [tokens for token in source if (tokens := self._translations(token))]
        written = set(output)
        covered = sum(not written.isdisjoint(tokens) for tokens in known)
        return (covered + 1) / (len(known) + 1)

    def _translations(self, token: int) -> frozenset[int]:
        found = self._known.get(token)
        if found is None:
            likeliest = {int(target) for target in self._candidates[token][:_LIKELIEST]}
            found = self._known[token] = frozenset(likeliest - self._nothing)
        return found
